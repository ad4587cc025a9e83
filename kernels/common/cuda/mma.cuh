#pragma once
// Tensor-core instructions, each with its emulation beside it. Fragments are spread over the lanes of a warp; with
// row = lane / 4 and pair = 2 (lane % 4) a lane holds of
//   A 16x16 bf16: a[0] = (row, pair), a[1] = (row + 8, pair), a[2] = (row, pair + 8), a[3] = (row + 8, pair + 8), and
//   the next column each B 16x8 bf16:  b[0] = (pair, row), b[1] = (pair + 8, row), and the next row (k) each D 16x8
//   fp32:  d[0], d[1] = (row, pair), (row, pair + 1); d[2], d[3] = the same in row + 8
#include "kernels/common/cuda/prelude.cuh"
#ifdef HEBB_SIMT
#include "device_model.h"
#endif

namespace hebb::HEBB_DEVICE {

/// The bf16 of a pair as numbers.
__device__ __forceinline__ float first_of(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float second_of(uint32_t pair) { return __uint_as_float(pair & 0xFFFF0000u); }

#ifdef HEBB_SIMT
namespace emulation {

struct LoadMatrices {
  const void* row;
  int count;
  bool is_transposed;
  uint32_t out[4];

  static void compute(void* const* lanes) {
    const auto at = [&](int matrix, int row, int column) {
      return static_cast<const uint16_t*>(static_cast<const LoadMatrices*>(lanes[8 * matrix + row])->row)[column];
    };
    for (int lane = 0; lane < 32; ++lane) {
      auto& mine = *static_cast<LoadMatrices*>(lanes[lane]);
      const int row = lane / 4, pair = 2 * (lane % 4);
      for (int m = 0; m < mine.count; ++m) {
        const uint32_t first = mine.is_transposed ? at(m, pair, row) : at(m, row, pair);
        const uint32_t second = mine.is_transposed ? at(m, pair + 1, row) : at(m, row, pair + 1);
        mine.out[m] = first | second << 16;
      }
    }
  }
};

struct TransposeMatrix {
  uint32_t in, out;

  static void compute(void* const* lanes) {
    const auto at = [&](int row, int column) {
      const uint32_t pair = static_cast<const TransposeMatrix*>(lanes[4 * row + column / 2])->in;
      return column % 2 == 0 ? pair & 0xFFFFu : pair >> 16;
    };
    for (int lane = 0; lane < 32; ++lane) {
      const int row = lane / 4, pair = 2 * (lane % 4);
      static_cast<TransposeMatrix*>(lanes[lane])->out = at(pair, row) | at(pair + 1, row) << 16;
    }
  }
};

struct Multiply {
  float* d;
  const uint32_t *a, *b;

  /// d += a b for fragments gathered to matrices: a [16][k], b [k][8].
  static void add_product(void* const* lanes, int k, const float* a, const float* b) {
    const bool truncates = ::simt::device_model().truncates;
    for (int lane = 0; lane < 32; ++lane) {
      float* const d = static_cast<Multiply*>(lanes[lane])->d;
      for (int i = 0; i < 4; ++i) {
        const int row = lane / 4 + 8 * (i / 2), column = 2 * (lane % 4) + i % 2;
        float of_column[16], sum = 0;
        for (int l = 0; l < k; ++l) { of_column[l] = b[l * 8 + column]; }
        if (truncates) {
          d[i] = ::simt::truncated_sum(d[i], a + row * k, of_column, k);
          continue;
        }
        for (int l = 0; l < k; ++l) { sum += a[row * k + l] * of_column[l]; }
        d[i] += sum;
      }
    }
  }

  static void compute_bf16(void* const* lanes) {
    float a[16][16], b[16][8];
    for (int lane = 0; lane < 32; ++lane) {
      const auto& mine = *static_cast<const Multiply*>(lanes[lane]);
      const int row = lane / 4, pair = 2 * (lane % 4);
      for (int i = 0; i < 4; ++i) {
        a[row + 8 * (i % 2)][pair + 8 * (i / 2)] = first_of(mine.a[i]);
        a[row + 8 * (i % 2)][pair + 8 * (i / 2) + 1] = second_of(mine.a[i]);
      }
      for (int i = 0; i < 2; ++i) {
        b[pair + 8 * i][row] = first_of(mine.b[i]);
        b[pair + 8 * i + 1][row] = second_of(mine.b[i]);
      }
    }
    add_product(lanes, 16, &a[0][0], &b[0][0]);
  }

  static void compute_tf32(void* const* lanes) {
    const auto value = [](uint32_t bits) {
      return __uint_as_float(bits & 0xFFFFE000u);
    };  // the rest of the bits is ignored
    float a[16][8], b[8][8];
    for (int lane = 0; lane < 32; ++lane) {
      const auto& mine = *static_cast<const Multiply*>(lanes[lane]);
      const int row = lane / 4, column = lane % 4;
      for (int i = 0; i < 4; ++i) { a[row + 8 * (i % 2)][column + 4 * (i / 2)] = value(mine.a[i]); }
      for (int i = 0; i < 2; ++i) { b[column + 4 * i][row] = value(mine.b[i]); }
    }
    add_product(lanes, 8, &a[0][0], &b[0][0]);
  }
};

}  // namespace emulation
#else
__device__ __forceinline__ uint32_t shared_address(const void* address) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(address));
}
#endif

