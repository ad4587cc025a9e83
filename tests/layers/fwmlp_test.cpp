#include <algorithm>

#include "core/parallel.h"
#include "tests/layers/fast_weights.h"

using namespace hebb;
using namespace hebb::testing;

namespace {

/// Blocks with a memory before a mixer that sees only its own token.
std::string model(const std::string& memory, int blocks = 1) {
  return R"({"vocab_size": 19, "hidden_size": 10, "num_layers": )" + std::to_string(blocks) + R"(, "norm_eps": 1e-5,
    "layers": {"a": {"type": "attention", "num_heads": 1, "head_dim": 4, "window": 1},
               "f": {"type": "swiglu", "intermediate_size": 7}, "m": {"type": "fwmlp", )" +
         memory + R"(}},
    "pattern": [{"memory": "m", "mixer": "a", "ffn": "f"}]})";
}

const std::string kSizes = R"("key_dim": 6, "value_dim": 7, "fast_dim": 5, "chunk_size": 4, "lr": 0.5)";

}  // namespace

TEST_CASE("fwmlp golden cases", "[fast]") { check_golden(GENERATE(from_range(golden_cases("fwmlp-")))); }

TEST_CASE("fwmlp gradients through the updates of a whole row equal difference quotients", "[fast]") {
  const std::string options = GENERATE(as<std::string>(), R"("lookahead": 1)", R"("lookahead": 2, "target": "mean")",
                                       R"("lookahead": 2, "target": "next")", R"("lookahead": 0, "gate": false)",
                                       R"("grad_clip": 0.02)", R"("value_norm": false, "gate_width": 1)");
  TestModel m(model(kSizes + ", " + options), DType::f64, 2, 0.5);
  check_gradients(m, random_input(2, 11, 19));
}

TEST_CASE("fwmlp gradients respect documents, and chunks without pairs hand them on", "[fast]") {
  TestModel m(model(kSizes), DType::f64, 2, 0.5);
  TraceInput input = random_input(1, 15, 19);
  input.doc_ids = documents({3, 1, 1, 1, 1, 1, 5, 2});
  check_gradients(m, input);
}

TEST_CASE("one update of fwmlp equals a gradient step by difference quotients", "[fast]") {
  // value_norm, gate and lookahead off: with w_down zero the prediction is b_down, and its step is
  // known: b_down - lr 2 / (P dv) sum (b_down - target).
  TestModel m(model(kSizes + R"(, "lookahead": 0, "gate": false)"), DType::f64, 3, 0.5);
  const auto set_constant = [&](const std::string& name, double value) {
    Param& p = m.param("blocks.0.memory." + name);
    m.set(p, std::vector<double>(static_cast<size_t>(p.value.numel()), value));
  };
  set_constant("w_down", 0);
  set_constant("b_down", 0.25);
  const FastWeights start = fast_weights(m);
  const TraceInput input = random_input(1, 3, 19);
  const FastWeights one = (m.run(input, {}), fast_weights(m));
  // The values are z-scores: their features sum to 0.
  double sum = 0;
  for (const double b : one.at("blocks.0.memory.b_down")) { sum += b; }
  CHECK(sum == Approx(7 * 0.25 * (1 - 0.5 * 2.0 / 7)).epsilon(1e-12));
  CHECK(one.at("blocks.0.memory.w_up") == start.at("blocks.0.memory.w_up"));  // no gradient passes w_down = 0
  CHECK(one.at("blocks.0.memory.w_down") != start.at("blocks.0.memory.w_down"));
}

TEST_CASE("clipped steps of fwmlp move by at most lr clip", "[fast]") {
  TestModel m(model(kSizes + R"(, "grad_clip": 0.01)"), DType::f64, 3, 0.5);
  const FastWeights start = fast_weights(m);
  m.run(random_input(2, 4, 19), {});
  double largest = 0;
  for (const auto& [name, values] : fast_weights(m)) {
    largest = std::max(largest, compare(values, start.at(name)).worst);
  }
  CHECK(largest == Approx(0.5 * 0.01).epsilon(1e-12));
}

TEST_CASE("without a gradient through the update of fwmlp only the last chunk's gradients agree", "[fast]") {
  const auto gradients = [&](const std::string& through, const TraceInput& input) {
    TestModel m(model(kSizes + R"(, "grad_through_update": ")" + through + "\""), DType::f64, 2, 0.5);
    return m.run(input).grads.at("blocks.0.memory.q_proj.weight").values;
  };
  const TraceInput input = random_input(2, 11, 19), one = part(input, 0, 4);
  CHECK(compare(gradients("full", input), gradients("none", input)).relative() > 1e-6);
  CHECK(gradients("full", one) == gradients("none", one));
}

