// Norm kernels against loops in double.
#include <algorithm>

#include "support.h"

using namespace hebb_test;
using hebb::NormKind;

namespace {

template <class T> struct Case {
  int64_t rows, width;
  NormKind kind;
  double rho = 0.75, eps = 1e-5;
  std::vector<T> h, branch, d_y, d_h_out, d_h_before;
  std::vector<float> weight, bias;

  Case(int64_t rows, int64_t width, NormKind kind)
      : rows(rows),
        width(width),
        kind(kind),
        h(random_values<T>(rows * width, 1)),
        branch(random_values<T>(rows * width, 2)),
        d_y(random_values<T>(rows * width, 3)),
        d_h_out(random_values<T>(rows * width, 4)),
        d_h_before(random_values<T>(rows * width, 5)),
        weight(random_values<float>(width, 6)),
        bias(random_values<float>(width, 7)) {}

  double weight_at(int64_t i) const {
    return double(weight[static_cast<size_t>(i)]) + (kind == NormKind::rms_unit_offset ? 1 : 0);
  }
};

/// Mean (0 for RMS) and 1 / standard deviation of one row.
std::pair<double, double> statistics(const double* x, int64_t width, bool is_layer, double eps) {
  double mean = 0, squares = 0;
  for (int64_t i = 0; is_layer && i < width; ++i) { mean += x[i] / double(width); }
  for (int64_t i = 0; i < width; ++i) { squares += (x[i] - mean) * (x[i] - mean) / double(width); }
  return {mean, 1 / std::sqrt(squares + eps)};
}

template <class T> void check_forward(const Case<T>& c, bool has_branch) {
  const bool is_layer = c.kind == NormKind::layer;
  TestStream stream;
  const hebb::Shape shape{c.rows, c.width};
  DeviceArray<T> y(c.rows * c.width), h_out(c.rows * c.width), h(c.h), branch(c.branch);
  DeviceArray<float> mean(c.rows), rstd(c.rows), weight(c.weight), bias(c.bias);
  device::run(stream, hebb::NormForward{.y = y.tensor(shape),
                                        .h_out = has_branch ? h_out.tensor(shape) : hebb::Tensor{},
                                        .mean = is_layer ? mean.tensor() : hebb::Tensor{},
                                        .rstd = rstd.tensor(),
                                        .h = h.tensor(shape),
                                        .branch = has_branch ? branch.tensor(shape) : hebb::Tensor{},
                                        .weight = weight.tensor(),
                                        .bias = is_layer ? bias.tensor() : hebb::Tensor{},
                                        .rho = c.rho,
                                        .eps = c.eps,
                                        .kind = c.kind});
  std::vector<double> x = as_double(c.h), expected_y, expected_mean, expected_rstd;
  if (has_branch) {
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] = double(value_of(rounded<T>(static_cast<float>(x[i] + c.rho * as_double(std::vector<T>{c.branch[i]})[0]))));
    }
    CHECK(relative_error(h_out.values(), x) < 1e-6);
  }
  for (int64_t r = 0; r < c.rows; ++r) {
    const double* row = x.data() + r * c.width;
    const auto [m, s] = statistics(row, c.width, is_layer, c.eps);
    expected_mean.push_back(m);
    expected_rstd.push_back(s);
    for (int64_t i = 0; i < c.width; ++i) {
      expected_y.push_back((row[i] - m) * s * c.weight_at(i) + (is_layer ? double(c.bias[static_cast<size_t>(i)]) : 0));
    }
  }
  CHECK(relative_error(y.values(), expected_y) < kTolerance<T>);
  CHECK(relative_error(rstd.values(), expected_rstd) < 2e-6);
  if (is_layer) { CHECK(relative_error(mean.values(), expected_mean) < 2e-6); }
}

enum class Into { overwrite, accumulate, branch, weights_only };

