#include "kernels/ordered_sum/ordered_sum.h"

#include "kernels/common/cuda/prelude.cuh"

namespace hebb::HEBB_DEVICE {
namespace {

constexpr int kThreads = 256;
constexpr int kMostLeaves = 8;  // parts that a thread loads before it adds
constexpr int kLevels = 8;      // of the tree above them

struct Sum {
  float* to;
  const float* parts;
  int64_t count, trees, tree;  // elements; parts = trees * tree
  bool vector;
};

// sum = the tree over kLeaves parts, elements `at` and following. The loads do not wait for each other.
template <int kLeaves, int N>
__device__ __forceinline__ void leaf_sum(float (&sum)[N], const Sum& a, int64_t part, int64_t at) {
  float value[kLeaves][N];
  HEBB_UNROLL
  for (int p = 0; p < kLeaves; ++p) { load_pack(value[p], a.parts + (part + p) * a.count, at, a.count, a.vector); }
  HEBB_UNROLL
  for (int step = 1; step < kLeaves; step *= 2) {
    HEBB_UNROLL
    for (int p = 0; p < kLeaves; p += 2 * step) {
      HEBB_UNROLL
      for (int j = 0; j < N; ++j) { value[p][j] = value[p][j] + value[p + step][j]; }
    }
  }
  HEBB_UNROLL
  for (int j = 0; j < N; ++j) { sum[j] = value[0][j]; }
}

// A thread takes one pack. Subtrees that wait for their right neighbour are kept by level, as the digits of a binary
// counter. HBM: reads W parts and writes one.
template <int kLeaves> __global__ void __launch_bounds__(kThreads) ordered_sum_kernel(Sum a) {
  constexpr int N = kPack<float>;
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * N;
  const int subtrees = static_cast<int>(a.tree / kLeaves);
  float total[N] = {}, waiting[kLevels][N] = {}, sum[N] = {};
  for (int64_t tree = 0; tree < a.trees; ++tree) {
    for (int s = 0; s < subtrees; ++s) {
      leaf_sum<kLeaves>(sum, a, tree * a.tree + static_cast<int64_t>(s) * kLeaves, at);
      bool is_carried = true;
      HEBB_UNROLL
      for (int level = 0; level < kLevels; ++level) {
        if (is_carried && (s >> level) % 2 == 1) {
          HEBB_UNROLL
          for (int j = 0; j < N; ++j) { sum[j] = waiting[level][j] + sum[j]; }
        } else if (is_carried) {
          HEBB_UNROLL
          for (int j = 0; j < N; ++j) { waiting[level][j] = sum[j]; }
          is_carried = false;
        }
      }
    }
    HEBB_UNROLL
    for (int j = 0; j < N; ++j) { total[j] = tree == 0 ? sum[j] : total[j] + sum[j]; }
  }
  store_pack(a.to, at, a.count, a.vector, total);
}

// One block a segment, summed in double by thread, then across threads: the order does not depend on where it begins.
__global__ void __launch_bounds__(kThreads)
    segment_squares_kernel(double* partial, const float* x, const int64_t* begin, const int64_t* end) {
  double sum = 0;
  for (int64_t i = begin[blockIdx.x] + threadIdx.x; i < end[blockIdx.x]; i += kThreads) {
    sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  }
  BlockReducer<double> reduce;
  sum = reduce.sum(sum);
  if (threadIdx.x == 0) { partial[blockIdx.x] = sum; }
}

}  // namespace

void run(Stream& stream, const OrderedSum& args) {
  const int64_t parts = args.parts.size(0), count = args.to.numel(), tree = tree_size(parts);
  HEBB_ASSERT(parts > 0 && args.parts.numel() == parts * count && tree <= kMostLeaves << kLevels);
  if (count == 0) { return; }
  const Sum sum{.to = args.to.as<float>(),
                .parts = args.parts.as<float>(),
                .count = count,
                .trees = parts / tree,
                .tree = tree,
                .vector = can_vectorise<kPack<float>>(count, args.to.data, args.parts.data)};
  dispatch_number<1, 2, 4, kMostLeaves>(tree, [&](auto leaves) {  // a power of two
    HEBB_LAUNCH(ordered_sum_kernel<leaves()>, blocks_for(count, kThreads * kPack<float>), kThreads, 0, stream, sum);
  });
}

void run(Stream& stream, const SegmentSquares& a) {
  if (a.partial.numel() > 0) {
    HEBB_LAUNCH(segment_squares_kernel, static_cast<unsigned>(a.partial.numel()), kThreads, 0, stream,
                a.partial.as<double>(), a.x.as<float>(), a.begin.as<int64_t>(), a.end.as<int64_t>());
  }
}

}  // namespace hebb::HEBB_DEVICE
