// kvm: configuration, forced decisions, rows, FLOPs and bytes.
#include "layers/kvm/budget.h"
#include "tests/layers/kvm_models.h"

namespace {

std::vector<int32_t> sizes_at(KvmBudget budget, int64_t tokens) {
  std::vector<int32_t> sizes;
  extend_sizes(budget, 256, 2, tokens / 256, sizes);
  return sizes;
}

KvmBudget power(double factor, double exponent) { return {.mode = "power", .factor = factor, .exponent = exponent}; }

}  // namespace

TEST_CASE("rows of a kvm state follow the budget", "[kvm][fast]") {
  const auto head = [](const std::vector<int32_t>& sizes) {
    return std::vector<int32_t>(sizes.begin(), sizes.begin() + 6);
  };
  const std::vector<int32_t> root = sizes_at(power(16, 0.5), 32768),
                             bounded = sizes_at({.mode = "saturate", .limit = 1024}, 8192);
  CHECK(head(root) == std::vector<int32_t>{0, 0, 256, 443, 512, 572});
  CHECK(root[8192 / 256 - 1] == 1425);
  CHECK(root.back() == 2884);
  CHECK(head(bounded) == std::vector<int32_t>{0, 0, 256, 438, 512, 568});
  CHECK(bounded.back() == 906);
  CHECK(head(sizes_at({.mode = "fixed", .rows = 600}, 2048)) == std::vector<int32_t>{0, 0, 256, 512, 600, 600});
  KvmBudget small = power(1, 0.5);  // asks for less than the first chunk: the state keeps what it has
  CHECK(head(sizes_at(small, 2048)) == std::vector<int32_t>{0, 0, 256, 256, 256, 256});
  KvmBudget all = power(1, 1);
  CHECK(head(sizes_at(all, 2048)) == std::vector<int32_t>{0, 0, 256, 512, 768, 1024});
  all.max_rows = 700;
  CHECK(head(sizes_at(all, 2048)) == std::vector<int32_t>{0, 0, 256, 512, 700, 700});
  KvmBudget stepped = power(16, 0.5);
  stepped.multiple = 100;
  CHECK(head(sizes_at(stepped, 2048)) == std::vector<int32_t>{0, 0, 256, 400, 500, 500});
  stepped.min_rows = 450;
  CHECK(head(sizes_at(stepped, 2048)) == std::vector<int32_t>{0, 0, 256, 450, 500, 500});
}

TEST_CASE("kvm refuses impossible configurations", "[kvm][fast]") {
  const auto read = [](const std::string& options, const std::string& state = R"({"mode": "fixed", "rows": 4})") {
    read_model(kvm_json(R"("num_heads": 4, "chunk_size": 4, "state": )" + state + options));
  };
  const auto refused = [&](const std::string& options, const std::string& message) {
    CHECK_THROWS_WITH(read(options), Contains("model.layers.x." + message));
  };
  const auto refused_state = [&](const std::string& state, const std::string& message) {
    CHECK_THROWS_WITH(read("", state), Contains("model.layers.x.state." + message));
  };
  CHECK_NOTHROW(read(""));
  refused(R"(, "num_kv_heads": 3)", "num_kv_heads: found 3, expected a divisor of num_heads (4)");
  refused(R"(, "sinks": 4)", "sinks: found 4, expected an integer below chunk_size (4)");
  refused(R"(, "window_chunks": 0)", "window_chunks: found 0");
  refused(R"(, "qk_norm": "l2")", "qk_norm: found \"l2\"");
  refused(R"(, "merge_gate": "some")", "merge_gate: found \"some\"");
  refused(R"(, "value_norm": "some")", "value_norm: found \"some\"");
  refused(R"(, "rope": {"theta": 10.0})", "rope.dims: found nothing, expected an even integer below head_dim (6)");
  refused(R"(, "rope": {"theta": 10.0, "dims": 6})", "rope.dims: found 6, expected an even integer below head_dim (6)");
  refused(R"(, "rope": {"theta": 10.0, "dims": 3})", "rope.dims: found 3, expected an even integer");
  refused_state(R"({"rows": 4})", "mode: found nothing");
  refused_state(R"({"mode": "fixed"})", "rows: found nothing, expected an integer (required with mode \"fixed\")");
  refused_state(R"({"mode": "fixed", "rows": 3})", "rows: found 3, expected an integer >= chunk_size (4)");
  refused_state(R"({"mode": "fixed", "rows": 4, "limit": 3})",
                "limit: found 3, expected no value without mode \"saturate\"");
  refused_state(R"({"mode": "fixed", "rows": 4, "min_rows": 3})", "min_rows: found 3, expected 1 with mode \"fixed\"");
  refused_state(R"({"mode": "fixed", "rows": 4, "multiple": 2})", "multiple: found 2");
  refused_state(R"({"mode": "fixed", "rows": 4, "max_rows": 3})",
                "max_rows: found 3, expected 0 or an integer >= chunk_size (4)");
  refused_state(R"({"mode": "power", "factor": 1.0})",
                "exponent: found nothing, expected a number (required with mode \"power\")");
  refused_state(R"({"mode": "power", "factor": 1.0, "exponent": 1.5})", "exponent: found 1.5");
  refused_state(R"({"mode": "power", "factor": 0, "exponent": 0.5})", "factor: found 0");
  refused_state(R"({"mode": "saturate"})",
                "limit: found nothing, expected an integer (required with mode \"saturate\")");
}

