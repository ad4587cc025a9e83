#include "tests/layers/every_layer.h"
#include "tests/roundings.h"

namespace {

std::string model_json(const std::string& settings, int64_t d = 12, int64_t layers = 2,
                       const std::string& ffn = R"("type": "swiglu", "intermediate_size": 11)", auto... rest) {
  return mixer_model_json(R"("type": "lact", )" + settings, d, layers, ffn, rest...);
}

/// Heads of 6 channels, fast heads of 4; rates that move the fast weights far.
const std::string kHeads = R"("num_heads": 2, "num_fast_heads": 3, "window": 5, "base_lr": 0.3)";
const std::string kSmall = kHeads + R"(, "chunk_size": 4)";

const std::vector<std::string> kVariants = {
    R"(, "rank": 2)",
    R"(, "rank": 2, "momentum": false, "silu_v": true, "fast_dim": 7)",
    R"(, "rank": 0, "fast_rope": false, "fast_dim": 3)",
    R"(, "rank": 3, "output_scale": false, "fast_dim": 5)",
    R"(, "rank": 2, "muon": true, "fast_dim": 5)",
    R"(, "rank": 0, "muon": true, "momentum": false, "output_scale": false, "fast_dim": 3)",
};

std::vector<double> slice(const std::vector<double>& v, int64_t begin, int64_t end) {
  return {v.begin() + begin, v.begin() + end};
}

}  // namespace

TEST_CASE("lact reads as layers do for every variant", "[lact][fast]") {
  for (const std::string& variant : kVariants) { check_reading(model_json(kSmall + variant)); }
}

TEST_CASE("lact gradients equal difference quotients for every switch", "[lact][fast]") {
  constexpr double kStep = 1e-6;  // small, since Muon bends the loss
  for (const std::string& variant : kVariants) {
    INFO(variant);
    // Muon of a few tokens has tiny singular values, along which the loss is too steep for differences.
    const bool muon = variant.find("muon") != std::string::npos;
    const std::string chunk = std::string(R"(, "chunk_size": )") + (muon ? "9" : "4");
    TestModel m(model_json(kHeads + chunk + variant, 12, 1), 6, 0.4);
    TraceInput input = random_input(2, 20, 29);
    check_gradients(m, input, {}, 3, 1e-6, kStep);
    set_documents(input, {{1, 4, 15}, {10, 9, 1}});
    check_gradients(m, input, {}, 3, 1e-6, kStep);
  }
}

TEST_CASE("the first chunk of lact equals a layer without updates", "[lact][fast]") {
  TestModel m(model_json(kSmall + kVariants[0], 12, 1), 3, 0.4),
      still(model_json(R"("num_heads": 2, "num_fast_heads": 3, "window": 5, "chunk_size": 100, "rank": 2)", 12, 1), 3,
            0.4);
  still.copy_from(m);
  const TraceInput input = random_input(2, 10, 29);
  const std::vector<double> moving = m.run(input).logits.values, fixed = still.run(input).logits.values;
  for (const int64_t row : {0, 1}) {
    const int64_t at = row * 10 * 29;
    check_close("first chunk", slice(moving, at, at + 4 * 29), slice(fixed, at, at + 4 * 29), 1e-13);
    CHECK(compare(slice(moving, at + 4 * 29, at + 10 * 29), slice(fixed, at + 4 * 29, at + 10 * 29)).relative() > 1e-3);
  }
}

TEST_CASE("a base_lr above the range of exp is still the rate at zero projection", "[lact][fast]") {
  const auto json = [](const std::string& rate) {
    return model_json(R"("num_heads": 2, "num_fast_heads": 3, "chunk_size": 4, "rank": 2, "base_lr": )" + rate, 12, 1);
  };
  TestModel m(json("1000"), 3, 0.4), shifted(json("20"), 3, 0.4);
  for (TestModel* each : {&m, &shifted}) {
    each->fill("blocks.0.mixer.lr_proj.weight", 0);
    each->fill("blocks.0.mixer.lr_proj.bias", each == &m ? 0 : 980);
  }
  const TraceInput input = random_input(2, 15, 29);
  check_same_outputs(m.run(input), shifted.run(input), 1e-8);  // softplus inverse of 20: 20 - 2e-9
}

