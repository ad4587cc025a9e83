#include <algorithm>
#include <numeric>

#include "core/parallel.h"
#include "tests/layers/fast_weights.h"

using namespace hebb;
using namespace hebb::testing;

namespace {

/// One block with a memory before a mixer that sees only its own token.
std::string model(const std::string& memory, int blocks = 1) {
  return R"({"vocab_size": 19, "hidden_size": 10, "num_layers": )" + std::to_string(blocks) + R"(, "norm_eps": 1e-5,
    "layers": {"a": {"type": "attention", "num_heads": 1, "head_dim": 4, "window": 1},
               "f": {"type": "swiglu", "intermediate_size": 7}, "m": {"type": "fwpkm", )" +
         memory + R"(}},
    "pattern": [{"memory": "m", "mixer": "a", "ffn": "f"}]})";
}

const std::string kSizes = R"("num_subkeys": 5, "key_dim": 6, "value_dim": 7, "top_k": 2, "chunk_size": 4)";

}  // namespace

TEST_CASE("fwpkm golden cases", "[fast]") { check_golden(GENERATE(from_range(golden_cases("fwpkm-")))); }

TEST_CASE("fwpkm gradients through the updates of a whole row equal difference quotients", "[fast]") {
  const std::string options =
      GENERATE(as<std::string>(), R"("lookahead": 1)", R"("lookahead": 0, "num_heads": 2)",
               R"("score": "dot", "num_heads": 2, "lookahead": 2)", R"("value_norm": false, "key_update": "none")",
               R"("gate": false, "weight_by_gate": false, "value_step": "unit", "key_lr": 3.0)",
               R"("weight_by_gate": false, "value_lr": 0.5, "idw_eps": 0.1)");
  TestModel m(model(kSizes + ", " + options), DType::f64, 2, 0.5);
  check_gradients(m, random_input(2, 11, 19));
}

TEST_CASE("fwpkm gradients respect documents", "[fast]") {
  TestModel m(model(kSizes), DType::f64, 2, 0.5);
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

TEST_CASE("without a gradient through the update only the last chunk's gradients agree", "[fast]") {
  const std::string score = GENERATE(as<std::string>(), "idw", "dot");
  const auto gradients = [&](const std::string& through, const TraceInput& input) {
    TestModel m(model(kSizes + R"(, "score": ")" + score + R"(", "grad_through_update": ")" + through + "\""),
                DType::f64, 2, 0.5);
    return m.run(input).grads.at("blocks.0.memory.q_proj.weight").values;
  };
  TraceInput input = random_input(2, 11, 19);
  CHECK(compare(gradients("full", input), gradients("values", input)).relative() > 1e-6);
  CHECK(compare(gradients("values", input), gradients("none", input)).relative() > 1e-6);
  const TraceInput one = part(input, 0, 4);  // its only chunk is the last
  CHECK(gradients("full", one) == gradients("none", one));
  // Loss in the first chunk of several: what comes later cannot reach it, and it reads the start.
  for (int64_t b = 0; b < 2; ++b) { std::fill_n(input.targets.begin() + b * 11 + 4, 7, -100); }
  check_close("gradient", gradients("full", input), gradients("none", input), 1e-14);
}

TEST_CASE("a row equals its chunks one after the other", "[fast]") {
  const std::string update = GENERATE(as<std::string>(), "entropy", "memory", "none");
  TestModel m(model(kSizes + R"(, "key_update": ")" + update + "\"", 2), DType::f64, 3, 0.5);
  const FastWeights start = fast_weights(m);
  const TraceInput input = random_input(2, 11, 19);
  TraceOptions options;
  const std::vector<double> whole = m.run(input, options).logits.values;
  const FastWeights after = fast_weights(m);
  CHECK(after.at("blocks.1.memory.values") != start.at("blocks.1.memory.values"));
  CHECK((after.at("blocks.0.memory.keys") != start.at("blocks.0.memory.keys")) == (update != "none"));
  set_fast_weights(m, start);
  std::vector<double> pieces(whole.size());
  for (const int64_t first : {0, 4, 8}) {
    const int64_t count = std::min<int64_t>(4, 11 - first);
    const std::vector<double> logits = m.run(part(input, first, count), options).logits.values;
    for (int64_t b = 0; b < 2; ++b) {
      std::copy_n(logits.begin() + b * count * 19, count * 19, pieces.begin() + (b * 11 + first) * 19);
    }
  }
  CHECK(pieces == whole);
  CHECK(fast_weights(m) == after);
}

