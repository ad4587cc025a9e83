// Decoding, thresholds, statistics and configuration of HAM (docs/layers/ham.md).
#include "inspect/plan.h"
#include "kernels/adamw/adamw.h"
#include "layers/ham/thresholds.h"
#include "layers/ops/host_values.h"
#include "tests/layers/ham_models.h"

namespace {

const HamState& state_of(const ModelState& state, size_t block) {
  return static_cast<const HamState&>(*state.blocks[block].mixer);
}

/// A threshold with its moments, outside a model.
struct Steered {
  Stream stream;
  Arena arena{DeviceKind::cpu};
  ParamStore store;
  HamThresholds thresholds{store, 3};
  std::vector<Param*> params;

  Steered(const HamThresholdConfig& config, int layers, DType dtype = DType::f64) {
    for (int i = 0; i < layers; ++i) {
      params.push_back(&store.declare({"threshold." + std::to_string(i), {1}, init::constant(-0.5), ParamKind::state}));
      thresholds.add(config, params.back());
    }
    store.allocate(arena, dtype, true);
    store.initialize(stream, 1);
  }
  double value(size_t i) { return host_values(stream, params[i]->value)[0]; }
  /// One step in which layer i selects selected[i] of 100 tokens.
  void step(int64_t index, const std::vector<int64_t>& selected) {
    for (size_t i = 0; i < params.size(); ++i) {
      thresholds.begin_step(i, stream);
      count(i, selected[i], 100);
    }
    update(index);
  }
  void count(size_t i, int64_t selected, int64_t tokens) {
    auto rows = static_cast<int32_t>(selected);
    thresholds.count(i, stream, Tensor{&rows, DType::i32, {1}}, tokens);
  }
  void update(int64_t index) {
    double applies = 1;
    for (Param* p : params) { p->reached = false; }
    for (size_t i = 0; i < params.size(); ++i) {
      thresholds.update(i, stream, index, Tensor{&applies, DType::f64, {1}});
    }
    for (Param* p : params) { p->updates += p->reached ? 1 : 0; }
  }
};

HamThresholdConfig steering(const std::string& scope = "global") {
  return {.scope = scope, .target = 0.4, .freeze_steps = 0, .lr = 0.02};
}

}  // namespace

TEST_CASE("the list of keys holds the selected tokens of each row and grows past a page", "[ham][fast]") {
  TestModel m(ham_json(R"("threshold": {"tau": 0.4})"), 3, 0.4);
  const int64_t length = 190;
  const TraceInput input = random_input(2, length);
  const TraceOutput whole = m.run(input, inside());
  const auto state = m.model->make_state(m.arena, 2);
  for (int64_t begin = 0; begin < length; begin += 38) { m.segments(part(input, begin, 38), {38}, state.get()); }
  int64_t longest = 0;
  for (size_t block = 0; block < 2; ++block) {
    const std::vector<int64_t>& mask = whole.inside.at("blocks." + std::to_string(block) + ".mixer.mask").integers;
    for (int64_t row = 0; row < 2; ++row) {
      const auto begin = mask.begin() + row * length;
      const int64_t selected = std::accumulate(begin, begin + length, int64_t{0});
      CHECK(state_of(*state, block).cache.tokens(row) == selected);
      longest = std::max(longest, selected);
    }
  }
  CHECK(longest > 64);
}

TEST_CASE("the list of keys drops documents that have ended", "[ham][fast]") {
  TestModel m(ham_json(R"("threshold": {"mode": "all"})"), 3, 0.4);
  const auto state = m.model->make_state(m.arena, 1);
  const TraceInput input = random_input(1, 50);
  std::vector<int64_t> ids(50, 1);
  std::fill_n(ids.begin(), 25, 0);
  int64_t settled = 0;
  for (int segment = 0; segment < 12; ++segment) {  // 25 tokens of the document before, 25 of a new one
    m.logits_of(Rows::documents(m.stream, m.arena, 1, 50, ids, segment > 0 ? 25 : 0), input.inputs, state.get());
    CHECK(state_of(*state, 0).cache.tokens(0) == 25);
    if (segment == 2) { settled = m.arena.in_use_bytes(); }
  }
  CHECK(m.arena.in_use_bytes() == settled);
}

TEST_CASE("too many selected tokens raise the threshold, too few lower it", "[ham][fast]") {
  Steered s(steering(), 1);
  s.step(0, {70});
  CHECK(s.value(0) == Approx(-0.5 + 0.02).epsilon(1e-6));  // the first step of Adam has the size of lr
  s.step(1, {0});
  s.step(2, {0});
  CHECK(s.value(0) < -0.5 + 0.02);
}

