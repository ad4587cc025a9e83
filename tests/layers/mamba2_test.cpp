#include "layers/ops/gated_delta.h"
#include "tests/kernels/tensors.h"
#include "tests/layers/every_layer.h"

namespace {

std::string model_json(const std::string& settings, int64_t d = 14) {
  return mixer_model_json(R"("type": "mamba2", )" + settings, d);
}

const std::string kSmall = R"("num_heads": 4, "head_dim": 3, "state_dim": 5)";
const std::vector<std::string> kVariants = {
    R"(, "num_groups": 2)",
    R"(, "num_groups": 1, "conv_bias": false, "conv_size": 3, "norm_groups": 6, "skip": "channel")",
    R"(, "num_groups": 4, "conv_size": 0, "norm_before_gate": true, "norm_groups": 1)",
    R"(, "num_groups": 2, "conv_size": 0, "activation": "none", "output_norm": "none", "initial_state": "learned")",
    R"(, "num_groups": 4, "conv_size": 2, "activation": "none", "output_gate": "none", "skip": "none")",
    R"(, "num_groups": 1, "output_gate": "none", "output_norm": "none", "initial_state": "learned", "chunk_size": 16)",
    R"(, "num_groups": 2, "dt_limit": [0.02, 0.05], "dt_bias_init": "uniform")",
};

/// The recurrence alone, without convolutions, gate or norm.
struct Problem {
  int64_t batch = 2, length = 150, heads = 4, groups = 2, state_dim = 5, head_dim = 3;
  double low = 0, high = INFINITY;
  bool silu = true;
  std::map<std::string, Values> in;

  explicit Problem(double dt_shift = -1) {
    const int64_t n = batch * length;
    in["x"] = random_values(n * heads * head_dim, "x");
    in["B"] = random_values(n * groups * state_dim, "B");
    in["C"] = random_values(n * groups * state_dim, "C");
    in["u"] = random_values(n * heads, "u");
    in["A_log"] = random_values(heads, "A_log", 0.5);
    in["dt_bias"] = Values(static_cast<size_t>(heads), dt_shift);
    in["D"] = random_values(heads, "D");
    in["start"] = random_values(heads * state_dim * head_dim, "start");
    in["d_o"] = random_values(n * heads * head_dim, "d_o");
  }
  Shape shape(const std::string& name) const {
    const int64_t n = batch * length;
    if (name == "x" || name == "d_o") { return {n, heads * head_dim}; }
    if (name == "B" || name == "C") { return {n, groups * state_dim}; }
    if (name == "u") { return {n, heads}; }
    if (name == "start") { return {heads, state_dim, head_dim}; }
    return {heads};
  }
  DeltaConfig config(int64_t chunk) const {
    return {.key_heads = groups,
            .value_heads = heads,
            .key_dim = state_dim,
            .value_dim = head_dim,
            .silu = silu,
            .l2_norm = false,
            .chunk = chunk,
            .additive = true,
            .dt_low = low,
            .dt_high = high};
  }
};

struct Result {
  Values o, state;  // state [B, H, N, P] after the last token
  std::map<std::string, Values> gradients;
};

DeltaInputs inputs(const std::function<Var(const std::string&)>& leaf) {
  DeltaInputs in;
  in.q.x = leaf("C");
  in.k.x = leaf("B");
  in.v.x = leaf("x");
  in.a = leaf("u");
  in.a_log = leaf("A_log");
  in.dt_bias = leaf("dt_bias");
  in.initial_state = leaf("start");
  in.skip = leaf("D");
  return in;
}

Result run_op(const Problem& p, int64_t chunk) {
  Result r;
  Tensors t(DType::f64);
  const Rows rows = Rows::streams(t.stream, t.arena, p.batch, p.length);
  {
    std::map<std::string, Tensor> gradients;
    Tape tape(t.stream, t.arena, true);
    Pass pass{tape, rows};
    const DeltaInputs in = inputs([&](const std::string& name) {
      gradients[name] = t.zeros(p.shape(name));
      return tape.leaf(t.make(p.shape(name), p.in.at(name)), gradients[name], nullptr);
    });
    const Var o = gated_delta(pass, in, p.config(chunk), nullptr);
    r.o = Tensors::read(tape.value(o));
    tape.seed_grad(o, t.make(p.shape("d_o"), p.in.at("d_o")));
    tape.backward();
    for (const auto& [name, gradient] : gradients) { r.gradients[name] = Tensors::read(gradient); }
  }
  Tape tape(t.stream, t.arena, false);
  Pass pass{tape, rows};
  DeltaState state(t.arena, p.batch, p.config(chunk), DType::f64);
  const auto constant = [&](const std::string& name) { return tape.constant(t.make(p.shape(name), p.in.at(name))); };
  gated_delta(pass, inputs(constant), p.config(chunk), &state);
  r.state = Tensors::read(state.memory);
  return r;
}

bool all_finite(const Values& values) {
  return std::all_of(values.begin(), values.end(), [](double x) { return std::isfinite(x); });
}

}  // namespace

