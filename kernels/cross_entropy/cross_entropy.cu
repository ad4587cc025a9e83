#include "kernels/cross_entropy/cross_entropy.h"

#include "kernels/common/cuda/prelude.cuh"

namespace hebb::HEBB_DEVICE {
namespace {

constexpr int kThreads = 256;

template <class T, class G> struct Arguments {
  double* loss;
  G* gradient;
  const T* logits;
  const int32_t* targets;
  int64_t vocab;
  double scale;
  const double* factor;
  bool vector;
};

// One block per row, two passes: maximum and sum of exponentials together, then the gradient, perhaps in place. Static
// shared: 2 KB. HBM: reads the row, and again for the gradient unless it is still in the L2 cache, and writes it; about
// 10 FLOP an element.
template <class T, class G> __global__ void __launch_bounds__(kThreads) cross_entropy_kernel(Arguments<T, G> a) {
  constexpr int N = kPack<G>;
  const int64_t row = blockIdx.x, step = static_cast<int64_t>(kThreads) * N;
  const T* const logits = a.logits + row * a.vocab;
  G* const gradient = a.gradient != nullptr ? a.gradient + row * a.vocab : nullptr;
  const int32_t target = a.targets[row];
  float x[N];
  if (target < 0) {  // ignored; the same for all threads of the block
    if (threadIdx.x == 0) { a.loss[row] = 0; }
    if (gradient != nullptr) {
      HEBB_UNROLL
      for (int j = 0; j < N; ++j) { x[j] = 0; }
      for (int64_t at = static_cast<int64_t>(threadIdx.x) * N; at < a.vocab; at += step) {
        store_pack(gradient, at, a.vocab, a.vector, x);
      }
    }
    return;
  }
  const float at_target = to_float(logits[target]);  // read before the barriers below, after which it is overwritten

  float top = -INFINITY, sum = 0;  // of this thread's columns: sum of exp(x - top)
  for (int64_t at = static_cast<int64_t>(threadIdx.x) * N; at < a.vocab; at += step) {
    load_pack(x, logits, at, a.vocab, a.vector);
    float new_top = top;
    HEBB_UNROLL
    for (int j = 0; j < N; ++j) {
      x[j] = at + j < a.vocab ? x[j] : -INFINITY;
      new_top = fmaxf(new_top, x[j]);
    }
    const float shift = new_top == -INFINITY ? 0.0f : new_top;
    sum *= expf(top - shift);
    HEBB_UNROLL
    for (int j = 0; j < N; ++j) {
      sum += expf(x[j] - shift);  // fmaxf skips a NaN, the sum does not: it reaches the loss
    }
    top = new_top;
  }
  BlockReducer<float> reduce;
  const float row_top = reduce.max(top);
  const float row_sum = reduce.sum(sum * expf(top - row_top));
  if (threadIdx.x == 0) {
    a.loss[row] = log(static_cast<double>(row_sum)) + (static_cast<double>(row_top) - static_cast<double>(at_target));
  }
  if (gradient == nullptr) { return; }
  const auto scale = static_cast<float>(a.factor != nullptr ? a.scale * *a.factor : a.scale);
  const float factor = scale / row_sum;
  for (int64_t at = static_cast<int64_t>(threadIdx.x) * N; at < a.vocab; at += step) {
    load_pack(x, logits, at, a.vocab, a.vector);
    HEBB_UNROLL
    for (int j = 0; j < N; ++j) { x[j] = expf(x[j] - row_top) * factor - (at + j == target ? scale : 0.0f); }
    store_pack(gradient, at, a.vocab, a.vector, x);
  }
}

template <class T, class G> void launch_rows(Stream& stream, const CrossEntropy& a, int64_t rows) {
  const int64_t vocab = a.logits.numel() / rows;
  const Arguments<T, G> f{.loss = a.loss.as<double>(),
                          .gradient = a.gradient.as<G>(),
                          .logits = a.logits.as<T>(),
                          .targets = a.targets.as<int32_t>(),
                          .vocab = vocab,
                          .scale = a.scale,
                          .factor = a.factor.as<double>(),
                          .vector = can_vectorise<kPack<G>>(vocab, a.logits.data, a.gradient.data)};
  HEBB_LAUNCH((cross_entropy_kernel<T, G>), blocks_for(rows, 1), kThreads, 0, stream, f);
}

}  // namespace

void run(Stream& stream, const CrossEntropy& a) {
  const int64_t rows = a.targets.numel();
  if (rows == 0) { return; }
  dispatch_float(a.logits.dtype, [&]<class T>(T) {
    if (a.gradient.defined() && a.gradient.dtype == DType::bf16) {
      launch_rows<T, bf16>(stream, a, rows);
    } else {
      launch_rows<T, T>(stream, a, rows);
    }
  });
}

}  // namespace hebb::HEBB_DEVICE