TEST_CASE("a written kvm configuration reads back as itself", "[kvm][fast]") {
  for (const std::string& variant : kvm_variants()) {
    INFO(variant);
    TestModel m(kvm_json(variant));
    const std::string text = Fields::write(m.config).dump();
    TestModel again(text);
    CHECK(Fields::write(again.config).dump() == text);
  }
}

TEST_CASE("initial values of kvm follow the page", "[kvm][fast]") {
  TestModel m(kvm_json(R"("num_heads": 2, "num_kv_heads": 1, "chunk_size": 4, "state": {"mode": "fixed", "rows": 4})"));
  const auto values = [&](const std::string& name) { return m.get(m.param("blocks.1.mixer." + name)); };
  const double bound = 1 / std::sqrt(14.0);
  for (const char* name : {"q_proj.weight", "k_proj.weight", "v_proj.weight", "merge_gate.weight"}) {
    INFO(name);
    double largest = 0;
    for (const double x : values(name)) { largest = std::max(largest, std::abs(x)); }
    CHECK(largest <= bound);
    CHECK(largest > 0.7 * bound);
    CHECK(m.param("blocks.1.mixer." + std::string(name)).decays());
  }
  CHECK(values("o_proj.weight") == std::vector<double>(14 * 12));
  for (const char* name : {"mem_norm.weight", "q_norm.weight"}) { CHECK(values(name) == std::vector<double>(6, 1.0)); }
  for (const char* name : {"mem_norm.bias", "k_norm.bias"}) { CHECK(values(name) == std::vector<double>(6)); }
  for (const char* name : {"window_temp", "state_temp"}) {
    CHECK(values(name) == std::vector<double>(2, 1.0));
    CHECK(!m.param("blocks.1.mixer." + std::string(name)).decays());
  }
}

