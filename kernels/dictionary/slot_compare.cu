#include "kernels/attention/mma.cuh"
#include "kernels/dictionary/slot_compare.cuh"

// Scores of a chunk's items against a dictionary's slots; of these only the best leave the block. Grid: tiles of 64
// slots x units; a block goes over the chunk's items. FLOPs: 2 D an item and slot. In fp32: 64 items at a time, 36 KB
// static shared, bound by fp32 multiply-adds. In bf16 and with the usual head sizes on tensor cores: 128 items at a
// time, 32 a warp; width 128: 51 KB shared, 4 blocks an SM. A block reads 64 D + L D elements for 128 L D FLOPs: bound
// by L2, with chunks of 128 items at 43 FLOPs a byte.
namespace hebb::HEBB_DEVICE::slots {
namespace {

template <class T> __global__ void __launch_bounds__(kThreads) compare_slots_kernel(Compare<T> a, int64_t tiles) {
  HEBB_SHARED(Shared, s);
  const int x = static_cast<int>(threadIdx.x % 16), y = static_cast<int>(threadIdx.x / 16);
  const int64_t unit = blockIdx.x / tiles;
  const auto tile = a.tile(unit, blockIdx.x % tiles);
  if (tile.first >= tile.end) {
    return;  // the whole block
  }
  const auto items = a.items_of(unit);
  for (int64_t first = 0; first < a.n.chunk; first += kTile) {
    if (threadIdx.x < kTile) {
      const int64_t i = first + threadIdx.x, r = tile.first + threadIdx.x;
      s.row_line[threadIdx.x] = i < a.n.chunk ? i * (items.stride / a.n.d) : -1;
      s.key_line[threadIdx.x] = r < tile.end ? r : -1;
    }
    __syncthreads();
    float scores[4][4];
    multiply_lines(scores, s, items.data, s.row_line, tile.keys, s.key_line, a.n.d);
    HEBB_UNROLL
    for (int i = 0; i < 4; ++i) {
      Score score = Score::none(a.sinks);
      HEBB_UNROLL
      for (int j = 0; j < 4; ++j) {
        const int64_t r = tile.first + x + 16 * j;
        if (r < tile.end) { score.take(scores[i][j], r, a.sinks); }
      }
      score = score.over_lanes(8);
      const int64_t item = first + 4 * y + i;
      if (x == 0 && item < a.n.chunk) { a.partial[blockIdx.x * a.n.chunk + item] = score; }
    }
    __syncthreads();  // the lines are replaced
  }
}

namespace mma {

using namespace attention_mma;

constexpr int kThreads = attention_mma::kThreads, kItems = 128;
constexpr int kItemTiles = kItems / kWarps / 16, kRowTiles = kTile / 8;

template <int kWidth> struct Shared {
  TileOf<kItems, kWidth> items;
  TileOf<kTile, kWidth> keys;
};
static_assert(attention_mma::fits_shared_memory<Shared>());

/// An item's score over the slots whose columns of the tile a lane holds; score.take() for one after the other, but
/// without a branch or a 64-bit comparison for each. `count` columns exist, the first `closed` take no items.
__device__ __forceinline__ Score score_of_columns(float (&row)[2 * kRowTiles], int count, int closed, int first_slot,
                                                  int64_t sinks) {
  const int own = lane_number() % 4 * 2;
  const auto column = [own](int e) { return own + e / 2 * 8 + e % 2; };
  if (count < kTile) {
    HEBB_UNROLL
    for (int e = 0; e < 2 * kRowTiles; ++e) { row[e] = column(e) < count ? row[e] : -INFINITY; }
  }
  Score score = Score::none(sinks);
  HEBB_UNROLL
  for (int e = 0; e < 2 * kRowTiles; ++e) { score.largest = fmaxf(score.largest, row[e]); }
  if (closed > 0) {
    HEBB_UNROLL
    for (int e = 0; e < 2 * kRowTiles; ++e) { row[e] = column(e) < closed ? -INFINITY : row[e]; }
  }
  HEBB_UNROLL
  for (int e = 0; e < 2 * kRowTiles; ++e) {  // columns ascend: of equal scores the first stays
    const bool is_better = row[e] > score.best.score;
    score.best.score = is_better ? row[e] : score.best.score;
    score.best.slot = is_better ? first_slot + column(e) : score.best.slot;
  }
  return score;
}

template <int kWidth>
__global__ void __launch_bounds__(kThreads, 4) compare_slots_mma_kernel(Compare<bf16> a, int64_t tiles) {
  HEBB_DYN_SHARED(raw);
  auto& s = *reinterpret_cast<Shared<kWidth>*>(raw);
  const int64_t unit = blockIdx.x / tiles;
  const auto tile = a.tile(unit, blockIdx.x % tiles);
  if (tile.first >= tile.end) {
    return;  // the whole block
  }
  clear_padding(s.items, a.n.d);
  clear_padding(s.keys, a.n.d);
  copy_rows(s.keys, tile.keys + tile.first * a.n.d, a.n.d, a.n.d, tile.count());
  const auto items = a.items_of(unit);
  const int own = warp_number() * 16 * kItemTiles, count = tile.count(), first_slot = static_cast<int>(tile.first),
            closed = static_cast<int>(a.sinks) - first_slot;  // slots are counted in 32 bits
  for (int64_t first = 0; first < a.n.chunk; first += kItems) {
    const int64_t left = a.n.chunk - first;
    copy_rows(s.items, items.data + first * items.stride, items.stride, a.n.d,
              static_cast<int>(left < kItems ? left : kItems));
    commit_async_copies();
    wait_async_copies<0>();
    __syncthreads();
    float scores[kItemTiles][kRowTiles][4] = {};
    multiply_rows<kWidth>(scores, s.items.data + own * kStride<kWidth>, s.keys.data);
    HEBB_UNROLL
    for (int i = 0; i < 2 * kItemTiles; ++i) {
      float row[2 * kRowTiles];
      HEBB_UNROLL
      for (int e = 0; e < 2 * kRowTiles; ++e) { row[e] = scores[i / 2][e / 2][i % 2 * 2 + e % 2]; }
      Score score = score_of_columns(row, count, closed, first_slot, a.sinks);
      score = score.over_lanes(2);
      const int item = own + 8 * i + lane_number() / 4;
      if (lane_number() % 4 == 0 && item < left) { a.partial[blockIdx.x * a.n.chunk + first + item] = score; }
    }
    __syncthreads();  // the items are replaced
  }
}

}  // namespace mma
}  // namespace

template <class T> void compare_slots(Stream& stream, int64_t batch, const Compare<T>& a, bool on_tensor_cores) {
  const unsigned blocks = blocks_for(a.n.units(batch) * a.tiles(), 1);
  if constexpr (std::is_same_v<T, bf16>) {
    if (on_tensor_cores) {
      attention_mma::dispatch_padded(a.n.d, [&](auto width) {
        HEBB_LAUNCH((mma::compare_slots_mma_kernel<width()>), blocks, mma::kThreads, sizeof(mma::Shared<width()>),
                    stream, a, a.tiles());
      });
      return;
    }
  }
  HEBB_ASSERT(!on_tensor_cores);
  HEBB_LAUNCH(compare_slots_kernel<T>, blocks, kThreads, 0, stream, a, a.tiles());
}

template void compare_slots(Stream&, int64_t, const Compare<float>&, bool);
template void compare_slots(Stream&, int64_t, const Compare<bf16>&, bool);

}  // namespace hebb::HEBB_DEVICE::slots
