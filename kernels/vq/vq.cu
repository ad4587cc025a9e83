#include "kernels/vq/vq.h"

#include "kernels/common/cuda/fast_divide.cuh"
#include "kernels/common/cuda/scatter.cuh"
#include "kernels/dictionary/slot_compare.cuh"
#include "kernels/vq/scratch.h"

// Quantized keys. Selection: tiles of 64 keys x 64 points, scores in fp32 that never leave the block; FLOPs: 2 K D M a
// token, bound by multiply-adds with 16 of them for 8 shared loads. The rest is bound by HBM: each key, point and
// gradient once or twice.
namespace hebb::HEBB_DEVICE {
namespace {

using attention::kTile;
using slots::Best;

constexpr float kSmallest = 1.17549435e-38f;  // normal number

// A warp has one point.
struct Points {
  float* points;  // null: the codewords themselves
  float* bias;
  const float* codes;
  const float* dither;
  const int32_t* idle;
  int64_t m, n, d;
  float rho;

  __device__ void operator()(int64_t i, int lane) const {
    const int64_t head = i / m, code = head * n + i % m;
    if (points == nullptr) {
      if (lane == 0) { bias[i] = rho * static_cast<float>(idle[code]); }
      return;
    }
    const float l = dither[i];
    const float squares = warp_sum_of(d, lane, [&](int64_t c) {
      const float p = (1.0f - l) * codes[code * d + c] + l * codes[(code + 1) * d + c];
      points[i * d + c] = p;
      return p * p;
    });
    if (lane == 0) {
      const int32_t longest = idle[code] > idle[code + 1] ? idle[code] : idle[code + 1];
      bias[i] = rho * static_cast<float>(longest) - squares / 2.0f;
    }
  }
};

struct Select {
  int32_t* ids;
  const float *k, *points;
  const float* bias;
  int64_t length, m;
  int kv_heads, d;
};

/// Grid: tiles of 64 keys of a row x units. Static shared: 35 KB.
__global__ void __launch_bounds__(attention::kThreads) vq_select_kernel(Select a, int64_t tiles) {
  HEBB_SHARED(attention::Shared, s);
  const int x = static_cast<int>(threadIdx.x % 16), y = static_cast<int>(threadIdx.x / 16);
  const int64_t unit = blockIdx.x / tiles, row = unit / a.kv_heads, head = unit % a.kv_heads,
                first = blockIdx.x % tiles * kTile;
  Best best[4];
  HEBB_UNROLL
  for (int i = 0; i < 4; ++i) { best[i] = {-INFINITY, 0}; }
  for (int64_t base = 0; base < a.m; base += kTile) {
    if (threadIdx.x < kTile) {
      const int64_t t = first + threadIdx.x, point = base + threadIdx.x;
      s.row_line[threadIdx.x] = t < a.length ? (row * a.length + t) * a.kv_heads + head : -1;
      s.key_line[threadIdx.x] = point < a.m ? head * a.m + point : -1;
    }
    __syncthreads();
    float scores[4][4];
    attention::multiply_lines(scores, s, a.k, s.row_line, a.points, s.key_line, a.d);
    HEBB_UNROLL
    for (int j = 0; j < 4; ++j) {
      const int64_t line = s.key_line[x + 16 * j];
      const float bias = line >= 0 && a.bias != nullptr ? a.bias[line] : 0.0f;
      HEBB_UNROLL
      for (int i = 0; i < 4; ++i) {
        if (line >= 0) { best[i].take(scores[i][j] + bias, static_cast<int32_t>(base + x + 16 * j)); }
      }
    }
    __syncthreads();  // the lines are replaced
  }
  HEBB_UNROLL
  for (int i = 0; i < 4; ++i) {
    const Best of_key = best[i].over_lanes(8);
    const int64_t t = first + 4 * y + i;
    if (x == 0 && t < a.length) { a.ids[unit * a.length + t] = of_key.slot; }
  }
}

/// The keys [B, T, K] of a batch, of which ids [B, K, T] name the points.
struct KeyIds {
  const int32_t* ids;
  int64_t kv_heads, length;

  explicit KeyIds(const Tensor& t) : ids(t.as<int32_t>()), kv_heads(t.size(1)), length(t.size(2)) {}
  __device__ int64_t head(int64_t item) const { return Split(item, kv_heads).remainder; }
  /// Where the key's entry of a [B, K, T] tensor lies.
  __device__ int64_t at(int64_t item) const {
    const Split token_and_head(item, kv_heads), row_and_place(token_and_head.quotient, length);
    return (row_and_place.quotient * kv_heads + token_and_head.remainder) * length + row_and_place.remainder;
  }
  /// Line of the key's point in a [K, M, ...] tensor.
  __device__ int64_t line(int64_t item, int64_t m) const { return head(item) * m + ids[at(item)]; }
};

struct Gather {
  float* kq;
  const float* points;
  KeyIds ids;
  int64_t m, d;

