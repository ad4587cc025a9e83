#pragma once
// Tensors of kernel tests: filled from vectors of doubles, read back as such, in poisoned memory.
#include <algorithm>
#include <cmath>
#include <vector>

#include "core/arena.h"
#include "core/random.h"
#include "core/workspace.h"
#include "tests/test.h"

namespace hebb::testing {

using Values = std::vector<double>;

inline Values random_values(int64_t count, const std::string& label, double scale = 1.0) {
  Rng rng(3, label);
  Values values(static_cast<size_t>(count));
  for (double& v : values) { v = scale * rng.normal(); }
  return values;
}

/// Owns the tensors of one test.
class Tensors {
 public:
  explicit Tensors(DType dtype) : arena(DeviceKind::cpu), dtype_(dtype) { arena.set_poison(true); }

  /// Not written yet: NaN.
  Tensor empty(Shape shape) {
    buffers_.emplace_back(arena, shape, dtype_, "test");
    return buffers_.back();
  }
  Tensor make(Shape shape, const Values& values) {
    const Tensor t = empty(shape);
    REQUIRE(t.numel() == static_cast<int64_t>(values.size()));
    dispatch_real(dtype_, [&]<class S>(S) {
      std::transform(values.begin(), values.end(), t.as<S>(), [](double v) { return static_cast<S>(v); });
    });
    return t;
  }
  Tensor zeros(Shape shape) { return make(shape, Values(static_cast<size_t>(shape.numel()), 0.0)); }
  template <class I> Tensor integers(Shape shape, const std::vector<I>& values) {
    buffers_.emplace_back(arena, shape, dtype_of<I>, "test");
    std::copy(values.begin(), values.end(), buffers_.back().tensor().as<I>());
    return buffers_.back();
  }
  static Values read(const Tensor& t) {
    Values values(static_cast<size_t>(t.numel()));
    dispatch_real(t.dtype, [&]<class S>(S) { std::copy_n(t.as<S>(), t.numel(), values.begin()); });
    return values;
  }

  Workspace workspace() { return Workspace(stream, arena); }

  Stream stream;
  Arena arena;

 private:
  DType dtype_;
  std::vector<Buffer> buffers_;
};

/// Every entry within tolerance * the largest expected entry (+ a floor for tensors that are 0).
inline void check_near(const std::string& what, const Values& found, const Values& expected, double tolerance) {
  REQUIRE(found.size() == expected.size());
  double largest = 0, worst = 0;
  size_t at = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    largest = std::max(largest, std::abs(expected[i]));
    const double error = std::abs(found[i] - expected[i]);
    if (!(error <= worst)) {
      worst = std::isnan(error) ? INFINITY : error;
      at = i;
    }
  }
  INFO(what << ": entry " << at << " is " << (found.empty() ? 0 : found[at]) << ", expected "
            << (found.empty() ? 0 : expected[at]) << "; largest entry " << largest);
  CHECK(worst <= tolerance * largest + 1e-14);
}

/// d f / d values[i] by central differences, for up to `samples` entries spread over the vector.
template <class F>
void check_derivative(const std::string& what, Values values, const Values& gradient, F&& f, size_t samples = 12) {
  REQUIRE(values.size() == gradient.size());
  constexpr double kStep = 1e-5;
  double largest = 0;
  for (const double g : gradient) { largest = std::max(largest, std::abs(g)); }
  const size_t count = std::min(samples, values.size());
  for (size_t s = 0; s < count; ++s) {
    const size_t i = s * values.size() / count;
    const double kept = values[i];
    values[i] = kept + kStep;
    const double above = f(values);
    values[i] = kept - kStep;
    const double below = f(values);
    values[i] = kept;
    const double numeric = (above - below) / (2 * kStep);
    INFO(what << "[" << i << "]: gradient " << gradient[i] << ", difference quotient " << numeric);
    // Step squared times third derivatives, and rounding over the step: both about 1e-10 of values near 1.
    CHECK(std::abs(gradient[i] - numeric) <= 1e-6 * std::max(largest, std::abs(numeric)) + 1e-9);
  }
}

inline double weighted_sum(const Values& values, const Values& weights) {
  double sum = 0;
  for (size_t i = 0; i < values.size(); ++i) { sum += values[i] * weights[i]; }
  return sum;
}

}  // namespace hebb::testing
