#include "kernels/common/cuda/column_sums.cuh"
#include "kernels/lact/heads_scratch.h"

// Bound by HBM: keys 2 and 3 passes, mixing 3 and 4. One warp a head of a token where lengths are needed.
namespace hebb::HEBB_DEVICE {
namespace {

constexpr float kEps = 1e-5f;  // beside the length of a key

/// One column of the [channels, 2] parameters.
struct Affine {
  const float *scale, *offset;
  int64_t column;

  __device__ float factor(int64_t channel) const { return scale[2 * channel + column]; }
  __device__ float at(int64_t channel, float x) const { return x * factor(channel) + offset[2 * channel + column]; }
  __device__ float silu(int64_t channel, float x) const {
    const float z = at(channel, x);
    return z * sigmoid(z);
  }
};

template <class T> struct Keys {
  T* y;
  const T* x;
  Affine affine;
  int64_t heads, d;

  __device__ void operator()(int64_t row, int lane) const {
    const int64_t channel = row % heads * d;
    float squares = 0;
    for (int64_t i = lane; i < d; i += 32) {
      const float u = affine.silu(channel + i, to_float(x[row * d + i]));
      squares += u * u;
    }
    const float inverse = 1.0f / (sqrtf(warp_sum(squares)) + kEps);
    for (int64_t i = lane; i < d; i += 32) {
      y[row * d + i] = from_float<T>(affine.silu(channel + i, to_float(x[row * d + i])) * inverse);
    }
  }
};

/// One warp a head of a block of tokens; a lane sums its own channels.
template <class T> struct KeysBackward {
  T* d_x;
  float* partial;
  const T *d_y, *x;
  Affine affine;
  int64_t tokens, heads, d;
  bool accumulate;

  __device__ void operator()(int64_t item, int lane) const {
    const int64_t block = item / heads, channel = item % heads * d, channels = heads * d;
    float *const d_scale = partial + block * 2 * channels + channel, *const d_offset = d_scale + channels;
    const int64_t first = block * kLactKeysBlock,
                  last = first + kLactKeysBlock < tokens ? first + kLactKeysBlock : tokens;
    for (int64_t token = first; token < last; ++token) {
      const int64_t begin = token * channels + channel;
      float squares = 0, product = 0;
      for (int64_t i = lane; i < d; i += 32) {
        const float u = affine.silu(channel + i, to_float(x[begin + i]));
        squares += u * u;
        product += u * to_float(d_y[begin + i]);
      }
      const float length = sqrtf(warp_sum(squares)), inverse = 1.0f / (length + kEps);
      product = warp_sum(product);
      // d_u = (d_y - u (u . d_y) / (|u| (|u| + eps))) / (|u| + eps)
      const float back = length > 0.0f ? -product * inverse / length : 0.0f;
      for (int64_t i = lane; i < d; i += 32) {
        const float in = to_float(x[begin + i]), z = affine.at(channel + i, in), s = sigmoid(z);
        const float d_u = (z * s * back + to_float(d_y[begin + i])) * inverse, d_z = d_u * s * (z * (1.0f - s) + 1.0f);
        write(d_scale[i], d_z * in, token > first);
        write(d_offset[i], d_z, token > first);
        if (d_x != nullptr) { write(d_x[begin + i], d_z * affine.factor(channel + i), accumulate); }
      }
    }
  }
};

template <class T> struct Mix {
  T* y;
  const T *base, *x, *gate;
  int64_t d;

  __device__ void operator()(int64_t row, int64_t c) const {
    const float g = to_float(gate[row]);
    const int64_t at = row * d + c;
    y[at] = from_float<T>(to_float(base[at]) + g * sigmoid(g) * to_float(x[at]));
  }
};

template <class T> struct MixBackward {
  T *d_x, *d_gate;
  const T *d_y, *x, *gate;
  int64_t d;
  bool accumulate_x, accumulate_gate;

  __device__ void operator()(int64_t row, int lane) const {
    const float g = to_float(gate[row]), s = sigmoid(g);
    float total = 0;
    for (int64_t at = row * d + lane; at < (row + 1) * d; at += 32) {
      const float dy = to_float(d_y[at]);
      total += dy * to_float(x[at]);
      if (d_x != nullptr) { write(d_x[at], dy * g * s, accumulate_x); }
    }
    if (d_gate != nullptr) {
      total = warp_sum(total);
      if (lane == 0) { write(d_gate[row], total * s * (g * (1.0f - s) + 1.0f), accumulate_gate); }
    }
  }
};

template <class T> struct Half {
  T* y;
  int64_t rows, columns;

  __device__ void operator()(int64_t row, int64_t c) const {
    y[row * columns + c] = from_float<T>(row % rows == c ? 0.5f : 0.0f);
  }
};

template <class Args> Affine affine_of(const Args& a) {
  return {a.scale.template as<float>(), a.offset.template as<float>(), a.column};
}

}  // namespace

void run(Stream& stream, const LactKeysForward& a) {
  const int64_t heads = a.x.size(1), d = a.x.size(2);
  dispatch_float(a.x.dtype, [&]<class T>(T) {
    each_warp("lact_keys", stream, a.x.size(0) * heads, Keys<T>{a.y.as<T>(), a.x.as<T>(), affine_of(a), heads, d});
  });
}

void run(Stream& stream, const LactKeysBackward& a, const LactKeysBackwardScratch& scratch) {
  const int64_t tokens = a.x.size(0), heads = a.x.size(1), d = a.x.size(2), blocks = lact_keys_blocks(tokens);
  float* const partial = scratch.partial.as<float>();
  dispatch_float(a.x.dtype, [&]<class T>(T) {
    each_warp("lact_keys_backward", stream, blocks * heads,
              KeysBackward<T>{a.d_x.as<T>(), partial, a.d_y.as<T>(), a.x.as<T>(), affine_of(a), tokens, heads, d,
                              a.accumulate});
  });
  const int64_t channels = heads * d;
  if (a.d_scale.defined()) {
    add_column_sums(stream, a.d_scale.as<float>() + a.column, 2, {partial, DType::f32, blocks, 2 * channels, channels});
  }
  if (a.d_offset.defined()) {
    add_column_sums(stream, a.d_offset.as<float>() + a.column, 2,
                    {partial + channels, DType::f32, blocks, 2 * channels, channels});
  }
}

void run(Stream& stream, const LactMixForward& a) {
  const int64_t d = a.x.size(2);
  dispatch_float(a.x.dtype, [&]<class T>(T) {
    each_element("lact_mix", stream, a.x.size(0) * a.x.size(1), d,
                 Mix<T>{a.y.as<T>(), a.base.as<T>(), a.x.as<T>(), a.gate.as<T>(), d});
  });
}

void run(Stream& stream, const LactMixBackward& a) {
  dispatch_float(a.x.dtype, [&]<class T>(T) {
    each_warp("lact_mix_backward", stream, a.x.size(0) * a.x.size(1),
              MixBackward<T>{a.d_x.as<T>(), a.d_gate.as<T>(), a.d_y.as<T>(), a.x.as<T>(), a.gate.as<T>(), a.x.size(2),
                             a.accumulate_x, a.accumulate_gate});
  });
}

void run(Stream& stream, const HalfIdentity& a) {
  dispatch_float(a.y.dtype, [&]<class T>(T) {
    each_element("half_identity", stream, a.y.size(0) * a.y.size(1), a.y.size(2),
                 Half<T>{a.y.as<T>(), a.y.size(1), a.y.size(2)});
  });
}

}  // namespace hebb::HEBB_DEVICE
