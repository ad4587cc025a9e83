#include "kernels/head_norm/head_norm.h"

#include "kernels/delta_gates/delta_gates.h"
#include "tests/kernels/tensors.h"

using namespace hebb;
using namespace hebb::testing;

namespace {

constexpr int64_t kTokens = 70, kHeads = 3, kDim = 18;
constexpr int64_t kCount = kTokens * kHeads * kDim;
const Shape kShape{kTokens, kHeads* kDim};

Values l2_forward(const Values& x, DType dtype, Values* scale = nullptr) {
  Tensors t(dtype);
  const Tensor n = t.empty(kShape), s = t.empty({kTokens, kHeads});
  run(t.stream, L2NormForward{n, s, t.make(kShape, x), kDim});
  if (scale != nullptr) { *scale = Tensors::read(s); }
  return Tensors::read(n);
}

Values gated_forward(const Values& o, const Values& z, const Values& weight, HeadGate gate, DType dtype) {
  Tensors t(dtype);
  const Tensor y = t.empty(kShape);
  run(t.stream, GatedNormForward{y, t.make(kShape, o), gate != HeadGate::none ? t.make(kShape, z) : Tensor{},
                                 weight.empty() ? Tensor{} : t.make({kDim}, weight), kDim, 1e-5, gate});
  return Tensors::read(y);
}

struct Gates {
  Values g, beta;
};
constexpr int64_t kGateHeads = 5;

Gates gates(const Values& a, const Values& b, const Values& a_log, const Values& dt_bias, double scale, DType dtype) {
  Tensors t(dtype);
  const Tensor g = t.empty({kTokens, kGateHeads}), beta = t.empty({kTokens, kGateHeads});
  run(t.stream, DeltaGatesForward{g, beta, t.make(g.shape, a), t.make(g.shape, b), t.make({kGateHeads}, a_log),
                                  t.make({kGateHeads}, dt_bias), scale});
  return {Tensors::read(g), Tensors::read(beta)};
}

}  // namespace

TEST_CASE("the l2 norm gives unit heads, and zeros for zeros", "[head_norm][fast]") {
  Values x = random_values(kCount, "x", 3.0);
  std::fill(x.begin(), x.begin() + kDim, 0.0);
  const Values n = l2_forward(x, DType::f64);
  for (int64_t head = 0; head < kTokens * kHeads; ++head) {
    double square = 0, norm = 0;
    for (int64_t c = head * kDim; c < (head + 1) * kDim; ++c) {
      square += x[static_cast<size_t>(c)] * x[static_cast<size_t>(c)];
      norm += n[static_cast<size_t>(c)] * n[static_cast<size_t>(c)];
    }
    CHECK(norm == Approx(square / (square + 1e-6)).margin(1e-15));
  }
  check_near("fp32", l2_forward(x, DType::f32), n, 1e-6);
}

TEST_CASE("the l2 norm's gradient agrees with difference quotients", "[head_norm][fast]") {
  const Values x = random_values(kCount, "x"), d_n = random_values(kCount, "d_n");
  Values scale;
  const Values n = l2_forward(x, DType::f64, &scale);
  Tensors t(DType::f64);
  const Tensor in_place = t.make(kShape, d_n), added = t.make(kShape, x), tn = t.make(kShape, n);
  const Tensor ts = t.make({kTokens, kHeads}, scale);
  run(t.stream, L2NormBackward{in_place, in_place, tn, ts, kDim, false});
  run(t.stream, L2NormBackward{added, t.make(kShape, d_n), tn, ts, kDim, true});
  const Values gradient = Tensors::read(in_place);
  check_derivative(
      "x", x, gradient, [&](const Values& values) { return weighted_sum(l2_forward(values, DType::f64), d_n); }, 40);
  Values difference = Tensors::read(added);
  for (size_t i = 0; i < difference.size(); ++i) { difference[i] -= x[i]; }
  check_near("accumulated", difference, gradient, 1e-13);
}

TEST_CASE("the gated norm follows its definition", "[head_norm][fast]") {
  const Values o = random_values(kCount, "o"), z = random_values(kCount, "z", 2.0),
               weight = random_values(kDim, "weight");
  for (const HeadGate gate : {HeadGate::none, HeadGate::silu, HeadGate::sigmoid}) {
    for (const bool normed : {false, true}) {
      Values expected;
      for (int64_t i = 0; i < kCount; ++i) {
        double square = 0;
        for (int64_t c = i / kDim * kDim; c < (i / kDim + 1) * kDim; ++c) {
          square += o[static_cast<size_t>(c)] * o[static_cast<size_t>(c)];
        }
        const double s = 1.0 / (1.0 + std::exp(-z[static_cast<size_t>(i)]));
        const double norm = normed ? weight[static_cast<size_t>(i % kDim)] / std::sqrt(square / kDim + 1e-5) : 1.0;
        const double open = gate == HeadGate::none ? 1.0 : gate == HeadGate::silu ? s * z[static_cast<size_t>(i)] : s;
        expected.push_back(o[static_cast<size_t>(i)] * norm * open);
      }
      const Values w = normed ? weight : Values{};
      check_near("y", gated_forward(o, z, w, gate, DType::f64), expected, 1e-13);
      check_near("y, fp32", gated_forward(o, z, w, gate, DType::f32), expected, 1e-6);
    }
  }
}

