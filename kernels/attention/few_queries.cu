#include "kernels/attention/scratch.h"
#include "kernels/attention/tile.cuh"

// Attention of few queries to many keys (decoding): blocks read kFewKeys keys each side by side, and a second kernel
// joins what they found. Grid: blocks of keys x kv heads x spaces; then one block a query. A thread computes the scores
// of one key, a warp weighs every eighth value, in packs of four channels a lane. Static shared: 1 KB for each row, and
// 4 KB; dynamic: the queries. Bound: HBM, k and v once, by 132 SMs and more blocks. Partial sums are dv + 2 numbers for
// each block and query, 2 % of the values in bf16 with one query a kv head. Sums have a fixed order.
namespace hebb::HEBB_DEVICE {
namespace {

using namespace attention;

constexpr int kWarps = kThreads / 32, kSlice = 128;  // channels of a value that a warp holds at once
static_assert(kFewKeys == kThreads);

template <class T> struct FewQueries {
  Inputs<T> in;
  float* partial;  // [B T H, blocks, dv + 2]: maximum, sum, weighted values
  int64_t blocks;
  T* o;
  float* lse;

  __device__ float* part(int64_t line, int64_t block) const { return partial + (line * blocks + block) * (in.dv + 2); }
};

template <int kRows> struct FewShared {
  float weights[kRows][kFewKeys];
  float values[kWarps][kSlice];
  float reduced[kRows][kWarps];
  int64_t line[kRows];
  int lo[kRows], hi[kRows];  // within the block of keys; equal where the row sees none
};

/// The maximum, or the sum, of x over the block for each row; the same bits in every thread.
template <int kRows, class Combine>
__device__ __forceinline__ void combine_rows(FewShared<kRows>& s, float (&x)[kRows], Combine combine) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  HEBB_UNROLL
  for (int r = 0; r < kRows; ++r) {
    HEBB_UNROLL
    for (int step = 16; step > 0; step /= 2) { x[r] = combine(x[r], __shfl_xor_sync(0xFFFFFFFFu, x[r], step)); }
    if (lane == 0) { s.reduced[r][warp] = x[r]; }
  }
  __syncthreads();
  HEBB_UNROLL
  for (int r = 0; r < kRows; ++r) {
    x[r] = s.reduced[r][0];
    HEBB_UNROLL
    for (int w = 1; w < kWarps; ++w) { x[r] = combine(x[r], s.reduced[r][w]); }
  }
  __syncthreads();  // what was reduced may be replaced
}

template <class T, int kRows, bool kVector>
__global__ void __launch_bounds__(kThreads) attention_few_kernel(FewQueries<T> a) {
  HEBB_SHARED(FewShared<kRows>, s);
  HEBB_DYN_SHARED(memory);
  float* const queries = reinterpret_cast<float*>(memory);  // [kRows, d], 0 behind the last row
  constexpr int kPart = 4;
  const int t = static_cast<int>(threadIdx.x), d = a.in.d, dv = a.in.dv;
  const int64_t block = blockIdx.x % a.blocks, outer = blockIdx.x / a.blocks, first = block * kFewKeys;
  const int64_t space = outer / a.in.kv_heads;
  const int head = static_cast<int>(outer % a.in.kv_heads), rows = static_cast<int>(a.in.rows());
  if (t < kRows) {
    const int64_t token = space * a.in.tokens + t / a.in.group;
    const int64_t lo = t < rows ? a.in.lo[token] - first : 0, hi = t < rows ? a.in.hi[token] - first : 0;
    s.lo[t] = static_cast<int>(lo < 0 ? 0 : lo < kFewKeys ? lo : kFewKeys);
    s.hi[t] = static_cast<int>(hi < s.lo[t] ? s.lo[t] : hi < kFewKeys ? hi : kFewKeys);
    s.line[t] = token * a.in.heads + head * a.in.group + t % a.in.group;
  }
  __syncthreads();
  int begin = kFewKeys, end = 0;  // keys that some row sees, and those between them: the others may hold anything
  HEBB_UNROLL
  for (int r = 0; r < kRows; ++r) {
    if (s.lo[r] < s.hi[r]) {
      begin = s.lo[r] < begin ? s.lo[r] : begin;
      end = s.hi[r] > end ? s.hi[r] : end;
    }
  }
  if (begin >= end) { return; }  // of the whole block; the rows' parts are not read
  for (int i = t; i < kRows * d; i += kThreads) {
    queries[i] = i < rows * d ? to_float(a.in.q[s.line[i / d] * d + i % d]) : 0.0f;
  }
  __syncthreads();
  const int64_t key_line = (space * a.in.keys + first) * a.in.kv_heads + head;  // of the block's first key
  float score[kRows] = {}, top[kRows], sum[kRows];
  const bool is_read = begin <= t && t < end;
  if (is_read) {
    const T* const key = a.in.k + (key_line + int64_t{t} * a.in.kv_heads) * d;
    constexpr int kKeyPack = kPack<T>;
    for (int c = 0; c < d; c += kKeyPack) {
      float part[kKeyPack];
      load_pack(part, key, c, d, kVector);
      HEBB_UNROLL
      for (int r = 0; r < kRows; ++r) {
        HEBB_UNROLL
        for (int j = 0; j < kKeyPack; ++j) {
          if (kVector || c + j < d) { score[r] = fmaf(queries[r * d + c + j], part[j], score[r]); }
        }
      }
    }
  }
  const float bias = is_read && a.in.bias != nullptr ? a.in.bias[key_line + int64_t{t} * a.in.kv_heads] : 0.0f;
  HEBB_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const bool visible = s.lo[r] <= t && t < s.hi[r];
    score[r] = visible ? a.in.scale * score[r] + bias : -INFINITY;
    top[r] = score[r];
  }
  combine_rows(s, top, [](float x, float y) { return x > y || x != x ? x : y; });  // a NaN stays
  HEBB_UNROLL
  for (int r = 0; r < kRows; ++r) {
    sum[r] = score[r] == -INFINITY ? 0.0f : exp_(score[r] - top[r]);
    s.weights[r][t] = sum[r];
  }
  combine_rows(s, sum, [](float x, float y) { return x + y; });  // its barriers stand behind the weights
  if (t == 0) {
    HEBB_UNROLL
    for (int r = 0; r < kRows; ++r) {
      if (r < rows) {
        float* const part = a.part(s.line[r], block);
        part[0] = top[r];
        part[1] = sum[r];
      }
    }
  }
  const int warp = t / 32, lane = t % 32;
  for (int slice = 0; slice < dv; slice += kSlice) {
    float out[kRows][kPart] = {};
    for (int i = begin + warp; i < end; i += kWarps) {
      float value[kPart];
      load_pack(value, a.in.v + (key_line + int64_t{i} * a.in.kv_heads) * dv, slice + kPart * lane, dv, kVector);
      HEBB_UNROLL
      for (int r = 0; r < kRows; ++r) {
        HEBB_UNROLL
        for (int j = 0; j < kPart; ++j) { out[r][j] = fmaf(s.weights[r][i], value[j], out[r][j]); }
      }
    }
    HEBB_UNROLL
    for (int r = 0; r < kRows; ++r) {
      HEBB_UNROLL
      for (int j = 0; j < kPart; ++j) { s.values[warp][kPart * lane + j] = out[r][j]; }
      __syncthreads();
      if (r < rows && t < kSlice && slice + t < dv) {
        float all = s.values[0][t];
        HEBB_UNROLL
        for (int w = 1; w < kWarps; ++w) { all += s.values[w][t]; }
        a.part(s.line[r], block)[2 + slice + t] = all;
      }
      __syncthreads();
    }
  }
}