TEST_CASE("a row of fwmlp equals its chunks one after the other, and changes reach later chunks only", "[fast]") {
  TestModel m(model(kSizes), DType::f64, 3, 0.5);
  const FastWeights start = fast_weights(m);
  TraceInput input = random_input(2, 11, 19);
  const std::vector<double> whole = m.run(input, {}).logits.values;
  const FastWeights after = fast_weights(m);
  set_fast_weights(m, start);
  for (const int64_t first : {0, 4, 8}) {
    const int64_t count = std::min<int64_t>(4, 11 - first);
    const std::vector<double> logits = m.run(part(input, first, count), {}).logits.values;
    for (int64_t b = 0; b < 2; ++b) {
      const std::vector<double> is(logits.begin() + b * count * 19, logits.begin() + (b + 1) * count * 19);
      const std::vector<double> expected(whole.begin() + (b * 11 + first) * 19,
                                         whole.begin() + (b * 11 + first + count) * 19);
      check_close("logits", is, expected, 1e-13);
    }
  }
  for (const auto& [name, values] : fast_weights(m)) { check_close(name, values, after.at(name), 1e-13); }
  set_fast_weights(m, start);
  input.inputs[5] = (input.inputs[5] + 1) % 19;  // row 0, chunk 1
  const std::vector<double> changed = m.run(input, {}).logits.values;
  for (int64_t t = 0; t < 22; ++t) {
    const bool same = std::equal(whole.begin() + t * 19, whole.begin() + (t + 1) * 19, changed.begin() + t * 19);
    CHECK(same == (t != 5 && t % 11 < 8));
  }
}

TEST_CASE("streams of fwmlp do not depend on their split, and equal rows without lookahead", "[fast]") {
  const int64_t lookahead = GENERATE(0, 1, 2);
  TestModel m(model(kSizes + R"(, "lookahead": )" + std::to_string(lookahead)), DType::f64, 3, 0.5);
  const FastWeights start = fast_weights(m);
  const TraceInput input = random_input(2, 12, 19);
  const std::vector<double> whole = stream(m, input, {12});
  const FastWeights after = fast_weights(m);
  CHECK(after.at("blocks.0.memory.w_up") != start.at("blocks.0.memory.w_up"));
  for (const std::vector<int64_t>& split : {std::vector<int64_t>(12, 1), {4, 4, 4}, {7, 1, 4}}) {
    set_fast_weights(m, start);
    check_close("logits", stream(m, input, split), whole, 1e-12);
    for (const auto& [name, values] : fast_weights(m)) { check_close(name, values, after.at(name), 1e-12); }
  }
  if (lookahead == 0) {
    set_fast_weights(m, start);
    check_close("logits", m.run(input, {}).logits.values, whole, 1e-12);
  }
  set_fast_weights(m, start);
  StreamOptions off, frozen;
  off.mode = FastUpdate::never;
  frozen.freeze = true;
  CHECK(stream(m, input, {12}, off) == stream(m, input, {12}, frozen));
  CHECK(fast_weights(m) == start);
}

TEST_CASE("recomputation of fwmlp does not repeat the update, and evaluation keeps the fast weights", "[fast]") {
  TestModel plain(model(kSizes, 2), DType::f64, 3, 0.5), again(model(kSizes, 2), DType::f64, 3, 0.5);
  again.model->set_recompute(Recompute::block);
  const TraceInput input = random_input(2, 11, 19);
  const FastWeights start = fast_weights(plain);
  TraceOptions evaluation = with_grads();
  evaluation.training = false;
  const TraceOutput read = plain.run(input, evaluation);
  CHECK(fast_weights(plain) == start);
  for (int batch = 0; batch < 2; ++batch) {
    const TraceOutput a = plain.run(input), b = again.run(input);
    CHECK(a.logits.values == b.logits.values);
    CHECK((batch > 0 || a.logits.values == read.logits.values));
    for (const auto& [name, g] : a.grads) {
      INFO(name);
      CHECK(b.grads.at(name).values == g.values);
    }
    CHECK(fast_weights(plain) == fast_weights(again));
  }
}

TEST_CASE("fwmlp depends neither on the number of threads nor, beyond rounding, on the precision", "[fast][threads]") {
  const std::string json = model(R"("key_dim": 37, "value_dim": 33, "fast_dim": 41, "chunk_size": 17)");
  const TraceInput input = random_input(3, 40, 19);
  TestModel m(json, DType::f32, 3, 0.2);
  check_threads_and_recompute(m, input);
  check_precision(json, input, 0.2);
}

TEST_CASE("fwmlp refuses impossible configurations and has the published number of parameters", "[fast]") {
  CHECK_THROWS_WITH(TestModel(model(R"("chunk_size": 2, "lookahead": 2)")),
                    Catch::Contains("lookahead: found 2, expected less than chunk_size (2)"));
  CHECK_THROWS_WITH(TestModel(model(R"("value_dim": 1)")), Catch::Contains("expected at least 2 with value_norm"));
  ModelConfig config;
  Fields::read(parse_json(R"({"vocab_size": 2, "hidden_size": 768, "num_layers": 1,
    "layers": {"a": {"type": "attention", "num_heads": 12, "head_dim": 64}, "f": {"type": "swiglu", "intermediate_size": 8}, "m": {"type": "fwmlp"}},
    "pattern": [{"memory": "m", "mixer": "a", "ffn": "f"}]})",
                          "x"),
               "model", config);
  Model m(config);
  int64_t count = 0;
  for (const auto& p : m.params().all()) {
    count += p->name().find(".memory.") != std::string::npos ? p->spec.shape.numel() : 0;
  }
  CHECK(count == 1978376);
}