TEST_CASE("lact without a window attends to all tokens", "[lact][fast]") {
  const std::string rest = R"("num_heads": 2, "num_fast_heads": 3, "rank": 2, "chunk_size": 4)";
  TestModel all(model_json(rest + R"(, "window": 0)"), 3, 0.4), wide(model_json(rest + R"(, "window": 30)"), 3, 0.4),
      narrow(model_json(rest + R"(, "window": 3)"), 3, 0.4);
  const TraceInput input = random_input(2, 23, 29);
  const TraceOutput expected = all.run(input);
  check_same_outputs(wide.run(input), expected, 1e-12);
  CHECK(compare(narrow.run(input).logits.values, expected.logits.values).relative() > 1e-3);
  check_close("segments", all.segments(input, {9, 1, 1, 12}), expected.logits.values, 1e-11);
}

TEST_CASE("the random window of a training step leaves lact's attention alone", "[lact][fast]") {
  const auto logits = [](int64_t random_window) {
    TestModel m(model_json(R"("num_heads": 2, "num_fast_heads": 3, "rank": 2, "chunk_size": 4, "window": 0)"), 3, 0.4);
    return m.logits_of(Rows::streams(m.stream, m.arena, 1, 20), random_input(1, 20, 29).inputs, nullptr,
                       [&](Pass& pass) {
                         pass.training = true;
                         pass.attention.random_window = random_window;
                       });
  };
  CHECK(logits(3) == logits(0));
}

TEST_CASE("rates and momentum are reached where an update reads them", "[lact][fast]") {
  const auto grads = [](const std::string& more, int64_t length) {
    TestModel m(model_json(kSmall + more, 12, 1), 3, 0.4);
    return m.run(random_input(1, length, 29)).grads;
  };
  const std::string lr = "blocks.0.mixer.lr_proj.", momentum = "blocks.0.mixer.momentum_proj.";
  const auto is_zero = [](const std::vector<double>& v) {
    return std::all_of(v.begin(), v.end(), [](double x) { return x == 0; });
  };
  const auto none = grads(kVariants[0], 4);
  CHECK(none.count(lr + "weight") == 0);
  CHECK(none.count(momentum + "bias") == 0);
  CHECK(none.count("blocks.0.mixer.qk_scale") == 1);
  const auto one = grads(kVariants[0], 8);
  CHECK_FALSE(is_zero(one.at(lr + "weight").values));
  CHECK(is_zero(one.at(momentum + "weight").values));
  CHECK(is_zero(one.at(momentum + "bias").values));
  const auto two = grads(kVariants[0], 9);
  CHECK_FALSE(is_zero(two.at(momentum + "weight").values));
  CHECK(grads(R"(, "momentum": false)", 9).count(momentum + "weight") == 0);
}

TEST_CASE("fp32 lact stays within 1e-5 of fp64", "[lact][fast]") {
  for (const std::string& variant : kVariants) {
    INFO(variant);
    const std::string layer = R"("num_heads": 2, "num_fast_heads": 2, "window": 9, "chunk_size": 24, "base_lr": 0.02)";
    TraceInput input = random_input(2, 100, 29);
    set_documents(input, {{1, 99}, {70, 30}});
    // Muon brings singular values near 1, small ones too: where these are, rounded keys and values turn a step further
    // than themselves.
    const double tolerance = variant.find("muon") == std::string::npos ? 1e-5 : roundings() * 3e-4;
    check_precision(model_json(layer + variant, 20), input, 0.2, with_grads(), tolerance);
  }
}

TEST_CASE("chunks longer than a tile of tokens change lact by rounding only", "[lact][fast]") {
  const std::string layer = R"("num_heads": 2, "num_fast_heads": 2, "window": 9, "rank": 2, "chunk_size": 150)";
  TestModel m(model_json(layer), 3, 0.4);
  const TraceInput input = random_input(1, 320, 29);
  check_close("segments", m.segments(input, {47, 150, 3, 120}), m.run(input).logits.values, 1e-11);
  check_gradients(m, input, {}, 2);
}

