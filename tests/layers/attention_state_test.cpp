#include "layers/attention_cache.h"
#include "tests/layers/harness.h"

namespace {

std::string model(const std::string& attention, int64_t layers = 2) {
  return R"({"vocab_size": 17, "hidden_size": 11, "num_layers": )" + std::to_string(layers) +
         R"(, "layers": {"x": {"type": "attention", "num_heads": 2, "num_kv_heads": 1, "head_dim": 6, "value_head_dim": 5, )" +
         attention +
         R"(}, "mlp": {"type": "relu2", "intermediate_size": 9, "token_shift": true}}, "pattern": [{"mixer": "x", "ffn": "mlp"}]})";
}

const std::vector<std::string>& layers() {
  static const std::vector<std::string> all = {
      R"("rope": {"theta": 30.0})",
      R"("rope": {"theta": 30.0, "dims": 2}, "window": 7, "qk_norm": "l2", "gate": "head", "token_shift": true)",
      R"("window": 1)",
      R"("block_window": {"size": 4, "blocks": 3}, "rope": {"theta": 30.0})",
      R"("block_window": {"size": 5, "blocks": 1}, "token_shift": true)",
      R"("block_window": {"size": 1, "blocks": 4})",
      R"("qk_norm": "layer", "token_shift": true, "value_residual": "gated", "value_residual_source": "embedding")"};
  return all;
}

std::vector<double> one_pass(TestModel& m, const TraceInput& input) { return m.run(input, reading({})).logits.values; }

std::vector<int64_t> random_split(int64_t length, uint32_t longest, uint64_t seed) {
  Rng rng(seed, "split");
  std::vector<int64_t> parts;
  for (int64_t left = length; left > 0; left -= parts.back()) {
    parts.push_back(std::min<int64_t>(left, 1 + rng.below(longest)));
  }
  return parts;
}

}  // namespace

TEST_CASE("attention in steps and in random segments equals one pass", "[fast]") {
  for (const std::string& fields : layers()) {
    INFO(fields);
    TestModel m(model(fields), 3, 0.4);
    const int64_t length = 45;
    TraceInput input = random_input(3, length, 17);
    const std::vector<double> whole = one_pass(m, input);
    // 1e-13: decoding sums in another order.
    check_close("steps", m.steps(input), whole, 1e-13);
    check_close("one segment", m.segments(input, {length}), whole, 1e-13);
    for (uint64_t seed = 0; seed < 6; ++seed) {
      check_close("split", m.segments(input, random_split(length, seed < 3 ? 4 : 20, seed)), whole, 1e-13);
    }
  }
}

TEST_CASE("a document begins anew in a cache", "[fast]") {
  for (const std::string& fields : layers()) {
    INFO(fields);
    TestModel m(model(fields), 3, 0.4);
    TraceInput input = random_input(1, 61, 17);
    input.doc_ids = documents({1, 9, 20, 1, 1, 16, 13});
    const std::vector<double> whole = one_pass(m, input);
    check_close("steps", m.steps(input), whole, 1e-13);
    for (uint64_t seed = 0; seed < 6; ++seed) {
      check_close("split", m.segments(input, random_split(61, seed < 3 ? 4 : 25, seed)), whole, 1e-13);
    }
  }
}

TEST_CASE("a long prefill followed by steps crosses blocks of the decoder's keys", "[fast]") {
  // 600 keys: three blocks of 256 that threads share, and a cache that grew from 64 tokens.
  for (const std::string& fields : {layers()[0], std::string(R"("window": 300)")}) {
    TestModel m(model(fields, 1), 3, 0.3);
    const TraceInput input = random_input(1, 600, 17);
    const std::vector<double> whole = one_pass(m, input);
    std::vector<int64_t> parts = {30, 60, 480};
    parts.resize(33, 1);
    check_close("steps", m.segments(input, parts), whole, 1e-13);
  }
}

