#pragma once
// The k best pairs of two lists of scores, by one block: in two stages, ties to the lower index at both. In each a warp
// bisects for a bound that k numbers reach, 15 to 32 times over all of them, and keeps those. They are ordered by
// counting: the rank of an entry is the number of those before it, so that the result does not depend on the order of
// the threads. Numbers are compared as integers, four a load: a bit more than two instructions a comparison of 2 k^2,
// five of one of k^2 pairs.
#include "kernels/common/cuda/prelude.cuh"

namespace hebb::HEBB_DEVICE {

constexpr int kSelectThreads = 128;

struct KeyPair {
  float sum;
  int32_t slot;  // i1 n + i2
};

/// What a selection of the k best pairs of two lists of n scores needs.
struct SelectionSize {
  int n, k, count, padded, room;  // count: of each list; padded: keys of a list in packs of four; room: pairs, likewise

  SelectionSize(int64_t sub_keys, int64_t chosen)
      : n(static_cast<int>(sub_keys)),
        k(static_cast<int>(chosen)),
        count(k < n ? k : n),
        padded((n + 3) / 4 * 4),
        room(0) {
    for (int p = 0; p < count; ++p) { room += pairs_of(p); }
    room = (room + 3) / 4 * 4;
  }
  /// Both lists are sorted, so the sums of ranks (p, q) with (p + 1)(q + 1) <= k hold the k best: how many q that is.
  __host__ __device__ int pairs_of(int p) const { return k / (p + 1) < count ? k / (p + 1) : count; }
  /// Of shared memory for scores of `lists` selections, made one after the other.
  int64_t bytes(int64_t lists = 1) const {
    return 4 * ((lists + 1) * 2 * padded + 2 * int64_t{room}) +
           (2 * int64_t{count} + k) * static_cast<int64_t>(sizeof(KeyPair));
  }
};

/// Shared memory of a block, in the dynamic part.
struct KeySelection {
  SelectionSize size;
  int32_t* keys;                    // [2, padded]: scores, then their order, then that of those that are kept
  int32_t* indices;                 // [2, padded]: of those
  int32_t *pair_keys, *pair_slots;  // [room]
  KeyPair* best;                    // [2, count]: of each list, ranked; .slot is the index
  KeyPair* chosen;                  // [k], best first

