#pragma once
// Merging of adjacent symbols by score and a cache of words: what all encoders with BPE vocabularies share.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/flat_map.h"

namespace hebb {

/// What two adjacent symbols become, and how early: the highest score is merged first.
struct BpeMerge {
  int32_t symbol;
  float score;
};

inline uint64_t pair_key(uint32_t left, uint32_t right) { return static_cast<uint64_t>(left) << 32 | right; }

/// Merges by pair_key(left symbol, right symbol).
using BpeMerges = FlatMap<BpeMerge>;

/// Results of recent words and scratch memory of one thread; about 2 MiB. Results never depend on it.
class BpeScratch {
 public:
  BpeScratch();

  struct Node {
    int32_t symbol;  // negative: never merged
    int32_t previous, next;
    uint32_t begin, end;  // bytes of the part
  };
  /// Starts with a new part. Throws DataError where it is too long.
  void start(std::string_view part);
  /// Puts a symbol that stands for bytes begin to end behind the others.
  void append(int32_t symbol, uint32_t begin, uint32_t end);
  /// Merges, again and again, the adjacent pair of the highest score, the leftmost first among equals. Cost: n log n.
  void merge(const BpeMerges& merges);
  /// Calls visit(node) for what is left, in order.
  template <class Visit> void each(Visit visit) const {
    for (int32_t i = 0; i < static_cast<int32_t>(nodes_.size()); i = nodes_[static_cast<size_t>(i)].next) {
      visit(nodes_[static_cast<size_t>(i)]);
    }
  }

  /// Appends the ids of `part`: those of the cache, or what encode() appends.
  template <class Encode> void cached(std::string_view part, std::vector<int32_t>& ids, Encode encode);

  std::string text;  // for a changed copy of the text

 private:
  static constexpr size_t kKeyWords = 3, kKeyBytes = 8 * kKeyWords, kMaxIds = 9, kSlots = 1 << 15;
  static constexpr int32_t kGone = -2;  // symbol of a node that was merged into its left neighbour
  /// One cached part, zero-padded; two cache lines never, one always.
  struct alignas(64) Slot {
    uint64_t key[kKeyWords];
    uint16_t key_bytes, count;
    int32_t ids[kMaxIds];
  };
  struct Candidate {
    float score;
    int32_t left, right, left_symbol, right_symbol, merged;
  };
  void propose(const BpeMerges& merges, int32_t left, int32_t right);

  std::vector<Slot> slots_;
  std::vector<Node> nodes_;
  std::vector<Candidate> heap_;
};

template <class Encode> void BpeScratch::cached(std::string_view part, std::vector<int32_t>& ids, Encode encode) {
  if (part.size() > kKeyBytes) { return encode(); }
  uint64_t key[kKeyWords] = {};
  std::memcpy(key, part.data(), part.size());
  uint64_t hash = part.size();
  for (const uint64_t word : key) {
    hash = (hash ^ word) * 0x9E3779B97F4A7C15ULL;
    hash ^= hash >> 29;
  }
  Slot& slot = slots_[hash & (kSlots - 1)];
  if (slot.key_bytes == part.size() && std::memcmp(slot.key, key, sizeof key) == 0) {
    ids.insert(ids.end(), slot.ids, slot.ids + slot.count);
    return;
  }
  const size_t first = ids.size();
  encode();
  const size_t count = ids.size() - first;
  if (count <= kMaxIds) {
    std::memcpy(slot.key, key, sizeof key);
    slot.key_bytes = static_cast<uint16_t>(part.size());
    slot.count = static_cast<uint16_t>(count);
    std::copy(ids.begin() + static_cast<std::ptrdiff_t>(first), ids.end(), slot.ids);
  }
}

}  // namespace hebb