TEST_CASE("forced kvm routes are checked", "[kvm][fast]") {
  TestModel m(kvm_json(R"("num_heads": 1, "chunk_size": 3, "sinks": 1, "state": {"mode": "fixed", "rows": 4})", 1), 3,
              0.4);
  const TraceInput input = random_input(1, 11);
  TraceOptions options = inside();
  const TraceOutput first = m.run(input, options);
  options.forced = first.inside;
  auto& row = options.forced.at("blocks.0.mixer.row").integers;
  auto& append = options.forced.at("blocks.0.mixer.append").integers;
  CHECK(std::vector<int64_t>(row.begin(), row.begin() + 3) == std::vector<int64_t>{0, 1, 2});
  CHECK(std::vector<int64_t>(row.begin() + 6, row.end()) == std::vector<int64_t>(5, -1));
  CHECK(std::vector<int64_t>(append.begin() + 6, append.end()) == std::vector<int64_t>(5, 0));
  CHECK(std::count(append.begin(), append.end(), 1) == 4);
  CHECK(m.run(input, options).logits.values == first.logits.values);
  const auto refused = [&](const std::string& message) { CHECK_THROWS_WITH(m.run(input, options), Contains(message)); };
  const auto good_row = row, good_append = append;
  const auto put = [&](std::vector<int64_t> rows, std::vector<int64_t> appends) {
    std::copy(rows.begin(), rows.end(), row.begin() + 3);
    std::copy(appends.begin(), appends.end(), append.begin() + 3);
  };
  put({1, 3, 2}, {0, 1, 0});
  CHECK_NOTHROW(m.run(input, options));
  put({0, 3, 2}, {0, 1, 0});
  refused("found 0, expected 1 to 3");  // a sink
  put({1, 3, 4}, {0, 1, 0});
  refused("found 4, expected 1 to 3");
  put({1, 2, 2}, {0, 1, 0});
  refused("found 2, expected 3, the next new row");
  put({1, 2, 2}, {0, 0, 0});
  refused("found 0 tokens appended, expected 1");
  put({1, 3, 2}, {0, 1, 2});
  refused("found 2, expected 0 or 1");
  row = good_row;
  append = good_append;
  row.pop_back();
  refused("found 10 integers, expected 11");
  options.forced.erase("blocks.0.mixer.row");
  refused("found 0 integers, expected 11 (row and append go together)");
}

TEST_CASE("kvm's FLOPs and state bytes follow the page's tables", "[kvm][fast]") {
  // One head of width 128 on a model of width 1: projections are small and known.
  const auto model = [](const std::string& state) {
    return R"({"vocab_size": 2, "hidden_size": 1, "num_layers": 1, "layers": {"x": {"type": "kvm", "num_heads": 1,
      "head_dim": 128, "chunk_size": 256, "merge_gate": "none", "state": )" +
           state +
           R"(}, "mlp": {"type": "swiglu", "intermediate_size": 1}}, "pattern": [{"mixer": "x", "ffn": "mlp"}]})";
  };
  struct Line {
    const char* state;
    int64_t tokens;
    double pairs, routed;
  };
  for (const Line& line : {Line{R"({"mode": "fixed", "rows": 256})", 8192, 616, 232},
                           Line{R"({"mode": "fixed", "rows": 256})", 32768, 634, 250},
                           Line{R"({"mode": "power", "factor": 16, "exponent": 0.5})", 8192, 1306, 885},
                           Line{R"({"mode": "power", "factor": 16, "exponent": 0.5})", 32768, 2298, 1893},
                           Line{R"({"mode": "saturate", "limit": 1024})", 8192, 1095, 690},
                           Line{R"({"mode": "saturate", "limit": 1024})", 32768, 1288, 898}}) {
    TestModel m(model(line.state));
    const double core = m.model->blocks()[0].mixer->flops_per_token(line.tokens) - 2.0 * 4 * 128;
    // The table's numbers are rounded to whole pairs.
    CHECK(std::abs(core - (4 * 128 * line.pairs + 2 * 128 * line.routed)) < 4 * 128 * 1.0 + 2 * 128 * 0.5);
  }
  TestModel m(model(R"({"mode": "fixed", "rows": 256})"));
  const auto bytes = [&](int64_t tokens) { return m.model->blocks()[0].mixer->state_bytes(tokens); };
  CHECK(bytes(0) == 0);
  CHECK(bytes(100) == 100 * 256 * 2);
  CHECK(bytes(512) == 512 * 256 * 2);
  CHECK(bytes(513) == 512 * 256 * 2 + 256 * (256 * 6 + 4));
  CHECK(bytes(1 << 20) == bytes(513));
}
