#include "tests/layers/every_layer.h"

namespace {

std::string model_json(const std::string& settings, int64_t d = 20, auto... rest) {
  return mixer_model_json(R"("type": "gdn", )" + settings, d, rest...);
}

const std::string kSmall = R"("num_heads": 2, "key_head_dim": 5, "value_head_dim": 7)";

std::string heads(int64_t count, int64_t key_dim, int64_t value_dim) {
  return R"("num_heads": )" + std::to_string(count) + R"(, "key_head_dim": )" + std::to_string(key_dim) +
         R"(, "value_head_dim": )" + std::to_string(value_dim);
}

std::string mlp(int64_t n) { return R"("type": "swiglu", "intermediate_size": )" + std::to_string(n); }

const std::vector<std::string> kVariants = {
    "",
    R"(, "num_value_heads": 4, "conv_bias": true)",
    R"(, "conv_size": 0, "qk_norm": "none", "output_gate": "sigmoid")",
    R"(, "conv_size": 0, "activation": "none", "output_norm": "none")",
    R"(, "conv_size": 2, "activation": "none", "output_gate": "none")",
    R"(, "conv_size": 3, "output_gate": "none", "output_norm": "none", "initial_state": "learned")",
    R"(, "num_value_heads": 6, "allow_neg_eigval": true, "initial_state": "learned", "dt_bias_init": "ones", "chunk_size": 16)",
    R"(, "conv_size": 0, "activation": "none", "qk_norm": "none", "initial_state": "learned")",
};

}  // namespace

TEST_CASE("gdn has the properties of layers for every variant", "[gdn][fast]") {
  for (const std::string& variant : kVariants) { check_layer("gdn", kSmall + variant); }
}

TEST_CASE("gdn starts from the values of its page", "[gdn][fast]") {
  TestModel m(
      model_json(
          R"("num_heads": 40, "key_head_dim": 2, "value_head_dim": 3, "conv_bias": true, "initial_state": "learned")",
          20, 1, mlp(13), 29, R"(, "norm": "rms_unit_offset", "init_std": 0.5)"),
      DType::f64, 11);
  const auto values = [&](const std::string& name) { return m.get(m.param("blocks.0.mixer." + name)); };
  const auto all = [&](const std::string& name, double expected) {
    const std::vector<double> v = values(name);
    return std::all_of(v.begin(), v.end(), [&](double x) { return x == expected; });
  };
  CHECK(all("o_norm.weight", 1.0));  // also where the model's norms store an offset from 1
  CHECK(all("initial_state", 0.0));
  CHECK(all("q_conv.bias", 0.0));
  Rng a_log(11, "blocks.0.mixer.A_log"), dt_bias(11, "blocks.0.mixer.dt_bias");
  for (const double v : values("A_log")) {
    CHECK(v == static_cast<double>(static_cast<float>(std::log(std::max(16.0 * a_log.uniform(), 1e-4)))));
  }
  for (const double v : values("dt_bias")) {
    const double dt = std::exp(std::log(0.001) + std::log(100.0) * dt_bias.uniform());
    CHECK(std::log1p(std::exp(v)) == Approx(dt).epsilon(1e-5));  // fp32 storage of values near -7
  }
  double square = 0;
  for (const double v : values("q_conv.weight")) { square += v * v; }
  CHECK(std::sqrt(square / 320.0) == Approx(0.5).epsilon(0.15));  // 320 draws: 4 % standard error
  TestModel ones(model_json(kSmall + R"(, "dt_bias_init": "ones")"));
  CHECK(ones.get(ones.param("blocks.1.mixer.dt_bias")) == std::vector<double>(2, 1.0));
}

