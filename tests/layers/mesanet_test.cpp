#include "tests/layers/every_layer.h"

namespace {

std::string model_json(const std::string& settings, int64_t d = 20, auto... rest) {
  return mixer_model_json(R"("type": "mesanet", )" + settings, d, rest...);
}

const std::string kSmall = R"("num_heads": 2, "key_head_dim": 5)";

const std::vector<std::string> kVariants = {
    "",
    R"(, "value_head_dim": 7, "conv_bias": true, "output_gate": "silu")",
    R"(, "conv_size": 0, "qk_norm": "none", "output_gate": "sigmoid", "chunk_size": 16)",
    R"(, "conv_size": 0, "activation": "none", "output_norm": "none", "lambda_min": 0.1, "lambda_init": 0.5)",
    R"(, "conv_size": 2, "activation": "none", "value_head_dim": 3, "solver": "exact", "decay_bias_init": 1.5)",
    R"(, "conv_size": 0, "activation": "none", "qk_norm": "none", "solver": "exact", "output_gate": "silu")",
};

}  // namespace

TEST_CASE("a mesanet ridge above the range of exp starts as configured", "[mesanet][fast]") {
  TestModel m(model_json(kSmall + R"(, "lambda_min": 0.5, "lambda_init": 1000)"));
  for (const double raw : m.get(m.param("blocks.0.mixer.lambda_raw"))) { CHECK(raw == 999.5); }
}

TEST_CASE("mesanet has the properties of layers for every variant", "[mesanet][fast]") {
  for (const std::string& variant : kVariants) { check_layer("mesanet", kSmall + variant); }
}

TEST_CASE("enough steps equal the exact solver through a whole model", "[mesanet][fast]") {
  TestModel steps(model_json(kSmall + R"(, "cg_steps": 20)"), 3, 0.4),
      exact(model_json(kSmall + R"(, "solver": "exact")"), 3, 0.4);
  const TraceInput input = random_input(2, 40, 29);
  check_same_outputs(steps.run(input), exact.run(input), 1e-10);
}

TEST_CASE("cg_steps_decode counts for single tokens of a carried row alone", "[mesanet][fast]") {
  TestModel m(model_json(kSmall + R"(, "cg_steps": 4)"), 3, 0.4),
      short_steps(model_json(kSmall + R"(, "cg_steps": 4, "cg_steps_decode": 1)"), 3, 0.4),
      one(model_json(kSmall + R"(, "cg_steps": 1)"), 3, 0.4);
  const TraceInput input = random_input(1, 24, 29);
  const std::vector<double> expected = m.run(input).logits.values;
  CHECK(short_steps.run(input).logits.values == expected);
  check_close("segments", short_steps.segments(input, {13, 2, 9}), expected, 1e-11);
  check_close("decoding", short_steps.steps(input), one.run(input).logits.values, 1e-11);
  CHECK(compare(short_steps.steps(input), expected).relative() > 1e-3);
}

TEST_CASE("mesanet reports how far its solves are from converged", "[mesanet][fast]") {
  const auto residuals = [](int64_t steps) {
    TestModel m(model_json(kSmall + R"(, "cg_steps": )" + std::to_string(steps), 20, 1), 3, 0.4);
    return m.statistics(random_input(2, 30, 29)).at("blocks.0.mixer");
  };
  const auto few = residuals(1), many = residuals(20);
  CHECK(few.at("residual_max") > 1e-2);
  CHECK(few.at("residual_mean") < few.at("residual_max"));
  CHECK(many.at("residual_max") < 1e-12);
}