TEST_CASE("a token changes its own output and later chunks of all sequences, nothing before", "[fast]") {
  TestModel m(model(kSizes), DType::f64, 3, 0.5);
  TraceOptions options;
  options.training = false;
  TraceInput input = random_input(2, 11, 19);
  const std::vector<double> before = m.run(input, options).logits.values;
  input.inputs[5] = (input.inputs[5] + 1) % 19;  // row 0, chunk 1
  const std::vector<double> after = m.run(input, options).logits.values;
  for (int64_t t = 0; t < 22; ++t) {
    const bool same = std::equal(before.begin() + t * 19, before.begin() + (t + 1) * 19, after.begin() + t * 19);
    CHECK(same == (t != 5 && t % 11 < 8));
  }
}

TEST_CASE("rows that nobody read keep their bits, and the order of sequences does not matter", "[fast]") {
  TestModel m(model(R"("num_subkeys": 9, "key_dim": 6, "value_dim": 5, "top_k": 2, "chunk_size": 4)"), DType::f64, 3,
              0.5);
  const FastWeights start = fast_weights(m);
  const TraceInput input = random_input(3, 7, 19);
  TraceOptions options;
  options.inside = true;
  const TraceOutput out = m.run(input, options);
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
  check_close("values", m.run(turned, options).after.at("blocks.0.memory.values").values, values, 1e-13);
}

TEST_CASE("one reader with equal weights rewrites its prediction to the target", "[fast]") {
  // One token per chunk without lookahead: the token's own value is the target; the second pass reads it.
  const std::string step = GENERATE(as<std::string>(), "slots", "unit");
  TestModel m(
      model(
          R"("num_subkeys": 4, "key_dim": 2, "value_dim": 5, "num_heads": 1, "top_k": 2, "chunk_size": 1, "lookahead": 0,
      "gate": false, "weight_by_gate": false, "key_update": "none", "value_step": ")" +
          step + "\""),
      DType::f64, 3, 0.5);
  // Equal keys give equal scores, so both slots weigh 1/2; ties go to slots 0 and 1.
  m.set(m.param("blocks.0.memory.keys"), std::vector<double>(8, 0.25));
  const std::vector<double> start = m.get(m.param("blocks.0.memory.values"));
  const std::vector<double> after = m.run(random_input(1, 1, 19), {}).after.at("blocks.0.memory.values").values;
  TestModel still(model(R"("num_subkeys": 4, "key_dim": 2, "value_dim": 5, "top_k": 1, "chunk_size": 1, "lookahead": 0,
      "gate": false, "weight_by_gate": false, "key_update": "none")"),
                  DType::f64, 3, 0.5);
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
      DType::f64, 3, 0.5);
  const TraceInput input = random_input(2, 12, 19);
  const auto negative_entropy = [&] {
    Statistics statistics;
    const Rows rows = Rows::streams(m.stream, m.arena, 2, 12);
    const Buffer tokens(m.arena, {24}, DType::i32, "tokens");
    const std::vector<int32_t> ids(input.inputs.begin(), input.inputs.end());
    copy_to_device(m.stream, tokens, ids.data());
    Tape tape(m.stream, m.arena, false);
    Pass pass{tape, rows};
    pass.training = true;
    pass.statistics = &statistics;
    m.model->hidden(pass, tokens);
    const auto& s = statistics.at("blocks.0.memory");
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

TEST_CASE("streams do not depend on their split into calls", "[fast]") {
  const int64_t lookahead = GENERATE(0, 1, 2);
  const std::string update = GENERATE(as<std::string>(), "entropy", "memory", "none");
  TestModel m(model(kSizes + R"(, "lookahead": )" + std::to_string(lookahead) + R"(, "key_update": ")" + update + "\""),
              DType::f64, 3, 0.5);
  const FastWeights start = fast_weights(m);
  const TraceInput input = random_input(2, 15, 19);
  const std::vector<double> whole = stream(m, input, {15});
  const FastWeights after = fast_weights(m);
  CHECK(after.at("blocks.0.memory.values") != start.at("blocks.0.memory.values"));
  for (const std::vector<int64_t>& split : {std::vector<int64_t>(15, 1), {4, 4, 4, 3}, {7, 1, 7}, {5, 10}}) {
    set_fast_weights(m, start);
    // 1e-13: matrix products of other heights may round differently.
    check_close("logits", stream(m, input, split), whole, 1e-13);
    for (const auto& [name, values] : fast_weights(m)) { check_close(name, values, after.at(name), 1e-13); }
  }
}

