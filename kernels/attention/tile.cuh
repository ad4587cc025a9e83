#pragma once
// What the attention kernels share: 64 x 64 tiles of scores, computed by 256 threads from rows that are staged in
// shared memory.
//
// The G query heads of a kv head are stacked: row r = token * G + g of a key space. A tile has 64 `own` lines (those
// whose result the block holds in registers) and goes over tiles of 64 `other` lines: keys for a block of rows, rows
// for a block of keys. Thread (y, x) of 16 x 16 holds the own lines 4 y + i, i < 4, and of the others or of the
// channels x + 16 j.
#include "kernels/attention/attention.h"
#include "kernels/common/cuda/prelude.cuh"

namespace hebb::HEBB_DEVICE::attention {

constexpr int kTile = 64;
constexpr int kThreads = 256;
constexpr int kChannels = 32;    // of rows staged at once for scores
constexpr int kLines = 16;       // staged at once for results
constexpr int kMaxColumns = 16;  // result columns of a thread: 256 channels, more are further slices of the grid

/// Sizes and inputs. Vectors are found by their line: rows of q, o and d_o have the same number, so do keys and values.
template <class T> struct Inputs {
  const T *q, *k, *v;
  const float* bias;
  const int32_t *lo, *hi;
  int64_t tokens, keys;  // of one key space
  int heads, kv_heads, group, d, dv;
  float scale;

  __device__ int64_t rows() const { return tokens * group; }
};

struct Shared {
  float stage[2 * kTile * (kChannels + 1)];
  float weights[kTile][kTile + 1];           // [own][other]
  int64_t row_line[kTile], key_line[kTile];  // -1: none
  int32_t lo[kTile], hi[kTile];              // of the rows
  float lse[kTile], delta[kTile];            // backward
};
static_assert(kLines * 16 * kMaxColumns <= 2 * kTile * (kChannels + 1));

/// What a block works on: key space, kv head and tile of own lines.
struct HeadLines {
  int64_t space, first;
  int head;
};

template <class T> __device__ __forceinline__ HeadLines head_lines(const Inputs<T>& a, int64_t own_lines) {
  const int64_t tiles = (own_lines + kTile - 1) / kTile, outer = blockIdx.x / tiles;
  return {outer / a.kv_heads, (blockIdx.x % tiles) * kTile, static_cast<int>(outer % a.kv_heads)};
}

template <class T>
__device__ __forceinline__ void load_rows(Shared& s, const Inputs<T>& a, const HeadLines& at, int64_t first) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < kTile) {
    const int64_t row = first + i, token = at.space * a.tokens + row / a.group;
    const bool exists = row < a.rows();
    s.row_line[i] = exists ? token * a.heads + at.head * a.group + row % a.group : -1;
    s.lo[i] = exists ? a.lo[token] : 0;
    s.hi[i] = exists ? a.hi[token] : 0;
  }
}

__device__ __forceinline__ bool sees(const Shared& s, int row, int64_t key) {
  return s.lo[row] <= key && key < s.hi[row];
}

/// Needs the rows. Keys that none of them sees count as zeros: they may hold anything.
template <class T>
__device__ __forceinline__ void load_keys(Shared& s, const Inputs<T>& a, const HeadLines& at, int64_t first,
                                          bool only_seen) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < kTile) {
    const int64_t key = first + i;
    bool exists = key < a.keys;
    if (only_seen && exists) {
      exists = false;
      for (int row = 0; row < kTile; ++row) { exists = exists || sees(s, row, key); }
    }
    s.key_line[i] = exists ? (at.space * a.keys + key) * a.kv_heads + at.head : -1;
  }
}