TEST_CASE("the threshold moves by AdamW on the clipped gap", "[ham][fast]") {
  HamThresholdConfig c = steering();
  c.gain = 3;
  c.clip = 0.25;
  c.betas = {0.8, 0.95};
  c.eps = 0.01;
  Steered s(c, 1);
  double p = -0.5, first = 0, second = 0;
  const std::vector<std::pair<int64_t, double>> steps = {{42, -0.06}, {90, -0.25}, {0, 0.25}, {39, 0.03}};
  for (size_t t = 0; t < steps.size(); ++t) {
    s.step(int64_t(t), {steps[t].first});
    const double g = steps[t].second, n = static_cast<double>(t + 1);
    first = 0.8 * first + 0.2 * g;
    second = 0.95 * second + 0.05 * g * g;
    p -= 0.02 * (first / (1 - std::pow(0.8, n))) / (std::sqrt(second / (1 - std::pow(0.95, n))) + 0.01);
    CHECK(s.value(0) == Approx(p).epsilon(1e-12));
  }
  CHECK(s.params[0]->updates == 4);
}

TEST_CASE("frozen steps change neither threshold nor moments nor counter", "[ham][fast]") {
  HamThresholdConfig c = steering();
  c.freeze_steps = 2;
  Steered s(c, 1);
  s.step(0, {90});
  s.step(1, {90});
  CHECK(s.value(0) == -0.5);
  CHECK(s.params[0]->updates == 0);
  CHECK(host_values(s.stream, s.params[0]->m)[0] == 0);
  s.step(2, {90});
  CHECK(s.value(0) > -0.5);
  CHECK(s.params[0]->updates == 1);
}

TEST_CASE("a common target moves thresholds alike, one for each layer moves them apart", "[ham][fast]") {
  Steered global(steering(), 3), layer(steering("layer"), 3);
  for (int64_t step = 0; step < 5; ++step) {
    global.step(step, {10 + step, 80, 33});
    layer.step(step, {10 + step, 80, 40});
  }
  CHECK(global.value(0) == global.value(1));
  CHECK(global.value(0) == global.value(2));
  CHECK(layer.value(0) < -0.5);
  CHECK(layer.value(1) > -0.5);
  CHECK(layer.value(2) == -0.5);
}

TEST_CASE("the update depends on the counts alone, not on how they were collected", "[ham][fast]") {
  Steered whole(steering(), 2, DType::f32), parts(steering(), 2, DType::f32);
  for (int64_t step = 0; step < 7; ++step) {
    whole.step(step, {31 + step, 57});
    for (size_t i = 0; i < 2; ++i) {
      parts.thresholds.begin_step(i, parts.stream);
      for (const int64_t tokens : {10, 60, 30}) {
        parts.count(i, tokens == 10 ? 7 : tokens == 60 ? (i == 0 ? 20 + step : 41) : (i == 0 ? 4 : 9), tokens);
      }
    }
    parts.update(step);
    CHECK(whole.value(0) == parts.value(0));
    CHECK(whole.value(1) == parts.value(1));
  }
}

TEST_CASE("on fixed scores the threshold finds the target", "[ham][fast]") {
  Steered s(steering(), 1);
  double last = 0;
  for (int64_t step = 0; step < 400; ++step) {
    const double tau = 2 / (1 + std::exp(-s.value(0)));
    int64_t selected = 0;
    for (int i = 0; i < 100; ++i) { selected += 2 * (i + 0.5) / 100 >= tau ? 1 : 0; }
    s.step(step, {selected});
    last = static_cast<double>(selected) / 100;
  }
  CHECK(std::abs(last - 0.4) <= 0.02);
}

TEST_CASE("evaluation may replace thresholds", "[ham][fast]") {
  TestModel m(ham_json(R"("router": {"type": "input"})", "", "", 1), 3, 0.4);
  auto& layer = dynamic_cast<Overridable&>(*m.model->blocks()[0].mixer);
  const TraceInput input = random_input(2, 20);
  const auto selected = [&] { return count_selected(m.run(input, inside()).inside.at("blocks.0.mixer.mask")); };
  const int64_t own = selected();
  HamOverride every_token, no_token, high;
  every_token.mode = "all";
  no_token.mode = "none";
  high.tau = 0.9;
  layer.override_selection(every_token);
  CHECK(selected() == 40);
  const std::vector<double> all = m.run(input).logits.values;
  layer.override_selection(no_token);
  CHECK(selected() == 0);
  layer.override_selection(high);
  CHECK(selected() < own);
  layer.override_selection({});
  CHECK(selected() == own);
  TestModel every(ham_json(R"("router": {"type": "input"}, "threshold": {"mode": "all"})", "", "", 1), DType::f64, 3,
                  0.4);
  every.copy_from(m);
  CHECK(every.run(input).logits.values == all);
}

