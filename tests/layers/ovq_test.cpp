#include "kernels/ovq/dictionary.h"
#include "layers/ovq/op.h"
#include "tests/kernels/tensors.h"
#include "tests/layers/every_layer.h"

namespace {

std::string ovq_json(const std::string& options, int64_t layers = 2) {
  return small_model_json(R"("type": "ovq", "head_dim": 5, )" + options, layers);
}

const std::vector<std::string> kVariants = {
    R"("num_heads": 2, "chunk_size": 4, "max_centroids": 6)",
    R"("num_heads": 4, "num_kv_heads": 2, "value_head_dim": 3, "chunk_size": 3, "max_centroids": 5, )"
    R"("centroid_lr": 0.3)",
    R"("num_heads": 2, "chunk_size": 5, "max_centroids": 4, "normalize_centroids": "key", )"
    R"("qk_conv": 3, "v_shift": true)",
    R"("num_heads": 2, "num_kv_heads": 1, "chunk_size": 3, "max_centroids": 7, )"
    R"("normalize_centroids": "key_value", "centroid_lr": 0.25, "growth": "linear", "growth_length": 20)",
    R"("num_heads": 1, "value_head_dim": 7, "chunk_size": 4, "max_centroids": 9, "growth": "full", )"
    R"("select": "random", "v_shift": true)",
    R"("num_heads": 2, "chunk_size": 1, "max_centroids": 3, "v_shift": true, "qk_conv": 2)",
};

/// The op alone, one head, one row.
struct Alone : Tensors {
  OvqRule rule;

  Alone(int64_t chunk, int64_t centroids) : Tensors(DType::f64) {
    rule.chunk = chunk;
    rule.max_centroids = centroids;
  }
  std::vector<double> run(const std::vector<double>& q, const std::vector<double>& k, const std::vector<double>& v,
                          int64_t key_dim, OvqState* state, std::vector<int64_t>* ids = nullptr) {
    const int64_t length = static_cast<int64_t>(q.size()) / key_dim;
    const Rows rows = Rows::streams(stream, arena, 1, length);
    Tape tape(stream, arena, false);
    Pass pass{tape, rows};
    Inspector inspector;
    inspector.recording = true;
    pass.inspector = &inspector;
    const auto upload = [&](const std::vector<double>& values, int64_t width) {
      return tape.constant(make({length, width}, values));
    };
    const int64_t value_dim = static_cast<int64_t>(v.size()) / length;
    const Var o = ovq_attention(pass, upload(q, key_dim), upload(k, key_dim), upload(v, value_dim),
                                {1, 1, key_dim, value_dim}, rule, state, "x");
    if (ids != nullptr) { *ids = inspector.records.at("x.assign").integers; }
    return read(tape.value(o));
  }
};

}  // namespace

TEST_CASE("dictionary sizes follow the growth rules", "[ovq][fast]") {
  OvqRule rule;
  rule.chunk = 128;
  rule.max_centroids = 2048;
  std::vector<int64_t> sizes;
  for (int64_t c = 0; c <= 8; ++c) { sizes.push_back(rule.size(c * 128)); }
  CHECK(sizes == std::vector<int64_t>{0, 120, 227, 323, 409, 487, 558, 623, 682});
  CHECK(rule.size(4096) == 1365);
  CHECK(rule.size(65536) == 1985);
  rule.growth = OvqGrowth::linear;
  rule.growth_length = 4096;
  CHECK(rule.size(4096) == 1365);
  CHECK(rule.size(int64_t{1} << 40) == 2048);
  rule.growth = OvqGrowth::plateau;
  rule.max_centroids = INT64_MAX;  // t N does not fit into 64 bits
  CHECK(rule.size(4096) == 4095);
  rule.growth = OvqGrowth::linear;
  rule.growth_length = INT64_MAX;
  CHECK(rule.size(4096) == 2048);
}

