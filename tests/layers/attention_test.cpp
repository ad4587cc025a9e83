#include "tests/layers/properties.h"

namespace {

constexpr int64_t kVocab = 17;

/// A model of attention layers with these fields, sizes that are no powers of two.
std::string model(const std::string& attention, int64_t layers = 1, const std::string& extra = "") {
  return R"({"vocab_size": 17, "hidden_size": 11, "num_layers": )" + std::to_string(layers) +
         R"(, "layers": {"x": {"type": "attention", )" + attention +
         R"(}, "mlp": {"type": "swiglu", "intermediate_size": 9}}, "pattern": [{"mixer": "x", "ffn": "mlp"}])" + extra +
         "}";
}

std::vector<double> token(const std::vector<double>& logits, int64_t t) {
  return {logits.begin() + t * kVocab, logits.begin() + (t + 1) * kVocab};
}

/// Logits with the token at `position` replaced by another.
std::vector<double> disturbed(TestModel& m, TraceInput input, int64_t position) {
  int64_t& id = input.inputs[static_cast<size_t>(position)];
  id = (id + 5) % kVocab;
  return m.run(input).logits.values;
}

}  // namespace

TEST_CASE("token j influences exactly the tokens that see it", "[fast]") {
  struct Case {
    std::string fields;
    std::function<bool(int64_t i, int64_t j)> sees;
  };
  const std::string base = R"("num_heads": 2, "head_dim": 6, "rope": {"theta": 50.0})";
  const std::vector<Case> cases = {
      {base, [](int64_t i, int64_t j) { return j <= i; }},
      {base + R"(, "window": 4)", [](int64_t i, int64_t j) { return j <= i && i - j < 4; }},
      {base + R"(, "window": 1)", [](int64_t i, int64_t j) { return j == i; }},
      {base + R"(, "block_window": {"size": 3, "blocks": 2})",
       [](int64_t i, int64_t j) { return j <= i && j / 3 > i / 3 - 2; }},
      {base + R"(, "block_window": {"size": 5, "blocks": 1})",
       [](int64_t i, int64_t j) { return j <= i && j / 5 == i / 5; }},
  };
  for (const Case& c : cases) {
    INFO(c.fields);
    TestModel m(model(c.fields), 1, 0.5);
    const TraceInput input = random_input(1, 13, kVocab);
    const std::vector<double> before = m.run(input).logits.values;
    for (int64_t j = 0; j < 13; ++j) {
      const std::vector<double> after = disturbed(m, input, j);
      for (int64_t i = 0; i < 13; ++i) {
        INFO("token " << j << " changed, token " << i << " read");
        CHECK((token(before, i) != token(after, i)) == c.sees(i, j));
      }
    }
  }
}

TEST_CASE("a window of the row's length equals full attention bit for bit", "[fast]") {
  const std::string base = R"("num_heads": 3, "num_kv_heads": 1, "head_dim": 4, "qk_norm": "rms")";
  const std::string bounded = GENERATE(as<std::string>(), R"(, "window": 14)", R"(, "window": 1000)",
                                       R"(, "block_window": {"size": 7, "blocks": 2})", R"(, "window": 2147483647)",
                                       R"(, "block_window": {"size": 3, "blocks": 2147483647})");
  const TraceInput input = random_input(2, 14, kVocab);
  TestModel full(model(base), 3, 0.5), windowed(model(base + bounded), 3, 0.5);
  CHECK(full.run(input).logits.values == windowed.run(input).logits.values);
}

TEST_CASE("packed documents equal separate rows", "[fast]") {
  const std::string fields = GENERATE(
      as<std::string>(), R"("num_heads": 2, "head_dim": 6, "rope": {"theta": 50.0, "dims": 4}, "gate": "head")",
      R"("num_heads": 2, "num_kv_heads": 1, "head_dim": 5, "window": 3, "qk_norm": "l2", "token_shift": true)",
      R"("num_heads": 1, "head_dim": 4, "block_window": {"size": 4, "blocks": 2}, "rope": {"theta": 9.0}, "token_shift": true)");
  TestModel m(model(fields, 2), 5, 0.4);
  // 1e-13: tiles of packed rows cut the sums elsewhere.
  check_packed_documents(m, random_input(1, 87, kVocab), {1, 9, 1, 1, 5, 70}, 1e-13, 1e-12);
}

TEST_CASE("attention in fp32 agrees with fp64", "[fast]") {
  const std::string fields = GENERATE(
      as<std::string>(),
      R"("num_heads": 4, "num_kv_heads": 2, "head_dim": 16, "rope": {"theta": 10000.0}, "qk_norm": "rms", "gate": "element")",
      R"("num_heads": 3, "head_dim": 10, "rope": {"theta": 10000.0, "dims": 6}, "qk_norm": "l2", "window": 40, "gate": "head")",
      R"("num_heads": 2, "head_dim": 9, "qk_norm": "layer", "block_window": {"size": 32, "blocks": 2}, "token_shift": true, "value_residual": "lambda")");
  TestModel wide(model(fields, 2), 3, 0.3), narrow(model(fields, 2), DType::f32, 3, 0.3);
  // A bias of keys without rotation moves all scores of a query alike: its gradient is rounding, below 1e-7.
  CHECK(precision_fault(wide, narrow, random_input(2, 150, kVocab), with_grads(), 1e-5, 1e-7) == "");
}