TEST_CASE("mamba2 has the properties of layers for every variant", "[mamba2][fast]") {
  for (const std::string& variant : kVariants) { check_layer("mamba2", kSmall + variant); }
}

TEST_CASE("mamba2 starts with the published decays, step sizes and skips", "[mamba2][fast]") {
  const std::string many = R"("num_heads": 5000, "head_dim": 1, "state_dim": 1, "num_groups": 1)";
  TestModel m(model_json(many, 2));
  const std::vector<double> a_log = m.get(m.param("blocks.0.mixer.A_log"));
  double sum = 0;
  for (const double x : a_log) {
    CHECK((std::exp(x) > 0.999999 && std::exp(x) < 16.00001));
    sum += std::exp(x);
  }
  CHECK(std::abs(sum / 5000 - 8.5) < 0.3);  // 5 standard deviations of the mean
  sum = 0;
  for (const double x : m.get(m.param("blocks.0.mixer.dt_bias"))) {
    const double dt = std::log1p(std::exp(x));
    CHECK((dt > 0.000999 && dt < 0.10001));
    sum += std::log(dt);
  }
  CHECK(std::abs(sum / 5000 - std::log(0.01)) < 0.1);  // 5 standard deviations of the mean
  CHECK(m.get(m.param("blocks.0.mixer.D")) == std::vector<double>(5000, 1.0));
  TestModel uniform(model_json(many + R"(, "dt_bias_init": "uniform", "dt_init": [0, 0.1], "A_init": [2, 2])", 2));
  sum = 0;
  for (const double x : uniform.get(uniform.param("blocks.0.mixer.dt_bias"))) { sum += std::log1p(std::exp(x)); }
  CHECK(std::abs(sum / 5000 - 0.05) < 0.003);
  for (const double x : uniform.get(uniform.param("blocks.0.mixer.A_log"))) { CHECK(x == Approx(std::log(2.0))); }
}

TEST_CASE("mamba2 spares its vectors from decay and counts cost and state", "[mamba2][fast]") {
  TestModel m(model_json(kSmall + R"(, "num_groups": 2, "initial_state": "learned", "skip": "channel")"));
  for (const char* name : {"A_log", "dt_bias", "D", "o_norm.weight", "x_conv.bias", "B_conv.bias", "C_conv.bias"}) {
    INFO(name);
    CHECK_FALSE(m.param("blocks.0.mixer." + std::string(name)).decays());
  }
  CHECK(m.param("blocks.0.mixer.initial_state").decays());
  CHECK(m.param("blocks.0.mixer.D").value.numel() == 12);
  const Layer& layer = *m.model->blocks()[0].mixer;
  CHECK(layer.state_bytes(100) == 4 * 4 * 5 * 3 + 2 * 3 * (12 + 20));
  CHECK(layer.flops_per_token(100) ==
        2 * 14 * (3 * 12 + 2 * 10 + 4) + (2 * 4 + 3) * (12 + 20) + 2 * 64 * (10 + 12) + 4 * 4 * 5 * 3);
}

TEST_CASE("broken mamba2 configurations are explained", "[mamba2][fast]") {
  const auto read = [](const std::string& options) { read_model(model_json(kSmall + options)); };
  const std::string groups = R"(, "num_groups": 2, )";
  CHECK_THROWS_WITH(read(""), Contains("num_groups"));
  CHECK_THROWS_WITH(read(R"(, "num_groups": 3)"), Contains("a divisor of num_heads (4)"));
  CHECK_THROWS_WITH(read(groups + R"("conv_size": 1)"), Contains("0 or an integer >= 2"));
  CHECK_THROWS_WITH(read(groups + R"("conv_size": 0, "conv_bias": true)"), Contains("false where conv_size is 0"));
  CHECK_THROWS_WITH(read(groups + R"("norm_groups": 5)"), Contains("a divisor of num_heads * head_dim (12)"));
  CHECK_THROWS_WITH(read(groups + R"("chunk_size": 48)"), Contains("a power of two from 16 to 256"));
  CHECK_THROWS_WITH(read(groups + R"("chunk_size": 8)"), Contains("a power of two from 16 to 256"));
  CHECK_THROWS_WITH(read(groups + R"("dt_init": [0, 0.1])"), Contains("low > 0 for \"log_uniform\""));
  CHECK_THROWS_WITH(read(groups + R"("dt_init": [0.2, 0.1])"), Contains("[low, high] with low <= high"));
  CHECK_THROWS_WITH(read(groups + R"("A_init": [0, 1])"), Contains("> 0"));
  CHECK_THROWS_WITH(read(groups + R"("A_init": [2, 1])"), Contains("[low, high] with low <= high"));
  for (const char* limit : {"3", "[0.1]", "[-1, null]", "[0.2, 0.2]", "[null, 1]", R"(["a", 1])"}) {
    INFO(limit);
    CHECK_THROWS_WITH(read(groups + R"("dt_limit": )" + limit), Contains("numbers 0 <= low < high, or null"));
  }
  CHECK_NOTHROW(read(groups + R"("dt_limit": [0.001, null], "conv_size": 0, "conv_bias": false)"));
}

