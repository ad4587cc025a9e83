#include <algorithm>
#include <cmath>
#include <vector>

#include "core/error.h"
#include "core/parallel.h"
#include "core/params.h"

namespace hebb {
namespace {

/// Vectors of one length, side by side.
struct Vectors {
  double* data;
  int64_t length, count;
  double* at(int64_t i) const { return data + i * length; }
  Vectors part(int64_t begin, int64_t n) const { return {at(begin), length, n}; }
};

constexpr int64_t kLanes = 16;

double dot(const double* a, const double* b, int64_t n) {
  double lane[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) { lane[j] += a[i + j] * b[i + j]; }
  }
  for (; i < n; ++i) { lane[0] += a[i] * b[i]; }
  double total = 0;
  for (const double l : lane) { total += l; }
  return total;
}

/// Removes from every vector of `rest` its projections on the orthonormal `base`.
void project_out(const Vectors& base, const Vectors& rest) {
  constexpr int64_t kBase = 8;  // vectors of the base that stay in cache while `rest` passes by
  parallel_for(rest.count, 4, [&](int64_t first, int64_t last) {
    for (int64_t begin = 0; begin < base.count; begin += kBase) {
      const int64_t end = std::min(base.count, begin + kBase);
      for (int64_t r = first; r < last; ++r) {
        double* x = rest.at(r);
        double shares[kBase];
        for (int64_t b = begin; b < end; ++b) { shares[b - begin] = dot(base.at(b), x, rest.length); }
        for (int64_t b = begin; b < end; ++b) {
          const double *q = base.at(b), share = shares[b - begin];
          for (int64_t i = 0; i < rest.length; ++i) { x[i] -= share * q[i]; }
        }
      }
    }
  });
}

/// Gram-Schmidt by halves: what the first half spans is removed from the second. Every vector keeps a
/// positive share of itself, which is the sign that R's diagonal has.
void orthonormalize(const Vectors& v) {
  if (v.count == 1) {
    const double length = std::sqrt(dot(v.data, v.data, v.length));
    HEBB_ASSERT(length > 0);
    for (int64_t i = 0; i < v.length; ++i) { v.data[i] /= length; }
    return;
  }
  const int64_t half = v.count / 2;
  const Vectors first = v.part(0, half), second = v.part(half, v.count - half);
  orthonormalize(first);
  project_out(first, second);
  orthonormalize(second);
}

}  // namespace

Init init::orthogonal(int64_t rows, int64_t columns, double gain) {
  return [rows, columns, gain](Rng& rng, float* values, int64_t count) {
    HEBB_ASSERT(count == rows * columns);
    const bool tall = rows >= columns;
    // The columns of a tall matrix, the rows of a wide one.
    std::vector<double> drawn(static_cast<size_t>(count));
    const Vectors v{drawn.data(), std::max(rows, columns), std::min(rows, columns)};
    const auto element = [&](int64_t i) -> double& {
      return tall ? v.at(i % columns)[i / columns] : v.at(i / columns)[i % columns];
    };
    for (int64_t i = 0; i < count; ++i) { element(i) = rng.normal(); }
    // The second round removes what the rounding of the first left over.
    orthonormalize(v);
    orthonormalize(v);
    for (int64_t i = 0; i < count; ++i) { values[i] = static_cast<float>(gain * element(i)); }
  };
}

}  // namespace hebb
