#include "kernels/pair_shift.h"

#include <algorithm>

#include "kernels/cuda/common/prelude.h"

// Bound by HBM: keys and values in and out once, backward also the values for the mixing weight's gradient.
namespace hebb::HEBB_DEVICE {
namespace {

/// out_t = a x_{t-1} + b x_t with a = sigmoid(shift), b = 1 - a, or without shift a = 1, b = 0.
template <class T>
struct Forward {
  T* out;
  const T *x, *previous;
  const float* shift;
  const int32_t* doc_start;
  int64_t length, channels;

  __device__ void operator()(int64_t token, int64_t c) const {
    const int64_t t = token % length, at = token * channels + c;
    const float a = shift != nullptr ? sigmoid(*shift) : 1.0f;
    float before = 0;
    if (doc_start[token] < t) {
      before = to_float(t > 0 ? x[at - channels] : previous[token / length * channels + c]);
    }
    out[at] = from_float<T>(shift != nullptr ? a * before + (1.0f - a) * to_float(x[at]) : before);
  }
};

template <class T>
struct Backward {
  T* d_x;
  const T* d_out;
  const float* shift;
  const int32_t* doc_start;
  int64_t length, channels;
  bool accumulate;

  __device__ void operator()(int64_t token, int64_t c) const {
    const int64_t t = token % length, at = token * channels + c;
    const bool feeds_next = t + 1 < length && doc_start[token + 1] <= t;
    const float next = feeds_next ? to_float(d_out[at + channels]) : 0.0f;
    const float a = shift != nullptr ? sigmoid(*shift) : 1.0f;
    write(d_x[at], shift != nullptr ? (1.0f - a) * to_float(d_out[at]) + a * next : next, accumulate);
  }
};

constexpr int kThreads = 256;

// Sum of d_v_out (v_{t-1} - v_t) over the elements of this block's tokens, in double.
template <class T>
__global__ void __launch_bounds__(kThreads) shift_sums_kernel(double* partial, const T* d_out, const T* v, const int32_t* doc_start,
                                                             int64_t length, int64_t channels, int64_t tokens, int64_t block_tokens) {
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
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = sum;
  }
}

__global__ void __launch_bounds__(kThreads) add_shift_kernel(float* d_shift, const double* partial, int64_t blocks, const float* shift) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < blocks; i += kThreads) {
    sum += partial[i];
  }
  BlockReducer<double> reduce;
  sum = reduce.sum(sum);
  if (threadIdx.x == 0) {
    const float s = sigmoid(*shift);
    *d_shift += static_cast<float>(sum) * s * (1.0f - s);
  }
}

template <class T>
void backward(Stream& stream, const PairShiftBackward& a) {
  const int64_t length = a.v.size(1), tokens = a.v.size(0) * length, values = a.v.size(2), keys = a.d_k_out.size(2);
  const int32_t* doc_start = a.doc_start.as<int32_t>();
  if (a.d_k.defined()) {
    each_element("pair_shift_backward", stream, tokens, keys,
                 Backward<T>{a.d_k.as<T>(), a.d_k_out.as<T>(), nullptr, doc_start, length, keys, a.accumulate_k});
  }
  if (a.d_v.defined()) {
    each_element("pair_shift_backward", stream, tokens, values,
                 Backward<T>{a.d_v.as<T>(), a.d_v_out.as<T>(), a.shift.as<float>(), doc_start, length, values, a.accumulate_v});
  }
  if (a.d_shift.defined()) {
    double* const partial = static_cast<double*>(workspace(stream).data);
    const int64_t block_tokens = (tokens + 1023) / 1024, blocks = (tokens + block_tokens - 1) / block_tokens;
    HEBB_LAUNCH(shift_sums_kernel<T>, blocks_for(blocks, 1), kThreads, 0, stream, partial, a.d_v_out.as<T>(), a.v.as<T>(), doc_start,
                length, values, tokens, block_tokens);
    HEBB_LAUNCH(add_shift_kernel, 1, kThreads, 0, stream, a.d_shift.as<float>(), partial, blocks, a.shift.as<float>());
  }
}

}  // namespace

void run(Stream& stream, const PairShiftForward& a) {
  const int64_t length = a.k.size(1), tokens = a.k.size(0) * length;
  const int32_t* doc_start = a.doc_start.as<int32_t>();
  dispatch_float(a.k.dtype, [&](auto zero) {
    using T = decltype(zero);
    each_element("pair_shift_forward", stream, tokens, a.k.size(2),
                 Forward<T>{a.k_out.as<T>(), a.k.as<T>(), a.previous_k.as<T>(), nullptr, doc_start, length, a.k.size(2)});
    each_element("pair_shift_forward", stream, tokens, a.v.size(2),
                 Forward<T>{a.v_out.as<T>(), a.v.as<T>(), a.previous_v.as<T>(), a.shift.as<float>(), doc_start, length, a.v.size(2)});
  });
}

void run(Stream& stream, const PairShiftBackward& a) {
  if (a.v.numel() > 0) {
    dispatch_float(a.v.dtype, [&](auto zero) { backward<decltype(zero)>(stream, a); });
  }
}

}  // namespace hebb::HEBB_DEVICE
