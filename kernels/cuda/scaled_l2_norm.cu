#include "kernels/scaled_l2_norm.h"

#include "kernels/cuda/common/column_sums.h"

// One warp a head of a token, or, backward, of a block of tokens. Bound by HBM: 2 and 3 passes.
namespace hebb::HEBB_DEVICE {
namespace {

constexpr float kEps = 1e-6f;
constexpr int64_t kBlock = 32;  // tokens of one partial sum, as in scaled_l2_norm_blocks

template <class T>
struct Forward {
  T* y;
  const T* x;
  const float* scale;
  int64_t heads, width;

  __device__ void operator()(int64_t row, int lane) const {
    float squares = 0;
    for (int64_t at = row * width + lane; at < (row + 1) * width; at += 32) {
      const float v = to_float(x[at]);
      squares += v * v;
    }
    const float factor = scale[row % heads] / sqrtf(warp_sum(squares) + kEps);
    for (int64_t at = row * width + lane; at < (row + 1) * width; at += 32) {
      y[at] = from_float<T>(to_float(x[at]) * factor);
    }
  }
};

template <class T>
struct Backward {
  T* d_x;
  float* partial;
  const T *d_y, *x;
  const float* scale;
  int64_t tokens, heads, width;
  bool accumulate;

  __device__ void operator()(int64_t item, int lane) const {
    const int64_t block = item / heads, head = item % heads;
    const int64_t last = (block + 1) * kBlock < tokens ? (block + 1) * kBlock : tokens;
    float total = 0;
    for (int64_t token = block * kBlock; token < last; ++token) {
      const int64_t begin = (token * heads + head) * width;
      float squares = 0, product = 0;
      for (int64_t at = begin + lane; at < begin + width; at += 32) {
        const float v = to_float(x[at]);
        squares += v * v;
        product += v * to_float(d_y[at]);
      }
      const float inverse = 1.0f / sqrtf(warp_sum(squares) + kEps);
      const float along = warp_sum(product) * inverse;  // unit vector . d_y
      total += along;
      for (int64_t at = begin + lane; d_x != nullptr && at < begin + width; at += 32) {
        write(d_x[at], scale[head] * inverse * (to_float(d_y[at]) - to_float(x[at]) * inverse * along), accumulate);
      }
    }
    if (lane == 0) {
      partial[item] = total;
    }
  }
};

}  // namespace

void run(Stream& stream, const ScaledL2NormForward& a) {
  dispatch_float(a.x.dtype, [&](auto zero) {
    using T = decltype(zero);
    each_warp("scaled_l2_norm_forward", stream, a.x.size(0) * a.x.size(1),
              Forward<T>{a.y.as<T>(), a.x.as<T>(), a.scale.as<float>(), a.x.size(1), a.x.size(2)});
  });
}

void run(Stream& stream, const ScaledL2NormBackward& a) {
  const int64_t tokens = a.x.size(0), heads = a.x.size(1), blocks = scaled_l2_norm_blocks(tokens);
  dispatch_float(a.x.dtype, [&](auto zero) {
    using T = decltype(zero);
    each_warp("scaled_l2_norm_backward", stream, blocks * heads,
              Backward<T>{a.d_x.as<T>(), a.partial.as<float>(), a.d_y.as<T>(), a.x.as<T>(), a.scale.as<float>(), tokens, heads,
                          a.x.size(2), a.accumulate});
  });
  add_column_sums(stream, a.d_scale, a.partial, blocks);
}

}  // namespace hebb::HEBB_DEVICE
