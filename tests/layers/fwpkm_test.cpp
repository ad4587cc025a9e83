#include <algorithm>

#include "tests/layers/fast_weights.h"

namespace {

std::string model(const std::string& settings) { return memory_model(R"("type": "fwpkm", )" + settings); }

const std::string kSizes = R"("num_subkeys": 5, "key_dim": 6, "value_dim": 7, "top_k": 2, "chunk_size": 4)";

}  // namespace

TEST_CASE("fwpkm gradients respect documents", "[fast]") {
  TestModel m(model(kSizes), 2, 0.5);
  TraceInput input = random_input(1, 11, 19);
  input.doc_ids = documents({3, 1, 5, 2});
  check_gradients(m, input);
  TraceInput whole = input;
  whole.doc_ids.clear();
  const FastWeights start = fast_weights(m);
  const auto after = m.run(input).after.at("blocks.0.memory.values").values;
  set_fast_weights(m, start);
  CHECK(m.run(whole).after.at("blocks.0.memory.values").values != after);
}

TEST_CASE("rows that nobody read keep their bits, and the order of sequences does not matter", "[fast]") {
  TestModel m(model(R"("num_subkeys": 9, "key_dim": 6, "value_dim": 5, "top_k": 2, "chunk_size": 4)"), DType::f64, 3,
              0.5);
  const FastWeights start = fast_weights(m);
  const TraceInput input = random_input(3, 7, 19);
  const TraceOutput out = m.run(input, inside({}));
  const auto& slots = out.inside.at("blocks.0.memory.slots");
  CHECK(slots.shape == std::vector<int64_t>{3, 7, 1, 2});
  CHECK(out.inside.at("blocks.0.memory.entries").shape == std::vector<int64_t>{3, 7, 1, 2, 2});
  const auto& values = out.after.at("blocks.0.memory.values").values;
  for (int64_t slot = 0; slot < 81; ++slot) {
    const bool read = std::count(slots.integers.begin(), slots.integers.end(), slot) > 0;
    const bool same = std::equal(values.begin() + slot * 5, values.begin() + (slot + 1) * 5,
                                 start.at("blocks.0.memory.values").begin() + slot * 5);
    CHECK((read || same));
  }
  CHECK(values != start.at("blocks.0.memory.values"));
  set_fast_weights(m, start);
  TraceInput turned = input;
  std::rotate(turned.inputs.begin(), turned.inputs.begin() + 7, turned.inputs.end());
  // 1e-13: the sums run over the sequences in another order.
  check_close("values", m.run(turned, {}).after.at("blocks.0.memory.values").values, values, 1e-13);
}

TEST_CASE("one reader with equal weights rewrites its prediction to the target", "[fast]") {
  // One token per chunk without lookahead: the token's own value is the target; the second pass reads it.
  const std::string step = GENERATE(as<std::string>(), "slots", "unit");
  TestModel m(
      model(
          R"("num_subkeys": 4, "key_dim": 2, "value_dim": 5, "num_heads": 1, "top_k": 2, "chunk_size": 1, "lookahead": 0,
      "gate": false, "weight_by_gate": false, "key_update": "none", "value_step": ")" +
          step + "\""),
      3, 0.5);
  // Equal keys give equal scores, so both slots weigh 1/2; ties go to slots 0 and 1.
  m.set(m.param("blocks.0.memory.keys"), std::vector<double>(8, 0.25));
  const std::vector<double> start = m.get(m.param("blocks.0.memory.values"));
  const std::vector<double> after = m.run(random_input(1, 1, 19), {}).after.at("blocks.0.memory.values").values;
  TestModel still(model(R"("num_subkeys": 4, "key_dim": 2, "value_dim": 5, "top_k": 1, "chunk_size": 1, "lookahead": 0,
      "gate": false, "weight_by_gate": false, "key_update": "none")"),
                  3, 0.5);
  still.copy_from(m);
  still.set(still.param("blocks.0.memory.values"), start);
  const std::vector<double> target =
      still.run(random_input(1, 1, 19), {}).after.at("blocks.0.memory.values").values;  // slot 0 = target
  for (size_t i = 0; i < 5; ++i) {
    const double was = (start[i] + start[5 + i]) / 2, is = (after[i] + after[5 + i]) / 2;
    const double share = step == "slots" ? 1.0 : 0.5;
    CHECK(is == Approx(was + share * (target[i] - was)).epsilon(1e-12));
    CHECK(after[10 + i] == start[10 + i]);
  }
}

