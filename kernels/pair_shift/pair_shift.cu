#include "kernels/pair_shift/pair_shift.h"

#include "kernels/common/cuda/fast_divide.cuh"
#include "kernels/pair_shift/scratch.h"

// Bound by HBM: keys and values in and out once, backward also the values for the mixing weight's gradient.
namespace hebb::HEBB_DEVICE {
namespace {

/// out_t = a x_{t-1} + b x_t with a = sigmoid(shift), b = 1 - a, or without shift a = 1, b = 0.
template <class T, int N> struct PairShiftForwardBody {
  T* out;
  const T *x, *previous;
  const float* shift;
  const int32_t* doc_start;
  int64_t length, channels;

  __device__ void operator()(int64_t token, int64_t pack) const {
    const Split at(token, length);
    const int64_t t = at.remainder, c = pack * N;
    const float a = shift != nullptr ? sigmoid(*shift) : 1.0f;
    float before[N] = {}, now[N];
    if (doc_start[token] < t) {
      load_pack(before, t > 0 ? x + (token - 1) * channels : previous + at.quotient * channels, c, channels, N > 1);
    }
    if (shift != nullptr) {
      load_pack(now, x + token * channels, c, channels, N > 1);
      HEBB_UNROLL
      for (int j = 0; j < N; ++j) { before[j] = a * before[j] + (1.0f - a) * now[j]; }
    }
    store_pack(out + token * channels, c, channels, N > 1, before);
  }
};

template <class T, int N> struct PairShiftBackwardBody {
  T* d_x;
  const T* d_out;
  const float* shift;
  const int32_t* doc_start;
  int64_t length, channels;
  bool accumulate;

  __device__ void operator()(int64_t token, int64_t pack) const {
    const int64_t t = Split(token, length).remainder, c = pack * N;
    const bool feeds_next = t + 1 < length && doc_start[token + 1] <= t;
    const float a = shift != nullptr ? sigmoid(*shift) : 1.0f;
    float next[N] = {}, now[N];
    if (feeds_next) { load_pack(next, d_out + (token + 1) * channels, c, channels, N > 1); }
    if (shift != nullptr) {
      load_pack(now, d_out + token * channels, c, channels, N > 1);
      HEBB_UNROLL
      for (int j = 0; j < N; ++j) { next[j] = (1.0f - a) * now[j] + a * next[j]; }
    }
    write_pack(d_x + token * channels, c, channels, N > 1, next, accumulate);
  }
};

constexpr int kThreads = 256;

// Sum of d_v_out (v_{t-1} - v_t) over the elements of this block's tokens, in double.
template <class T>
__global__ void __launch_bounds__(kThreads)
    shift_sums_kernel(double* partial, const T* d_out, const T* v, const int32_t* doc_start, int64_t length,
                      int64_t channels, int64_t tokens, int64_t block_tokens) {
  double sum = 0;
  for (int64_t token = blockIdx.x * block_tokens; token < (blockIdx.x + 1) * block_tokens && token < tokens; ++token) {
    const bool has_before = doc_start[token] < token % length;
    for (int64_t c = threadIdx.x; c < channels; c += kThreads) {
      const int64_t at = token * channels + c;
      const float before = has_before ? to_float(v[at - channels]) : 0.0f;
      sum += static_cast<double>(to_float(d_out[at]) * (before - to_float(v[at])));
    }
  }
  BlockReducer<double> reduce;
  sum = reduce.sum(sum);
  if (threadIdx.x == 0) { partial[blockIdx.x] = sum; }
}

__global__ void __launch_bounds__(kThreads)
    add_shift_kernel(float* d_shift, const double* partial, int64_t blocks, const float* shift) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < blocks; i += kThreads) { sum += partial[i]; }
  BlockReducer<double> reduce;
  sum = reduce.sum(sum);
  if (threadIdx.x == 0) {
    const float s = sigmoid(*shift);
    *d_shift += static_cast<float>(sum) * s * (1.0f - s);
  }
}

template <class T> void backward(Stream& stream, const PairShiftBackward& a) {
  const int64_t length = a.v.size(1), tokens = a.v.size(0) * length, values = a.v.size(2);
  const int32_t* doc_start = a.doc_start.as<int32_t>();
  const auto unshift = [&](const Tensor& d_x, const Tensor& d_out, const float* weight, bool accumulate) {
    if (d_x.defined()) {
      const int64_t channels = d_out.size(2);
      dispatch_pack<T>(channels, {d_x.data, d_out.data}, [&](auto pack) {
        each_element("pair_shift_backward", stream, tokens, channels / pack(),
                     PairShiftBackwardBody<T, pack()>{d_x.as<T>(), d_out.as<T>(), weight, doc_start, length, channels,
                                                      accumulate});
      });
    }
  };
  unshift(a.d_k, a.d_k_out, nullptr, a.accumulate_k);
  unshift(a.d_v, a.d_v_out, a.shift.as<float>(), a.accumulate_v);
  if (a.d_shift.defined()) {
    double* const partial = static_cast<double*>(stream_scratch(stream).data);
    const int64_t block_tokens = (tokens + 1023) / 1024, blocks = (tokens + block_tokens - 1) / block_tokens;
    HEBB_LAUNCH(shift_sums_kernel<T>, blocks_for(blocks, 1), kThreads, 0, stream, partial, a.d_v_out.as<T>(),
                a.v.as<T>(), doc_start, length, values, tokens, block_tokens);
    HEBB_LAUNCH(add_shift_kernel, 1, kThreads, 0, stream, a.d_shift.as<float>(), partial, blocks, a.shift.as<float>());
  }
}

}  // namespace

void run(Stream& stream, const PairShiftForward& a) {
  const int64_t length = a.k.size(1), tokens = a.k.size(0) * length;
  const int32_t* doc_start = a.doc_start.as<int32_t>();
  dispatch_float(a.k.dtype, [&]<class T>(T) {
    const auto shift = [&](const Tensor& out, const Tensor& x, const Tensor& previous, const float* weight) {
      const int64_t channels = x.size(2);
      dispatch_pack<T>(channels, {out.data, x.data, previous.data}, [&](auto pack) {
        each_element("pair_shift_forward", stream, tokens, channels / pack(),
                     PairShiftForwardBody<T, pack()>{out.as<T>(), x.as<T>(), previous.as<T>(), weight, doc_start,
                                                     length, channels});
      });
    };
    shift(a.k_out, a.k, a.previous_k, nullptr);
    shift(a.v_out, a.v, a.previous_v, a.shift.as<float>());
  });
}

void run(Stream& stream, const PairShiftBackward& a, const PairShiftBackwardScratch&) {
  if (a.v.numel() > 0) {
    dispatch_float(a.v.dtype, [&]<class S>(S) { backward<S>(stream, a); });
  }
}

}  // namespace hebb::HEBB_DEVICE