TEST_CASE("weight decay spares gdn's decay, norm and biases", "[gdn][fast]") {
  TestModel m(model_json(kSmall + R"(, "conv_bias": true, "initial_state": "learned")", 20, 1));
  for (const char* name : {"A_log", "dt_bias", "q_conv.bias", "k_conv.bias", "v_conv.bias", "o_norm.weight"}) {
    INFO(name);
    CHECK_FALSE(m.param(std::string("blocks.0.mixer.") + name).decays());
  }
  for (const char* name :
       {"q_proj", "k_proj", "v_proj", "a_proj", "b_proj", "g_proj", "o_proj", "q_conv", "k_conv", "v_conv"}) {
    INFO(name);
    CHECK(m.param(std::string("blocks.0.mixer.") + name + ".weight").decays());
  }
  CHECK(m.param("blocks.0.mixer.initial_state").decays());
}

TEST_CASE("gdn's state holds the convolutions' inputs", "[gdn][fast]") {
  const auto bytes = [](int64_t d, int64_t layers, const std::string& more) {
    const ModelConfig config = read_model(model_json(heads(d / 128, 64, 128) + more, d, layers));
    return Model(config).state_bytes(100);
  };
  CHECK(bytes(768, 1, R"(, "conv_size": 0)") == 4 * 6 * 64 * 128);         // fp32
  CHECK(bytes(768, 1, "") == 4 * 6 * 64 * 128 + 2 * 3 * (2 * 384 + 768));  // three inputs in bf16
}

TEST_CASE("gdn counts the FLOPs of its page", "[gdn][fast]") {
  TestModel m(model_json(R"("num_heads": 2, "num_value_heads": 4, "key_head_dim": 5, "value_head_dim": 7)", 20, 1));
  const double projections = 2 * 20 * (2 * 10 + 3 * 28 + 2 * 4), convolutions = 11 * (2 * 10 + 28);
  const double core = 4 * (1 + 3.5 * 64 + 64 * 32) + 6 * 64 * 4 * 5 + 4 * 64 * 28 + 6 * 4 * 5 * 7;
  CHECK(m.model->blocks()[0].mixer->flops_per_token(1000) == projections + convolutions + core);
}

TEST_CASE("impossible gdn configurations are refused with what was found and expected", "[gdn][fast]") {
  const auto error = [](const std::string& layer) { return refusal(model_json(layer)); };
  const std::string sizes = R"("key_head_dim": 5, "value_head_dim": 7)";
  CHECK_THAT(error(sizes), Contains("num_heads"));
  CHECK_THAT(error(R"("num_heads": 3, "num_value_heads": 4, )" + sizes),
             Contains("num_value_heads") && Contains("4") && Contains("a multiple of num_heads (3)"));
  CHECK_THAT(error(R"("num_heads": 0, )" + sizes), Contains("num_heads") && Contains("0") && Contains(">= 1"));
  CHECK_THAT(error(kSmall + R"(, "conv_size": 1)"), Contains("conv_size") && Contains("0 or an integer >= 2"));
  CHECK_THAT(error(kSmall + R"(, "conv_size": 0, "conv_bias": true)"),
             Contains("conv_bias") && Contains("false where conv_size is 0"));
  CHECK_THAT(error(kSmall + R"(, "chunk_size": 48)"),
             Contains("chunk_size") && Contains("48") && Contains("16, 32, 64 or 128"));
  CHECK_THAT(error(kSmall + R"(, "activation": "relu")"),
             Contains("activation") && Contains("relu") && Contains("silu"));
  CHECK_THAT(error(kSmall + R"(, "qk_norm": "rms")"), Contains("qk_norm"));
  CHECK_THAT(error(kSmall + R"(, "output_norm": "layer")"), Contains("output_norm"));
  CHECK_THAT(error(kSmall + R"(, "output_gate": "relu")"), Contains("output_gate"));
  CHECK_THAT(error(kSmall + R"(, "dt_bias_init": "zeros")"), Contains("dt_bias_init"));
  CHECK_THAT(error(kSmall + R"(, "initial_state": "one")"), Contains("initial_state"));
}
