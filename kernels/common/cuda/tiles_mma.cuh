#pragma once
// Products of fp32 matrices by tiles (tiles.cuh) on tensor cores: operands rounded to TF32, sums in fp32.
//
// Operands go from global to shared memory by cp.async, 32 deep, in two buffers, in the order in which they lie: rows
// that lie along the depth as [64][36], others as [32][72]. Either stride spreads the 8 x 4 numbers that a fragment's
// load takes over all 32 banks, and takes packs of 16 bytes. Numbers are rounded on the way to registers, as cp.async
// copies bytes. Each of 8 warps has 16 x 32 sums of the tile: 12 shared loads of 4 bytes a lane for 4 instructions of
// 1,024 multiply-adds, or 20 for 8 with two right sides.
//
// TF32 and not bf16: operands are fp32 in memory, which a tile reads at 16 FLOP a byte (21 with two right sides):
// at 5.5 TB/s of an H200's L2 that allows 90 to 120 TFLOP/s, shared loads 160 to 190, tensor cores by mma.sync 300.
// Half the bytes in shared memory and twice the peak would gain nothing, and TF32 keeps 10 bits of the mantissa,
// bf16 7.
#include "kernels/common/cuda/async_copy.cuh"
#include "kernels/common/cuda/mma.cuh"

namespace hebb::HEBB_DEVICE {

constexpr int kTileThreads = 256, kTileSize = 64;

/// One side of a product: element (i, d) at data[i * stride + d] or, turned, at data[d * stride + i]; 0 but for first
/// <= i < last.
template <bool kIsTurned, class S = float> struct Operand {
  const S* data;
  int64_t stride, first, last;
};

constexpr int kMmaDepth = 32, kPanelNumbers = 2304;

struct alignas(16) MmaPanel {
  static constexpr int kStride = kPanelNumbers / kTileSize, kTurnedStride = kPanelNumbers / kMmaDepth;
  float data[kPanelNumbers];
};

struct MmaStage {
  MmaPanel a[2], b[2][2];  // two buffers each

  using Sums = float[4][4];  // of mma for columns 8 i on
  // Rows of a thread's sums; neighbouring lanes whose sums have the same rows, in the same panel of 32 columns.
  static constexpr int kRows = 2, kRowLanes = 4;

