// Norms of tokens.
#include "kernels/norm/scratch.h"
#include "tests/op_cases/machine.h"

using namespace hebb_test;

namespace {

constexpr double kEps = 1e-5, kRho = 0.75;

struct Norm {
  NormKind kind;
  int64_t rows, width;

  Shape shape() const { return {rows, width}; }
  bool is_layer() const { return kind == NormKind::layer; }
  double weight(double w) const { return w + (kind == NormKind::rms_unit_offset ? 1 : 0); }
};

/// f(begin, mean, 1 / standard deviation) of each row; the mean is 0 for RMS.
template <class F> void for_each_row(const Norm& n, const Values& x, F&& f) {
  const auto width = static_cast<size_t>(n.width);
  for (size_t begin = 0; begin < x.size(); begin += width) {
    double mean = 0, squares = 0;
    for (size_t i = 0; n.is_layer() && i < width; ++i) { mean += x[begin + i] / static_cast<double>(width); }
    for (size_t i = 0; i < width; ++i) { squares += std::pow(x[begin + i] - mean, 2) / static_cast<double>(width); }
    f(begin, mean, 1 / std::sqrt(squares + kEps));
  }
}

struct NormValues {
  Values h, y, mean, rstd;
};

NormValues forward_formula(const Norm& n, Values h, const Values& branch, const Values& weight, const Values& bias) {
  for (size_t i = 0; i < branch.size(); ++i) { h[i] += kRho * branch[i]; }
  NormValues f{h, h, {}, {}};
  for_each_row(n, h, [&](size_t begin, double mean, double rstd) {
    f.mean.push_back(mean);
    f.rstd.push_back(rstd);
    for (size_t i = 0; i < weight.size(); ++i) {
      f.y[begin + i] = (h[begin + i] - mean) * rstd * n.weight(weight[i]) + (n.is_layer() ? bias[i] : 0);
    }
  });
  return f;
}

/// To what was there: the gradient of h before what is added to it, of weights and of biases.
struct NormGradients {
  Values h, weight, bias;
};

void backward_formula(const Norm& n, const Values& h, const Values& d_y, const Values& weight, NormGradients& to) {
  for_each_row(n, h, [&](size_t begin, double mean, double rstd) {
    double mean_g = 0, mean_gn = 0;
    const auto normed = [&](size_t i) { return (h[begin + i] - mean) * rstd; };
    const auto g = [&](size_t i) { return d_y[begin + i] * n.weight(weight[i]); };
    for (size_t i = 0; i < weight.size(); ++i) {
      mean_g += n.is_layer() ? g(i) / static_cast<double>(n.width) : 0;
      mean_gn += g(i) * normed(i) / static_cast<double>(n.width);
      to.weight[i] += d_y[begin + i] * normed(i);
      to.bias[i] += d_y[begin + i];
    }
    for (size_t i = 0; i < weight.size(); ++i) { to.h[begin + i] += rstd * (g(i) - mean_g - normed(i) * mean_gn); }
  });
}

void run_forward(Machine& m, const Norm& n, bool has_branch) {
  const NormForward f{.y = m.output(n.shape()),
                      .h_out = has_branch ? m.output(n.shape()) : Tensor{},
                      .mean = n.is_layer() ? m.float_output({n.rows}) : Tensor{},
                      .rstd = m.float_output({n.rows}),
                      .h = m.input(n.shape()),
                      .branch = has_branch ? m.input(n.shape()) : Tensor{},
                      .weight = m.parameter({n.width}),
                      .bias = n.is_layer() ? m.parameter({n.width}) : Tensor{},
                      .rho = kRho,
                      .eps = kEps,
                      .kind = n.kind};
  m.run(f, has_branch && m.is_bf16() ? kHalf : kSingle);  // statistics of a sum that was rounded
  if (!m.has_formulas()) { return; }
  const NormValues expected = forward_formula(n, m.read(f.h), has_branch ? m.read(f.branch) : Values{},
                                              m.read(f.weight), n.is_layer() ? m.read(f.bias) : Values{});
  m.expect(f.y, expected.y);
  m.expect(f.rstd, expected.rstd);
  m.expect(f.mean, expected.mean);
  m.expect(f.h_out, expected.h);
}

enum class Into { overwrite, accumulate, branch, weights_only };

void run_backward(Machine& m, const Norm& n, Into into) {
  const bool is_layer = n.is_layer(), has_d_out = into != Into::accumulate;
  const Tensor h = m.input(n.shape()), weight = m.parameter({n.width});
  Values means, rstds;
  for_each_row(n, m.read(h), [&](size_t, double mean, double rstd) {
    means.push_back(mean);
    rstds.push_back(rstd);
  });
  const NormBackward b{.d_h = into == Into::weights_only ? Tensor{} : m.gradient(n.shape(), into == Into::accumulate),
                       .d_branch = into == Into::branch ? m.output(n.shape()) : Tensor{},
                       .d_weight = m.float_sum({n.width}),
                       .d_bias = is_layer ? m.float_sum({n.width}) : Tensor{},
                       .d_y = m.input(n.shape()),
                       .d_h_out = has_d_out ? m.input(n.shape()) : Tensor{},
                       .h = h,
                       .mean = is_layer ? m.values({n.rows}, means) : Tensor{},
                       .rstd = m.values({n.rows}, rstds),
                       .weight = weight,
                       .rho = kRho,
                       .kind = n.kind,
                       .accumulate = into == Into::accumulate};
  NormGradients sums{Values(static_cast<size_t>(n.shape().numel())), m.read(b.d_weight),
                     is_layer ? m.read(b.d_bias) : Values(static_cast<size_t>(n.width))};
  if (has_d_out) { sums.h = m.read(b.d_h_out); }
  if (into == Into::accumulate) { sums.h = m.read(b.d_h); }
  m.run(b);
  // The statistics that the kernel gets are rounded to fp32: 2^-24 of each, and more where terms cancel.
  constexpr double kRounded = 1e-6;
  if (!m.has_formulas()) { return; }
  backward_formula(n, m.read(h), m.read(b.d_y), m.read(weight), sums);
  m.expect(b.d_weight, sums.weight, kRounded);
  m.expect(b.d_bias, sums.bias, kRounded);
  m.expect(b.d_h, sums.h, kRounded);
  for (double& x : sums.h) { x *= kRho; }
  m.expect(b.d_branch, sums.h, kRounded);
}

TEST_CASE("norms of tokens", "[fast]") {
  const NormKind kind = GENERATE(NormKind::rms, NormKind::rms_unit_offset, NormKind::layer);
  // Widths that allow 16-byte access and that do not, one and several warps, one and several packs per thread.
  const auto [rows, width] =
      GENERATE(std::pair{1, 1}, std::pair{5, 40}, std::pair{37, 67}, std::pair{3, 1000}, std::pair{2, 5128});
  CAPTURE(static_cast<int>(kind), rows, width);
  const Norm n{kind, rows, width};
  check([&](Machine& m) {
    run_forward(m, n, false);
    run_forward(m, n, true);
  });
}

TEST_CASE("gradients of norms of tokens, however they are written", "[fast]") {
  const NormKind kind = GENERATE(NormKind::rms, NormKind::rms_unit_offset, NormKind::layer);
  const auto [rows, width] =
      GENERATE(std::pair{1, 3}, std::pair{5, 40}, std::pair{67, 37}, std::pair{3, 1000}, std::pair{2, 5128});
  CAPTURE(static_cast<int>(kind), rows, width);
  const Norm n{kind, rows, width};
  for (const Into into : {Into::overwrite, Into::accumulate, Into::branch, Into::weights_only}) {
    CAPTURE(static_cast<int>(into));
    check([&](Machine& m) { run_backward(m, n, into); });
  }
}

TEST_CASE("norms of tokens do not race", "[threads]") {
  for (const int64_t width : {390, 40}) {  // a block a row; groups of lanes
    check(DType::f32, [=](Machine& m) {
      run_forward(m, {NormKind::layer, 3, width}, false);
      run_backward(m, {NormKind::layer, 3, width}, Into::branch);
    });
  }
}

}  // namespace