TEST_CASE("a trace shows how the list grows and how scores depend on the position", "[ham][fast]") {
  TestModel m(ham_json(R"("threshold": {"tau": 0.9})", "", "", 1), 3, 0.4);
  TraceOptions options = inside();
  options.forced["blocks.0.mixer.mask"].integers = {1, 1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0};
  const TraceOutput out = m.run(random_input(2, 8), options);
  const std::vector<double> growth = out.inside.at("blocks.0.mixer.kv_growth").reals;
  CHECK(growth == std::vector<double>{0, 0.5, 0.5, 1, 1, 1, 1, 1.5, 1.5, 2, 2, 2, 2, 2, 2, 2.5});
  const std::vector<double>& score = out.inside.at("blocks.0.mixer.score").reals;
  const std::vector<double>& mean = out.inside.at("blocks.0.mixer.score_by_position").reals;
  REQUIRE(mean.size() == 8);
  for (size_t t = 0; t < 8; ++t) { CHECK(mean[t] == Approx((score[t] + score[t + 8]) / 2)); }
}

TEST_CASE("ham statistics say what was selected", "[ham][fast]") {
  TestModel m(ham_json(R"("threshold": {"tau": 0.9})"), 3, 0.4);
  TraceInput input = random_input(3, 20);
  const TraceOutput out = m.run(input, inside());
  const Statistics statistics = m.statistics(input);
  double sum = 0;
  for (const std::string block : {"blocks.0.mixer", "blocks.1.mixer"}) {
    const Inspector::Record &mask = out.inside.at(block + ".mask"), &score = out.inside.at(block + ".score");
    const std::map<std::string, double>& s = statistics.at(block);
    std::vector<double> rows_of;
    for (size_t b = 0; b < 3; ++b) {
      const auto begin = mask.integers.begin() + static_cast<std::ptrdiff_t>(b * 20);
      rows_of.push_back(static_cast<double>(std::accumulate(begin, begin + 20, int64_t{0})) / 20);
    }
    double mean = 0, square = 0;
    for (const double e : score.reals) {
      mean += e / 60;
      square += e * e / 60;
    }
    CHECK(s.at("kv_fraction") == Approx(double(count_selected(mask)) / 60));
    CHECK(s.at("kv_fraction_min") == *std::min_element(rows_of.begin(), rows_of.end()));
    CHECK(s.at("kv_fraction_max") == *std::max_element(rows_of.begin(), rows_of.end()));
    CHECK(s.at("tau") == Approx(0.9).epsilon(1e-6));  // the logit is drawn in single precision
    CHECK(s.at("score_mean") == Approx(mean));
    CHECK(s.at("score_std") == Approx(std::sqrt(square - mean * mean)));
    for (const char* share : {"gate_rnn_mean", "gate_kv_mean", "reset_fraction"}) {
      CHECK(s.at(share) >= 0);
      CHECK(s.at(share) <= 1);
    }
    sum += s.at("kv_fraction");
  }
  CHECK(statistics.at("ham").at("kv_fraction") == Approx(sum / 2));
  CHECK(statistics.at("blocks.0.mixer").size() == 9);
}

