// The initial values and the optimizer settings of the GPTAlpha-2 backbone (docs/model.md, Initial values, and
// docs/layers/kvm.md).
#include <cmath>

#include "layers/model.h"
#include "tests/page_blocks.h"
#include "train/run_config.h"

namespace {

constexpr int64_t kVocab = 40, kWidth = 12;

ModelConfig small_model(const std::string& init) {
  const std::string shared = R"("num_heads": 2, "head_dim": 6, "qk_norm": "layer", "token_shift": true,
    "value_residual": "gated", "value_residual_rank": 3)";
  return Fields::read<ModelConfig>(
      parse_json(R"({"vocab_size": 40, "hidden_size": 12, "num_layers": 2, "norm": "layer", "embed_norm": true,
    "init": ")" + init +
                     R"(", "layers": {
    "a": {"type": "attention", "window": 4, "gate": "head", )" +
                     shared + R"(},
    "x": {"type": "kvm", "chunk_size": 4, "state": {"mode": "fixed", "rows": 4}, )" +
                     shared + R"(},
    "mlp": {"type": "relu2", "intermediate_size": 9, "token_shift": true}},
    "pattern": [{"mixer": "a", "ffn": "mlp"}, {"mixer": "x", "ffn": "mlp"}]})",
                 "test.json"),
      "model");
}

std::vector<double> values(Model& model, const std::string& name) {
  const Param* p = model.params().find(name);
  REQUIRE(p != nullptr);
  const float* v = p->value.as<float>();
  return {v, v + p->value.numel()};
}

double largest(const std::vector<double>& x) {
  double most = 0;
  for (const double v : x) { most = std::max(most, std::abs(v)); }
  return most;
}

}  // namespace

TEST_CASE("the initial values of GPTAlpha-2 can be asked for", "[fast]") {
  Stream stream;
  Arena arena(DeviceKind::cpu);
  const ModelConfig config = small_model("gptalpha2");
  Model model(config);
  model.params().allocate(arena, DType::f32, false);
  model.params().initialize(stream, 3);
  const double embedding = largest(values(model, "embed.weight"));
  CHECK(embedding <= 1e-4);
  CHECK(embedding > 0.9e-4);
  const double bound = 1 / std::sqrt(static_cast<double>(kWidth));
  for (const char* block : {"blocks.0.mixer.", "blocks.1.mixer."}) {
    for (const char* name : {"q_proj.weight", "k_proj.weight", "v_proj.weight"}) {
      INFO(block << name);
      const double most = largest(values(model, block + std::string(name)));
      CHECK(most <= bound);
      CHECK(most > 0.9 * bound);
    }
    CHECK(largest(values(model, block + std::string("o_proj.weight"))) == 0);
  }
  CHECK(largest(values(model, "blocks.0.mixer.gate_proj.weight")) <= bound);
  const std::vector<double> head = values(model, "lm_head.weight");
  for (int64_t a = 0; a < kWidth; ++a) {
    for (int64_t b = 0; b < kWidth; ++b) {
      double product = 0;
      for (int64_t r = 0; r < kVocab; ++r) {
        product += head[static_cast<size_t>(r * kWidth + a)] * head[static_cast<size_t>(r * kWidth + b)];
      }
      // Columns of length 0.5 sqrt(V / d); values are rounded to fp32.
      CHECK(std::abs(product - (a == b ? 0.25 * kVocab / kWidth : 0.0)) < 1e-6);
    }
  }
  CHECK_THROWS_WITH(small_model("other"), Contains("model.init: found \"other\""));
}

TEST_CASE("the documented settings scale learning rate and decay of GPTAlpha-2's matrices by their width", "[fast]") {
  const Json json = parse_json(page_blocks("layers/kvm.md")[0], "kvm.md");
  const auto optimizer = Fields::read<OptimizerConfig>(json.at("optimizer"), "optimizer");
  const auto schedule = Fields::read<ScheduleConfig>(json.at("schedule"), "schedule");
  Arena arena(DeviceKind::cpu);
  const ModelConfig config = small_model("normal");
  Model model(config);
  model.params().allocate(arena, DType::f32, true);
  constexpr int64_t kSteps = 15000;
  const Optimizer built(optimizer, Schedule(schedule, optimizer.lr, kSteps), model.params(), arena);
  constexpr double kRate = 1.26491e-3, kDecay = 0.126491, kScale = 1024.0 / 768;
  size_t matrices = 0, vectors = 0;
  for (const Optimizer::Rule& rule : built.rules()) {
    const std::string& name = rule.param->name();
    INFO(name);
    const bool is_vector = rule.param->spec.shape.rank == 1;
    const bool plain = is_vector || name == "embed.weight" || name.find("vres_up") != std::string::npos;
    CHECK(rule.lr == Approx(plain ? kRate : kRate / kScale).epsilon(1e-6));
    CHECK(rule.weight_decay == Approx(is_vector ? 0.0 : plain ? kDecay : kDecay * kScale).epsilon(1e-6));
    CHECK(rule.clip_set == 0);
    (is_vector ? vectors : matrices) += 1;
  }
  CHECK(matrices == 20);
  CHECK(vectors > 20);
  CHECK(optimizer.weight_decay_follows_lr);
  CHECK(optimizer.clip_norm == 0);
  CHECK(built.lr(0) == Approx(kRate / 200));
  CHECK(built.lr(200) == Approx(kRate));
  CHECK(built.lr(7600) == Approx(kRate / 2));
}