TEST_CASE("lact starts from the values of its page", "[lact][fast]") {
  TestModel m(
      model_json(R"("num_heads": 2, "num_fast_heads": 2, "fast_dim": 30, "rank": 25, "fast_init_gain": 0.5)", 40, 1));
  const auto values = [&](const std::string& name) { return m.get(m.param("blocks.0.mixer." + name)); };
  const auto deviation = [&](const std::string& name) {
    double square = 0;
    const std::vector<double> v = values(name);
    for (const double x : v) { square += x * x; }
    return std::sqrt(square / static_cast<double>(v.size()));
  };
  // 2 % standard error of 1,000 to 1,600 draws
  CHECK(deviation("q_proj.weight") == Approx(0.02).epsilon(0.1));
  CHECK(deviation("w0_left") == Approx(0.5 / 5).epsilon(0.1));
  CHECK(deviation("w2_right") == Approx(0.5 / std::sqrt(20.0)).epsilon(0.1));
  CHECK(deviation("w1") == Approx(1 / std::sqrt(30.0)).epsilon(0.1));
  for (const double x : values("qk_scale")) { CHECK(x == 1); }
  for (const double x : values("qk_offset")) { CHECK(x == 0); }
  CHECK(m.param("blocks.0.mixer.qk_scale").decays());
  CHECK(m.param("blocks.0.mixer.w0_left").decays());
  CHECK(m.param("blocks.0.mixer.w1").decays());
  for (const char* name : {"lr_proj.bias", "scale_proj.bias", "momentum_proj.bias", "fast_norm.weight"}) {
    CHECK_FALSE(m.param(std::string("blocks.0.mixer.") + name).decays());
  }
  TestModel full(model_json(R"("num_heads": 2, "num_fast_heads": 2, "rank": 0)", 40, 1));
  CHECK(full.get(full.param("blocks.0.mixer.w0")).size() == 2 * 20 * 20);
  CHECK(full.model->params().find("blocks.0.mixer.w0_left") == nullptr);
}

TEST_CASE("lact has the published number of parameters, and the page's FLOPs and state", "[lact][fast]") {
  const std::string paper =
      R"("num_heads": 12, "num_fast_heads": 4, "window": 2048, "chunk_size": 512, "rank": 32, "rope": {"theta": 10000.0})";
  const std::string json = model_json(paper, 768, 12, R"("type": "swiglu", "intermediate_size": 2048)", 32000,
                                      R"(, "tie_embeddings": true, "norm_eps": 1e-6)");
  CHECK(count_trained(json) == 112702704);
  const ModelConfig config = read_model(json);
  const Model model(config);
  const Layer& layer = *model.blocks()[0].mixer;
  const double visible = (2048.0 * 2049 / 2 + 2048.0 * 2048) / 4096;
  CHECK(layer.flops_per_token(4096) ==
        Approx(8.0 * 768 * 768 + 4.0 * 768 * visible + 4 * 192 * 192 * (6 + 12 * 7.0 / 8)).epsilon(1e-12));
  const int64_t fast = 4 * 192 * 192;  // W and M, and what the chunk has gathered in fp32
  CHECK(layer.state_bytes(4096) == 2 * 2048 * 768 * 2 + 6 * fast * 4 + (3 * fast + 4) * 4);
  CHECK(layer.state_bytes(100) == 2 * 100 * 768 * 2 + 6 * fast * 4 + (3 * fast + 4) * 4);
}

TEST_CASE("impossible lact configurations are refused with what was found and expected", "[lact][fast]") {
  const auto error = [](const std::string& layer) { return refusal(model_json(layer)); };
  CHECK_THAT(error(R"("rank": 2)"), Contains("num_heads"));
  CHECK_THAT(error(R"("num_heads": 5)"),
             Contains("num_heads") && Contains("5") && Contains("a divisor of hidden_size (12) with an even quotient"));
  CHECK_THAT(error(R"("num_heads": 4)"), Contains("num_heads") && Contains("an even quotient"));
  CHECK_THAT(error(R"("num_heads": 2, "num_fast_heads": 5)"),
             Contains("num_fast_heads") && Contains("5") && Contains("a divisor of hidden_size (12)"));
  CHECK_THAT(error(R"("num_heads": 2, "rope": {"theta": 10.0, "dims": 4})"),
             Contains("rope.dims") && Contains("4") && Contains("hidden_size / num_heads (6)"));
  CHECK_THAT(error(R"("num_heads": 6, "rope": {"theta": 10.0, "endpoint": true})"), Contains("rope.endpoint"));
  CHECK_THAT(error(R"("num_heads": 2, "chunk_size": 0)"), Contains("chunk_size") && Contains(">= 1"));
  CHECK_THAT(error(R"("num_heads": 2, "fast_dim": 0)"), Contains("fast_dim") && Contains(">= 1"));
  CHECK_THAT(error(R"("num_heads": 2, "window": -1)"), Contains("window") && Contains(">= 0"));
  CHECK_THAT(error(R"("num_heads": 2, "rank": -1)"), Contains("rank") && Contains(">= 0"));
  CHECK_THAT(error(R"("num_heads": 2, "base_lr": 0)"), Contains("base_lr") && Contains("> 0"));
  CHECK_THAT(error(R"("num_heads": 2, "fast_init_gain": 0)"), Contains("fast_init_gain") && Contains("> 0"));
}
