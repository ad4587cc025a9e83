#include "kernels/rope/rope.h"

#include <algorithm>
#include <numbers>
#include <vector>

#include "core/parallel.h"
#include "kernels/common/cpu/vec.h"

namespace hebb {

double RopeSpec::frequency(int64_t i) const {
  const double at = static_cast<double>(i), pairs = static_cast<double>(dims) / 2;
  const double plain = std::pow(theta, endpoint ? -at / (pairs - 1) : -at / pairs);
  if (llama3) {
    const double turns = static_cast<double>(original) * plain / (2 * std::numbers::pi);
    const double kept = std::clamp((turns - low_freq_factor) / (high_freq_factor - low_freq_factor), 0.0, 1.0);
    return plain * (kept + (1 - kept) / factor);
  }
  if (!yarn) { return plain; }
  // The pair whose wavelength fits r times into the training length.
  const double channels = static_cast<double>(dims);
  const auto pair_of = [&](double r) {
    return channels * std::log(static_cast<double>(original) / (2 * std::numbers::pi * r)) / (2 * std::log(theta));
  };
  const double first = pair_of(beta_fast), last = pair_of(beta_slow);
  const double low = std::max(truncate ? std::floor(first) : first, 0.0);
  double high = std::min(truncate ? std::ceil(last) : last, channels - 1);
  high += low == high ? 0.001 : 0.0;
  const double w = std::clamp((at - low) / (high - low), 0.0, 1.0);
  return plain * ((1 - w) + w / factor);
}

namespace cpu {
namespace {

constexpr int64_t kGrain = 16;  // tokens

/// One head; x and y are the same memory or do not overlap.
template <class S>
void rotate_head(int64_t pairs, int64_t d, const S* cosine, const S* sine, S sign, bool add, const S* x, S* y) {
  vector_loop<S>(pairs, [&](int64_t i, auto lanes) {
    const Vec<S> a = load(x + i, lanes), b = load(x + pairs + i, lanes);
    const Vec<S> c = load(cosine + i, lanes), s = load(sine + i, lanes) * Vec<S>(sign);
    put(y + i, a * c - b * s, lanes, add);
    put(y + pairs + i, b * c + a * s, lanes, add);
  });
  vector_loop<S>(d - 2 * pairs,
                 [&](int64_t i, auto lanes) { put(y + 2 * pairs + i, load(x + 2 * pairs + i, lanes), lanes, add); });
}

}  // namespace

void run(Stream&, const RopeTable& a) {
  dispatch_real(a.table.dtype, [&]<class S>(S) {
    const int64_t pairs = a.table.size(2);
    const int32_t* doc_start = a.doc_start.as<int32_t>();
    const int64_t length = a.doc_start.defined() ? a.doc_start.size(1) : 1;
    const double factor = a.spec.yarn ? a.spec.attention_factor : 1.0;
    std::vector<double> frequencies;
    for (int64_t i = 0; i < pairs; ++i) { frequencies.push_back(a.spec.frequency(i)); }
    parallel_each(a.table.size(0), kGrain, [&](int64_t m) {
      const double position = static_cast<double>(doc_start != nullptr ? m % length - doc_start[m] : a.first + m);
      S* out = a.table.as<S>() + 2 * m * pairs;
      for (int64_t i = 0; i < pairs; ++i) {
        const double angle = position * frequencies[static_cast<size_t>(i)];
        out[i] = static_cast<S>(std::cos(angle) * factor);
        out[pairs + i] = static_cast<S>(std::sin(angle) * factor);
      }
    });
  });
}

void run(Stream&, const Rope& a) {
  dispatch_real(a.x.dtype, [&]<class S>(S) {
    const int64_t length = a.x.size(1), heads = a.x.size(2), d = a.x.size(3), pairs = a.table.size(2);
    const int32_t* doc_start = a.doc_start.as<int32_t>();
    const S *x = a.x.as<S>(), *t = a.table.as<S>();
    S* y = a.y.as<S>();
    const S sign = a.inverse ? S(-1) : S(1);
    parallel_each(a.x.size(0) * length, kGrain, [&](int64_t n) {
      const S* cosine = t + 2 * pairs * (a.by_token ? n : n % length - doc_start[n] - a.first);
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t at = (n * heads + h) * d;
        rotate_head(pairs, d, cosine, cosine + pairs, sign, a.accumulate, x + at, y + at);
      }
    });
  });
}

}  // namespace cpu
}  // namespace hebb
