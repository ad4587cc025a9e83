#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/stream.h"

namespace hebb {

/// Device memory with named allocations: first fit by address over a few large segments, so that the
/// same calls give the same layout, however large the segment is. On the counting device pointers are addresses of
/// nothing and only the book-keeping happens: peak_bytes() of a dry run is what the real run will need.
class Arena {
 public:
  explicit Arena(DeviceKind device, std::string name = "arena");
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// 64-byte aligned, uninitialised (poisoned with NaN bytes in debug mode). Zero bytes give a unique
  /// valid address. Throws MemoryError naming the allocation.
  void* allocate(int64_t bytes, std::string_view name);
  void release(void* address);

  /// Makes room for `bytes` in one segment now, so that later allocations cannot fail.
  void reserve(int64_t bytes);

  int64_t in_use_bytes() const { return in_use_; }
  int64_t peak_bytes() const { return peak_; }  // largest extent that allocations needed
  int64_t reserved_bytes() const;
  void reset_peak() { peak_ = in_use_; }
  DeviceKind device() const { return device_; }
  /// Fresh memory is filled with 0xFF (NaN): finds reads of memory that nobody wrote.
  void set_poison(bool on) { poison_ = on; }

  struct Use {
    std::string name;
    int64_t bytes;
  };
  /// What was allocated when the peak was reached (counting device only), largest first.
  std::vector<Use> peak_table() const;

 private:
  struct Segment {
    uintptr_t base;
    int64_t bytes;
  };
  struct Block {
    int64_t bytes, number;  // of the allocation, counted from 1
    std::string name;
  };
  void add_segment(int64_t bytes, std::string_view name);

  DeviceKind device_;
  std::string name_;
  bool poison_ = false;
  std::vector<Segment> segments_;
  std::map<uintptr_t, int64_t> free_;  // by address
  std::map<uintptr_t, Block> used_;
  int64_t in_use_ = 0, peak_ = 0;
  // The peak lasts from the allocation that reached it until the next release.
  int64_t allocations_ = 0, last_of_peak_ = 0;
  bool at_peak_ = false;
  std::map<uintptr_t, Use> released_since_peak_;  // what was in use then
};

/// A tensor that returns its memory to the arena.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Arena& arena, Shape shape, DType dtype, std::string_view name)
      : arena_(&arena), tensor_{arena.allocate(shape.numel() * dtype_bytes(dtype), name), dtype, shape} {}
  Buffer(Buffer&& other) noexcept : arena_(other.arena_), tensor_(other.tensor_) {
    other.arena_ = nullptr;
    other.tensor_ = {};
  }
  Buffer& operator=(Buffer&& other) noexcept {
    if (this != &other) {
      reset();
      std::swap(arena_, other.arena_);
      std::swap(tensor_, other.tensor_);
    }
    return *this;
  }
  ~Buffer() { reset(); }
  void reset() {
    if (arena_ != nullptr) { arena_->release(tensor_.data); }
    arena_ = nullptr;
    tensor_ = {};
  }
  const Tensor& tensor() const { return tensor_; }
  operator const Tensor&() const { return tensor_; }

 private:
  Arena* arena_ = nullptr;
  Tensor tensor_;
};

}  // namespace hebb