/// Block: a query; thread: channels of its answer.
template <class T> __global__ void __launch_bounds__(kSlice) attention_join_kernel(FewQueries<T> a) {
  const int64_t line = blockIdx.x, token = line / a.in.heads;
  const int64_t lo = a.in.lo[token], hi = a.in.hi[token];
  const int64_t begin = lo / kFewKeys, end = lo < hi ? (hi + kFewKeys - 1) / kFewKeys : begin;  // blocks with its keys
  float top = -INFINITY, sum = 0.0f;
  for (int64_t b = begin; b < end; ++b) {
    const float other = a.part(line, b)[0];
    top = top > other || top != top ? top : other;
  }
  for (int64_t b = begin; b < end; ++b) {
    const float* const part = a.part(line, b);
    if (part[0] != -INFINITY) { sum += exp_(part[0] - top) * part[1]; }
  }
  const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
  for (int c = static_cast<int>(threadIdx.x); c < a.in.dv; c += kSlice) {
    float out = 0.0f;
    for (int64_t b = begin; b < end; ++b) {
      const float* const part = a.part(line, b);
      if (part[0] != -INFINITY) { out = fmaf(exp_(part[0] - top), part[2 + c], out); }
    }
    a.o[line * a.in.dv + c] = from_float<T>(out * inverse);
  }
  if (a.lse != nullptr && threadIdx.x == 0) { a.lse[line] = top + logf(sum); }  // -inf without keys
}

}  // namespace

void attention::forward_few(Stream& stream, const AttentionForward& a, const Tensor& partial) {
  dispatch_float(a.q.dtype, [&]<class T>(T) {
    const FewQueries<T> f{.in = inputs_of<T>(a.q, a.k, a.v, a.lo, a.hi, a.bias, a.scale),
                          .partial = partial.as<float>(),
                          .blocks = partial.size(1),
                          .o = a.o.as<T>(),
                          .lse = a.lse.as<float>()};
    const int64_t rows = f.in.tokens * f.in.group;
    HEBB_ASSERT(rows <= kFewRowsOnGpu);
    const unsigned blocks = blocks_for(f.blocks * f.in.kv_heads * a.k.size(0), 1);
    const bool in_packs = can_vectorise<kPack<T>>(f.in.d, f.in.k) && can_vectorise<4>(f.in.dv, f.in.v);
    dispatch_number<1, 4, kFewRowsOnGpu>(rows, [&](auto room) {
      dispatch_flag(in_packs, [&](auto vector) {
        HEBB_LAUNCH((attention_few_kernel<T, room(), vector()>), blocks, kThreads, int64_t{room()} * f.in.d * 4, stream,
                    f);
      });
    });
    HEBB_LAUNCH((attention_join_kernel<T>), blocks_for(a.q.size(0) * a.q.size(1) * a.q.size(2), 1), kSlice, 0, stream,
                f);
  });
}

}  // namespace hebb::HEBB_DEVICE