TEST_CASE("the entropy step evens out the use of keys", "[fast]") {
  TestModel m(
      model(
          R"("num_subkeys": 8, "key_dim": 4, "value_dim": 5, "top_k": 3, "chunk_size": 12, "key_lr": 0.01, "value_lr": 0)"),
      3, 0.5);
  const TraceInput input = random_input(2, 12, 19);
  const auto negative_entropy = [&] {
    const auto s = m.statistics(input, true).at("blocks.0.memory");
    CHECK(s.at("key_step") > 0);
    CHECK(s.at("value_step") == 0);
    CHECK(s.at("memory_loss") > 0);
    CHECK(s.at("coverage") <= 1);
    CHECK(s.at("gate_mean") == Approx(0.5).margin(0.4));
    return s.at("negative_entropy");
  };
  const double first = negative_entropy();
  CHECK(negative_entropy() < first);
}

TEST_CASE("forced fwpkm decisions are taken as given", "[fast]") {
  TestModel m(model(kSizes), 3, 0.5);
  const TraceInput input = random_input(1, 6, 19);
  TraceOptions options = inside(reading({}));
  const TraceOutput first = m.run(input, options);
  options.forced = first.inside;
  CHECK(m.run(input, options).logits.values == first.logits.values);
  options.forced["blocks.0.memory.slots"].integers[3] = 24;
  CHECK(m.run(input, options).inside.at("blocks.0.memory.slots").integers[3] == 24);
  options.forced["blocks.0.memory.slots"].integers[3] = 25;
  CHECK_THROWS_WITH(m.run(input, options), Contains("found 25, expected 0 to 24"));
  options.forced["blocks.0.memory.slots"].integers.pop_back();
  CHECK_THROWS_WITH(m.run(input, options), Contains("found 11 integers, expected 12"));
}

TEST_CASE("fwpkm refuses impossible configurations", "[fast]") {
  CHECK_THROWS_WITH(TestModel(model(R"("key_dim": 5)")),
                    Contains("model.layers.m.key_dim: found 5, expected an even integer"));
  CHECK_THROWS_WITH(TestModel(model(R"("num_subkeys": 4, "top_k": 5)")), Contains("expected at most num_subkeys (4)"));
  CHECK_THROWS_WITH(TestModel(model(R"("chunk_size": 3, "lookahead": 3)")),
                    Contains("lookahead: found 3, expected less than chunk_size (3)"));
  CHECK_THROWS_WITH(TestModel(model(R"("gate": false)")), Contains("expected false, since gate is false"));
  CHECK_THROWS_WITH(TestModel(model(R"("value_dim": 1)")), Contains("expected at least 2 with value_norm"));
}

TEST_CASE("fwpkm reports how evenly sub-keys are used, whatever moves them", "[fast]") {
  constexpr int64_t kSubkeys = 5, kHeads = 2, kChunk = 4, kLength = 10, kRows = 2;
  for (const char* update : {"entropy", "memory", "none"}) {
    INFO(update);
    TestModel m(model(R"("num_subkeys": 5, "key_dim": 6, "value_dim": 7, "num_heads": 2, "top_k": 1, "chunk_size": 4,
                         "key_update": ")" +
                      std::string(update) + "\""),
                3, 0.5);
    const TraceInput input = random_input(kRows, kLength, 19);
    const std::vector<int64_t> entries =
        m.run(input, inside(reading({}))).inside.at("blocks.0.memory.entries").integers;
    // Of one sub-key per token and head, each has the whole weight: m is the share of the choices.
    double expected = 0;
    for (int64_t first = 0; first < kLength; first += kChunk) {
      const int64_t count = std::min(kChunk, kLength - first);
      std::vector<double> usage(2 * kSubkeys);
      for (int64_t r = 0; r < kRows * count * kHeads * 2; ++r) {
        const int64_t codebook = r % 2, head = r / 2 % kHeads, t = first + r / 2 / kHeads % count,
                      b = r / 2 / kHeads / count;
        const int64_t entry = entries[static_cast<size_t>(((b * kLength + t) * kHeads + head) * 2 + codebook)];
        usage[static_cast<size_t>(codebook * kSubkeys + entry)] += 1.0 / static_cast<double>(kRows * count * kHeads);
      }
      for (const double u : usage) { expected += u * std::log(u + 1e-8) / 3; }
    }
    CHECK(expected < -0.1);
    CHECK(m.statistics(input).at("blocks.0.memory").at("negative_entropy") == Approx(expected).epsilon(1e-12));
  }
}
