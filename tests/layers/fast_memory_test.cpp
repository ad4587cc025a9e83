// What holds for every memory whose weights are rewritten while text is read: chunks, streams, evaluation.
#include <algorithm>

#include "tests/layers/every_layer.h"

namespace {

const std::string kFwmlp =
    R"("type": "fwmlp", "key_dim": 6, "value_dim": 7, "fast_dim": 5, "chunk_size": 4, "lr": 0.5)";
const std::string kFwpkm =
    R"("type": "fwpkm", "num_subkeys": 5, "key_dim": 6, "value_dim": 7, "top_k": 2, "chunk_size": 4)";
const std::vector<std::string> kMemories = {kFwmlp, kFwpkm, kFwpkm + R"(, "key_update": "memory", "num_heads": 2)",
                                            kFwpkm + R"(, "key_update": "none", "score": "dot")"};

/// Of what differs by the heights of matrix products alone.
double tolerance_of(const std::string& memory) { return memory == kFwmlp ? 1e-12 : 1e-13; }

void check_same(const FastWeights& found, const FastWeights& expected, double tolerance) {
  for (const auto& [name, values] : expected) { check_close(name, found.at(name), values, tolerance); }
}

}  // namespace

TEST_CASE("fwmlp has the properties of layers for every option", "[fwmlp][fast]") {
  const std::string sizes = R"("key_dim": 6, "value_dim": 7, "fast_dim": 5, "chunk_size": 4, "lr": 0.5)";
  for (const char* option :
       {R"(, "lookahead": 2, "target": "mean")", R"(, "lookahead": 2, "target": "next")", R"(, "lookahead": 0)",
        R"(, "grad_clip": 0.02)", R"(, "value_norm": false, "gate_width": 1)"}) {
    check_layer("fwmlp", sizes + option);
  }
}

TEST_CASE("fwpkm has the properties of layers for every option", "[fwpkm][fast]") {
  const std::string sizes = R"("num_subkeys": 5, "key_dim": 6, "value_dim": 7, "top_k": 2, "chunk_size": 4)";
  for (const char* option :
       {R"(, "lookahead": 0, "num_heads": 2)", R"(, "score": "dot", "num_heads": 2, "lookahead": 2)",
        R"(, "value_norm": false, "key_update": "none")",
        R"(, "gate": false, "weight_by_gate": false, "value_step": "unit", "key_lr": 3.0)",
        R"(, "weight_by_gate": false, "value_lr": 0.5, "idw_eps": 0.1)"}) {
    check_layer("fwpkm", sizes + option);
  }
}

TEST_CASE("chunks of a memory without pairs hand gradients on, with and without a gate", "[fast]") {
  // Steps of key_update "memory" are constants: their difference quotients are other numbers.
  const std::string memory =
      GENERATE(as<std::string>(), kFwmlp, kFwmlp + R"(, "gate": false)", kFwpkm, kFwpkm + R"(, "key_update": "none")");
  TestModel m(memory_model(memory), 2, 0.5);
  TraceInput input = random_input(1, 15, 19);
  input.doc_ids = documents({3, 1, 1, 1, 1, 1, 5, 2});
  check_gradients(m, input);
}

TEST_CASE("without a gradient through the update only the last chunk's gradients agree", "[fast]") {
  const std::string memory = GENERATE(from_range(kMemories));
  const auto gradients = [&](const std::string& through, const TraceInput& input) {
    TestModel m(memory_model(memory + R"(, "grad_through_update": ")" + through + "\""), 2, 0.5);
    return m.run(input).grads.at("blocks.0.memory.q_proj.weight").values;
  };
  TraceInput input = random_input(2, 11, 19);
  CHECK(compare(gradients("full", input), gradients("none", input)).relative() > 1e-6);
  const TraceInput one = part(input, 0, 4);  // its only chunk is the last
  CHECK(gradients("full", one) == gradients("none", one));
  // Loss in the first chunk of several: what comes later cannot reach it, and it reads the start.
  for (int64_t b = 0; b < 2; ++b) { std::fill_n(input.targets.begin() + b * 11 + 4, 7, -100); }
  check_close("gradient", gradients("full", input), gradients("none", input), 1e-14);
}

TEST_CASE("a row equals its chunks one after the other", "[fast]") {
  const std::string memory = GENERATE(from_range(kMemories));
  TestModel m(memory_model(memory, 2), 3, 0.5);
  const FastWeights start = fast_weights(m);
  const TraceInput input = random_input(2, 11, 19);
  const std::vector<double> whole = m.run(input, {}).logits.values;
  const FastWeights after = fast_weights(m);
  CHECK(after != start);
  set_fast_weights(m, start);
  std::vector<double> pieces(whole.size());
  for (const int64_t first : {0, 4, 8}) {
    const int64_t count = std::min<int64_t>(4, 11 - first);
    const std::vector<double> logits = m.run(part(input, first, count), {}).logits.values;
    for (int64_t b = 0; b < 2; ++b) {
      std::copy_n(logits.begin() + b * count * 19, count * 19, pieces.begin() + (b * 11 + first) * 19);
    }
  }
  if (memory != kFwmlp) {  // whose matrix products have other heights
    CHECK(pieces == whole);
    CHECK(fast_weights(m) == after);
  }
  check_close("logits", pieces, whole, 1e-13);
  check_same(fast_weights(m), after, 1e-13);
}

