#pragma once
// The entries of chunks' tokens by the key that they name, in the order of the entries, for sums over keys.
//
// One block makes the lists of 8 sub-keys of a codebook. It reads all entries of the codebook twice: R k numbers from
// L2, 128 KB for 4,096 tokens with 8 entries. It counts those of its keys and of the keys before them, and writes each
// list in place. Nothing is sorted, and no block waits for another. The cost grows with n, as that of the scores. For
// 512 sub-keys the blocks of a chunk are one wave of 128. Bound: instructions, about 12 for 32 entries and
// pass. A radix sort would take eight launches.
#include "kernels/common/cuda/scan.cuh"
#include "kernels/fwpkm/fast_chunk.cuh"

namespace hebb::HEBB_DEVICE {

constexpr int kListThreads = 1024, kListWarps = kListThreads / 32;
constexpr int kListKeys = 8;   // of a block
constexpr int kListAhead = 4;  // loads of a lane on their way

/// Lists of one chunk. A row is a key of [heads, 2, n], an entry (token * heads * 2 + head * 2 + codebook) * k + j.
struct KeyLists {
  const int32_t *starts, *entries;  // starts [heads * 2, n + 1]
  int64_t n;

  __device__ const int32_t* start(int64_t row) const { return starts + row + Split(row, n).quotient; }
  __device__ int64_t entry(int64_t i) const { return entries[i]; }
};

/// What lists are made of, and where: fwpkm_key_lists numbers, the starts of all chunks and then their entries.
struct KeyIndex {
  const int32_t *index, *targets;  // index [., heads, 2, k] < 0: none; targets: null, or only tokens with a pair count
  int32_t* lists;
  FastChunks chunks;
  int64_t heads, n, k;

  int64_t groups() const { return (n + kListKeys - 1) / kListKeys; }
  __host__ __device__ int32_t* starts(int64_t c) const { return lists + c * heads * 2 * (n + 1); }
  __host__ __device__ int32_t* entries(int64_t c) const {
    return starts(count()) + c * chunks.all.batch * chunks.size * heads * 2 * k;
  }
  __host__ __device__ int64_t count() const { return (chunks.all.count + chunks.size - 1) / chunks.size; }
  KeyLists of_chunk(int64_t c) const { return {starts(c), entries(c), n}; }
};

/// Place of a lane in the entries of a codebook of a chunk; a warp takes 32 at a time.
struct EntryPlace {
  int64_t sequence, t,
      j;  // of the lane's entry: row of the batch, token in the row's part of the chunk, entry of the codebook

  __device__ EntryPlace(const FastChunk& chunk, int64_t k, int64_t i) {
    const Split token(i, k), row(token.quotient, chunk.count);
    sequence = row.quotient;
    t = row.remainder;
    j = token.remainder;
  }
  __device__ __forceinline__ void advance(const FastChunk& chunk, int64_t k, int64_t tokens, int64_t more) {
    j += more;
    t += tokens;
    if (j >= k) {
      j -= k;
      ++t;
    }
    while (t >= chunk.count) {
      t -= chunk.count;
      ++sequence;
    }
  }
};

/// f(entry, index of its key or -1) for the warp's share of a codebook's entries, by all lanes together, in order.
template <class F>
__device__ __forceinline__ void each_entry_of_codebook(const KeyIndex& a, const FastChunk& chunk, int64_t codebook,
                                                       F&& f) {
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int64_t all = chunk.batch * chunk.count * a.k, share = (all + kListThreads - 1) / kListThreads * 32;
  const int64_t begin = warp * share, end = begin + share < all ? begin + share : all;
  const Split step(32, a.k);
  EntryPlace at(chunk, a.k, begin + lane);
  for (int64_t i = begin; i < end; i += 32 * kListAhead) {
    int64_t entries[kListAhead];
    int32_t keys[kListAhead];
    HEBB_UNROLL
    for (int u = 0; u < kListAhead; ++u) {
      const int64_t token = at.sequence * chunk.length + chunk.first + at.t;
      entries[u] = (token * a.heads * 2 + codebook) * a.k + at.j;
      keys[u] = i + 32 * u + lane < end && (a.targets == nullptr || a.targets[token] >= 0) ? a.index[entries[u]] : -1;
      at.advance(chunk, a.k, step.quotient, step.remainder);
    }
    HEBB_UNROLL
    for (int u = 0; u < kListAhead; ++u) { f(entries[u], keys[u]); }
  }
}

struct ListStage {
  int counts[kListKeys][kListWarps];  // of each warp's share; then of the shares before it
  int offsets[kListKeys + 1];  // of the lists within the codebook; first the numbers of entries, last those of keys
                               // before the block's
};

/// s.counts: entries of each key in each warp's share; s.offsets: of keys before the block's, last. Ends with a
/// barrier.
__device__ __forceinline__ void count_entries(ListStage& s, const KeyIndex& a, const FastChunk& chunk, int64_t codebook,
                                              int64_t first) {
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32;
  if (thread < kListKeys * kListWarps) { s.counts[thread / kListWarps][thread % kListWarps] = 0; }
  if (thread <= kListKeys) { s.offsets[thread] = 0; }
  __syncthreads();
  int before = 0;
  each_entry_of_codebook(a, chunk, codebook, [&](int64_t, int32_t key) {
    before += key >= 0 && key < first ? 1 : 0;
    if (key >= first && key < first + kListKeys) { atomicAdd(&s.counts[key - first][warp], 1); }
  });
  before = warp_sum(before);
  if (thread % 32 == 0) { atomicAdd(&s.offsets[kListKeys], before); }
  __syncthreads();
}

/// From counts to places in lists that follow each other. Ends with a barrier.
__device__ __forceinline__ void place_lists(ListStage& s) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  if (warp < kListKeys) {  // kListWarps lanes
    const int own = s.counts[warp][lane];
    const int sum = warp_scan(own, lane);
    s.counts[warp][lane] = sum - own;
    if (lane == 31) { s.offsets[warp] = sum; }
  }
  __syncthreads();
  if (thread == 0) {
    int at = s.offsets[kListKeys];
    HEBB_UNROLL
    for (int key = 0; key < kListKeys; ++key) {
      const int own = s.offsets[key];
      s.offsets[key] = at;
      at += own;
    }
    s.offsets[kListKeys] = at;
  }
  __syncthreads();
}

