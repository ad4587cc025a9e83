#include "kernels/scaled_l2_norm/scaled_l2_norm.h"

#include "kernels/common/cuda/column_sums.cuh"
#include "kernels/common/cuda/fast_divide.cuh"
#include "kernels/scaled_l2_norm/scratch.h"

// A group of lanes a head of a token or, backward, of a block of tokens; a pack of channels a lane. What is read twice
// comes from L1 the second time. Bound by HBM: 2 and 3 passes.
namespace hebb::HEBB_DEVICE {
namespace {

template <class T> struct ScaledL2NormForwardBody {
  T* y;
  const T* x;
  const float* scale;
  int64_t heads, width;
  int lanes;
  bool vector;

  __device__ void operator()(int64_t row, int lane) const {
    constexpr int N = kPack<T>;
    const int64_t begin = row * width;
    float squares = 0, v[N];
    for (int64_t c = lane * N; c < width; c += lanes * N) {
      load_pack(v, x + begin, c, width, vector);
      HEBB_UNROLL
      for (int j = 0; j < N; ++j) { squares += v[j] * v[j]; }
    }
    const float factor = scale[Split(row, heads).remainder] * l2_scale(group_sum(squares, lanes));
    for (int64_t c = lane * N; c < width; c += lanes * N) {
      load_pack(v, x + begin, c, width, vector);
      HEBB_UNROLL
      for (int j = 0; j < N; ++j) { v[j] *= factor; }
      store_pack(y + begin, c, width, vector, v);
    }
  }
};

template <class T> struct ScaledL2NormBackwardBody {
  T* d_x;
  float* partial;
  const T *d_y, *x;
  const float* scale;
  int64_t tokens, heads, width;
  int lanes;
  bool accumulate, vector;

  __device__ void operator()(int64_t item, int lane) const {
    constexpr int N = kPack<T>;
    const Split at(item, heads);
    const int64_t block = at.quotient, head = at.remainder;
    const int64_t last = ScaledL2NormBlocks::end(block, tokens);
    float total = 0;
    for (int64_t token = ScaledL2NormBlocks::begin(block); token < last; ++token) {
      const int64_t begin = (token * heads + head) * width;
      float squares = 0, product = 0, v[N], g[N];
      for (int64_t c = lane * N; c < width; c += lanes * N) {
        load_pack(v, x + begin, c, width, vector);
        load_pack(g, d_y + begin, c, width, vector);
        HEBB_UNROLL
        for (int j = 0; j < N; ++j) {
          squares += v[j] * v[j];
          product += v[j] * g[j];
        }
      }
      const float inverse = l2_scale(group_sum(squares, lanes));
      const float along = group_sum(product, lanes) * inverse;  // unit vector . d_y
      total += along;
      for (int64_t c = lane * N; d_x != nullptr && c < width; c += lanes * N) {
        load_pack(v, x + begin, c, width, vector);
        load_pack(g, d_y + begin, c, width, vector);
        HEBB_UNROLL
        for (int j = 0; j < N; ++j) { g[j] = scale[head] * inverse * (g[j] - v[j] * inverse * along); }
        write_pack(d_x + begin, c, width, vector, g, accumulate);
      }
    }
    if (lane == 0) { partial[item] = total; }
  }
};

}  // namespace

void run(Stream& stream, const ScaledL2NormForward& a) {
  dispatch_float(a.x.dtype, [&]<class T>(T) {
    const int lanes = lanes_for<kPack<T>>(a.x.size(2));
    each_group("scaled_l2_norm_forward", stream, a.x.size(0) * a.x.size(1), lanes,
               ScaledL2NormForwardBody<T>{a.y.as<T>(), a.x.as<T>(), a.scale.as<float>(), a.x.size(1), a.x.size(2),
                                          lanes, can_vectorise<kPack<T>>(a.x.size(2), a.y.data, a.x.data)});
  });
}

void run(Stream& stream, const ScaledL2NormBackward& a, const ScaledL2NormBackwardScratch& scratch) {
  const int64_t tokens = a.x.size(0), heads = a.x.size(1), blocks = ScaledL2NormBlocks::count(tokens);
  dispatch_float(a.x.dtype, [&]<class T>(T) {
    const int lanes = lanes_for<kPack<T>>(a.x.size(2));
    each_group("scaled_l2_norm_backward", stream, blocks * heads, lanes,
               ScaledL2NormBackwardBody<T>{a.d_x.as<T>(), scratch.partial.as<float>(), a.d_y.as<T>(), a.x.as<T>(),
                                           a.scale.as<float>(), tokens, heads, a.x.size(2), lanes, a.accumulate,
                                           can_vectorise<kPack<T>>(a.x.size(2), a.d_x.data, a.d_y.data, a.x.data)});
  });
  add_column_sums(stream, a.d_scale, scratch.partial, blocks);
}

}  // namespace hebb::HEBB_DEVICE