TEST_CASE("the published ham models have the published sizes", "[ham][fast]") {
  const std::string rnn = R"("rnn": {"num_heads": 5, "key_head_dim": 256, "value_head_dim": 384})",
                    kv = R"("kv": {"num_heads": 10, "key_head_dim": 128, "value_head_dim": 192,
                                   "rope": {"theta": 500000.0}})";
  const auto plan_of = [&](const std::string& rest) {
    const ModelConfig config =
        read_model(R"({"vocab_size": 32000, "hidden_size": 1792, "num_layers": 24, "norm_eps": 1e-6,
        "layers": {"ham": {"type": "ham", "conv_size": 4, )" +
                   rnn + ", " + kv + rest + R"(},
                   "mlp": {"type": "swiglu", "intermediate_size": 2560}}, "pattern": [{"mixer": "ham", "ffn": "mlp"}]})");
    return plan_model(config, 16384);
  };
  const Plan plan = plan_of("");
  CHECK(plan.parameters.total == 805068272);
  CHECK(plan.layers.at(0).parameters == 14999626);
  CHECK(plan_of(R"(, "router": {"type": "input"})").parameters.total == 805068272 + 43008);
  CHECK(plan_of(R"(, "router": {"type": "input", "eda": true})").parameters.total == 805068272 + 43008 + 24);
  const int64_t deep = 1792 * 256 + 256 * 256 + 256;
  CHECK(plan_of(R"(, "router": {"type": "input", "depth": 3})").parameters.total == 805068272 + 24 * deep);
  // State in fp32, tails and list in bf16; half of the tokens. Contexts are 1K, 4K, 16K, ...
  CHECK(plan.contexts.at(2) == 16384);
  CHECK(plan.layers.at(0).state_bytes.at(2) == 4 * 1280 * 384 + 2 * 3 * (2 * 1280 + 1920) + 2 * 8192 * (1280 + 1920));
  CHECK(plan_of(R"(, "threshold": {"mode": "none"})").layers.at(0).state_bytes.at(2) ==
        4 * 1280 * 384 + 2 * 3 * (2 * 1280 + 1920));
  // The attention's pairs are what differs: every query sees half or all of the tokens before it and itself.
  const double half = plan.layers.at(0).flops_per_token,
               all = plan_of(R"(, "threshold": {"mode": "all"})").layers.at(0).flops_per_token;
  CHECK(all - half == Approx(2 * 3200 * 16385 / 4.0 - 6 * 1920 - 64 * 1920).epsilon(1e-9));
}

TEST_CASE("ham configurations that make no sense are refused", "[ham][fast]") {
  const auto read = [](const std::string& model) { read_model(model); };
  const auto refuses = [&](const std::string& model, const std::string& text) {
    INFO(text);
    CHECK_THROWS_WITH(read(model), Contains(text));
  };
  read(ham_json(""));
  refuses(ham_json(R"("conv_size": 1)"), "layers.x.conv_size: found 1, expected 0 or an integer >= 2");
  refuses(ham_json(R"("qkv_norm": "post")"), "layers.x.qkv_norm");
  const auto sizes = [](const std::string& kv) {
    return ham_model(R"("x": {"type": "ham", "rnn": {"num_heads": 2, "key_head_dim": 6, "value_head_dim": 5},
                              "kv": {)" +
                     kv + "}}");
  };
  refuses(sizes(R"("num_heads": 3, "key_head_dim": 5, "value_head_dim": 5)"),
          "layers.x.kv.key_head_dim: found 3 x 5 channels, expected as many as rnn: 2 x 6 channels");
  refuses(sizes(R"("num_heads": 3, "key_head_dim": 4, "value_head_dim": 3)"),
          "layers.x.kv.value_head_dim: found 3 x 3 channels, expected as many as rnn: 2 x 5 channels");
  refuses(sizes(R"("num_heads": 2, "key_head_dim": 6)"), "layers.x.kv.value_head_dim");
  refuses(ham_json(R"("router": {"eda": true})"),
          "layers.x.router.eda: found true, expected false with router type \"prediction_error\"");
  refuses(ham_json(R"("router": {"type": "vector", "heads": 2})"),
          "layers.x.router.heads: found 2, expected 1 without router type \"input\"");
  refuses(ham_json(R"("threshold": {"tau": 2})"), "layers.x.threshold.tau: found 2");
  refuses(ham_json(R"("router": {"type": "input"}, "threshold": {"tau": 1.5})"),
          "layers.x.threshold.tau: found 1.5, expected a number > 0, < 1");
  refuses(ham_json(R"("threshold": {"target": 1})"), "layers.x.threshold.target: found 1");
  refuses(ham_json(R"("threshold": {"betas": [0.9]})"), "layers.x.threshold.betas");
  refuses(ham_json("", "", R"("rope": {"theta": 100.0, "dims": 8})"), "layers.x.kv.rope.dims: found 8");
  const auto pair = [](const std::string& a, const std::string& b) {
    return ham_model(ham_layer(a, "", "", "a") + ", " + ham_layer(b, "", "", "b"), 2, {"a", "b"});
  };
  refuses(pair("", R"("threshold": {"target": 0.25})"),
          "layers.a.threshold: found other values than in layers.b.threshold");
  refuses(pair("", R"("router": {"type": "input"})"),
          "layers.a.router.type: found \"prediction_error\", expected \"input\", as in layers.b");
  read(pair(R"("threshold": {"scope": "layer"})", R"("threshold": {"scope": "layer", "target": 0.25})"));
  read(pair("", R"("threshold": {"mode": "fixed", "tau": 0.7})"));
  // A definition that no block uses does not matter.
  read(ham_model(ham_layer("", "", "", "a") + ", " + ham_layer(R"("threshold": {"target": 0.25})", "", "", "b"), 2,
                 {"a"}));
}