TEST_CASE("the example of two-dimensional keys has the published ids, centroids and outputs", "[ovq][fast]") {
  Alone op(4, 8);
  std::vector<double> q, k, v;
  const double degrees[] = {0, 100, 10, 200, 20, 110, 300, 190, 60, 5};
  for (int t = 0; t < 10; ++t) {
    const double phi = degrees[t] * std::acos(-1.0) / 180;
    k.insert(k.end(), {std::cos(phi), std::sin(phi)});
    q.insert(q.end(), {2 * std::cos(phi), 2 * std::sin(phi)});
    v.push_back(t);
  }
  std::vector<int64_t> ids;
  const std::vector<double> o = op.run(q, k, v, 2, nullptr, &ids);
  CHECK(ids == std::vector<int64_t>{0, 0, 0, 1, 0, 2, 3, 1, -1, -1});
  // 1e-6: the digits of the example.
  check_close("o", o, {0, .912719, 1.014215, 2.760278, 2.140425, 3.561497, 4.463708, 4.862876, 4.004212, 4.564854}, 0,
              1e-6);
  OvqState state(op.arena, 1, {1, 1, 2, 1}, 8, 4, DType::f64);
  CHECK(op.run(q, k, v, 2, &state) == o);
  const auto first = [&](const Buffer& b, size_t n) {
    std::vector<double> values = Tensors::read(b);
    values.resize(n);
    return values;
  };
  check_close("keys", first(state.keys, 8), {.687713, .375119, -.96225, -.257834, -.34202, .939693, .5, -.866025}, 0,
              1e-6);
  check_close("values", first(state.values, 4), {1.75, 5, 5, 6}, 0, 1e-12);
  std::vector<int32_t> counts(8);
  copy_to_host(op.stream, counts.data(), state.counts);
  CHECK(std::vector<int32_t>(counts.begin(), counts.begin() + 4) == std::vector<int32_t>{4, 2, 1, 1});
}

TEST_CASE("the least similar keys found centroids", "[ovq][fast]") {
  std::vector<double> keys = {1, 0, 0, .1, .2, .1, 0, .9, 0, .3, .3, .3, .2, .2, .1};
  std::vector<double> unit = {1, 0, 0, 0, 1, 0, 0, 0, 1};
  OvqRule rule;
  rule.chunk = 5;
  cpu::OvqHeadDictionary<double> dictionary{unit.data(), nullptr, nullptr, nullptr, 3, 0, 3};
  cpu::OvqWork<double> work;
  const auto assign = [&](int64_t n, int64_t size) {
    dictionary.n = n;
    std::vector<int32_t> ids(5);
    cpu::ovq_assign<double>(rule, dictionary, {keys.data(), 3, 3}, size, 0, 0, work, ids.data());
    return ids;
  };
  CHECK(assign(3, 5) == std::vector<int32_t>{0, 3, 1, 0, 4});
  CHECK(assign(3, 3) == std::vector<int32_t>{0, 1, 1, 0, 0});
  CHECK(assign(0, 3) == std::vector<int32_t>{0, 1, 2, 0, 0});
}

TEST_CASE("ovq has the properties of layers for every variant", "[ovq][fast]") {
  for (const std::string& variant : kVariants) { check_layer("ovq", R"("head_dim": 5, )" + variant); }
}

TEST_CASE("ovq is attention within a chunk, and everywhere with every key a centroid", "[ovq][fast]") {
  const std::string heads = R"("head_dim": 5, "num_heads": 4, "num_kv_heads": 2, "value_head_dim": 3)";
  TestModel plain(small_model_json(R"("type": "attention", "qk_norm": "l2", )" + heads), 3, 0.4);
  TraceInput input = random_input(2, 19);
  set_documents(input, {{19}, {8, 11}});
  const TraceOutput expected = plain.run(input);
  for (const char* rest :
       {R"(, "chunk_size": 19, "max_centroids": 3)", R"(, "chunk_size": 2147483647, "max_centroids": 3)",
        R"(, "chunk_size": 4, "max_centroids": 19, "growth": "full")",
        R"(, "chunk_size": 4, "max_centroids": 2147483647, "growth": "full")"}) {
    INFO(rest);
    TestModel m(small_model_json(R"("type": "ovq", )" + heads + rest), 4, 0.4);
    m.copy_from(plain);
    check_same_outputs(m.run(input), expected, 1e-11);
  }
}