/// kCount 8x8 matrices of 2-byte elements from shared memory. Lane 8 m + r gives the address of row r of matrix m (16
/// bytes, 16-byte aligned); out[m] holds elements (lane / 4, 2 (lane % 4)) and the next column of matrix m, or of its
/// transpose.
template <int kCount, bool kTransposed>
__device__ __forceinline__ void load_matrices(uint32_t (&out)[kCount], const void* row) {
  static_assert(kCount == 1 || kCount == 2 || kCount == 4);
#ifdef HEBB_SIMT
  if (::simt::lane_index() < 8 * kCount) {
    if (reinterpret_cast<uintptr_t>(row) % 16 != 0) {
      ::simt::fault("ldmatrix of a row whose address is not a multiple of 16");
    }
    if (!::simt::is_shared(row, 16)) { ::simt::fault("ldmatrix of a row outside of shared memory"); }
    ::simt::report_read(row, 16);
  }
  emulation::LoadMatrices arguments{row, kCount, kTransposed, {}};
  ::simt::collective(kAllLanes, "ldmatrix", &arguments, &emulation::LoadMatrices::compute);
  std::copy_n(arguments.out, kCount, out);
#else
  const uint32_t address = shared_address(row);
  if constexpr (kCount == 1 && !kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(out[0]) : "r"(address) : "memory");
  } else if constexpr (kCount == 1) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];" : "=r"(out[0]) : "r"(address) : "memory");
  } else if constexpr (kCount == 2 && !kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(out[0]), "=r"(out[1])
                 : "r"(address)
                 : "memory");
  } else if constexpr (kCount == 2) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(out[0]), "=r"(out[1])
                 : "r"(address)
                 : "memory");
  } else if constexpr (!kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(address)
                 : "memory");
  }
#endif
}

/// An 8x8 matrix of 2-byte elements in registers, of which a lane holds (lane / 4, 2 (lane % 4)) and the next column:
/// of its transpose.
__device__ __forceinline__ uint32_t transpose_matrix(uint32_t pair) {
#ifdef HEBB_SIMT
  emulation::TransposeMatrix arguments{pair, 0};
  ::simt::collective(kAllLanes, "movmatrix", &arguments, &emulation::TransposeMatrix::compute);
  return arguments.out;
#else
  uint32_t out;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(pair));
  return out;
#endif
}

/// d += a b: 16x8 += 16x16 16x8, bf16 products summed in fp32.
__device__ __forceinline__ void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#ifdef HEBB_SIMT
  emulation::Multiply arguments{d, a, b};
  ::simt::collective(kAllLanes, "mma.m16n8k16.bf16", &arguments, &emulation::Multiply::compute_bf16);
#else
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

/// d += a b: 16x8 += 16x8 8x8 in tf32. With column = lane % 4: a[0] = (row, column), a[1] = (row + 8, column), a[2],
/// a[3] = the same at column + 4; b[0] = (column, row), b[1] = (column + 4, row).
__device__ __forceinline__ void mma_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#ifdef HEBB_SIMT
  emulation::Multiply arguments{d, a, b};
  ::simt::collective(kAllLanes, "mma.m16n8k8.tf32", &arguments, &emulation::Multiply::compute_tf32);
#else
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

/// Operand of mma_tf32: 10 bits of mantissa, ties away from zero.
__device__ __forceinline__ uint32_t round_to_tf32(float value) {
#ifdef HEBB_SIMT
  const uint32_t bits = __float_as_uint(value);
  return (bits & 0x7F800000u) == 0x7F800000u ? bits : (bits + 0x1000u) & 0xFFFFE000u;
#else
  uint32_t rounded;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(value));
  return rounded;
#endif
}

}  // namespace hebb::HEBB_DEVICE