TEST_CASE("without lookahead a stream equals a row", "[fast]") {
  TestModel m(model(kSizes + R"(, "lookahead": 0, "num_heads": 2)"), DType::f64, 3, 0.5);
  const FastWeights start = fast_weights(m);
  const TraceInput input = random_input(2, 12, 19);
  const std::vector<double> row = m.run(input, {}).logits.values;
  const FastWeights after = fast_weights(m);
  set_fast_weights(m, start);
  check_close("logits", stream(m, input, {12}), row, 1e-13);
  for (const auto& [name, values] : fast_weights(m)) { check_close(name, values, after.at(name), 1e-13); }
}

TEST_CASE("a stream updates after chunk + lookahead tokens and at a flush with chunk - 1 pairs", "[fast]") {
  TestModel m(model(kSizes), DType::f64, 3, 0.5);  // chunk 4, lookahead 1
  const FastWeights start = fast_weights(m);
  const auto moves = [&](int64_t tokens, bool flush) {
    set_fast_weights(m, start);
    StreamOptions options;
    options.flush = flush;
    stream(m, random_input(1, tokens, 19), {tokens}, options);
    return fast_weights(m).at("blocks.0.memory.values") != start.at("blocks.0.memory.values");
  };
  CHECK_FALSE(moves(4, false));
  CHECK(moves(5, false));
  CHECK_FALSE(moves(3, true));
  CHECK(moves(4, true));
}

TEST_CASE("one update at the end of a pass uses all complete pairs", "[fast]") {
  TestModel m(model(kSizes), DType::f64, 3, 0.5);
  const FastWeights start = fast_weights(m);
  const TraceInput input = random_input(1, 6, 19);
  StreamOptions end;
  end.mode = FastUpdate::at_end;
  const std::vector<double> read = stream(m, input, {6}, end);
  const FastWeights after = fast_weights(m);
  set_fast_weights(m, start);
  StreamOptions chunk;  // five pairs are the first update of chunk 5
  chunk.chunk = 5;
  chunk.flush = false;
  check_close("logits", stream(m, input, {6}, chunk), read, 1e-13);
  for (const auto& [name, values] : fast_weights(m)) { check_close(name, values, after.at(name), 1e-13); }
}