  __device__ void operator()(int64_t item, int64_t c) const { kq[item * d + c] = points[ids.line(item, m) * d + c]; }
};

struct Differences {
  const float *k, *d_kq, *codes;
  KeyIds ids;
  const float* dither;
  int64_t n, d;
  VqMode mode;

  /// How much of e - k the codeword `end` of the key's segment gets: share (u . g) / |e - k|, u along e - k
  /// (docs/layers/vq.md, Quantizers).
  __device__ float factor(int64_t item, int end, int lane) const {
    const int64_t line = ids.line(item, n) + end;
    const float l = mode == VqMode::sf_diveq ? dither[ids.head(item) * (n - 1) + ids.ids[ids.at(item)]] : 0.0f;
    const float squares = warp_sum_of(d, lane, [&](int64_t c) { return r(item, line, c) * r(item, line, c); }) + 1e-24f;
    const float along = warp_sum_of(d, lane, [&](int64_t c) { return r(item, line, c) * d_kq[item * d + c]; });
    return (end == 0 ? 1.0f - l : l) * along / squares;
  }
  __device__ float r(int64_t item, int64_t line, int64_t c) const { return codes[line * d + c] - k[item * d + c]; }
};

// d_k, and the shares of the codewords. A warp has one key.
struct KeyGradients {
  float* d_k;  // may be null
  float* shares;
  Differences of;
  bool accumulate;

  __device__ void operator()(int64_t item, int lane) const {
    const bool passes = of.mode != VqMode::nearest, two = of.mode == VqMode::sf_diveq;
    const float first = passes ? of.factor(item, 0, lane) : 0.0f, second = two ? of.factor(item, 1, lane) : 0.0f;
    const int64_t line = of.ids.line(item, of.n);
    for (int64_t c = lane; d_k != nullptr && c < of.d; c += 32) {
      float d = passes ? of.d_kq[item * of.d + c] - first * of.r(item, line, c) : 0.0f;
      d -= two ? second * of.r(item, line + 1, c) : 0.0f;
      write(d_k[item * of.d + c], d, accumulate);
    }
    if (lane == 0) {
      shares[2 * item] = first;
      shares[2 * item + 1] = second;
    }
  }
};

/// What keys add to the codeword `end` of their segment, and its line.
struct CodeGradients {
  float* added;    // [B, T, K, D]
  int32_t* lines;  // [B, T, K]
  const float* shares;
  Differences of;
  int end;

  __device__ void operator()(int64_t item, int64_t c) const {
    const int64_t line = of.ids.line(item, of.n) + end, at = item * of.d + c;
    added[at] = of.mode == VqMode::nearest ? of.d_kq[at] : shares[2 * item + end] * of.r(item, line, c);
    if (c == 0) { lines[item] = static_cast<int32_t>(line); }
  }
};

struct WriteCodes {
  float* to;
  const float* from;
  bool accumulate;
  __device__ void operator()(int64_t, int64_t i) const { write(to[i], from[i], accumulate); }
};

struct Similarity {
  float* similarity;
  const float *k, *points;
  KeyIds ids;
  int64_t m, d;

  __device__ void operator()(int64_t item, int lane) const {
    const float *key = k + item * d, *p = points + ids.line(item, m) * d;
    const float product = warp_sum_of(d, lane, [&](int64_t c) { return key[c] * p[c]; });
    const float keys = warp_sum_of(d, lane, [&](int64_t c) { return key[c] * key[c]; });
    const float squares = keys * warp_sum_of(d, lane, [&](int64_t c) { return p[c] * p[c]; });
    if (lane == 0) { similarity[ids.at(item)] = product / sqrtf(squares > kSmallest ? squares : kSmallest); }
  }
};

// A warp has one codeword.
struct Start {
  float* codebook;
  const float* k;
  int64_t kv_heads, n, d, hop;

  __device__ void operator()(int64_t i, int lane) const {
    const int64_t head = i / n, first = i % n * hop;
    const float squares = warp_sum_of(d, lane, [&](int64_t c) {
      float sum = 0;
      for (int64_t token = first; token < first + hop; ++token) { sum += k[(token * kv_heads + head) * d + c]; }
      codebook[i * d + c] = sum / static_cast<float>(hop);
      return codebook[i * d + c] * codebook[i * d + c];
    });
    const float inverse = 1.0f / sqrtf(squares + 1e-6f);
    for (int64_t c = lane; c < d; c += 32) { codebook[i * d + c] *= inverse; }
  }
};

struct Mark {
  int32_t* used;
  const int32_t* ids;
  int64_t heads, length, codewords;
  bool segments;