TEST_CASE("the gated norm's gradients agree with difference quotients", "[head_norm][fast]") {
  const Values o = random_values(kCount, "o"), z = random_values(kCount, "z"), d_y = random_values(kCount, "d_y");
  for (const HeadGate gate : {HeadGate::none, HeadGate::silu, HeadGate::sigmoid}) {
    for (const bool normed : {false, true}) {
      const bool gated = gate != HeadGate::none, accumulate = normed;
      const Values weight = normed ? random_values(kDim, "weight") : Values{};
      Tensors t(DType::f64);
      const Tensor d_o = accumulate ? t.make(kShape, o) : t.empty(kShape),
                   d_weight = normed ? t.zeros({kDim}) : Tensor{};
      const Tensor d_z = !gated ? Tensor{} : accumulate ? t.make(kShape, z) : t.empty(kShape);
      run(t.workspace(),
          GatedNormBackward{d_o, d_z, d_weight, t.make(kShape, d_y), t.make(kShape, o),
                            gated ? t.make(kShape, z) : Tensor{}, normed ? t.make({kDim}, weight) : Tensor{}, kDim,
                            1e-5, gate, accumulate, accumulate});
      const auto gradient = [&](const Tensor& d, const Values& old) {
        Values g = Tensors::read(d);
        for (size_t i = 0; accumulate && i < g.size(); ++i) { g[i] -= old[i]; }
        return g;
      };
      const auto loss = [&](const Values& a, const Values& b, const Values& c) {
        return weighted_sum(gated_forward(a, b, c, gate, DType::f64), d_y);
      };
      check_derivative(
          "o", o, gradient(d_o, o), [&](const Values& v) { return loss(v, z, weight); }, 30);
      if (gated) {
        check_derivative(
            "z", z, gradient(d_z, z), [&](const Values& v) { return loss(o, v, weight); }, 30);
      }
      if (normed) {
        check_derivative(
            "weight", weight, Tensors::read(d_weight), [&](const Values& v) { return loss(o, z, v); }, 18);
      }
    }
  }
}

TEST_CASE("decay and strength follow their definitions, also far out", "[delta_gates][fast]") {
  Values a = random_values(kTokens * kGateHeads, "a", 15.0), b = random_values(kTokens * kGateHeads, "b", 10.0);
  const Values a_log = random_values(kGateHeads, "A_log"), dt_bias = random_values(kGateHeads, "dt_bias");
  for (const double scale : {1.0, 2.0}) {
    Values g, beta;
    for (size_t i = 0; i < a.size(); ++i) {
      const double z = a[i] + dt_bias[i % kGateHeads];
      g.push_back(-std::exp(a_log[i % kGateHeads]) * (z > 20 ? z : std::log1p(std::exp(z))));
      beta.push_back(scale / (1.0 + std::exp(-b[i])));
    }
    const Gates found = gates(a, b, a_log, dt_bias, scale, DType::f64),
                rough = gates(a, b, a_log, dt_bias, scale, DType::f32);
    check_near("g", found.g, g, 1e-14);
    check_near("beta", found.beta, beta, 1e-14);
    check_near("g, fp32", rough.g, g, 1e-6);
    check_near("beta, fp32", rough.beta, beta, 1e-6);
  }
}

TEST_CASE("the gates' gradients agree with difference quotients", "[delta_gates][fast]") {
  const int64_t count = kTokens * kGateHeads;
  const Values a = random_values(count, "a"), b = random_values(count, "b"), d_g = random_values(count, "d_g");
  const Values d_beta = random_values(count, "d_beta"), a_log = random_values(kGateHeads, "A_log"),
               dt_bias = random_values(kGateHeads, "dt");
  for (const double scale : {1.0, 2.0}) {
    const Gates forward = gates(a, b, a_log, dt_bias, scale, DType::f64);
    Tensors t(DType::f64);
    const Shape shape{kTokens, kGateHeads};
    const bool accumulate = scale > 1;
    const Tensor d_a = accumulate ? t.zeros(shape) : t.empty(shape), d_b = accumulate ? t.zeros(shape) : t.empty(shape);
    const Tensor d_log = t.zeros({kGateHeads}), d_bias = t.zeros({kGateHeads});
    run(t.workspace(),
        DeltaGatesBackward{d_a, d_b, d_log, d_bias, t.make(shape, d_g), t.make(shape, d_beta), t.make(shape, forward.g),
                           t.make(shape, forward.beta), t.make(shape, a), t.make({kGateHeads}, a_log),
                           t.make({kGateHeads}, dt_bias), scale, accumulate, accumulate});
    const auto loss = [&](const Values& va, const Values& vb, const Values& vl, const Values& vd) {
      const Gates out = gates(va, vb, vl, vd, scale, DType::f64);
      return weighted_sum(out.g, d_g) + weighted_sum(out.beta, d_beta);
    };
    check_derivative(
        "a", a, Tensors::read(d_a), [&](const Values& v) { return loss(v, b, a_log, dt_bias); }, 30);
    check_derivative(
        "b", b, Tensors::read(d_b), [&](const Values& v) { return loss(a, v, a_log, dt_bias); }, 30);
    check_derivative("A_log", a_log, Tensors::read(d_log), [&](const Values& v) { return loss(a, b, v, dt_bias); });
    check_derivative("dt_bias", dt_bias, Tensors::read(d_bias), [&](const Values& v) { return loss(a, b, a_log, v); });
  }
}