TEST_CASE("evaluation uses eval_max_centroids and training ignores it", "[ovq][fast]") {
  const std::string rest = R"("num_heads": 2, "chunk_size": 3, "max_centroids": )";
  TestModel small(ovq_json(rest + "4"), 3, 0.4), large(ovq_json(rest + "9"), 3, 0.4),
      both(ovq_json(rest + R"(4, "eval_max_centroids": 9)"), 3, 0.4);
  const TraceInput input = random_input(1, 26);
  const TraceOptions training, evaluation = reading({});
  CHECK(both.run(input, training).logits.values == small.run(input, training).logits.values);
  CHECK(both.run(input, evaluation).logits.values == large.run(input, evaluation).logits.values);
  CHECK(small.run(input, evaluation).logits.values != large.run(input, evaluation).logits.values);
  check_close("steps", both.steps(input), large.run(input, evaluation).logits.values, 1e-11);
}

TEST_CASE("a million equal keys and zero rows stay finite with exact counts", "[ovq]") {
  constexpr int64_t kLength = 1000000;
  for (const double rate : {0.0, 0.25}) {
    for (const double key : {0.6, 0.0}) {
      Alone op(16, 3);
      op.rule.growth = OvqGrowth::full;  // the plateau stays below 3
      op.rule.rate = rate;
      OvqState state(op.arena, 1, {1, 1, 1, 1}, 3, 16, DType::f64);
      const std::vector<double> k(kLength, key), v(kLength, 2.0);
      const std::vector<double> o = op.run(k, k, v, 1, &state);
      CHECK(std::abs(o.back() - 2.0) < 1e-9);  // rounding of a million steps
      std::vector<int32_t> counts(3);
      copy_to_host(op.stream, counts.data(), state.counts);
      CHECK(counts[0] + counts[1] + counts[2] == kLength);
      for (const double x : Tensors::read(state.keys)) { CHECK(std::abs(x - key) < 1e-9); }
    }
  }
}

TEST_CASE("forced centroids are checked", "[ovq][fast]") {
  const std::string layer = R"("num_heads": 1, "chunk_size": 3, "max_centroids": 4, "growth": "full")";
  TestModel m(ovq_json(layer, 1), 3, 0.4);
  const TraceInput input = random_input(1, 7);
  TraceOptions options = inside();
  const TraceOutput first = m.run(input, options);
  options.forced = first.inside;
  auto& ids = options.forced.at("blocks.0.mixer.assign").integers;
  CHECK(ids[6] == -1);
  CHECK(m.run(input, options).logits.values == first.logits.values);
  ids[1] = 3;
  CHECK_THROWS_WITH(m.run(input, options), Contains("found 3, expected 0 to 2"));
  ids[1] = ids[0];
  CHECK_THROWS_WITH(m.run(input, options), Contains("no key for the new centroid"));
  ids.pop_back();
  CHECK_THROWS_WITH(m.run(input, options), Contains("found 6 integers, expected 7"));
}

TEST_CASE("broken ovq configurations are explained", "[ovq][fast]") {
  const auto read = [](const std::string& options) {
    read_model(ovq_json(R"("num_heads": 4, "max_centroids": 3, )" + options));
  };
  CHECK_THROWS_WITH(read(R"("num_kv_heads": 3)"), Contains("a divisor of num_heads (4)"));
  CHECK_THROWS_WITH(read(R"("growth": "linear")"), Contains("an integer >= 1 with growth \"linear\""));
  CHECK_THROWS_WITH(read(R"("growth_length": 5)"), Contains("no value without growth \"linear\""));
  CHECK_THROWS_WITH(read(R"("centroid_lr": 1.5)"), Contains("\"mean\" or a number > 0, <= 1"));
  CHECK_THROWS_WITH(read(R"("centroid_lr": "fast")"), Contains("\"mean\" or a number > 0, <= 1"));
  CHECK_THROWS_WITH(read(R"("qk_conv": 1)"), Contains("0 or an integer >= 2"));
}
