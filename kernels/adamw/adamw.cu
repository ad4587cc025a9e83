#include "kernels/adamw/adamw.h"

#include "kernels/common/cuda/prelude.cuh"

namespace hebb::HEBB_DEVICE {
namespace {

constexpr int kThreads = 256;
constexpr int N = kPack<bf16>;  // elements that a thread of adamw_kernel updates

// One block per kSumSquaresBlock elements, summed in double. HBM: reads x.
__global__ void __launch_bounds__(kThreads)
    sum_squares_kernel(double* partial, const float* x, int64_t count, bool vector) {
  constexpr int N = kPack<float>;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kSumSquaresBlock;
  const int64_t end = first + kSumSquaresBlock < count ? first + kSumSquaresBlock : count;
  double sum = 0;
  for (int64_t at = first + static_cast<int64_t>(threadIdx.x) * N; at < end; at += static_cast<int64_t>(kThreads) * N) {
    float v[N];
    load_pack(v, x, at, end, vector);
    HEBB_UNROLL
    for (int j = 0; j < N; ++j) { sum += static_cast<double>(v[j]) * static_cast<double>(v[j]); }
  }
  BlockReducer<double> reduce;
  sum = reduce.sum(sum);
  if (threadIdx.x == 0) { partial[blockIdx.x] = sum; }
}

/// The sum of x[begin] to x[end - 1] by all threads of the block, in every thread.
__device__ __forceinline__ double block_sum(BlockReducer<double>& reduce, const double* x, int64_t begin, int64_t end) {
  double sum = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) { sum += x[i]; }
  return reduce.sum(sum);
}

__device__ __forceinline__ bool is_finite(double x) { return x - x == 0; }

struct Decision {
  double* outcome;
  const double *partial, *limits, *row_loss, *scale;
  const int64_t* ends;
  int64_t sets, rows;
};

// One block: a few thousand numbers. The sums of a set are added by thread, then across threads.
__global__ void __launch_bounds__(kThreads) decide_step_kernel(Decision a) {
  BlockReducer<double> reduce;
  const double loss = a.row_loss != nullptr ? block_sum(reduce, a.row_loss, 0, a.rows) * *a.scale : 0;
  bool applies = is_finite(loss);
  for (int64_t s = 0; s < a.sets; ++s) {
    const double norm = sqrt(block_sum(reduce, a.partial, s > 0 ? a.ends[s - 1] : 0, a.ends[s])), limit = a.limits[s];
    applies = applies && is_finite(norm);
    if (threadIdx.x == 0) {
      a.outcome[2 + 2 * s] = norm;
      a.outcome[3 + 2 * s] = clip_factor(norm, limit);
    }
  }
  if (threadIdx.x == 0) {
    a.outcome[0] = loss;
    a.outcome[1] = applies ? 1 : 0;
  }
}

struct Update {
  float *p, *m, *v;
  bf16* copy;
  const float* grad;
  const double *rates, *clip, *applies;
  int64_t count;
  float b1, b2, one_b1, one_b2, eps;
  bool vector;
};

// A thread takes eight elements: one pack of the copy. HBM: reads p, m, v, grad and writes p, m, v: 28 bytes an
// element, 30 with a copy; about 15 FLOP.
__global__ void __launch_bounds__(kThreads) adamw_kernel(Update a) {
  if (a.applies != nullptr && *a.applies == 0) { return; }
  const auto keep = static_cast<float>(a.rates[0]), step = static_cast<float>(a.rates[1]),
             inverse_c2 = static_cast<float>(a.rates[2]), clip = a.clip != nullptr ? static_cast<float>(*a.clip) : 1.0f;
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * N;
  float p[N], m[N], v[N], grad[N];
  load_pack(p, a.p, at, a.count, a.vector);
  load_pack(m, a.m, at, a.count, a.vector);
  load_pack(v, a.v, at, a.count, a.vector);
  load_pack(grad, a.grad, at, a.count, a.vector);
  HEBB_UNROLL
  for (int j = 0; j < N; ++j) {
    const float g = clip * grad[j];
    m[j] = a.b1 * m[j] + a.one_b1 * g;
    v[j] = a.b2 * v[j] + a.one_b2 * g * g;
    p[j] = p[j] * keep - step * m[j] / (sqrtf(v[j] * inverse_c2) + a.eps);
  }
  store_pack(a.p, at, a.count, a.vector, p);
  store_pack(a.m, at, a.count, a.vector, m);
  store_pack(a.v, at, a.count, a.vector, v);
  if (a.copy != nullptr) { store_pack(a.copy, at, a.count, a.vector, p); }
}

}  // namespace

void run(Stream& stream, const SumSquares& a) {
  if (a.x.numel() > 0) {
    HEBB_LAUNCH(sum_squares_kernel, blocks_for(a.x.numel(), kSumSquaresBlock), kThreads, 0, stream,
                a.partial.as<double>(), a.x.as<float>(), a.x.numel(), can_vectorise<4>(a.x.numel(), a.x.data));
  }
}

void run(Stream& stream, const DecideStep& a) {
  const Decision decision{.outcome = a.outcome.as<double>(),
                          .partial = a.partial.as<double>(),
                          .limits = a.limits.as<double>(),
                          .row_loss = a.row_loss.as<double>(),
                          .scale = a.scale.as<double>(),
                          .ends = a.ends.as<int64_t>(),
                          .sets = a.limits.numel(),
                          .rows = a.row_loss.numel()};
  HEBB_LAUNCH(decide_step_kernel, 1, kThreads, 0, stream, decision);
}

void run(Stream& stream, const AdamW& a) {
  const int64_t count = a.p.numel();
  if (count == 0) { return; }
  const Update update{.p = a.p.as<float>(),
                      .m = a.m.as<float>(),
                      .v = a.v.as<float>(),
                      .copy = a.copy.as<bf16>(),
                      .grad = a.grad.as<float>(),
                      .rates = a.rates.as<double>(),
                      .clip = a.clip.as<double>(),
                      .applies = a.applies.as<double>(),
                      .count = count,
                      .b1 = static_cast<float>(a.beta1),
                      .b2 = static_cast<float>(a.beta2),
                      .one_b1 = static_cast<float>(1 - a.beta1),
                      .one_b2 = static_cast<float>(1 - a.beta2),
                      .eps = static_cast<float>(a.eps),
                      .vector = can_vectorise<N>(count, a.p.data, a.m.data, a.v.data, a.copy.data, a.grad.data)};
  HEBB_LAUNCH(adamw_kernel, blocks_for(count, kThreads * kPack<bf16>), kThreads, 0, stream, update);
}

}  // namespace hebb::HEBB_DEVICE