TEST_CASE("the next pass with one update at its end pairs its first tokens with the last of the one before", "[fast]") {
  const int64_t lookahead = GENERATE(1, 2), length = 6;
  TestModel m(model(kSizes + R"(, "lookahead": )" + std::to_string(lookahead)), DType::f64, 3, 0.5);
  const FastWeights start = fast_weights(m);
  const TraceInput input = random_input(1, 2 * length, 19);
  // The same updates as a stream whose chunks end where the passes do.
  std::vector<std::vector<double>> logits;
  std::vector<FastWeights> after;
  for (const FastUpdate mode : {FastUpdate::at_end, FastUpdate::streaming}) {
    set_fast_weights(m, start);
    const auto state = m.model->make_state(m.arena, 1);
    StreamOptions options;
    options.mode = mode;
    options.flush = false;
    for (const int64_t pass : {0, 1}) {
      options.chunk = mode == FastUpdate::at_end ? 0 : pass == 0 ? length - lookahead : length;
      const std::vector<int64_t> calls =
          mode == FastUpdate::at_end ? std::vector<int64_t>{length} : std::vector<int64_t>{4, 2};
      logits.push_back(stream(m, part(input, pass * length, length), calls, options, *state, pass * length));
    }
    after.push_back(fast_weights(m));
  }
  check_close("first pass", logits[2], logits[0], 1e-13);
  check_close("second pass", logits[3], logits[1], 1e-13);
  for (const auto& [name, values] : after[0]) { check_close(name, after[1].at(name), values, 1e-13); }
}

TEST_CASE("frozen and off are the same, whatever the chunk, and write nothing", "[fast]") {
  TestModel m(model(kSizes), DType::f64, 3, 0.5);
  const FastWeights start = fast_weights(m);
  const TraceInput input = random_input(2, 11, 19);
  StreamOptions off, frozen;
  off.mode = FastUpdate::never;
  frozen.freeze = true;
  const std::vector<double> plain = stream(m, input, {11}, off);
  CHECK(stream(m, input, {11}, frozen) == plain);
  frozen.chunk = 2;
  CHECK(stream(m, input, {11}, frozen) == plain);
  TestModel one(model(R"("num_subkeys": 5, "key_dim": 6, "value_dim": 7, "top_k": 2, "chunk_size": 11)"), DType::f64, 3,
                0.5);
  TraceOptions evaluation;
  evaluation.training = false;
  check_close("logits", one.run(input, evaluation).logits.values, plain, 1e-13);
  CHECK(fast_weights(m) == start);
}

TEST_CASE("evaluation reads as training does and puts the fast weights back", "[fast]") {
  const std::string update = GENERATE(as<std::string>(), "entropy", "memory", "none");
  TestModel m(model(kSizes + R"(, "key_update": ")" + update + "\"", 2), DType::f64, 3, 0.5);
  const FastWeights start = fast_weights(m);
  const TraceInput input = random_input(2, 11, 19);
  TraceOptions options = with_grads();
  options.training = false;
  const TraceOutput evaluation = m.run(input, options);
  CHECK(fast_weights(m) == start);
  const TraceOutput training = m.run(input);
  CHECK(evaluation.logits.values == training.logits.values);
  CHECK(evaluation.grads.at("blocks.0.memory.v_proj.weight").values ==
        training.grads.at("blocks.0.memory.v_proj.weight").values);
}

TEST_CASE("recomputation neither repeats the update nor changes a bit", "[fast]") {
  const std::string memory =
      kSizes + GENERATE(as<std::string>(), "", R"(, "key_update": "none")", R"(, "grad_through_update": "none")");
  TestModel plain(model(memory, 2), DType::f64, 3, 0.5), again(model(memory, 2), DType::f64, 3, 0.5);
  again.model->set_recompute(Recompute::block);
  const TraceInput input = random_input(2, 11, 19);
  for (int batch = 0; batch < 2; ++batch) {  // the second starts where the first ended
    const TraceOutput a = plain.run(input), b = again.run(input);
    CHECK(a.logits.values == b.logits.values);
    for (const auto& [name, g] : a.grads) {
      INFO(name);
      CHECK(b.grads.at(name).values == g.values);
    }
    CHECK(fast_weights(plain) == fast_weights(again));
  }
}

TEST_CASE("fwpkm does not depend on the number of threads", "[fast][threads]") {
  TestModel m(
      model(R"("num_subkeys": 7, "key_dim": 70, "value_dim": 33, "num_heads": 2, "top_k": 3, "chunk_size": 17)"),
      DType::f32, 3, 0.5);
  check_threads_and_recompute(m, random_input(3, 40, 19));
}