TEST_CASE("rows whose documents began at different times share a cache", "[fast]") {
  // Two rows; row 0 starts documents at 10 and 31, row 1 at 25.
  const std::vector<std::vector<int64_t>> starts = {{0, 10, 31}, {0, 25}};
  for (const std::string& fields : {layers()[0], layers()[1], layers()[3]}) {
    INFO(fields);
    TestModel m(model(fields), 3, 0.4);
    const int64_t length = 50;
    TraceInput input = random_input(2, length, 17);
    const auto document_start = [&](int64_t row, int64_t t) {
      int64_t start = 0;
      for (const int64_t s : starts[static_cast<size_t>(row)]) { start = s <= t ? s : start; }
      return start;
    };
    for (int64_t i = 0; i < 2 * length; ++i) { input.doc_ids.push_back(document_start(i / length, i % length)); }
    const std::vector<double> whole = one_pass(m, input);
    const auto state = m.model->make_state(m.arena, 2);
    for (int64_t t = 0; t < length; ++t) {
      const Rows rows =
          Rows::documents(m.stream, m.arena, 2, 1, {0, 0}, {t - document_start(0, t), t - document_start(1, t)});
      const std::vector<double> logits = m.logits_of(rows, part(input, t, 1).inputs, state.get());
      for (int64_t b = 0; b < 2; ++b) {
        const std::vector<double> now(logits.begin() + b * 17, logits.begin() + (b + 1) * 17);
        const auto expected = whole.begin() + (b * length + t) * 17;
        check_close("row " + std::to_string(b) + " token " + std::to_string(t), now, {expected, expected + 17}, 1e-12);
      }
    }
  }
}

TEST_CASE("the cache of full attention drops documents that have ended", "[fast]") {
  Stream stream;
  Arena arena(DeviceKind::cpu), work(DeviceKind::cpu);
  AttentionCache cache(arena, 1, 1, 16, 16, DType::f32, {});
  const int64_t before = arena.in_use_bytes(), length = 30;
  std::vector<int64_t> ids(static_cast<size_t>(length), 1);
  std::fill_n(ids.begin(), 10, 0);  // 10 tokens of the document before, 20 of a new one
  for (int segment = 0; segment < 20; ++segment) {
    const Rows rows = Rows::documents(stream, work, 1, length, ids, segment > 0 ? 20 : 0);
    Tape tape(stream, work, false);
    Pass pass{tape, rows};
    const Buffer x(work, {length, 16}, DType::f32, "x");
    fill_zero(stream, x);
    const Var v = tape.constant(x);
    cache.attend(pass, v, v, v, 1, 1.0);
  }
  CHECK(arena.in_use_bytes() == before);  // room for 64 tokens, as at the start
}

/// One head of 16 zeros reads token t.
static void attend_token(Stream& stream, Arena& work, AttentionCache& cache, int64_t t) {
  const Rows rows = Rows::streams(stream, work, 1, 1, t);
  Tape tape(stream, work, false);
  Pass pass{tape, rows};
  const Buffer x(work, {1, 16}, DType::f32, "x");
  fill_zero(stream, x);
  const Var v = tape.constant(x);
  cache.attend(pass, v, v, v, 1, 1.0);
}

TEST_CASE("launches of a step of full attention depend on the room of its cache, and end with it", "[fast]") {
  Stream stream;
  Arena arena(DeviceKind::cpu), work(DeviceKind::cpu);
  AttentionCache cache(arena, 1, 1, 16, 16, DType::f32, {}), ring(arena, 1, 1, 16, 16, DType::f32, {10, 0, 0});
  for (int64_t t = 0; t < 65; ++t) {
    CHECK(cache.launches({.position = t}) == (t == 64 ? std::nullopt : std::optional<int64_t>(64)));
    CHECK_FALSE(cache.launches({.position = t + 1}));
    CHECK(ring.launches({.position = t}) == 0);
    attend_token(stream, work, cache, t);
  }
  CHECK(cache.launches({.position = 65}) == 128);
}

TEST_CASE("the cache of full attention doubles, and a ring keeps its size", "[fast]") {
  const auto bytes_after = [](const KeyRange& range, int64_t tokens) {
    Stream stream;
    Arena arena(DeviceKind::cpu), work(DeviceKind::cpu);
    AttentionCache cache(arena, 1, 1, 16, 16, DType::f32, range);
    for (int64_t t = 0; t < tokens; ++t) { attend_token(stream, work, cache, t); }
    return arena.in_use_bytes();
  };
  constexpr int64_t kToken = 2 * 16 * 4;  // key and value
  CHECK(bytes_after({}, 64) == 64 * kToken);
  CHECK(bytes_after({}, 65) == 128 * kToken);
  CHECK(bytes_after({}, 200) == 256 * kToken);
  CHECK(bytes_after({10, 0, 0}, 200) == 10 * kToken);
  CHECK(bytes_after({0, 4, 3}, 200) == 12 * kToken);
}