/// sums[i][j] = own line 4 y + i . other line x + 16 j over `width` channels. Starts with a barrier.
template <class A, class B>
__device__ __forceinline__ void multiply_lines(float (&sums)[4][4], Shared& s, const A* own, const int64_t* own_line,
                                               const B* other, const int64_t* other_line, int width) {
  constexpr int kStride = kChannels + 1;
  float* const stages[2] = {s.stage, s.stage + kTile * kStride};
  const int x = static_cast<int>(threadIdx.x % 16), y = static_cast<int>(threadIdx.x / 16);
  const int column = static_cast<int>(threadIdx.x % kChannels);
  HEBB_UNROLL
  for (int i = 0; i < 16; ++i) { sums[i / 4][i % 4] = 0; }
  for (int first = 0; first < width; first += kChannels) {
    __syncthreads();
    for (int line = static_cast<int>(threadIdx.x / kChannels); line < kTile; line += kThreads / kChannels) {
      const int c = first + column;
      const int64_t a = own_line[line], b = other_line[line];
      stages[0][line * kStride + column] = a >= 0 && c < width ? to_float(own[a * width + c]) : 0.0f;
      stages[1][line * kStride + column] = b >= 0 && c < width ? to_float(other[b * width + c]) : 0.0f;
    }
    __syncthreads();
    HEBB_UNROLL_BY(8)
    for (int c = 0; c < kChannels; ++c) {
      float a[4], b[4];
      HEBB_UNROLL
      for (int i = 0; i < 4; ++i) {
        a[i] = stages[0][(4 * y + i) * kStride + c];
        b[i] = stages[1][(x + 16 * i) * kStride + c];
      }
      HEBB_UNROLL
      for (int i = 0; i < 16; ++i) { sums[i / 4][i % 4] += a[i / 4] * b[i % 4]; }
    }
  }
}

/// sums[i][j] += sum over the other lines of weights[4 y + i][line] * other[line][first + x + 16 j]. Starts with a
/// barrier.
template <int kColumns, class T>
__device__ __forceinline__ void add_weighted_lines(float (&sums)[4][kColumns], Shared& s, const T* other,
                                                   const int64_t* other_line, int width, int first) {
  constexpr int kWidth = 16 * kColumns;
  const int x = static_cast<int>(threadIdx.x % 16), y = static_cast<int>(threadIdx.x / 16);
  for (int begin = 0; begin < kTile; begin += kLines) {
    __syncthreads();
    for (int item = static_cast<int>(threadIdx.x); item < kLines * kWidth; item += kThreads) {
      const int c = first + item % kWidth;
      const int64_t line = other_line[begin + item / kWidth];
      s.stage[item] = line >= 0 && c < width ? to_float(other[line * width + c]) : 0.0f;
    }
    __syncthreads();
    HEBB_UNROLL_BY(32 / kColumns)  // 128 multiply-adds: unrolled wholly, nvcc takes minutes and more registers
    for (int line = 0; line < kLines; ++line) {
      float w[4];
      HEBB_UNROLL
      for (int i = 0; i < 4; ++i) { w[i] = s.weights[4 * y + i][begin + line]; }
      HEBB_UNROLL
      for (int j = 0; j < kColumns; ++j) {
        const float value = s.stage[line * kWidth + x + 16 * j];
        HEBB_UNROLL
        for (int i = 0; i < 4; ++i) { sums[i][j] += w[i] * value; }
      }
    }
  }
}

/// Of one own line in the 16 threads that hold it: the running maximum and sum.
struct Softmax {
  float top = -INFINITY, sum = 0;

  /// Turns scores into weights relative to the new maximum; returns the factor of what was summed before.
  template <int N> __device__ __forceinline__ float add(float (&scores)[N]) {
    float most = top;
    HEBB_UNROLL
    for (int j = 0; j < N; ++j) { most = fmaxf(most, scores[j]); }
    most = warp_max<16>(most);
    const bool empty = most == -INFINITY;  // no key so far, or only keys with a bias of -inf
    const float shrink = empty ? 1.0f : expf(top - most);
    float added = 0;
    HEBB_UNROLL
    for (int j = 0; j < N; ++j) {
      scores[j] = empty ? 0.0f : expf(scores[j] - most);
      added += scores[j];
    }
    sum = sum * shrink + warp_sum<16>(added);
    top = most;
    return shrink;
  }
};

