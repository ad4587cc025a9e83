#pragma once
// Part of prelude.cuh's family: work that a whole block does together on matrices in global memory (which stay in L1
// and L2). All threads must call; every function ends with a barrier, so that the next one sees what it wrote.
#include "kernels/common/cuda/prelude.cuh"

namespace hebb::HEBB_DEVICE {

constexpr int kBlockThreads = 256;  // what these functions expect

/// Waits for the `threads` threads of the block where warps with different roles wait in different places of the code.
/// PTX counts the warps that come to a barrier, wherever they stand; CUDA C++ leaves __syncthreads() undefined there.
__device__ __forceinline__ void role_barrier([[maybe_unused]] int threads) {
#ifdef HEBB_SIMT
  ::simt::sync_roles();
#else
  asm volatile("barrier.sync.aligned 0, %0;" ::"r"(threads) : "memory");
#endif
}

/// f(i) for i < count, each on one thread.
template <class F> __device__ __forceinline__ void block_each(int64_t count, F&& f) {
  for (int64_t i = threadIdx.x; i < count; i += kBlockThreads) { f(i); }
  __syncthreads();
}

/// f(row, lane) for row < rows, each by one warp.
template <class F> __device__ __forceinline__ void block_warps(int64_t rows, F&& f) {
  for (int64_t row = threadIdx.x / 32; row < rows; row += kBlockThreads / 32) {
    f(row, static_cast<int>(threadIdx.x % 32));
  }
  __syncthreads();
}

/// f(i, row, column) for the elements i of [rows, columns], rows by warps: no division.
template <class F> __device__ __forceinline__ void block_rows(int64_t rows, int64_t columns, F&& f) {
  block_warps(rows, [&](int64_t row, int lane) {
    for (int64_t column = lane; column < columns; column += 32) { f(row * columns + column, row, column); }
  });
}

/// a . b by one warp, in every lane.
template <class S> __device__ __forceinline__ S warp_dot(int64_t count, const S* a, const S* b, int lane) {
  return warp_sum_of(count, lane, [&](int64_t i) { return a[i] * b[i]; });
}

/// A row-major matrix in memory of the block, of less than 2^31 elements.
struct Matrix {
  float* data;
  int stride;

  __device__ Matrix(float* data, int64_t stride) : data(data), stride(static_cast<int>(stride)) {}
};

/// c [m, n] (+)= alpha op(a) op(b), op the transpose where told so: op(a) [m, k], op(b) [k, n]. Tiles of 64 x 64, 4 x 4
/// a thread, 16 deep in shared memory (8.5 KB). Bound: 2 m n k FLOP with two shared loads of 16 bytes for 32 of them.
template <bool kTransA, bool kTransB>
__device__ HEBB_NOINLINE void block_product(int m, int n, int k, float alpha, Matrix a, Matrix b, bool accumulate,
                                            Matrix c) {
  constexpr int kTile = 64, kDepth = 16;
  struct Stage {
    float a[kDepth][kTile + 4], b[kDepth][kTile + 4];  // rows of 16-byte packs
  };
  HEBB_SHARED(Stage, s);
  const int thread = static_cast<int>(threadIdx.x), x = thread % 16, y = thread / 16;
  for (int row = 0; row < m; row += kTile) {
    for (int column = 0; column < n; column += kTile) {
      float sums[4][4] = {};
      for (int depth = 0; depth < k; depth += kDepth) {
        for (int i = thread; i < kTile * kDepth; i += kBlockThreads) {
          // Neighbouring threads read neighbouring addresses.
          const int ar = kTransA ? i % kTile : i / kDepth, ad = kTransA ? i / kTile : i % kDepth;
          const int bc = kTransB ? i / kDepth : i % kTile, bd = kTransB ? i % kDepth : i / kTile;
          const int r = row + ar, da = depth + ad, cc = column + bc, db = depth + bd;
          s.a[ad][ar] = r < m && da < k ? (kTransA ? a.data[da * a.stride + r] : a.data[r * a.stride + da]) : 0.0f;
          s.b[bd][bc] = cc < n && db < k ? (kTransB ? b.data[cc * b.stride + db] : b.data[db * b.stride + cc]) : 0.0f;
        }
        __syncthreads();
        HEBB_UNROLL
        for (int d = 0; d < kDepth; ++d) {
          const Word4 left = load_16_bytes(&s.a[d][4 * y]), right = load_16_bytes(&s.b[d][4 * x]);
          HEBB_UNROLL
          for (int i = 0; i < 16; ++i) {
            sums[i / 4][i % 4] += __uint_as_float(left.word[i / 4]) * __uint_as_float(right.word[i % 4]);
          }
        }
        __syncthreads();
      }
      HEBB_UNROLL
      for (int i = 0; i < 16; ++i) {
        const int r = row + 4 * y + i / 4, cc = column + 4 * x + i % 4;
        if (r < m && cc < n) {
          float& to = c.data[r * c.stride + cc];
          to = alpha * sums[i / 4][i % 4] + (accumulate ? to : 0.0f);
        }
      }
    }
  }
  __syncthreads();
}

constexpr int kSolveBlock = 16;

/// x = (1 + L)^(-1) x for the strictly lower triangle of L [rows, rows] (what else it holds is ignored), x [rows, n],
/// both without gaps.
__device__ HEBB_NOINLINE void block_solve_lower(int64_t rows, int64_t n, float* lower, float* x) {
  for (int64_t first = 0; first < rows; first += kSolveBlock) {
    const int64_t last = first + kSolveBlock < rows ? first + kSolveBlock : rows;
    if (first > 0) {
      block_product<false, false>(last - first, n, first, -1.0f, {lower + first * rows, rows}, {x, n}, true,
                                  {x + first * n, n});
    }
    block_each(n, [&](int64_t column) {
      for (int64_t i = first + 1; i < last; ++i) {
        float sum = x[i * n + column];
        for (int64_t j = first; j < i; ++j) { sum -= lower[i * rows + j] * x[j * n + column]; }
        x[i * n + column] = sum;
      }
    });
  }
}

/// x = (1 + L)^(-T) x.
__device__ HEBB_NOINLINE void block_solve_lower_transposed(int64_t rows, int64_t n, float* lower, float* x) {
  for (int64_t last = rows; last > 0;) {
    const int64_t first = (last - 1) / kSolveBlock * kSolveBlock;
    if (last < rows) {
      block_product<true, false>(last - first, n, rows - last, -1.0f, {lower + last * rows + first, rows},
                                 {x + last * n, n}, true, {x + first * n, n});
    }
    block_each(n, [&](int64_t column) {
      for (int64_t i = last - 2; i >= first; --i) {
        float sum = x[i * n + column];
        for (int64_t j = i + 1; j < last; ++j) { sum -= lower[j * rows + i] * x[j * n + column]; }
        x[i * n + column] = sum;
      }
    });
    last = first;
  }
}

/// Hands out parts of a block's scratch. Parts of float and double; each begins at a multiple of 16 elements.
class ScratchParts {
 public:
  __device__ explicit ScratchParts(float* base) : next_(base) {}
  __device__ float* take(int64_t count) {
    float* const part = next_;
    next_ += (count + 15) / 16 * 16;
    return part;
  }
  __device__ double* doubles(int64_t count) { return reinterpret_cast<double*>(take(2 * count)); }

 private:
  float* next_;
};

}  // namespace hebb::HEBB_DEVICE