  __device__ KeySelection(unsigned char* raw, const SelectionSize& size, int lists = 1) : size(size) {
    keys = reinterpret_cast<int32_t*>(raw);
    indices = keys + lists * 2 * size.padded;
    pair_keys = indices + 2 * size.padded;
    pair_slots = pair_keys + size.room;
    best = reinterpret_cast<KeyPair*>(pair_slots + size.room);
    chosen = best + 2 * size.count;
  }
  /// Where the kernel puts the score of entry i of a list.
  __device__ void put(int codebook, int i, float score) const {
    keys[codebook * size.padded + i] = static_cast<int32_t>(__float_as_uint(score));
  }
};

/// Integers in the order of the numbers; -0 and 0 are equal, NaNs have a place.
__device__ __forceinline__ int32_t order_key(float x) {
  const auto bits = static_cast<int32_t>(__float_as_uint(x + 0.0f));
  return bits ^ ((bits >> 31) & 0x7FFFFFFF);
}
/// The number, 0 for -0.
__device__ __forceinline__ float number_of(int32_t key) {
  return __uint_as_float(static_cast<uint32_t>(key ^ ((key >> 31) & 0x7FFFFFFF)));
}

__device__ __forceinline__ bool is_before(const KeyPair& a, const KeyPair& b) {
  const int32_t key_a = order_key(a.sum), key_b = order_key(b.sum);
  return key_a > key_b || (key_a == key_b && a.slot < b.slot);
}

/// A bound that at least `wanted` of the first `count` keys reach, and no more where they are distinct. Behind them up
/// to a multiple of four keys are INT32_MIN. By one warp.
__device__ __forceinline__ int32_t bound_of(const int32_t* keys, int count, int wanted, int lane) {
  uint32_t bound = 0;  // in the order of unsigned numbers
  for (uint32_t bit = 0x80000000u; bit != 0; bit /= 2) {
    const auto tried = static_cast<int32_t>((bound | bit) ^ 0x80000000u);
    int reaching = 0;
    HEBB_UNROLL_BY(1)  // a few turns
    for (int at = 4 * lane; at < count; at += 128) {
      const Word4 four = load_16_bytes(keys + at);
      HEBB_UNROLL
      for (int e = 0; e < 4; ++e) { reaching += static_cast<int32_t>(four.word[e]) >= tried ? 1 : 0; }
    }
    reaching = warp_sum(reaching);
    if (reaching >= wanted) { bound |= bit; }
    if (reaching == wanted) { break; }
  }
  return static_cast<int32_t>(bound ^ 0x80000000u);
}

/// Moves the keys that reach `bound` to the front, in their order, and other(place) of each to others; fills the last
/// four up. By one warp. Returns how many there are.
template <class Other>
__device__ __forceinline__ int keep_reaching(int32_t* keys, int32_t* others, int count, int32_t bound, int lane,
                                             Other&& other) {
  int kept = 0;
  HEBB_UNROLL_BY(1)
  for (int base = 0; base < count; base += 32) {
    const int i = base + lane;
    const bool exists = i < count;
    const int32_t key = exists ? keys[i] : INT32_MIN, of_key = exists ? other(i) : 0;
    const unsigned keeps = __ballot_sync(kAllLanes, exists && key >= bound);
    __syncwarp();  // all have read
    if ((keeps >> lane & 1) != 0) {
      const int to = kept + __popc(keeps & ((1u << lane) - 1u));
      keys[to] = key;
      others[to] = of_key;
    }
    kept += __popc(keeps);
    __syncwarp();
  }
  if (kept + lane < (kept + 3) / 4 * 4) {
    keys[kept + lane] = INT32_MIN;
    others[kept + lane] = INT32_MAX;
  }
  return kept;
}

/// How many of keys [padded] come before that at place i: the greater ones, and equal ones at lower places.
__device__ __forceinline__ int rank_of_key(const int32_t* keys, int padded, int i) {
  const int32_t own = keys[i];
  const int pack = i / 4 * 4;
  int rank = 0;
  const auto add = [&](int at, auto&& is_before) {
    const Word4 four = load_16_bytes(keys + at);
    HEBB_UNROLL
    for (int e = 0; e < 4; ++e) { rank += is_before(static_cast<int32_t>(four.word[e]), at + e) ? 1 : 0; }
  };
  for (int at = 0; at < pack; at += 4) {
    add(at, [own](int32_t other, int) { return other >= own; });
  }
  add(pack, [own, i](int32_t other, int place) { return other > own || (other == own && place < i); });
  for (int at = pack + 4; at < padded; at += 4) {
    add(at, [own](int32_t other, int) { return other > own; });
  }
  return rank;
}

/// How many of the pairs come before the one at place i: greater sums, and equal ones of lower slots.
__device__ __forceinline__ int rank_of_pair(const KeySelection& s, int pairs, int i) {
  const int32_t key = s.pair_keys[i], slot = s.pair_slots[i];
  int rank = 0;
  for (int at = 0; at < pairs; at += 4) {  // places behind the last pair have the lowest key and the highest slot
    const Word4 keys = load_16_bytes(s.pair_keys + at), slots = load_16_bytes(s.pair_slots + at);
    HEBB_UNROLL
    for (int e = 0; e < 4; ++e) {
      const auto other = static_cast<int32_t>(keys.word[e]), other_slot = static_cast<int32_t>(slots.word[e]);
      rank += other > key || (other == key && other_slot < slot) ? 1 : 0;
    }
  }
  return rank;
}

/// Calls f(slot) for all pairs of the lists' best whose sum has the key.
template <class F> __device__ __forceinline__ void each_pair_of(const KeySelection& s, int32_t key, F&& f) {
  const int count = s.size.count;
  for (int item = static_cast<int>(threadIdx.x); item < count * count; item += kSelectThreads) {
    const KeyPair &a = s.best[item / count], &b = s.best[count + item % count];
    if (order_key(a.sum + b.sum) == key) { f(a.slot * s.size.n + b.slot); }
  }
}

/// Chooses again among the pairs that tie with the last one, those of the lowest slots. `greater`: chosen pairs before
/// them. Rare, but all pairs tie where all scores are equal: so the highest slot is found by bisection. All threads
/// call; ends with a barrier.
__device__ HEBB_NOINLINE void choose_among_ties(KeySelection s, int32_t key, int greater, int& counter) {
  const int wanted = s.size.k - greater;
  int low = 0, high = s.size.n * s.size.n - 1;
  while (low < high) {
    const int middle = low + (high - low) / 2;
    __syncthreads();
    if (threadIdx.x == 0) { counter = 0; }
    __syncthreads();
    int own = 0;
    each_pair_of(s, key, [&](int slot) { own += slot <= middle ? 1 : 0; });
    atomicAdd(&counter, own);
    __syncthreads();
    if (counter >= wanted) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) { counter = 0; }
  __syncthreads();
  each_pair_of(s, key, [&](int slot) {
    if (slot <= low) { s.pair_slots[atomicAdd(&counter, 1)] = slot; }
  });
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < wanted; i += kSelectThreads) {
    int rank = 0;
    for (int j = 0; j < wanted; ++j) { rank += s.pair_slots[j] < s.pair_slots[i] ? 1 : 0; }
    s.chosen[greater + rank] = {number_of(key), s.pair_slots[i]};
  }
  __syncthreads();
}