  /// Which of the thread's rows sums[i][j] lies in.
  __device__ static constexpr int row_number(int, int j) { return j / 2; }
  /// Where rows and columns lie in the tile.
  __device__ static int row(int number) {
    return static_cast<int>(threadIdx.x / 64 * 16 + threadIdx.x % 32 / 4) + 8 * number;
  }
  __device__ static int column(int i, int j) {
    return static_cast<int>(threadIdx.x / 32 % 2 * 32 + threadIdx.x % 4 * 2) + 8 * i + j % 2;
  }
};

/// A thread's part of the copies of 64 rows of kCount matrices that lie alike, panel after panel: packs of 4 numbers.
template <bool kIsTurned, int kCount> class PanelCopy {
 public:
  __device__ __forceinline__ PanelCopy(const Operand<kIsTurned>& of, const float* const (&data)[kCount], int64_t row)
      : step_(kAcross * of.stride), exists_(0), can_pack_(of.stride % 4 == 0) {
    const int64_t i = row + (kIsTurned ? along() : across());
    HEBB_UNROLL
    for (int n = 0; n < kCount; ++n) {
      from_[n] = data[n] + (kIsTurned ? across() * of.stride + i : i * of.stride + along());
      can_pack_ = can_pack_ && reinterpret_cast<uintptr_t>(data[n]) % 16 == 0;
    }
    HEBB_UNROLL
    for (int e = 0; e < (kIsTurned ? 4 : kPacks); ++e) {
      const int64_t at = i + (kIsTurned ? e : e * kAcross);
      exists_ |= at >= of.first && at < of.last ? 1 << e : 0;
    }
  }
  /// Starts the copy of the next 32 columns, of which `left` exist, to panels that are `distance` apart.
  __device__ __forceinline__ void start(MmaPanel* to, int distance, int left) {
    HEBB_UNROLL
    for (int n = 0; n < kCount; ++n) {
      HEBB_UNROLL
      for (int u = 0; u < kPacks; ++u) {
        float* const place = &to[n * distance].data[(across() + u * kAcross) * kShared + along()];
        copy_pack(place, from_[n] + u * step_, exists(u, left));
      }
      from_[n] += kIsTurned ? kPacks * step_ : kMmaDepth;
    }
  }

 private:
  static constexpr int kShared = kIsTurned ? MmaPanel::kTurnedStride : MmaPanel::kStride;
  static constexpr int kLine = (kIsTurned ? kTileSize : kMmaDepth) / 4, kAcross = kTileThreads / kLine;
  static constexpr int kPacks = kTileSize * kMmaDepth / (4 * kTileThreads);

  /// Where the thread's first pack lies in the panel; the others are kAcross lines apart.
  __device__ static int along() { return static_cast<int>(threadIdx.x) % kLine * 4; }
  __device__ static int across() { return static_cast<int>(threadIdx.x) / kLine; }
  /// Bit e: whether number e of a pack exists.
  __device__ __forceinline__ int exists(int u, int left) const {
    if (kIsTurned) { return across() + u * kAcross < left ? exists_ : 0; }
    const int columns = left - along();
    return (exists_ >> u & 1) == 0 || columns <= 0 ? 0 : columns < 4 ? (1 << columns) - 1 : 15;
  }
  __device__ __forceinline__ void copy_pack(float* to, const float* from, int exists) const {
    if (can_pack_ && (exists == 15 || exists == 0)) {
      copy_async_16(to, from, exists == 15 ? 16 : 0);
    } else {
      HEBB_UNROLL
      for (int e = 0; e < 4; ++e) { copy_async_4(to + e, from + e, (exists >> e & 1) * 4); }
    }
  }

  const float* from_[kCount];
  int64_t step_;
  int exists_;  // bits: of rows, turned of a pack, else of the packs
  bool can_pack_;
};

/// A number of a panel by its row and depth, at a constant distance from a thread's own.
template <bool kIsTurned> constexpr int panel_offset(int row, int depth) {
  return kIsTurned ? depth * MmaPanel::kTurnedStride + row : row * MmaPanel::kStride + depth;
}

/// *sums[n] += the products of the warp's rows and columns of the panels a and b[n * distance].
template <int kRights, bool kA, bool kB>
__device__ __forceinline__ void multiply_panels(const MmaPanel& a, const MmaPanel* b, int distance,
                                                MmaStage::Sums* const (&sums)[kRights]) {
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const float* const left = &a.data[panel_offset<kA>(warp / 2 * 16 + lane / 4, lane % 4)];
  const float* const right = &b->data[panel_offset<kB>(warp % 2 * 32 + lane / 4, lane % 4)];
  HEBB_UNROLL_BY(2)  // wholly, some callers spill
  for (int d = 0; d < kMmaDepth; d += 8) {
    const uint32_t rows[4] = {round_to_tf32(left[panel_offset<kA>(0, d)]), round_to_tf32(left[panel_offset<kA>(8, d)]),
                              round_to_tf32(left[panel_offset<kA>(0, d + 4)]),
                              round_to_tf32(left[panel_offset<kA>(8, d + 4)])};
    HEBB_UNROLL
    for (int n = 0; n < kRights; ++n) {
      const float* const from = right + n * distance * kPanelNumbers;
      HEBB_UNROLL
      for (int i = 0; i < 4; ++i) {
        const uint32_t columns[2] = {round_to_tf32(from[panel_offset<kB>(8 * i, d)]),
                                     round_to_tf32(from[panel_offset<kB>(8 * i, d + 4)])};
        mma_tf32((*sums[n])[i], rows, columns);
      }
    }
  }
}

/// *sums[n] += the tile at (row, column) of sum_{d < depth} a(row, d) b(column, d) with the data of b at `rights[n]`.
/// All threads call.
template <int kRights, bool kA, bool kB>
__device__ __forceinline__ void multiply_tiles(MmaStage& s, const Operand<kA>& a, int64_t row, const Operand<kB>& b,
                                               const float* const (&rights)[kRights], int64_t column, int64_t depth,
                                               MmaStage::Sums* const (&sums)[kRights]) {
  int rest = static_cast<int>(depth);
  if (rest <= 0) { return; }
  PanelCopy<kA, 1> left(a, {a.data}, row);
  PanelCopy<kB, kRights> right(b, rights, column);
  const auto start = [&](int buffer) {
    left.start(&s.a[buffer], 0, rest);
    right.start(&s.b[0][buffer], 2, rest);
    commit_async_copies();
  };
  start(0);
  for (int buffer = 0; rest > 0; buffer ^= 1) {
    wait_async_copies<0>();
    __syncthreads();  // the panels are there, and the others are read
    rest -= kMmaDepth;
    if (rest > 0) { start(buffer ^ 1); }
    multiply_panels<kRights, kA, kB>(s.a[buffer], &s.b[0][buffer], 2, sums);
  }
  __syncthreads();  // the next product may write
}

/// sums += the tile at (row, column) of sum_{d < depth} a(row, d) b(column, d). All threads call.
template <bool kA, bool kB>
__device__ __forceinline__ void tile_product(MmaStage& s, const Operand<kA>& a, int64_t row, const Operand<kB>& b,
                                             int64_t column, int64_t depth, MmaStage::Sums& sums) {
  multiply_tiles<1>(s, a, row, b, {b.data}, column, depth, {&sums});
}

/// The same for b and a second matrix that lies like it: a is read once.
template <bool kA, bool kB>
__device__ __forceinline__ void tile_products(MmaStage& s, const Operand<kA>& a, int64_t row, const Operand<kB>& b,
                                              const float* second, int64_t column, int64_t depth, MmaStage::Sums& sums,
                                              MmaStage::Sums& second_sums) {
  multiply_tiles<2>(s, a, row, b, {b.data, second}, column, depth, {&sums, &second_sums});
}

}  // namespace hebb::HEBB_DEVICE