  __device__ void operator()(int64_t row, int64_t t) const {
    int32_t* const at = used + row % heads * codewords + ids[row * length + t];
    atomicOr(at, 1);
    if (segments) { atomicOr(at + 1, 1); }
  }
};

struct Idle {
  int32_t* idle;
  const int32_t* used;
  const double* applies;

  __device__ void operator()(int64_t, int64_t i) const {
    if (*applies != 0) { idle[i] = used[i] != 0 ? 0 : idle[i] + 1; }
  }
};

}  // namespace

void run(Stream& stream, const VqPoints& a) {
  each_warp(
      "vq_points", stream, a.bias.numel(),
      Points{a.points.as<float>(), a.bias.as<float>(), a.codes.as<float>(), a.dither.as<float>(), a.idle.as<int32_t>(),
             a.bias.size(1), a.codes.size(1), a.codes.size(2), static_cast<float>(a.idle_bonus)});
}

void run(Stream& stream, const VqSelect& a) {
  if (a.ids.numel() == 0) { return; }
  const int64_t length = a.k.size(1), tiles = (length + kTile - 1) / kTile;
  HEBB_LAUNCH(vq_select_kernel, blocks_for(a.k.size(0) * a.k.size(2) * tiles, 1), attention::kThreads, 0, stream,
              Select{a.ids.as<int32_t>(), a.k.as<float>(), a.points.as<float>(), a.bias.as<float>(), length,
                     a.points.size(1), static_cast<int>(a.k.size(2)), static_cast<int>(a.k.size(3))},
              tiles);
}

void run(Stream& stream, const VqGather& a) {
  each_element("vq_gather", stream, a.ids.numel(), a.points.size(2),
               Gather{a.kq.as<float>(), a.points.as<float>(), KeyIds(a.ids), a.points.size(1), a.points.size(2)});
}

void run(Stream& stream, const VqKeysBackward& a, const VqKeysBackwardScratch& scratch) {
  const int64_t keys = a.ids.numel(), n = a.codes.size(1), d = a.codes.size(2), lines = a.codes.size(0) * n;
  const Differences of{
      a.k.as<float>(), a.d_kq.as<float>(), a.codes.as<float>(), KeyIds(a.ids), a.dither.as<float>(), n, d, a.mode};
  auto* const shares = scratch.shares.as<float>();
  each_warp("vq_key_gradients", stream, keys, KeyGradients{a.d_k.as<float>(), shares, of, a.accumulate_k});
  if (!a.d_codes.defined()) { return; }
  auto *const added = scratch.added.as<float>(), *const table = scratch.table.as<float>();
  auto* const key_lines = scratch.key_lines.as<int32_t>();
  slots::fill(stream, table, lines * d, 0.0f);
  for (int end = 0; end < (a.mode == VqMode::sf_diveq ? 2 : 1); ++end) {
    each_element("vq_code_gradients", stream, keys, d, CodeGradients{added, key_lines, shares, of, end});
    scatter_rows(stream, table, lines, d, keys, {.ids = key_lines}, {.data = added, .dtype = DType::f32, .stride = d});
  }
  each_element("vq_write_codes", stream, 1, lines * d, WriteCodes{a.d_codes.as<float>(), table, a.accumulate_codes});
}

void run(Stream& stream, const VqSimilarity& a) {
  each_warp("vq_similarity", stream, a.ids.numel(),
            Similarity{a.similarity.as<float>(), a.k.as<float>(), a.points.as<float>(), KeyIds(a.ids), a.points.size(1),
                       a.points.size(2)});
}

void run(Stream& stream, const VqStart& a) {
  each_warp("vq_start", stream, a.codebook.size(0) * a.codebook.size(1),
            Start{a.codebook.as<float>(), a.k.as<float>(), a.codebook.size(0), a.codebook.size(1), a.codebook.size(2),
                  a.hop});
}

void run(Stream& stream, const VqMark& a) {
  each_element(
      "vq_mark", stream, a.ids.size(0) * a.ids.size(1), a.ids.size(2),
      Mark{a.used.as<int32_t>(), a.ids.as<int32_t>(), a.ids.size(1), a.ids.size(2), a.used.size(1), a.segments});
}

void run(Stream& stream, const VqIdle& a) {
  each_element("vq_idle", stream, 1, a.idle.numel(),
               Idle{a.idle.as<int32_t>(), a.used.as<int32_t>(), a.applies.as<double>()});
}

}  // namespace hebb::HEBB_DEVICE