TEST_CASE("a token changes its own output and later chunks of all sequences, nothing before", "[fast]") {
  TestModel m(memory_model(GENERATE(as<std::string>(), kFwmlp, kFwpkm)), 3, 0.5);
  TraceInput input = random_input(2, 11, 19);
  const std::vector<double> before = m.run(input, reading()).logits.values;
  input.inputs[5] = (input.inputs[5] + 1) % 19;  // row 0, chunk 1
  const std::vector<double> after = m.run(input, reading()).logits.values;
  for (int64_t t = 0; t < 22; ++t) {
    const bool same = std::equal(before.begin() + t * 19, before.begin() + (t + 1) * 19, after.begin() + t * 19);
    CHECK(same == (t != 5 && t % 11 < 8));
  }
}

TEST_CASE("streams do not depend on their split into calls, and equal rows without lookahead", "[fast]") {
  const int64_t lookahead = GENERATE(0, 1, 2);
  const std::string memory = GENERATE(from_range(kMemories));
  TestModel m(memory_model(memory + R"(, "lookahead": )" + std::to_string(lookahead)), 3, 0.5);
  const FastWeights start = fast_weights(m);
  const TraceInput input = random_input(2, 15, 19);
  const double tolerance = tolerance_of(memory);
  const std::vector<double> whole = stream(m, input, {15});
  const FastWeights after = fast_weights(m);
  CHECK(after != start);
  for (const std::vector<int64_t>& split : {std::vector<int64_t>(15, 1), {4, 4, 4, 3}, {7, 1, 7}, {5, 10}}) {
    set_fast_weights(m, start);
    check_close("logits", stream(m, input, split), whole, tolerance);
    check_same(fast_weights(m), after, tolerance);
  }
  if (lookahead == 0) {
    set_fast_weights(m, start);
    check_close("logits", m.run(input, {}).logits.values, whole, tolerance);
    check_same(fast_weights(m), after, tolerance);
  }
}

TEST_CASE("a stream updates after chunk + lookahead tokens and at a flush with chunk - 1 pairs", "[fast]") {
  TestModel m(memory_model(GENERATE(from_range(kMemories))), 3, 0.5);  // chunk 4, lookahead 1
  const FastWeights start = fast_weights(m);
  const auto moves = [&](int64_t tokens, bool flush) {
    set_fast_weights(m, start);
    stream(m, random_input(1, tokens, 19), {tokens}, {.flush = flush});
    return fast_weights(m) != start;
  };
  CHECK_FALSE(moves(4, false));
  CHECK(moves(5, false));
  CHECK_FALSE(moves(3, true));
  CHECK(moves(4, true));
}

TEST_CASE("one update at the end of a pass uses all complete pairs, and the next pass those across its start",
          "[fast]") {
  const int64_t lookahead = GENERATE(1, 2), length = 6;
  const std::string memory = GENERATE(from_range(kMemories));
  TestModel m(memory_model(memory + R"(, "lookahead": )" + std::to_string(lookahead)), 3, 0.5);
  const FastWeights start = fast_weights(m);
  const TraceInput input = random_input(1, 2 * length, 19);
  // The same updates as a stream whose chunks end where the passes do.
  std::vector<std::vector<double>> logits;
  std::vector<FastWeights> after;
  for (const FastUpdate mode : {FastUpdate::at_end, FastUpdate::streaming}) {
    set_fast_weights(m, start);
    const auto state = m.model->make_state(m.arena, 1);
    StreamOptions options{.mode = mode, .flush = false};
    for (const int64_t pass : {0, 1}) {
      options.chunk = mode == FastUpdate::at_end ? 0 : pass == 0 ? length - lookahead : length;
      const std::vector<int64_t> calls =
          mode == FastUpdate::at_end ? std::vector<int64_t>{length} : std::vector<int64_t>{4, 2};
      logits.push_back(stream(m, part(input, pass * length, length), calls, options, state.get()));
    }
    after.push_back(fast_weights(m));
  }
  check_close("first pass", logits[2], logits[0], tolerance_of(memory));
  check_close("second pass", logits[3], logits[1], tolerance_of(memory));
  check_same(after[1], after[0], tolerance_of(memory));
}

TEST_CASE("frozen and off are the same, whatever the chunk, and write nothing", "[fast]") {
  const std::string memory = GENERATE(from_range(kMemories));
  TestModel m(memory_model(memory), 3, 0.5);
  const FastWeights start = fast_weights(m);
  const TraceInput input = random_input(2, 11, 19);
  const std::vector<double> plain = stream(m, input, {11}, {.mode = FastUpdate::never});
  CHECK(stream(m, input, {11}, {.freeze = true}) == plain);
  CHECK(stream(m, input, {11}, {.freeze = true, .chunk = 2}) == plain);
  CHECK(fast_weights(m) == start);
  CHECK_THROWS_WITH(stream(m, random_input(1, 2, 19), {2}, {.chunk = 1}),
                    Contains("found 1, expected more than lookahead (1)"));
}

TEST_CASE("evaluation reads as training does and puts the fast weights back", "[fast]") {
  TestModel m(memory_model(GENERATE(from_range(kMemories)), 2), 3, 0.5);
  const FastWeights start = fast_weights(m);
  const TraceInput input = random_input(2, 11, 19);
  const TraceOutput evaluation = m.run(input, reading());
  CHECK(fast_weights(m) == start);
  CHECK(bits_fault("of evaluation", evaluation, m.run(input)) == "");
  CHECK(fast_weights(m) != start);
}
