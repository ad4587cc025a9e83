#include "layers/ops/gated_delta.h"
#include "layers/ops/head_norm.h"
#include "tests/kernels/tensors.h"

namespace {

constexpr int64_t kBatch = 2, kLength = 40;

DeltaConfig config() {
  return {.key_heads = 2, .value_heads = 4, .key_dim = 5, .value_dim = 3, .conv_size = 3, .chunk = 16};
}

/// Leaves of one tape by name, with gradients to read back.
class Leaves {
 public:
  explicit Leaves(Tensors& tensors) : tensors_(tensors) {}
  Var make(Tape& tape, const std::string& name, Shape shape) {
    gradients_[name] = tensors_.zeros(shape);
    return tape.leaf(tensors_.make(shape, random_values(shape.numel(), name, 0.5)), gradients_[name], nullptr);
  }
  Values gradient(const std::string& name) const { return Tensors::read(gradients_.at(name)); }
  const std::map<std::string, Tensor>& all() const { return gradients_; }

 private:
  Tensors& tensors_;
  std::map<std::string, Tensor> gradients_;
};

struct Run {
  Values o, value, prediction;
  std::map<std::string, Values> gradients;
};

/// `composed`: convolution, activation and norm as nodes of their own in front of the delta rule.
Run run_delta(bool composed) {
  Tensors t(DType::f64);
  Leaves leaves(t);
  std::vector<int64_t> ids(static_cast<size_t>(kBatch * kLength), 0);
  std::fill(ids.begin() + 23, ids.begin() + kLength, 1);
  const Rows rows = Rows::documents(t.stream, t.arena, kBatch, kLength, ids);
  DeltaConfig c = config();
  const int64_t n = kBatch * kLength, keys = c.key_channels(), values = c.value_channels();
  Run result;
  {
    Tape tape(t.stream, t.arena, true);
    Pass pass{tape, rows};
    const auto leaf = [&](const std::string& name, Shape shape) { return leaves.make(tape, name, shape); };
    DeltaInputs in;
    in.q.x = leaf("q", {n, keys});
    in.k.x = leaf("k", {n, keys});
    in.v.x = leaf("v", {n, values});
    in.a = leaf("a", {n, c.value_heads});
    in.b = leaf("b", {n, c.value_heads});
    in.q.weight = leaf("q_conv", {keys, 3});
    in.k.weight = leaf("k_conv", {keys, 3});
    in.v.weight = leaf("v_conv", {values, 3});
    in.k.bias = leaf("k_bias", {keys});
    in.a_log = leaf("a_log", {c.value_heads});
    in.dt_bias = leaf("dt_bias", {c.value_heads});
    in.initial_state = leaf("initial_state", {c.value_heads, c.key_dim, c.value_dim});
    if (composed) {
      const auto convolved = [&](ConvolvedVars p) { return short_conv(pass, p.x, p.weight, p.bias, true, nullptr); };
      in.q = {l2_norm(tape, convolved(in.q), c.key_dim), {}, {}};
      in.k = {l2_norm(tape, convolved(in.k), c.key_dim), {}, {}};
      in.v = {convolved(in.v), {}, {}};
      c.conv_size = 0;
      c.silu = c.l2_norm = false;
    }
    const Buffer value = tape.scratch({n, values}, DType::f64, "value"),
                 prediction = tape.scratch({n, values}, DType::f64, "prediction");
    const Var o = gated_delta(pass, in, c, nullptr, {value, prediction});
    result.o = Tensors::read(tape.value(o));
    result.value = Tensors::read(value);
    result.prediction = Tensors::read(prediction);
    tape.seed_grad(o, t.make({n, values}, random_values(n * values, "d_o")));
    tape.backward();
  }
  for (const auto& [name, gradient] : leaves.all()) { result.gradients[name] = leaves.gradient(name); }
  return result;
}

}  // namespace

TEST_CASE("the delta rule's node equals its parts as nodes, values and gradients", "[gated_delta][fast]") {
  const Run whole = run_delta(false), parts = run_delta(true);
  check_near("o", whole.o, parts.o, 1e-14);
  check_near("value", whole.value, parts.value, 1e-14);
  check_near("prediction", whole.prediction, parts.prediction, 1e-14);
  for (const auto& [name, gradient] : whole.gradients) { check_near(name, gradient, parts.gradients.at(name), 1e-13); }
}