/// Turns the tile's scores (-inf: not seen) into weights relative to the new maxima, and what was summed so far with
/// them.
template <int kColumns>
__device__ __forceinline__ void weigh_scores(float (&out)[4][kColumns], Softmax (&rows)[4], Shared& s,
                                             float (&scores)[4][4]) {
  const int x = static_cast<int>(threadIdx.x % 16), y = static_cast<int>(threadIdx.x / 16);
  HEBB_UNROLL
  for (int i = 0; i < 4; ++i) {
    const float shrink = rows[i].add(scores[i]);
    HEBB_UNROLL
    for (int j = 0; j < kColumns; ++j) { out[i][j] *= shrink; }
    HEBB_UNROLL
    for (int j = 0; j < 4; ++j) { s.weights[4 * y + i][x + 16 * j] = scores[i][j]; }
  }
}

/// delta = d_o . o and lse of the tile's rows (-inf: no row); needs their lines, ends without a barrier.
template <class T>
__device__ __forceinline__ void load_statistics(Shared& s, const T* d_o, const T* o, const float* lse, int dv) {
  const int x = static_cast<int>(threadIdx.x % 16), y = static_cast<int>(threadIdx.x / 16);
  for (int i = 0; i < 4; ++i) {
    const int64_t line = s.row_line[4 * y + i];
    float sum = 0;
    for (int c = x; line >= 0 && c < dv; c += 16) { sum += to_float(d_o[line * dv + c]) * to_float(o[line * dv + c]); }
    sum = warp_sum<16>(sum);
    if (x == 0) {
      s.delta[4 * y + i] = sum;
      s.lse[4 * y + i] = line >= 0 ? lse[line] : -INFINITY;
    }
  }
}

/// out[line][first + x + 16 j] = or += sums[i][j].
template <int kColumns, class T>
__device__ __forceinline__ void write_lines(T* out, const int64_t* lines, int width, int first,
                                            const float (&sums)[4][kColumns], bool accumulate) {
  const int x = static_cast<int>(threadIdx.x % 16), y = static_cast<int>(threadIdx.x / 16);
  HEBB_UNROLL
  for (int i = 0; i < 4; ++i) {
    const int64_t line = lines[4 * y + i];
    HEBB_UNROLL
    for (int j = 0; j < kColumns; ++j) {
      const int c = first + x + 16 * j;
      if (line >= 0 && c < width) { write(out[line * width + c], sums[i][j], accumulate); }
    }
  }
}

template <class T>
Inputs<T> inputs_of(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& lo, const Tensor& hi,
                    const Tensor& bias, double scale) {
  const int64_t spaces = k.size(0);
  return {.q = q.as<T>(),
          .k = k.as<T>(),
          .v = v.as<T>(),
          .bias = bias.as<float>(),
          .lo = lo.as<int32_t>(),
          .hi = hi.as<int32_t>(),
          .tokens = q.size(0) * q.size(1) / spaces,
          .keys = k.size(1),
          .heads = static_cast<int>(q.size(2)),
          .kv_heads = static_cast<int>(k.size(2)),
          .group = static_cast<int>(q.size(2) / k.size(2)),
          .d = static_cast<int>(q.size(3)),
          .dv = static_cast<int>(v.size(3)),
          .scale = static_cast<float>(scale)};
}

/// Calls f(result columns of a thread as a constant, slices of the grid) for results of `width` channels.
template <class F> void dispatch_width(int64_t width, F&& f) {
  dispatch_number<4, 8, kMaxColumns>((width + 15) / 16,
                                     [&](auto columns) { f(columns, blocks_for(width, 16 * columns())); });
}

/// AttentionForward by blocks of keys whose parts are joined; partial: AttentionForwardScratch.
void forward_few(Stream& stream, const AttentionForward& a, const Tensor& partial);

}  // namespace hebb::HEBB_DEVICE::attention