TEST_CASE("mesanet starts from the values of its page", "[mesanet][fast]") {
  TestModel m(model_json(kSmall + R"(, "conv_bias": true, "decay_bias_init": 2.5)", 20, 1,
                         R"("type": "swiglu", "intermediate_size": 13)", 29, R"(, "norm": "rms_unit_offset")"));
  const auto all = [&](const std::string& name, double expected) {
    for (const double v : m.get(m.param("blocks.0.mixer." + name))) { CHECK(v == Approx(expected).epsilon(1e-6)); }
  };
  for (const double raw : m.get(m.param("blocks.0.mixer.lambda_raw"))) {
    CHECK(raw == Approx(0.110).margin(1e-3));                              // the page's digits
    CHECK(0.25 + std::log1p(std::exp(raw)) == Approx(1.0).epsilon(1e-7));  // fp32
  }
  all("o_norm.weight", 1);
  all("a_proj.bias", 2.5);
  all("b_proj.bias", 0);
  all("q_conv.bias", 0);
  for (const char* name : {"lambda_raw", "a_proj.bias", "b_proj.bias", "o_norm.weight", "k_conv.bias"}) {
    INFO(name);
    CHECK_FALSE(m.param(std::string("blocks.0.mixer.") + name).decays());
  }
  for (const char* name : {"q_proj", "k_proj", "v_proj", "a_proj", "b_proj", "o_proj", "q_conv", "k_conv"}) {
    INFO(name);
    CHECK(m.param(std::string("blocks.0.mixer.") + name + ".weight").decays());
  }
}

TEST_CASE("mesanet has the published numbers of parameters, state bytes and FLOPs", "[mesanet][fast]") {
  const std::string paper =
      R"("num_heads": 6, "key_head_dim": 128, "value_head_dim": 128, "conv_size": 4, "cg_steps": 30)";
  const std::string mlp = R"("type": "swiglu", "intermediate_size": 2304)";
  CHECK(count_trained(model_json(paper, 768, 8, mlp, 10000), "blocks.0.mixer.") == 2375564);
  CHECK(count_trained(model_json(paper, 768, 8, mlp, 10000)) == 76844896);
  CHECK(count_trained(model_json(paper + R"(, "output_gate": "silu")", 768, 8, mlp, 10000)) == 81563488);
  const ModelConfig config = read_model(model_json(paper, 768, 1, mlp, 10000));
  const Model model(config);
  CHECK(model.blocks()[0].mixer->state_bytes(100) == 4 * 196608 + 2 * 2 * 3 * 6 * 128);
  const double projections = 2 * 768 * (4 * 6 * 128 + 2 * 6), convolutions = 11 * 2 * 6 * 128;
  const double states = 6 * (2 * 128 * 256 + 2 * 128 * 128 + 2 * 64 * 256);
  const double solve = 30 * 6 * (2 * 128 * 128 + 4 * 64 * 128 + 12 * 128);
  CHECK(model.blocks()[0].mixer->flops_per_token(1000) == projections + convolutions + states + solve);
}

TEST_CASE("impossible mesanet configurations are refused with what was found and expected", "[mesanet][fast]") {
  const auto error = [](const std::string& layer) { return refusal(model_json(layer)); };
  CHECK_THAT(error(R"("key_head_dim": 5)"), Contains("num_heads"));
  CHECK_THAT(error(R"("num_heads": 5)"), Contains("key_head_dim"));
  CHECK_THAT(error(kSmall + R"(, "conv_size": 1)"), Contains("conv_size") && Contains("0 or an integer >= 2"));
  CHECK_THAT(error(kSmall + R"(, "conv_size": 0, "conv_bias": true)"), Contains("false where conv_size is 0"));
  CHECK_THAT(error(kSmall + R"(, "lambda_min": 0)"), Contains("lambda_min") && Contains("> 0"));
  CHECK_THAT(error(kSmall + R"(, "lambda_init": 0.25)"),
             Contains("lambda_init") && Contains("a number > lambda_min (0.25)"));
  CHECK_THAT(error(kSmall + R"(, "cg_steps": 0)"), Contains("cg_steps") && Contains(">= 1"));
  CHECK_THAT(error(kSmall + R"(, "cg_steps_decode": 0)"), Contains("cg_steps_decode") && Contains(">= 1"));
  CHECK_THAT(error(kSmall + R"(, "cg_epsilon": -1)"), Contains("cg_epsilon") && Contains(">= 0"));
  CHECK_THAT(error(kSmall + R"(, "chunk_size": 128)"), Contains("chunk_size") && Contains("16, 32 or 64"));
  for (const char* key : {"activation", "qk_norm", "solver", "output_norm", "output_gate"}) {
    CHECK_THAT(error(kSmall + ", \"" + key + R"(": "other")"), Contains(key) && Contains("other"));
  }
}
