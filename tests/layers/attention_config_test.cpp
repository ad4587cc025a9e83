#include "tests/layers/harness.h"

namespace {

std::string model(const std::string& layers, const std::string& pattern) {
  return R"({"vocab_size": 5, "hidden_size": 6, "num_layers": 2, "layers": {"mlp": {"type": "swiglu", "intermediate_size": 3}, )" +
         layers + R"(}, "pattern": [)" + pattern + "]}";
}

std::string one(const std::string& fields) {
  return model(R"("x": {"type": "attention", )" + fields + "}", R"({"mixer": "x", "ffn": "mlp"})");
}

void check_refused(const std::string& json, const std::string& message) {
  INFO(message);
  CHECK_THROWS_WITH(TestModel(json), Contains("model.layers." + message));
}

}  // namespace

TEST_CASE("attention refuses impossible configurations", "[fast]") {
  check_refused(one(R"("head_dim": 4)"), "x.num_heads: found nothing, expected an integer (required)");
  check_refused(one(R"("num_heads": 4, "head_dim": 4, "num_kv_heads": 3)"),
                "x.num_kv_heads: found 3, expected a divisor of num_heads (4)");
  check_refused(one(R"("num_heads": 1, "head_dim": 4, "window": -1)"), "x.window: found -1");
  check_refused(one(R"("num_heads": 1, "head_dim": 4, "qk_norm": "batch")"), "x.qk_norm: found \"batch\"");
  check_refused(one(R"("num_heads": 1, "head_dim": 4, "window": 3, "block_window": {"size": 2, "blocks": 2})"),
                "x.window: found 3, expected 0 together with block_window");
  check_refused(one(R"("num_heads": 1, "head_dim": 4, "block_window": {"size": 2})"),
                "x.block_window.blocks: found nothing");
  check_refused(one(R"("num_heads": 1, "head_dim": 5, "rope": {"theta": 10.0})"),
                "x.rope.dims: found nothing, expected an even integer (required, since head_dim is 5)");
  check_refused(one(R"("num_heads": 1, "head_dim": 8, "rope": {"theta": 10.0, "dims": 3})"),
                "x.rope.dims: found 3, expected an even integer");
  check_refused(one(R"("num_heads": 1, "head_dim": 8, "rope": {"theta": 10.0, "dims": 10})"),
                "x.rope.dims: found 10, expected an even integer from 2 to head_dim (8)");
  check_refused(one(R"("num_heads": 1, "head_dim": 8, "rope": {"dims": 4})"), "x.rope.theta: found nothing");
  check_refused(one(R"("num_heads": 1, "head_dim": 2, "rope": {"theta": 10.0, "endpoint": true})"),
                "x.rope.dims: found 2, expected an even integer >= 4 together with endpoint");
  const std::string yarn = R"("yarn": {"factor": 2.0, "original": 4}})";
  const std::string llama3 =
      R"("llama3": {"factor": 2.0, "original": 4, "low_freq_factor": 1.0, "high_freq_factor": 4.0})";
  check_refused(one(R"("num_heads": 1, "head_dim": 8, "rope": {"theta": 10.0, )" + llama3 + ", " + yarn),
                "x.rope.llama3: found an object, expected nothing together with yarn");
  check_refused(one(R"("num_heads": 1, "head_dim": 8, "rope": {"theta": 10.0, "endpoint": true, )" + llama3 + "}"),
                "x.rope.endpoint: found true, expected false together with llama3");
  check_refused(
      one(R"("num_heads": 1, "head_dim": 8, "rope": {"theta": 10.0, "llama3": {"factor": 2.0, "original": 4}})"),
      "x.rope.llama3.low_freq_factor");
  check_refused(one(R"("num_heads": 1, "head_dim": 8, "rope": {"theta": 10.0, "llama3": {"factor": 2.0, "original": 4,
      "low_freq_factor": 4.0, "high_freq_factor": 4.0}})"),
                "x.rope.llama3.high_freq_factor: found 4.0, expected a number > low_freq_factor");
  check_refused(one(R"("num_heads": 1, "head_dim": 8, "rope": {"theta": 10.0, "endpoint": true, )" + yarn),
                "x.rope.endpoint: found true, expected false together with yarn");
  check_refused(one(R"("num_heads": 1, "head_dim": 8, "rope": {"theta": 1.0, )" + yarn),
                "x.rope.theta: found 1.0, expected a number > 1 together with yarn");
  check_refused(
      one(R"("num_heads": 1, "head_dim": 8, "rope": {"theta": 10.0, "yarn": {"factor": 0.5, "original": 4}})"),
      "x.rope.yarn.factor: found 0.5");
  check_refused(one(R"("num_heads": 1, "head_dim": 8, "value_residual": "some")"), "x.value_residual: found \"some\"");
}

