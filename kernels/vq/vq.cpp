#include "kernels/vq/vq.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/parallel.h"
#include "kernels/common/cpu/math.h"
#include "kernels/gemm/gemm_cpu.h"
#include "kernels/vq/scratch.h"

namespace hebb {

VqKeysBackwardScratch plan(Workspace& workspace, const VqKeysBackward& args) {
  const Shape& k = args.k.shape;
  VqKeysBackwardScratch scratch;
  scratch.shares = workspace.tensor({k[0], k[1], k[2], 2}, sum_dtype(args.k.dtype), "shares of the codewords");

  if (workspace.on_gpu() && args.d_codes.defined()) {
    scratch.added = workspace.tensor(k, DType::f32, "codeword gradients");
    scratch.key_lines = workspace.tensor({k[0], k[1], k[2]}, DType::i32, "codeword gradients");
    scratch.table = workspace.tensor(args.codes.shape, DType::f32, "codeword gradients");
  }
  return scratch;
}
HEBB_KERNEL_PLANNED(VqKeysBackward)

namespace cpu {
namespace {

constexpr int64_t kSelectKeys = 32, kSelectPoints = 256;  // a tile of scores stays in the first-level cache
constexpr int64_t kColumns = 16;                          // of d_codes that one task owns

/// The best points of up to kSelectKeys keys `k_stride` apart.
template <class S>
void select_tile(const S* k, int64_t k_stride, int64_t count, const S* points, const S* bias, int64_t m, int64_t d,
                 int32_t* ids) {
  S scores[kSelectKeys * kSelectPoints], best[kSelectKeys];
  std::fill_n(best, count, -std::numeric_limits<S>::infinity());
  std::fill_n(ids, count, 0);
  for (int64_t first = 0; first < m; first += kSelectPoints) {
    const int64_t width = std::min(kSelectPoints, m - first);
    gemm_serial<S>(false, true, count, width, d, S(1), k, k_stride, points + first * d, d, false, scores,
                   kSelectPoints);
    for (int64_t i = 0; i < count; ++i) {
      S* row = scores + i * kSelectPoints;
      for (int64_t x = 0; bias != nullptr && x < width; ++x) { row[x] += bias[first + x]; }
      for (int64_t x = 0; x < width; ++x) {
        if (row[x] > best[i]) {
          best[i] = row[x];
          ids[i] = static_cast<int32_t>(first + x);
        }
      }
    }
  }
}

/// Calls f(item, head, id) for the keys [B, T, K] of a batch; item numbers them, id is the point of the key.
template <class F> void each_key(const Tensor& ids, F&& f) {
  const int64_t kv_heads = ids.size(1), length = ids.size(2);
  parallel_each(ids.numel(), 256, [&](int64_t item) {
    const int64_t head = item % kv_heads, token = item / kv_heads, row = token / length, t = token % length;
    f(item, head, static_cast<int64_t>(ids.as<int32_t>()[(row * kv_heads + head) * length + t]));
  });
}

/// d_k -= share u (u . g) for the codeword e, u along e - k; returns share (u . g) / |e - k|.
template <class S> S subtract_share(int64_t d, const S* e, const S* k, const S* g, S share, S* d_k) {
  const S squares = squared_distance(d, e, k) + S(1e-24);
  const S along = lane_sum<S>(d, [&](int64_t x) { return (e[x] - k[x]) * g[x]; });
  const S factor = share * along / squares;
  for (int64_t x = 0; d_k != nullptr && x < d; ++x) { d_k[x] -= factor * (e[x] - k[x]); }
  return factor;
}

/// d_k, and how much of e - k each of the two codewords gets.
template <class S> void backward_keys(const VqKeysBackward& a, S* all_shares) {
  const int64_t n = a.codes.size(1), d = a.codes.size(2);
  each_key(a.ids, [&](int64_t item, int64_t head, int64_t id) {
    const S *k = a.k.as<S>() + item * d, *g = a.d_kq.as<S>() + item * d;
    const S* e = a.codes.as<S>() + (head * n + id) * d;
    S *d_k = a.d_k.defined() ? a.d_k.as<S>() + item * d : nullptr, *shares = all_shares + item * 2;
    const bool passes = a.mode != VqMode::nearest;
    for (int64_t x = 0; d_k != nullptr && x < d; ++x) {
      d_k[x] = (a.accumulate_k ? d_k[x] : S(0)) + (passes ? g[x] : S(0));
    }
    if (!passes) { return; }
    const S l = a.mode == VqMode::sf_diveq ? a.dither.as<S>()[head * (n - 1) + id] : S(0);
    shares[0] = subtract_share(d, e, k, g, S(1) - l, d_k);
    shares[1] = a.mode == VqMode::sf_diveq ? subtract_share(d, e + d, k, g, l, d_k) : S(0);
  });
}

/// Columns [first, first + width) of one kv head's d_codes, over all its keys in order.
template <class S>
void backward_codes(const VqKeysBackward& a, const S* all_shares, int64_t head, int64_t first, int64_t width) {
  const int64_t kv_heads = a.ids.size(1), length = a.ids.size(2), n = a.codes.size(1), d = a.codes.size(2);
  S* d_codes = a.d_codes.as<S>() + head * n * d + first;
  const S* codes = a.codes.as<S>() + head * n * d + first;
  for (int64_t r = 0; !a.accumulate_codes && r < n; ++r) { std::fill_n(d_codes + r * d, width, S(0)); }
  for (int64_t token = 0; token < a.ids.size(0) * length; ++token) {
    const int64_t item = token * kv_heads + head;
    const int64_t id = a.ids.as<int32_t>()[(token / length * kv_heads + head) * length + token % length];
    const S *k = a.k.as<S>() + item * d + first, *shares = all_shares + item * 2;
    const int ends = a.mode == VqMode::sf_diveq ? 2 : 1;
    for (int end = 0; end < ends; ++end) {
      S* to = d_codes + (id + end) * d;
      const S* e = codes + (id + end) * d;
      if (a.mode == VqMode::nearest) {
        const S* g = a.d_kq.as<S>() + item * d + first;
        for (int64_t x = 0; x < width; ++x) { to[x] += g[x]; }
      } else {
        for (int64_t x = 0; x < width; ++x) { to[x] += shares[end] * (e[x] - k[x]); }
      }
    }
  }
}

}  // namespace

void run(Stream&, const VqPoints& a) {
  dispatch_real(a.codes.dtype, [&]<class S>(S) {
    const int64_t kv_heads = a.codes.size(0), n = a.codes.size(1), d = a.codes.size(2), m = a.bias.size(1);
    const S rho = static_cast<S>(a.idle_bonus);
    parallel_each(kv_heads * m, 64, [&](int64_t i) {
      const int64_t head = i / m, at = i % m;
      const int32_t* idle = a.idle.as<int32_t>() + head * n + at;
      S& bias = a.bias.as<S>()[i];
      if (!a.points.defined()) {
        bias = rho * static_cast<S>(idle[0]);
        return;
      }
      const S* c = a.codes.as<S>() + (head * n + at) * d;
      S* p = a.points.as<S>() + i * d;
      const S l = a.dither.as<S>()[i];
      for (int64_t x = 0; x < d; ++x) { p[x] = (S(1) - l) * c[x] + l * c[d + x]; }
      bias = rho * static_cast<S>(std::max(idle[0], idle[1])) - dot(d, p, p) / S(2);
    });
  });
}

void run(Stream&, const VqSelect& a) {
  dispatch_real(a.k.dtype, [&]<class S>(S) {
    const int64_t length = a.k.size(1), kv_heads = a.k.size(2), d = a.k.size(3), m = a.points.size(1);
    const int64_t tiles = (length + kSelectKeys - 1) / kSelectKeys;
    parallel_each(a.k.size(0) * kv_heads * tiles, 1, [&](int64_t task) {
      const int64_t unit = task / tiles, row = unit / kv_heads, head = unit % kv_heads;
      const int64_t t = task % tiles * kSelectKeys;
      select_tile(a.k.as<S>() + ((row * length + t) * kv_heads + head) * d, kv_heads * d,
                  std::min(kSelectKeys, length - t), a.points.as<S>() + head * m * d,
                  a.bias.defined() ? a.bias.as<S>() + head * m : nullptr, m, d,
                  a.ids.as<int32_t>() + unit * length + t);
    });
  });
}

void run(Stream&, const VqGather& a) {
  dispatch_real(a.kq.dtype, [&]<class S>(S) {
    const int64_t m = a.points.size(1), d = a.points.size(2);
    each_key(a.ids, [&](int64_t item, int64_t head, int64_t id) {
      std::copy_n(a.points.as<S>() + (head * m + id) * d, d, a.kq.as<S>() + item * d);
    });
  });
}

void run(Stream&, const VqKeysBackward& a, const VqKeysBackwardScratch& scratch) {
  dispatch_real(a.k.dtype, [&]<class S>(S) {
    S* shares = scratch.shares.as<S>();
    backward_keys<S>(a, shares);
    if (!a.d_codes.defined()) { return; }
    const int64_t d = a.codes.size(2), slices = (d + kColumns - 1) / kColumns;
    parallel_each(a.codes.size(0) * slices, 1, [&](int64_t task) {
      const int64_t first = task % slices * kColumns;
      backward_codes<S>(a, shares, task / slices, first, std::min(kColumns, d - first));
    });
  });
}

void run(Stream&, const VqSimilarity& a) {
  dispatch_real(a.k.dtype, [&]<class S>(S) {
    const int64_t kv_heads = a.ids.size(1), length = a.ids.size(2), m = a.points.size(1), d = a.points.size(2);
    each_key(a.ids, [&](int64_t item, int64_t head, int64_t id) {
      const S *k = a.k.as<S>() + item * d, *p = a.points.as<S>() + (head * m + id) * d;
      const int64_t token = item / kv_heads, row = token / length;
      a.similarity.as<S>()[(row * kv_heads + head) * length + token % length] =
          dot(d, k, p) / std::sqrt(std::max(dot(d, k, k) * dot(d, p, p), std::numeric_limits<S>::min()));
    });
  });
}

void run(Stream&, const VqStart& a) {
  dispatch_real(a.k.dtype, [&]<class S>(S) {
    const int64_t kv_heads = a.codebook.size(0), n = a.codebook.size(1), d = a.codebook.size(2);
    parallel_each(kv_heads * n, 16, [&](int64_t i) {
      const int64_t head = i / n, first = i % n * a.hop;
      S* row = a.codebook.as<S>() + i * d;
      std::fill_n(row, d, S(0));
      for (int64_t j = first; j < first + a.hop; ++j) {
        const S* k = a.k.as<S>() + (j * kv_heads + head) * d;
        for (int64_t x = 0; x < d; ++x) { row[x] += k[x]; }
      }
      for (int64_t x = 0; x < d; ++x) { row[x] /= static_cast<S>(a.hop); }
      const S inverse = S(1) / std::sqrt(dot(d, row, row) + S(1e-6));
      for (int64_t x = 0; x < d; ++x) { row[x] *= inverse; }
    });
  });
}

void run(Stream&, const VqMark& args) {
  const int64_t heads = args.ids.size(1), length = args.ids.size(2), codewords = args.used.size(1);
  for (int64_t i = 0; i < args.ids.numel(); ++i) {
    int32_t* used = args.used.as<int32_t>() + i / length % heads * codewords + args.ids.as<int32_t>()[i];
    used[0] = 1;
    if (args.segments) { used[1] = 1; }
  }
}

void run(Stream&, const VqIdle& args) {
  if (*args.applies.as<double>() == 0) { return; }
  for (int64_t i = 0; i < args.idle.numel(); ++i) {
    int32_t& idle = args.idle.as<int32_t>()[i];
    idle = args.used.as<int32_t>()[i] != 0 ? 0 : idle + 1;
  }
}

}  // namespace cpu
}  // namespace hebb
