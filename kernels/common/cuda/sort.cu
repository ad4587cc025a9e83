#include "kernels/common/cuda/sort.cuh"

#include <bit>

#include "kernels/common/cuda/scan.cuh"

// Least significant digit first, 8 bits a pass: count digits by tile, sum the counts of each digit over the tiles,
// scatter each tile. Integers only, and the order within a tile comes from the position of each item: the result does
// not depend on any schedule.
namespace hebb::HEBB_DEVICE {
namespace {

constexpr int kDigitBits = 8, kDigits = 1 << kDigitBits;
constexpr int kThreads = kDigits, kWarps = kThreads / 32;
constexpr int kRounds = 8;  // items of a thread
constexpr int kTile = kThreads * kRounds;

__device__ __forceinline__ int digit_of(int32_t key, int shift) { return key >> shift & (kDigits - 1); }

// counts[digit][tile]. Grid: tiles.
__global__ void __launch_bounds__(kThreads)
    count_digits_kernel(int* counts, const int32_t* keys, int64_t count, int shift) {
  HEBB_SHARED(int[kDigits], bins);
  bins[threadIdx.x] = 0;
  __syncthreads();
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kTile;
  for (int64_t i = first + threadIdx.x; i < first + kTile && i < count; i += kThreads) {
    atomicAdd(&bins[digit_of(keys[i], shift)], 1);
  }
  __syncthreads();
  counts[static_cast<int64_t>(threadIdx.x) * gridDim.x + blockIdx.x] = bins[threadIdx.x];
}

// counts[digit][tile] becomes the sum over this tile and those before it. Grid: digits, one after the other by one
// block would take longer than all else; no more warps than have tiles.
__global__ void __launch_bounds__(kThreads) scan_kernel(int* counts, int64_t tiles) {
  int* const row = counts + static_cast<int64_t>(blockIdx.x) * tiles;
  int carry = 0;
  for (int64_t first = 0; first < tiles; first += blockDim.x) {
    const int64_t i = first + threadIdx.x;
    const int own = i < tiles ? row[i] : 0;
    int total;
    const int before = block_scan(own, total);
    if (i < tiles) { row[i] = carry + before + own; }
    carry += total;
  }
}

/// A tile in the order of its digits: stores of neighbours go to neighbouring addresses.
struct Tile {
  int32_t keys[kTile], positions[kTile];
  int shift[kDigits];  // from places in the tile to places among all items
};

// Grid: tiles. A warp owns kRounds * 32 consecutive items; sums[digit][tile] as scan_kernel leaves them. positions_in
// null: 0, 1, 2...
__global__ void __launch_bounds__(kThreads)
    scatter_kernel(int32_t* keys_out, int32_t* positions_out, const int32_t* keys_in, const int32_t* positions_in,
                   const int* sums, int64_t count, int shift) {
  HEBB_SHARED(int[kWarps][kDigits], next);
  HEBB_SHARED(Tile, tile);
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  HEBB_UNROLL
  for (int w = 0; w < kWarps; ++w) { next[w][threadIdx.x] = 0; }
  __syncthreads();
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kTile + warp * kRounds * 32 + lane;
  int32_t key[kRounds];
  unsigned peers[kRounds];  // lanes with the same digit
  HEBB_UNROLL
  for (int round = 0; round < kRounds; ++round) {
    const int64_t i = first + round * 32;
    key[round] = i < count ? keys_in[i] : 0;
    peers[round] = __match_any_sync(kAllLanes, i < count ? digit_of(key[round], shift) : -1);
    if (i < count && lane == __ffs(static_cast<int>(peers[round])) - 1) {
      next[warp][digit_of(key[round], shift)] += __popc(peers[round]);
    }
    __syncwarp();
  }
  const int* const own_sums = sums + static_cast<int64_t>(threadIdx.x) * gridDim.x;  // a thread for each digit
  int all;
  const int start =
      block_scan(own_sums[gridDim.x - 1], all) + (blockIdx.x > 0 ? own_sums[blockIdx.x - 1] : 0);  // a barrier, too
  int items = 0;
  HEBB_UNROLL
  for (int w = 0; w < kWarps; ++w) { items += next[w][threadIdx.x]; }
  int place = block_scan(items, items);  // in the tile; items: now of all digits
  tile.shift[threadIdx.x] = start - place;
  HEBB_UNROLL
  for (int w = 0; w < kWarps; ++w) {
    const int own = next[w][threadIdx.x];
    next[w][threadIdx.x] = place;
    place += own;
  }
  __syncthreads();
  HEBB_UNROLL
  for (int round = 0; round < kRounds; ++round) {
    const int64_t i = first + round * 32;
    const int digit = digit_of(key[round], shift);
    const int to = next[warp][digit] + __popc(peers[round] & ((1u << lane) - 1u));
    __syncwarp();
    if (i < count) {
      if (lane == __ffs(static_cast<int>(peers[round])) - 1) { next[warp][digit] += __popc(peers[round]); }
      tile.keys[to] = key[round];
      tile.positions[to] = positions_in != nullptr ? positions_in[i] : static_cast<int32_t>(i);
    }
    __syncwarp();
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < items; i += kThreads) {
    const int32_t key_out = tile.keys[i];
    const int to = tile.shift[digit_of(key_out, shift)] + i;
    keys_out[to] = key_out;
    positions_out[to] = tile.positions[i];
  }
}

int64_t tiles_of(int64_t count) { return (count + kTile - 1) / kTile; }
int64_t padded(int64_t count) { return (count + 3) / 4 * 4; }

}  // namespace

int64_t sort_scratch_bytes(int64_t count) {
  return static_cast<int64_t>(sizeof(int32_t)) * (4 * padded(count) + kDigits * tiles_of(count));
}

SortedKeys sort_keys(Stream& stream, const int32_t* keys, int64_t count, int64_t key_limit, void* scratch) {
  HEBB_ASSERT(count > 0 && count < (int64_t{1} << 31) && key_limit <= (int64_t{1} << 31));
  auto* const base = static_cast<int32_t*>(scratch);
  const int64_t step = padded(count), tiles = tiles_of(count);
  int32_t* const buffers[2][2] = {{base, base + step}, {base + 2 * step, base + 3 * step}};
  int* const counts = base + 4 * step;
  const int bits = std::bit_width(static_cast<uint64_t>(key_limit > 1 ? key_limit - 1 : 1));
  const int32_t* positions = nullptr;
  for (int shift = 0, pass = 0; shift < bits; shift += kDigitBits, ++pass) {
    int32_t* const* out = buffers[pass % 2];
    HEBB_LAUNCH(count_digits_kernel, blocks_for(tiles, 1), kThreads, 0, stream, counts, keys, count, shift);
    HEBB_LAUNCH(scan_kernel, kDigits, static_cast<unsigned>(std::min<int64_t>(kThreads, (tiles + 31) / 32 * 32)), 0,
                stream, counts, tiles);
    HEBB_LAUNCH(scatter_kernel, blocks_for(tiles, 1), kThreads, 0, stream, out[0], out[1], keys, positions, counts,
                count, shift);
    keys = out[0];
    positions = out[1];
  }
  return {keys, positions};
}

}  // namespace hebb::HEBB_DEVICE