TEST_CASE("layers of a value-residual group must agree in their value channels", "[fast]") {
  const std::string a = R"("a": {"type": "attention", "num_heads": 2, "head_dim": 4, "value_residual": "lambda")";
  const std::string b =
      R"("b": {"type": "attention", "num_heads": 4, "num_kv_heads": 1, "head_dim": 4, "value_residual": "gated")";
  const std::string pattern = R"({"mixer": "a", "ffn": "mlp"}, {"mixer": "b", "ffn": "mlp"})";
  check_refused(
      model(a + "}, " + b + "}", pattern),
      "b.value_residual_group: found \"main\" with 4 value channels, expected layers with the same num_kv_heads * "
      "value_head_dim (8 in the group's first block)");
  CHECK_NOTHROW(TestModel(model(a + "}, " + b + R"(, "value_residual_group": "other"})", pattern)));
  CHECK_NOTHROW(TestModel(model(a + "}, " + b + R"(, "value_head_dim": 8})", pattern)));
  CHECK_NOTHROW(TestModel(model(a + "}, " + b + "}", R"({"mixer": "a", "ffn": "mlp"})")));
}

TEST_CASE("defaults of attention are written out", "[fast]") {
  TestModel m(
      one(R"("num_heads": 6, "head_dim": 8, "rope": {"theta": 10.0, "yarn": {"factor": 8.0, "original": 16}})"));
  const std::string text = Fields::write(m.config).dump();
  CHECK_THAT(text, Contains("\"num_kv_heads\":6") && Contains("\"value_head_dim\":8") && Contains("\"dims\":8") &&
                       Contains("1.207944"));
}

TEST_CASE("initial values follow the pages", "[fast]") {
  const std::string json = R"({"vocab_size": 5, "hidden_size": 12, "num_layers": 4, "layers": {
    "x": {"type": "attention", "num_heads": 2, "head_dim": 9, "qk_norm": "l2", "token_shift": true, "value_residual": "gated", "value_residual_rank": 5},
    "mlp": {"type": "relu2", "intermediate_size": 20, "token_shift": true}}, "pattern": [{"mixer": "x", "ffn": "mlp"}]})";
  TestModel m(json);
  const auto values = [&](const std::string& name) { return m.get(m.param("blocks.1." + name)); };
  const double rho = 1.0 - 1.0 / 4;
  for (const auto& [name, power] : {std::pair{"mixer.q_shift", 0.2 * rho},
                                    {"mixer.k_shift", 0.7 * rho},
                                    {"mixer.v_shift", 0.7 * rho},
                                    {"ffn.shift", std::pow(rho, 4)}}) {
    const std::vector<double> shift = values(name);
    for (size_t i = 0; i < shift.size(); ++i) {
      CHECK(shift[i] ==
            Approx(1 - std::pow(static_cast<double>(i) / static_cast<double>(shift.size()), power)).epsilon(1e-6));
    }
  }
  CHECK(values("mixer.vres_bias").front() == Approx(0.93));
  CHECK(values("mixer.vres_bias").back() == Approx(0.53));
  CHECK(values("mixer.vres_down.weight") == std::vector<double>(60));
  CHECK(values("ffn.down_proj.weight") == std::vector<double>(240));
  CHECK(values("mixer.beta") == std::vector<double>{3.0, 3.0});
  // Columns of vres_up [18, 5] have length 0.1; rows and columns of up_proj [20, 12]: orthonormal columns.
  for (const auto& [name, columns, gain] :
       {std::tuple{"mixer.vres_up.weight", size_t{5}, 0.1}, {"ffn.up_proj.weight", size_t{12}, 1.0}}) {
    const std::vector<double> w = values(name);
    for (size_t a = 0; a < columns; ++a) {
      for (size_t b = 0; b < columns; ++b) {
        double product = 0;
        for (size_t r = 0; r < w.size() / columns; ++r) { product += w[r * columns + a] * w[r * columns + b]; }
        CHECK(std::abs(product - (a == b ? gain * gain : 0.0)) < 1e-6);  // values are rounded to fp32
      }
    }
  }
}

TEST_CASE("value residual parameters of a group's first block are reached with gradient zero", "[fast]") {
  const std::string source = GENERATE(as<std::string>(), "first", "embedding");
  TestModel m(
      one(R"("num_heads": 1, "head_dim": 4, "value_residual": "gated", "value_residual_rank": 2, "value_residual_source": ")" +
          source + "\""),
      2, 0.5);
  const TraceOutput out = m.run(random_input(1, 6, 5));
  for (const char* name : {"vres_bias", "vres_up.weight", "vres_down.weight"}) {
    const std::vector<double>& first = out.grads.at(std::string("blocks.0.mixer.") + name).values;
    CHECK(first == std::vector<double>(first.size()));
    const std::vector<double>& second = out.grads.at(std::string("blocks.1.mixer.") + name).values;
    CHECK(second != std::vector<double>(second.size()));
  }
}
