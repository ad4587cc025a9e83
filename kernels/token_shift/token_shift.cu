#include "kernels/token_shift/token_shift.h"

#include "kernels/common/cuda/column_sums.cuh"
#include "kernels/common/cuda/fast_divide.cuh"
#include "kernels/token_shift/scratch.h"

// Bound by HBM: 2 passes forward, 3 backward (4 to accumulate).
namespace hebb::HEBB_DEVICE {
namespace {

constexpr int kAhead = 4;

template <class T, int N> struct TokenShiftForwardBody {
  T* y;
  const T *x, *previous;
  const float* mu;
  const int32_t* doc_start;
  int64_t length, channels;
  bool zero_start;

  __device__ void operator()(int64_t token, int64_t pack) const {
    const Split at(token, length);
    const int64_t t = at.remainder, c = pack * N;
    float now[N], before[N] = {}, m[N];
    load_pack(now, x + token * channels, c, channels, N > 1);
    load_pack(m, mu, c, channels, N > 1);
    const bool begins = doc_start[token] >= t;
    if (!begins) {
      load_pack(before, t > 0 ? x + (token - 1) * channels : previous + at.quotient * channels, c, channels, N > 1);
    }
    HEBB_UNROLL
    for (int j = 0; j < N; ++j) { now[j] += m[j] * ((begins && !zero_start ? now[j] : before[j]) - now[j]); }
    store_pack(y + token * channels, c, channels, N > 1, now);
  }
};

// A thread goes over the tokens of a block in a pack of channels; the loads of kAhead tokens are under way together.
template <class T, int N> struct TokenShiftBackwardBody {
  T* d_x;
  float* partial;
  const T *d_y, *x;
  const float* mu;
  const int32_t* doc_start;
  int64_t length, channels, tokens;
  bool zero_start, accumulate;

  __device__ void operator()(int64_t block, int64_t pack) const {
    const int64_t c = pack * N, first = TokenShiftBlocks::begin(block), end = TokenShiftBlocks::end(block, tokens);
    int64_t t = Split(first, length).remainder;
    float m[N], sum[N] = {}, g[N], before[N] = {};  // g: of d_y; before: x of the token before
    load_pack(m, mu, c, channels, N > 1);
    load_pack(g, d_y + first * channels, c, channels, N > 1);
    if (t > 0) { load_pack(before, x + (first - 1) * channels, c, channels, N > 1); }
    for (int64_t token = first; token < end; token += kAhead) {
      float now[kAhead][N], next[kAhead][N], old[kAhead][N] = {};
      int32_t starts_at[kAhead + 1];
      const auto clamped = [&](int64_t i) { return i < tokens ? i : tokens - 1; };  // not used behind the last token
      HEBB_UNROLL
      for (int u = 0; u <= kAhead; ++u) { starts_at[u] = doc_start[clamped(token + u)]; }
      HEBB_UNROLL
      for (int u = 0; u < kAhead; ++u) {
        const int64_t row = clamped(token + u) * channels;
        load_pack(now[u], x + row, c, channels, N > 1);
        load_pack(next[u], d_y + clamped(token + u + 1) * channels, c, channels, N > 1);
        if (accumulate) { load_pack(old[u], d_x + row, c, channels, N > 1); }
      }
      HEBB_UNROLL
      for (int u = 0; u < kAhead; ++u) {
        if (token + u < end) {
          const bool starts = starts_at[u] >= t, repeats = starts && !zero_start;
          const bool has_next = t + 1 < length, feeds_next = has_next && starts_at[u + 1] <= t;
          HEBB_UNROLL
          for (int j = 0; j < N; ++j) {
            const float d = (repeats ? g[j] : g[j] * (1.0f - m[j])) + (feeds_next ? m[j] * next[u][j] : 0.0f);
            sum[j] += repeats ? 0.0f : g[j] * ((starts || t == 0 ? 0.0f : before[j]) - now[u][j]);
            before[j] = now[u][j];
            g[j] = next[u][j];
            old[u][j] = accumulate ? d + old[u][j] : d;
          }
          if (d_x != nullptr) { store_pack(d_x + (token + u) * channels, c, channels, N > 1, old[u]); }
          t = has_next ? t + 1 : 0;
        }
      }
    }
    store_pack(partial + block * channels, c, channels, N > 1, sum);
  }
};

}  // namespace

void run(Stream& stream, const TokenShiftForward& a) {
  const int64_t length = a.x.size(1), channels = a.x.size(2);
  dispatch_float(a.x.dtype, [&]<class T>(T) {
    dispatch_pack<T>(channels, {a.y.data, a.x.data, a.previous.data, a.mu.data}, [&](auto pack) {
      each_element("token_shift_forward", stream, a.x.size(0) * length, channels / pack(),
                   TokenShiftForwardBody<T, pack()>{.y = a.y.as<T>(),
                                                    .x = a.x.as<T>(),
                                                    .previous = a.previous.as<T>(),
                                                    .mu = a.mu.as<float>(),
                                                    .doc_start = a.doc_start.as<int32_t>(),
                                                    .length = length,
                                                    .channels = channels,
                                                    .zero_start = a.zero_start});
    });
  });
}

void run(Stream& stream, const TokenShiftBackward& a, const TokenShiftBackwardScratch& scratch) {
  const int64_t length = a.x.size(1), channels = a.x.size(2), tokens = a.x.size(0) * length;
  const int64_t blocks = TokenShiftBlocks::count(tokens);
  dispatch_float(a.x.dtype, [&]<class T>(T) {
    dispatch_pack<T>(channels, {a.d_x.data, scratch.partial.data, a.d_y.data, a.x.data, a.mu.data}, [&](auto pack) {
      each_element("token_shift_backward", stream, blocks, channels / pack(),
                   TokenShiftBackwardBody<T, pack()>{.d_x = a.d_x.as<T>(),
                                                     .partial = scratch.partial.as<float>(),
                                                     .d_y = a.d_y.as<T>(),
                                                     .x = a.x.as<T>(),
                                                     .mu = a.mu.as<float>(),
                                                     .doc_start = a.doc_start.as<int32_t>(),
                                                     .length = length,
                                                     .channels = channels,
                                                     .tokens = tokens,
                                                     .zero_start = a.zero_start,
                                                     .accumulate = a.accumulate && a.d_x.defined()});
    });
  });
  add_column_sums(stream, a.d_mu, scratch.partial, blocks);
}

}  // namespace hebb::HEBB_DEVICE
