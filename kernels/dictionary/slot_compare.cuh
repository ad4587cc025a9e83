#pragma once
// Comparison of the items of the chunk that a step folds in (keys of ovq, memory keys of kvm) with the slots of the
// dictionary: the scores that choose founders and slots (docs/layers/ovq.md, Selection; docs/layers/kvm.md, Append and
// Merge).
#include "kernels/dictionary/slot_attention.cuh"

namespace hebb::HEBB_DEVICE::slots {

/// A score and the first slot that attains it.
struct Best {
  float score;
  int32_t slot;

  __device__ void take(float other, int32_t at) {
    if (other > score || (other == score && at < slot)) {
      score = other;
      slot = at;
    }
  }
  /// The best of the lanes whose numbers differ in this bit and those below it alone.
  __device__ __forceinline__ Best over_lanes(int highest_bit) const {
    Best best = *this;
    for (int bit = highest_bit; bit > 0; bit /= 2) {
      const float other = __shfl_xor_sync(kAllLanes, best.score, bit);
      const int32_t at = __shfl_xor_sync(kAllLanes, best.slot, bit);
      best.take(other, at);
    }
    return best;
  }
};

/// Of an item and a tile of slots: the largest score, and the best slot that takes items.
struct Score {
  float largest;
  Best best;

  /// Of no slot; sinks: slots that take no items.
  static __device__ Score none(int64_t sinks) { return {-INFINITY, {-INFINITY, static_cast<int32_t>(sinks)}}; }
  __device__ void take(float score, int64_t slot, int64_t sinks) {
    largest = fmaxf(largest, score);
    if (slot >= sinks) { best.take(score, static_cast<int32_t>(slot)); }
  }
  __device__ void join(const Score& other) {
    largest = fmaxf(largest, other.largest);
    best.take(other.best.score, other.best.slot);
  }
  __device__ __forceinline__ Score over_lanes(int highest_bit) const {
    float most = largest;
    for (int bit = highest_bit; bit > 0; bit /= 2) { most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, bit)); }
    return {most, best.over_lanes(highest_bit)};
  }
};
static_assert(sizeof(Score) == 4 * kScoreWords);

/// Which slots a step's items are compared with: those before the step; the step's new ones; those before it, or where
/// there are none the item that founds the dictionary, as slot 0.
enum class Against { old_slots, new_slots, old_slots_or_founder };

template <class T> struct Compare {
  ReadLayout n;
  const T *items, *keys;  // [B, K, chunk, D], [B, K, R, D]
  const T* tokens;        // [B, T, K, D]: items of chunks that begin in this pass, or null: all are in `items`
  Score* partial;         // [B, K, tiles, chunk]
  int64_t room, step, sinks, founder;
  Against against;

  int64_t tiles() const { return (room + kTile - 1) / kTile; }

  /// The chunk's items: first of them, and elements from one to the next.
  struct Items {
    const T* data;
    int64_t stride;
  };
  __device__ Items items_of(int64_t unit) const {
    const int64_t row = unit / n.kv_heads, fold = n.at(row, step).fold;
    if (tokens == nullptr || fold < 0) { return {items + unit * n.chunk * n.d, n.d}; }
    return {tokens + ((row * n.length + fold) * n.kv_heads + unit % n.kv_heads) * n.d, int64_t{n.kv_heads} * n.d};
  }

  /// The slots of a tile: `first` to `end` - 1 of those that begin at `keys`; none where nothing is compared.
  struct Tile {
    const T* keys;
    int64_t first, end;
    __device__ int count() const { return static_cast<int>(end - first < kTile ? end - first : kTile); }
  };
  __device__ Tile tile(int64_t unit, int64_t number) const {
    const Step s = n.at(unit / n.kv_heads, step);
    if (s.fold == kNone || (against != Against::old_slots_or_founder && s.after - s.before == n.chunk)) {
      return {nullptr, 0, 0};
    }
    if (against == Against::old_slots_or_founder && s.before == 0) {
      const Items of = items_of(unit);
      return {of.data + founder * of.stride, number * kTile, 1};
    }
    const bool is_new = against == Against::new_slots;
    return {keys + unit * room * n.d, (is_new ? s.before : 0) + number * kTile, is_new ? s.after : s.before};
  }
};

/// Writes `partial` for the tiles that have slots. Where products are on tensor cores their operands are bf16, sums and
/// comparisons fp32.
template <class T> void compare_slots(Stream& stream, int64_t batch, const Compare<T>& a, bool on_tensor_cores);

/// An item's score over `count` slots, from its parts.
__device__ __forceinline__ Score score_of(const Score* partial, int64_t chunk, int64_t count, int64_t sinks) {
  Score score = Score::none(sinks);
  for (int64_t tile = 0; tile * kTile < count; ++tile) { score.join(partial[tile * chunk]); }
  return score;
}

}  // namespace hebb::HEBB_DEVICE::slots
