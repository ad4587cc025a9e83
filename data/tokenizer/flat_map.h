#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace hebb {

/// Hash table from 64-bit keys to small values: open addressing, at most half full, no erase. The
/// key ~0 is not allowed.
template <class Value> class FlatMap {
 public:
  explicit FlatMap(size_t expected = 8) {
    size_t slots = 16;
    while (slots < 2 * expected) { slots *= 2; }
    slots_.resize(slots);
  }

  const Value* find(uint64_t key) const {
    for (size_t i = start(key);; i = (i + 1) & (slots_.size() - 1)) {
      if (slots_[i].key == key) { return &slots_[i].value; }
      if (slots_[i].key == kEmpty) { return nullptr; }
    }
  }

  /// Inserts, unless the key is there already.
  void insert(uint64_t key, Value value) {
    if (2 * (size_ + 1) > slots_.size()) { grow(); }
    size_t i = start(key);
    while (slots_[i].key != kEmpty && slots_[i].key != key) { i = (i + 1) & (slots_.size() - 1); }
    if (slots_[i].key == kEmpty) {
      slots_[i] = {key, value};
      ++size_;
    }
  }

 private:
  static constexpr uint64_t kEmpty = ~0ULL;
  struct Slot {
    uint64_t key = kEmpty;
    Value value{};
  };

  size_t start(uint64_t key) const {
    const uint64_t mixed = (key ^ key >> 32) * 0x9E3779B97F4A7C15ULL;
    return (mixed >> 20) & (slots_.size() - 1);
  }
  void grow() {
    std::vector<Slot> old(slots_.size() * 2);
    old.swap(slots_);
    size_ = 0;
    for (const Slot& slot : old) {
      if (slot.key != kEmpty) { insert(slot.key, slot.value); }
    }
  }

  std::vector<Slot> slots_;
  size_t size_ = 0;
};

}  // namespace hebb