template <class T> void check_backward(const Case<T>& c, Into into) {
  const bool is_layer = c.kind == NormKind::layer, has_d_out = into != Into::accumulate;
  TestStream stream;
  const hebb::Shape shape{c.rows, c.width};
  const std::vector<double> x = as_double(c.h), dy = as_double(c.d_y), d_out = as_double(c.d_h_out),
                            before = as_double(c.d_h_before);
  std::vector<float> means, rstds;
  std::vector<double> d_h, d_branch, d_weight(static_cast<size_t>(c.width), 0.5),
      d_bias(static_cast<size_t>(c.width), -0.25);
  for (int64_t r = 0; r < c.rows; ++r) {
    const auto begin = static_cast<size_t>(r * c.width);
    const auto [m, s] = statistics(&x[begin], c.width, is_layer, c.eps);
    means.push_back(static_cast<float>(m));
    rstds.push_back(static_cast<float>(s));
    double mean_g = 0, mean_gn = 0;
    for (size_t i = 0; i < static_cast<size_t>(c.width); ++i) {
      const double n = (x[begin + i] - m) * s, g = dy[begin + i] * c.weight_at(static_cast<int64_t>(i));
      mean_g += is_layer ? g / double(c.width) : 0;
      mean_gn += g * n / double(c.width);
      d_weight[i] += dy[begin + i] * n;
      d_bias[i] += dy[begin + i];
    }
    for (size_t i = 0; i < static_cast<size_t>(c.width); ++i) {
      const double n = (x[begin + i] - m) * s, g = dy[begin + i] * c.weight_at(static_cast<int64_t>(i));
      const double d = s * (g - mean_g - n * mean_gn) + (has_d_out ? d_out[begin + i] : 0);
      d_h.push_back(into == Into::accumulate ? before[begin + i] + d : d);
      d_branch.push_back(c.rho * d);
    }
  }

  DeviceArray<T> out(c.d_h_before), out_branch(c.rows * c.width), h(c.h), d_y(c.d_y), d_h_out(c.d_h_out);
  DeviceArray<float> mean(means), rstd(rstds), weight(c.weight),
      weight_out(std::vector<float>(static_cast<size_t>(c.width), 0.5f)),
      bias_out(std::vector<float>(static_cast<size_t>(c.width), -0.25f));
  const hebb::Tensor none;
  run_device(stream, hebb::NormBackward{.d_h = into == Into::weights_only ? none : out.tensor(shape),
                                        .d_branch = into == Into::branch ? out_branch.tensor(shape) : none,
                                        .d_weight = weight_out.tensor(),
                                        .d_bias = is_layer ? bias_out.tensor() : none,
                                        .d_y = d_y.tensor(shape),
                                        .d_h_out = has_d_out ? d_h_out.tensor(shape) : none,
                                        .h = h.tensor(shape),
                                        .mean = is_layer ? mean.tensor() : none,
                                        .rstd = rstd.tensor(),
                                        .weight = weight.tensor(),
                                        .rho = c.rho,
                                        .kind = c.kind,
                                        .accumulate = into == Into::accumulate});
  CHECK(relative_error(out.values(), into == Into::weights_only ? before : d_h) < kTolerance<T>);
  if (into == Into::branch) { CHECK(relative_error(out_branch.values(), d_branch) < kTolerance<T>); }
  CHECK(relative_error(weight_out.values(), d_weight) < 2e-6);
  if (is_layer) { CHECK(relative_error(bias_out.values(), d_bias) < 2e-6); }
}

TEMPLATE_TEST_CASE("norms equal loops in double", "[fast]", float, hebb::bf16) {
  const NormKind kind = GENERATE(NormKind::rms, NormKind::rms_unit_offset, NormKind::layer);
  // Widths that allow 16-byte access and that do not, one and several warps, one and several packs per thread.
  const auto [rows, width] =
      GENERATE(std::pair{1, 1}, std::pair{5, 40}, std::pair{37, 67}, std::pair{3, 1000}, std::pair{2, 5128});
  CAPTURE(static_cast<int>(kind), rows, width);
  const Case<TestType> c(rows, width, kind);
  both_ways([&] {
    check_forward(c, false);
    check_forward(c, true);
  });
}

TEMPLATE_TEST_CASE("norm gradients equal loops in double, however they are written", "[fast]", float, hebb::bf16) {
  const NormKind kind = GENERATE(NormKind::rms, NormKind::rms_unit_offset, NormKind::layer);
  const auto [rows, width] =
      GENERATE(std::pair{1, 3}, std::pair{5, 40}, std::pair{67, 37}, std::pair{3, 1000}, std::pair{2, 5128});
  CAPTURE(static_cast<int>(kind), rows, width);
  const Case<TestType> c(rows, width, kind);
  both_ways([&] {
    for (const Into into : {Into::overwrite, Into::accumulate, Into::branch, Into::weights_only}) {
      CAPTURE(static_cast<int>(into));
      check_backward(c, into);
    }
  });
}

TEST_CASE("a row too wide for the norm kernels is an error that names the limit", "[fast]") {
  TestStream stream;
  DeviceArray<float> x(9000), rstd(1);
  const auto run = [&] {
    device::run(stream, hebb::NormForward{.y = x.tensor({1, 9000}),
                                          .h_out = {},
                                          .mean = {},
                                          .rstd = rstd.tensor(),
                                          .h = x.tensor({1, 9000}),
                                          .branch = {},
                                          .weight = x.tensor(),
                                          .bias = {},
                                          .rho = 1,
                                          .eps = 1e-5,
                                          .kind = NormKind::rms});
  };
  CHECK_THROWS_WITH(run(), "model.hidden_size: found 9000, expected at most 8192 on cuda");
}

TEST_CASE("norms of no rows launch nothing", "[fast]") {
  TestStream stream;
  DeviceArray<float> weight(7);
  hebb::NormForward args{};
  args.h.shape = {0, 7};
  args.weight = weight.tensor();
  CHECK_NOTHROW(device::run(stream, args));
}

}  // namespace
