#include "tests/layers/properties.h"

namespace {

std::string model(const std::string& attention, int64_t layers = 1, const std::string& extra = "") {
  return R"({"vocab_size": 13, "hidden_size": 7, "num_layers": )" + std::to_string(layers) +
         R"(, "layers": {"x": {"type": "attention", "num_heads": 2, "num_kv_heads": 1, "head_dim": 4, "value_head_dim": 3, )" +
         attention +
         R"(}, "mlp": {"type": "swiglu", "intermediate_size": 5}}, "pattern": [{"mixer": "x", "ffn": "mlp"}])" + extra +
         "}";
}

}  // namespace

TEST_CASE("attention gradients equal difference quotients for every combination of norm, gate, rope and window",
          "[fast]") {
  const std::string norm = GENERATE(as<std::string>(), "none", "rms", "l2", "layer");
  const std::string gate = GENERATE(as<std::string>(), "none", "head", "element");
  const std::string rope = GENERATE(as<std::string>(), "", R"(, "rope": {"theta": 9.0})",
                                    R"(, "rope": {"theta": 9.0, "dims": 2, "yarn": {"factor": 3.0, "original": 5}})");
  const std::string window =
      GENERATE(as<std::string>(), "", R"(, "window": 3)", R"(, "block_window": {"size": 2, "blocks": 2})");
  const std::string fields = R"("qk_norm": ")" + norm + R"(", "gate": ")" + gate + "\"" + rope + window;
  INFO(fields);
  TestModel m(model(fields), 3, 0.6);
  TraceInput input = random_input(1, 9, 13);
  input.doc_ids = documents({2, 7});
  check_gradients(m, input, {}, 3);
}

TEST_CASE("gradients of token shift and value residual equal difference quotients", "[fast]") {
  const std::string residual =
      GENERATE(as<std::string>(), R"("value_residual": "none")", R"("value_residual": "lambda")",
               R"("value_residual": "lambda", "value_residual_source": "embedding")",
               R"("value_residual": "gated", "value_residual_rank": 2)",
               R"("value_residual": "gated", "value_residual_rank": 3, "value_residual_source": "embedding")");
  const std::string shift = GENERATE(as<std::string>(), "true", "false");
  const std::string extra =
      GENERATE(as<std::string>(), R"(, "norm": "layer", "embed_norm": true, "residual_scale": 0.7)", "");
  INFO(residual << shift << extra);
  TestModel m(model(residual + R"(, "qk_norm": "rms", "token_shift": )" + shift, 3, extra), 3, 0.6);
  TraceInput input = random_input(2, 6, 13);
  input.doc_ids = documents({1, 5, 4, 2});
  check_gradients(m, input, {}, 3);
}

TEST_CASE("a value-residual group that begins behind other blocks has right gradients", "[fast]") {
  // The group's first block is number 1: with the source "embedding" its norm reads h_0 a second time.
  const std::string source = GENERATE(as<std::string>(), "first", "embedding");
  const std::string rho = GENERATE(as<std::string>(), "1.0", "0.5");
  const std::string base = R"("type": "attention", "num_heads": 1, "head_dim": 4)";
  const std::string residual =
      base + R"(, "value_residual": "gated", "value_residual_group": "late", "value_residual_rank": 2)";
  const std::string json =
      R"({"vocab_size": 13, "hidden_size": 7, "num_layers": 4, "residual_scale": )" + rho +
      R"(, "layers": {"plain": {)" + base + R"(}, "first": {)" + residual + R"(, "value_residual_source": ")" + source +
      R"("}, "other": {)" + residual + R"(, "value_residual_source": "first"}, "third": {)" + residual +
      R"(, "value_residual_source": "embedding"}, "mlp": {"type": "swiglu", "intermediate_size": 5}},
                           "pattern": [{"mixer": "plain", "ffn": "mlp"}, {"mixer": "first", "ffn": "mlp"},
                                       {"mixer": "other", "ffn": "mlp"}, {"mixer": "third", "ffn": "mlp"}]})";
  TestModel m(json, 3, 0.6);
  const TraceInput input = random_input(1, 6, 13);
  check_gradients(m, input, {}, 3);
  check_threads_and_recompute(m, input);
}