TEST_CASE("forced fwpkm decisions are taken as given", "[fast]") {
  TestModel m(model(kSizes), DType::f64, 3, 0.5);
  const TraceInput input = random_input(1, 6, 19);
  TraceOptions options;
  options.training = false;
  options.inside = true;
  const TraceOutput first = m.run(input, options);
  options.forced = first.inside;
  CHECK(m.run(input, options).logits.values == first.logits.values);
  options.forced["blocks.0.memory.slots"].integers[3] = 24;
  CHECK(m.run(input, options).inside.at("blocks.0.memory.slots").integers[3] == 24);
  options.forced["blocks.0.memory.slots"].integers[3] = 25;
  CHECK_THROWS_WITH(m.run(input, options), Catch::Contains("found 25, expected 0 to 24"));
  options.forced["blocks.0.memory.slots"].integers.pop_back();
  CHECK_THROWS_WITH(m.run(input, options), Catch::Contains("found 11 integers, expected 12"));
}

TEST_CASE("fwpkm refuses impossible configurations", "[fast]") {
  CHECK_THROWS_WITH(TestModel(model(R"("key_dim": 5)")),
                    Catch::Contains("model.layers.m.key_dim: found 5, expected an even integer"));
  CHECK_THROWS_WITH(TestModel(model(R"("num_subkeys": 4, "top_k": 5)")),
                    Catch::Contains("expected at most num_subkeys (4)"));
  CHECK_THROWS_WITH(TestModel(model(R"("chunk_size": 3, "lookahead": 3)")),
                    Catch::Contains("lookahead: found 3, expected less than chunk_size (3)"));
  CHECK_THROWS_WITH(TestModel(model(R"("gate": false)")), Catch::Contains("expected false, since gate is false"));
  CHECK_THROWS_WITH(TestModel(model(R"("value_dim": 1)")), Catch::Contains("expected at least 2 with value_norm"));
  TestModel m(model(kSizes), DType::f64);
  StreamOptions options;
  options.chunk = 1;
  CHECK_THROWS_WITH(stream(m, random_input(1, 2, 19), {2}, options),
                    Catch::Contains("found 1, expected more than lookahead (1)"));
}

TEST_CASE("models with a fast-weight memory have the published number of parameters", "[fast]") {
  const auto total = [](const std::string& at) {
    ModelConfig config;
    Fields::read(
        parse_json(
            R"({"vocab_size": 32000, "hidden_size": 768, "num_layers": 12, "norm_eps": 1e-5, "norm": "rms_unit_offset",
      "tie_embeddings": true, "layers": {
        "gdn": {"type": "gdn", "num_heads": 8, "key_head_dim": 64, "value_head_dim": 64, "conv_size": 4, "dt_bias_init": "ones"},
        "mlp": {"type": "swiglu", "intermediate_size": 2304},
        "fwpkm": {"type": "fwpkm", "num_subkeys": 512, "key_dim": 512, "value_dim": 512, "num_heads": 1, "top_k": 8, "chunk_size": 512}},
      "pattern": [{"mixer": "gdn", "ffn": "mlp"}], "at": )" +
                at + "}",
            "x"),
        "model", config);
    Model m(config);
    int64_t idle = 0;
    for (const auto& block : m.blocks()) { idle += block.memory ? block.memory->idle_parameters() : 0; }
    return std::pair{m.params().count(ParamKind::trained) + m.params().count(ParamKind::fast), idle};
  };
  CHECK(total("{}") == std::pair<int64_t, int64_t>{112111296, 0});
  CHECK(total(R"({"2": {"memory": "fwpkm"}, "6": {"memory": "fwpkm"}, "10": {"memory": "fwpkm"}})") ==
        std::pair<int64_t, int64_t>{112111296 + 3 * 135670280LL, 3 * (262144 - 8) * 512LL});
}