TEST_CASE("groups and the output gate of mamba2 have their parameters", "[mamba2][fast]") {
  const auto total = [](const std::string& groups) {
    return R"({"vocab_size": 10000, "hidden_size": 768, "num_layers": 8, "layers": {
      "mamba2": {"type": "mamba2", "num_heads": 12, "head_dim": 64, "state_dim": 64, "num_groups": )" +
           groups + R"(}, "mlp": {"type": "swiglu", "intermediate_size": 2304}},
      "pattern": [{"mixer": "mamba2", "ffn": "mlp"}]})";
  };
  CHECK(count_trained(total("1")) == 72898592);
  CHECK(count_trained(total("12")) == 81605664);
  CHECK(count_trained(total(R"(12, "output_gate": "none")")) == 76887072);
}

TEST_CASE("without decay mamba2 is linear attention, with full decay it sees one token", "[mamba2][fast]") {
  Problem p;
  p.silu = false;
  p.in["start"].assign(p.in["start"].size(), 0.0);
  p.in["D"].assign(p.in["D"].size(), 0.0);
  for (const bool decays : {false, true}) {
    p.in["A_log"].assign(p.in["A_log"].size(), decays ? 20.0 : -60.0);
    Values expected(p.in["x"].size());
    for (int64_t b = 0; b < p.batch; ++b) {
      for (int64_t i = 0; i < p.length; ++i) {
        for (int64_t j = decays ? i : 0; j <= i; ++j) {
          for (int64_t h = 0; h < p.heads; ++h) {
            const int64_t from = b * p.length + j, to = b * p.length + i;
            const auto row = [&](const std::string& name, int64_t token) {
              return p.in.at(name).begin() + (token * p.groups + h / 2) * p.state_dim;
            };
            const double z = p.in["u"][static_cast<size_t>(from * p.heads + h)] - 1;
            const double weight = std::inner_product(row("C", to), row("C", to) + p.state_dim, row("B", from), 0.0) *
                                  std::log1p(std::exp(z));
            for (int64_t c = 0; c < p.head_dim; ++c) {
              expected[static_cast<size_t>((to * p.heads + h) * p.head_dim + c)] +=
                  weight * p.in["x"][static_cast<size_t>((from * p.heads + h) * p.head_dim + c)];
            }
          }
        }
      }
    }
    check_close(decays ? "own token" : "linear attention", run_op(p, 32).o, expected, 1e-11);
  }
}

TEST_CASE("with dt 0 the state stays and nothing is written", "[mamba2][fast]") {
  Problem p(-2000);  // softplus of it is 0
  const Result r = run_op(p, 64);
  Values expected;
  for (int64_t b = 0; b < p.batch; ++b) { expected.insert(expected.end(), p.in["start"].begin(), p.in["start"].end()); }
  CHECK(r.state == expected);
  CHECK(all_finite(r.o));
}

TEST_CASE("outside dt_limit the step size has no gradient", "[mamba2][fast]") {
  Problem p;
  p.low = 0.2;
  p.high = 0.4;
  const Result r = run_op(p, 32);
  int64_t clamped = 0, inside = 0;
  for (size_t i = 0; i < p.in["u"].size(); ++i) {
    const double dt = std::log1p(std::exp(p.in["u"][i] - 1));
    const bool is_clamped = dt < p.low || dt > p.high;
    CHECK((r.gradients.at("u")[i] == 0) == is_clamped);
    (is_clamped ? clamped : inside) += 1;
  }
  CHECK(clamped > 100);
  CHECK(inside > 100);
  p.low = 50;
  p.high = 60;
  CHECK(run_op(p, 32).gradients.at("dt_bias") == Values(4, 0.0));
}