/// From the scores that were put to s.chosen. All threads call; ends with a barrier.
__device__ inline void select_keys(const KeySelection& s) {
  // Pairs so far, key of the last one chosen, whether others tie with it, the first chosen one that does; how many of
  // each list and of the pairs are kept.
  HEBB_SHARED(int[7], shared);
  int* const kept = shared + 4;
  const SelectionSize& size = s.size;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  __syncthreads();
  for (int i = thread; i < 2 * size.padded; i += kSelectThreads) {
    const bool exists = i % size.padded < size.n;
    s.keys[i] = exists ? order_key(__uint_as_float(static_cast<uint32_t>(s.keys[i]))) : INT32_MIN;
  }
  for (int i = thread; i < size.room; i += kSelectThreads) {
    s.pair_keys[i] = INT32_MIN;
    s.pair_slots[i] = INT32_MAX;
  }
  if (thread < 4) { shared[thread] = 0; }
  __syncthreads();
  if (thread < 64) {  // a warp for each list
    const int codebook = thread / 32;
    int32_t* const keys = s.keys + codebook * size.padded;
    const int32_t bound = bound_of(keys, size.n, size.count, lane);
    const int found =
        keep_reaching(keys, s.indices + codebook * size.padded, size.n, bound, lane, [](int i) { return i; });
    if (lane == 0) { kept[codebook] = found; }
  }
  __syncthreads();
  for (int item = thread; item < kept[0] + kept[1]; item += kSelectThreads) {
    const int codebook = item < kept[0] ? 0 : 1, i = item - codebook * kept[0], at = codebook * size.padded;
    const int rank = rank_of_key(s.keys + at, (kept[codebook] + 3) / 4 * 4, i);
    if (rank < size.count) { s.best[codebook * size.count + rank] = {number_of(s.keys[at + i]), s.indices[at + i]}; }
  }
  __syncthreads();
  for (int p = thread / 32; p < size.count; p += kSelectThreads / 32) {
    const int pairs = size.pairs_of(p);
    int at = lane == 0 ? atomicAdd(&shared[0], pairs) : 0;
    at = __shfl_sync(kAllLanes, at, 0);
    for (int q = lane; q < pairs; q += 32) {
      s.pair_keys[at + q] = order_key(s.best[p].sum + s.best[size.count + q].sum);
      s.pair_slots[at + q] = s.best[p].slot * size.n + s.best[size.count + q].slot;
    }
  }
  __syncthreads();
  if (thread < 32) {
    const int32_t bound = bound_of(s.pair_keys, shared[0], size.k, lane);
    const int found =
        keep_reaching(s.pair_keys, s.pair_slots, shared[0], bound, lane, [&](int i) { return s.pair_slots[i]; });
    if (lane == 0) { kept[2] = found; }
  }
  __syncthreads();
  const int pairs = kept[2];
  for (int i = thread; i < pairs; i += kSelectThreads) {
    const int rank = rank_of_pair(s, pairs, i);
    if (rank < size.k) { s.chosen[rank] = {number_of(s.pair_keys[i]), s.pair_slots[i]}; }
    if (rank == size.k - 1) { shared[1] = s.pair_keys[i]; }
  }
  __syncthreads();
  // A pair outside can only tie with the last one; then its slot decides. Of the pairs of p the first one outside is
  // the greatest.
  const int32_t last = shared[1];
  for (int p = thread; p < size.count; p += kSelectThreads) {
    const int q = size.pairs_of(p);
    if (q < size.count && order_key(s.best[p].sum + s.best[size.count + q].sum) == last) { atomicAdd(&shared[2], 1); }
  }
  for (int i = thread; i < size.k; i += kSelectThreads) {
    if (order_key(s.chosen[i].sum) == last && (i == 0 || order_key(s.chosen[i - 1].sum) != last)) { shared[3] = i; }
  }
  __syncthreads();
  if (shared[2] > 0) { choose_among_ties(s, last, shared[3], shared[0]); }
}

}  // namespace hebb::HEBB_DEVICE
