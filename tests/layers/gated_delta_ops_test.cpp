#include "layers/ops/gated_delta.h"
#include "layers/ops/head_norm.h"
#include "tests/kernels/tensors.h"

namespace {

constexpr int64_t kBatch = 2, kLength = 40;

DeltaConfig config() {
  DeltaConfig c;
  c.key_heads = 2;
  c.value_heads = 4;
  c.key_dim = 5;
  c.value_dim = 3;
  c.conv_size = 3;
  c.chunk = 16;
  return c;
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
    in.q = leaf("q", {n, keys});
    in.k = leaf("k", {n, keys});
    in.v = leaf("v", {n, values});
    in.a = leaf("a", {n, c.value_heads});
    in.b = leaf("b", {n, c.value_heads});
    in.q_conv = leaf("q_conv", {keys, 3});
    in.k_conv = leaf("k_conv", {keys, 3});
    in.v_conv = leaf("v_conv", {values, 3});
    in.k_bias = leaf("k_bias", {keys});
    in.a_log = leaf("a_log", {c.value_heads});
    in.dt_bias = leaf("dt_bias", {c.value_heads});
    in.initial_state = leaf("initial_state", {c.value_heads, c.key_dim, c.value_dim});
    if (composed) {
      in.q = l2_norm(tape, short_conv(pass, in.q, in.q_conv, {}, true, nullptr), c.key_dim);
      in.k = l2_norm(tape, short_conv(pass, in.k, in.k_conv, in.k_bias, true, nullptr), c.key_dim);
      in.v = short_conv(pass, in.v, in.v_conv, {}, true, nullptr);
      in.q_conv = in.k_conv = in.v_conv = in.k_bias = {};
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

TEST_CASE("a convolution carried over segments equals one pass", "[short_conv][fast]") {
  Tensors t(DType::f64);
  const int64_t channels = 6, length = 23;
  const Values x = random_values(length * channels, "x");
  const Tensor weight = t.make({channels, 4}, random_values(channels * 4, "weight"));
  const auto convolve = [&](int64_t begin, int64_t count, ShortConvState* state) {
    const Rows rows = Rows::streams(t.stream, t.arena, 1, count, begin);
    Tape tape(t.stream, t.arena, false);
    Pass pass{tape, rows};
    const Var part = tape.constant(
        t.make({count, channels}, Values(x.begin() + begin * channels, x.begin() + (begin + count) * channels)));
    return Tensors::read(tape.value(short_conv(pass, part, tape.constant(weight), {}, true, state)));
  };
  const Values whole = convolve(0, length, nullptr);
  ShortConvState state(t.arena, 1, 4, channels, DType::f64);
  Values segments;
  int64_t begin = 0;
  for (const int64_t count : {1, 1, 5, 2, 14}) {
    const Values part = convolve(begin, count, &state);
    segments.insert(segments.end(), part.begin(), part.end());
    begin += count;
  }
  CHECK(segments == whole);  // the same sums in the same order
}