/// The lists of keys first .. first + kListKeys of a codebook: s.offsets tells where they lie in the codebook's part of
/// `to`. Begins and ends with a barrier.
__device__ __forceinline__ void make_lists(ListStage& s, int32_t* to, const KeyIndex& a, const FastChunk& chunk,
                                           int64_t codebook, int64_t first) {
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  __syncthreads();
  count_entries(s, a, chunk, codebook, first);
  place_lists(s);
  each_entry_of_codebook(a, chunk, codebook, [&](int64_t entry, int32_t key) {
    const bool is_own = key >= first && key < first + kListKeys;
    const int own = is_own ? static_cast<int>(key - first) : -1;
    if (__any_sync(kAllLanes, is_own)) {
      const unsigned peers = __match_any_sync(kAllLanes, own);
      const int rank = __popc(peers & ((1u << lane) - 1u)), place = is_own ? s.counts[own][warp] : 0;
      __syncwarp();
      if (is_own) {
        to[s.offsets[own] + place + rank] = static_cast<int32_t>(entry);
        if (rank == 0) { s.counts[own][warp] = place + __popc(peers); }
      }
      __syncwarp();
    }
  });
  __syncthreads();
}

/// How much each sub-key is used: usage [2, n] = scale sum of probs over its entries in all heads. usage null: not
/// wanted.
struct KeyUsage {
  float* usage;
  const float* probs;
  float scale;
};

// Grid: chunks x groups of kListKeys sub-keys, codebooks.
template <class = void>
__global__ void __launch_bounds__(kListThreads) key_lists_kernel(KeyIndex a, KeyUsage use, int64_t groups) {
  HEBB_SHARED(ListStage, s);
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32),
            thread = static_cast<int>(threadIdx.x);
  const Split at(blockIdx.x, groups);
  const int64_t first = at.remainder * kListKeys, side = blockIdx.y;
  const FastChunk chunk = chunk_at(a.chunks, at.quotient);
  float used = 0;
  for (int64_t head = 0; head < a.heads; ++head) {
    const int64_t codebook = head * 2 + side, base = codebook * chunk.batch * chunk.count * a.k;
    int32_t* const to = a.entries(at.quotient) + base;
    make_lists(s, to, a, chunk, codebook, first);
    // The last block also says where the last list ends.
    if (thread <= kListKeys && (thread < kListKeys ? first + thread < a.n : first + kListKeys >= a.n)) {
      const int64_t key = thread < kListKeys ? first + thread : a.n;
      a.starts(at.quotient)[codebook * (a.n + 1) + key] = static_cast<int32_t>(base + s.offsets[thread]);
    }
    if (warp < kListKeys && use.usage != nullptr) {
      for (int i = s.offsets[warp] + lane; i < s.offsets[warp + 1]; i += 32) { used += use.probs[to[i]]; }
    }
  }
  used = use.scale * warp_sum(used);
  if (use.usage != nullptr && warp < kListKeys && first + warp < a.n && lane == 0) {
    use.usage[side * a.n + first + warp] = used;
  }
}

inline void make_key_lists(Stream& stream, const KeyIndex& a, const KeyUsage& use) {
  HEBB_LAUNCH(key_lists_kernel<>, dim3(blocks_for(a.count() * a.groups(), 1), 2), kListThreads, 0, stream, a, use,
              a.groups());
}

}  // namespace hebb::HEBB_DEVICE