TEST_CASE("the random window of a training step replaces only missing windows", "[fast]") {
  const auto logits = [](const std::string& fields, int64_t random_window, bool training) {
    TestModel m(model(R"("num_heads": 2, "head_dim": 4, )" + fields), 3, 0.5);
    return m.logits_of(Rows::streams(m.stream, m.arena, 1, 20), random_input(1, 20, kVocab).inputs, nullptr,
                       [&](Pass& pass) {
                         pass.training = training;
                         pass.attention.random_window = random_window;
                       });
  };
  const std::string full = R"("gate": "none")";
  CHECK(logits(full, 6, true) == logits(R"("window": 6)", 0, true));
  CHECK(logits(full, 6, false) == logits(full, 0, false));
  CHECK(logits(R"("window": 9)", 6, true) == logits(R"("window": 9)", 0, true));
  const std::string blocks = R"("block_window": {"size": 4, "blocks": 2})";
  CHECK(logits(blocks, 6, true) == logits(blocks, 0, true));
}

TEST_CASE("attention has the published numbers of parameters, operations and state bytes", "[fast]") {
  const std::string json = R"({"vocab_size": 2, "hidden_size": 768, "num_layers": 3,
    "layers": {"full": {"type": "attention", "num_heads": 12, "num_kv_heads": 4, "head_dim": 64,
                        "rope": {"theta": 10000.0, "dims": 16}, "qk_norm": "rms", "gate": "element"},
               "swa": {"type": "attention", "num_heads": 12, "num_kv_heads": 4, "head_dim": 64, "window": 512},
               "bswa": {"type": "attention", "num_heads": 6, "head_dim": 128, "block_window": {"size": 256, "blocks": 3}},
               "mlp": {"type": "swiglu", "intermediate_size": 1}},
    "pattern": [{"mixer": "full", "ffn": "mlp"}, {"mixer": "swa", "ffn": "mlp"}, {"mixer": "bswa", "ffn": "mlp"}]})";
  CHECK(count_trained(json, "blocks.0.mixer.") == 2162816);
  const ModelConfig config = read_model(json);
  const Model m(config);
  const Layer &full = *m.blocks()[0].mixer, &window = *m.blocks()[1].mixer, &blocks = *m.blocks()[2].mixer;
  CHECK(full.flops_per_token(1000) == 2.0 * 768 * (768 + 256 + 256 + 768 + 768) + 2.0 * 12 * 128 * 500.5);
  // w - w (w - 1) / (2 T) visible keys
  CHECK(window.flops_per_token(1024) ==
        Approx(2.0 * 768 * (768 + 256 + 256 + 768) + 2.0 * 12 * 128 * (512 - 512.0 * 511 / 2048)));
  // blocks of 256: 128.5 of the own block and the whole ones before it, here 0, 1, 2, 2
  CHECK(blocks.flops_per_token(1024) == Approx(8.0 * 768 * 768 + 2.0 * 6 * 256 * (128.5 + 256 * 5.0 / 4)));
  CHECK(full.state_bytes(4096) == 4 * 128 * 4096 * 2);
  CHECK(window.state_bytes(100) == 4 * 128 * 100 * 2);
  CHECK(window.state_bytes(4096) == 4 * 128 * 512 * 2);
  CHECK(blocks.state_bytes(4096) == 6 * 256 * 768 * 2);
}

TEST_CASE("a document of one token reads its own value through the gate", "[fast]") {
  TestModel m(model(R"("num_heads": 2, "head_dim": 6, "value_head_dim": 3, "gate": "element")"), 4, 0.5);
  TraceInput input = random_input(1, 5, kVocab);
  input.doc_ids = documents({1, 1, 1, 1, 1});
  const std::vector<double> before = m.run(input).logits.values;
  // With only themselves to see, tokens do not depend on q and k.
  for (const char* name : {"q_proj.weight", "k_proj.weight"}) {
    m.change(m.param(std::string("blocks.0.mixer.") + name), [](std::vector<double>& values) {
      for (double& v : values) { v = -2 * v + 0.3; }
    });
  }
  check_close("logits", m.run(input).logits.values, before, 1e-14);
}

TEST_CASE("equal keys give the mean of the visible values", "[fast]") {
  for (const std::string window : {"", R"(, "window": 5)"}) {
    TestModel zero(model(R"("num_heads": 2, "head_dim": 4, "qk_norm": "none")" + window), 9, 0.5);
    // Zero keys: whatever the queries are, all logits are 0.
    zero.fill("blocks.0.mixer.k_proj.weight", 0);
    const TraceInput input = random_input(1, 12, kVocab);
    const std::vector<double> before = zero.run(input).logits.values;
    zero.change(zero.param("blocks.0.mixer.q_proj.weight"), [](std::vector<double>& values) {
      for (double& v : values) { v *= -7; }
    });
    check_close("logits", zero.run(input).logits.values, before, 1e-14);
    // The last token's output is unchanged when visible tokens before it change places.
    TraceInput swapped = input;
    std::swap(swapped.inputs[8], swapped.inputs[10]);
    check_close("last token", token(zero.run(swapped).logits.values, 11), token(before, 11), 1e-13);
  }
}
