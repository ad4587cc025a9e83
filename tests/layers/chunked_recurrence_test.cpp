// What holds for every recurrence that is computed by chunks of tokens.
#include "tests/layers/harness.h"

namespace {

const std::string kGdn = R"("type": "gdn", "num_heads": 2, "key_head_dim": 5, "value_head_dim": 7)";
const std::string kMamba2 = R"("type": "mamba2", "num_heads": 4, "head_dim": 3, "state_dim": 5)";
const std::string kMesanet = R"("type": "mesanet", "num_heads": 2, "key_head_dim": 5)";

/// A recurrent layer and the chunk sizes that it takes.
struct Recurrence {
  std::string settings;
  std::vector<int64_t> chunks;
};

const std::vector<Recurrence> kRecurrences = {
    {kGdn, {16, 32, 64, 128}},
    {kGdn + R"(, "num_value_heads": 4, "conv_size": 0, "qk_norm": "none")", {16, 64}},
    {kGdn + R"(, "allow_neg_eigval": true, "initial_state": "learned", "dt_bias_init": "ones")", {16, 32, 64, 128}},
    {kMamba2 + R"(, "num_groups": 2)", {16, 64, 256}},
    {kMamba2 + R"(, "num_groups": 4, "initial_state": "learned", "skip": "channel", "dt_limit": [0.2, 0.4])", {16, 64}},
    {kMesanet + R"(, "cg_steps": 3)", {16, 32, 64}},
    {kMesanet + R"(, "cg_steps": 30)", {16, 32, 64}},
    {kMesanet + R"(, "solver": "exact")", {16, 64}},
};

TestModel model(const std::string& settings, int64_t chunk, DType dtype = DType::f64) {
  return TestModel(small_model_json(settings + R"(, "chunk_size": )" + std::to_string(chunk)), dtype, 3, 0.4);
}

/// Decays as strong as a trained model's could become: states vanish within a token.
void forget_at_once(TestModel& m) {
  for (const auto& p : m.model->params().all()) {
    const bool is_rate = p->name().ends_with(".A_log"), is_bias = p->name().ends_with(".dt_bias"),
               is_gate = p->name().ends_with("mixer.a_proj.bias");  // of mesanet
    if (is_rate || is_bias || is_gate) {
      m.change(*p, [&](std::vector<double>& values) { values[0] = is_rate ? 8.0 : is_bias ? 50.0 : -300.0; });
    }
  }
}

}  // namespace

TEST_CASE("the chunk size changes recurrences by rounding only, with weak and strong decay", "[fast]") {
  for (const Recurrence& r : kRecurrences) {
    for (const bool forgets : {false, true}) {
      INFO(r.settings << (forgets ? ", forgetting at once" : ""));
      TraceInput input = random_input(2, 150, 29);
      set_documents(input, {{150}, {40, 1, 109}});
      const auto run = [&](int64_t chunk) {
        TestModel m = model(r.settings, chunk);
        if (forgets) { forget_at_once(m); }
        return m.run(input);
      };
      const TraceOutput expected = run(r.chunks[0]);
      for (size_t i = 1; i < r.chunks.size(); ++i) {
        check_same_outputs(run(r.chunks[i]), expected, 1e-10);  // fp64, two layers, sums over 300 tokens
      }
    }
  }
}

TEST_CASE("recurrences that forget everything at once have finite gradients in fp32", "[fast]") {
  for (const Recurrence& r : kRecurrences) {
    INFO(r.settings);
    TestModel m = model(r.settings, r.chunks.back(), DType::f32);
    forget_at_once(m);
    const TraceOutput out = m.run(random_input(2, 130, 29));
    CHECK(std::isfinite(out.loss));
    for (const auto& [name, gradient] : out.grads) {
      INFO(name);
      CHECK(std::all_of(gradient.values.begin(), gradient.values.end(), [](double v) { return std::isfinite(v); }));
    }
  }
}
