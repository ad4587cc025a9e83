#include "core/arena.h"

#include <fmt/core.h>

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

namespace hebb {

#ifdef HEBB_HAVE_CUDA
namespace cuda {
void* allocate_segment(int64_t bytes);  // nullptr when the device has no room
void free_segment(void* address);
void fill_bytes(void* address, int value, int64_t bytes);
}  // namespace cuda
#endif

namespace {

constexpr int64_t kAlign = 64;
constexpr int64_t kMinSegment = int64_t{64} << 20;
constexpr int64_t kHugePage = int64_t{2} << 20;
constexpr int64_t kCountingSegment = int64_t{1} << 56;

int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

}  // namespace

Arena::Arena(DeviceKind device, std::string name) : device_(device), name_(std::move(name)) {
  if (device_ == DeviceKind::count) {
    segments_.push_back({static_cast<uintptr_t>(kHugePage), kCountingSegment});
    free_[segments_[0].base] = kCountingSegment;
  }
}

Arena::~Arena() {
  for (const Segment& s : segments_) {
    if (device_ == DeviceKind::cpu) { munmap(reinterpret_cast<void*>(s.base), static_cast<size_t>(s.bytes)); }
#ifdef HEBB_HAVE_CUDA
    if (device_ == DeviceKind::cuda) { cuda::free_segment(reinterpret_cast<void*>(s.base)); }
#endif
  }
}

void Arena::add_segment(int64_t bytes, std::string_view name) {
  const int64_t size = round_up(std::max(bytes, kMinSegment), kHugePage);
  void* base = nullptr;
  if (device_ == DeviceKind::cpu) {
    base = mmap(nullptr, static_cast<size_t>(size), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) {
      base = nullptr;
    } else {
      madvise(base, static_cast<size_t>(size), MADV_HUGEPAGE);
    }
  }
#ifdef HEBB_HAVE_CUDA
  if (device_ == DeviceKind::cuda) { base = cuda::allocate_segment(size); }
#endif
  if (base == nullptr) {
    throw MemoryError(name_, fmt::format("no memory for {} (found {:d} bytes in use, expected room for {:d} more)",
                                         name, in_use_, bytes));
  }
  segments_.push_back({reinterpret_cast<uintptr_t>(base), size});
  free_[reinterpret_cast<uintptr_t>(base)] = size;
}

void Arena::reserve(int64_t bytes) {
  const bool room = std::any_of(free_.begin(), free_.end(), [&](const auto& f) { return f.second >= bytes; });
  if (!room) { add_segment(bytes, "the reservation of " + name_); }
}

void* Arena::allocate(int64_t bytes, std::string_view name) {
  HEBB_ASSERT(bytes >= 0);
  const int64_t size = round_up(std::max<int64_t>(bytes, 1), kAlign);
  const auto first_fit = [&] {
    return std::find_if(free_.begin(), free_.end(), [&](const auto& f) { return f.second >= size; });
  };
  auto it = first_fit();
  if (it == free_.end()) {
    add_segment(size, name);
    it = first_fit();
  }
  const auto [base, found] = *it;
  free_.erase(it);
  if (found > size) { free_[base + static_cast<uintptr_t>(size)] = found - size; }
  allocations_ += 1;
  used_[base] = {size, allocations_, device_ == DeviceKind::count ? std::string(name) : std::string()};
  in_use_ += size;
  if (device_ == DeviceKind::count) {
    // The extent, not the sum: holes between live blocks are memory that the real run needs too.
    const int64_t extent = static_cast<int64_t>(base - segments_[0].base) + size;
    if (extent > peak_) {
      at_peak_ = true;
      released_since_peak_.clear();
    }
    if (at_peak_) { last_of_peak_ = allocations_; }
    peak_ = std::max(peak_, extent);
  } else {
    peak_ = std::max(peak_, in_use_);
  }
  void* address = reinterpret_cast<void*>(base);
  if (poison_) {
    if (device_ == DeviceKind::cpu) { std::memset(address, 0xFF, static_cast<size_t>(size)); }
#ifdef HEBB_HAVE_CUDA
    if (device_ == DeviceKind::cuda) { cuda::fill_bytes(address, 0xFF, size); }
#endif
  }
  return address;
}

void Arena::release(void* address) {
  at_peak_ = false;
  const auto it = used_.find(reinterpret_cast<uintptr_t>(address));
  HEBB_ASSERT(it != used_.end());
  uintptr_t base = it->first;
  int64_t bytes = it->second.bytes;
  if (it->second.number <= last_of_peak_) { released_since_peak_[base] = {std::move(it->second.name), bytes}; }
  in_use_ -= bytes;
  used_.erase(it);
  const auto segment_of = [&](uintptr_t a) {
    return std::find_if(segments_.begin(), segments_.end(),
                        [&](const Segment& s) { return a >= s.base && a - s.base < static_cast<uintptr_t>(s.bytes); });
  };
  // Coalesce with the free neighbours of the same segment.
  const auto next = free_.lower_bound(base);
  if (next != free_.end() && base + static_cast<uintptr_t>(bytes) == next->first &&
      segment_of(base) == segment_of(next->first)) {
    bytes += next->second;
    free_.erase(next);
  }
  auto previous = free_.lower_bound(base);
  if (previous != free_.begin()) {
    --previous;
    if (previous->first + static_cast<uintptr_t>(previous->second) == base &&
        segment_of(previous->first) == segment_of(base)) {
      previous->second += bytes;
      return;
    }
  }
  free_[base] = bytes;
}

int64_t Arena::reserved_bytes() const {
  int64_t sum = 0;
  for (const Segment& s : segments_) { sum += s.bytes; }
  return device_ == DeviceKind::count ? peak_ : sum;
}

std::vector<Arena::Use> Arena::peak_table() const {
  std::map<uintptr_t, Use> at_peak = released_since_peak_;
  for (const auto& [base, block] : used_) {
    if (block.number <= last_of_peak_) { at_peak[base] = {block.name, block.bytes}; }
  }
  std::vector<Use> uses;
  for (auto& [base, use] : at_peak) { uses.push_back(std::move(use)); }
  std::stable_sort(uses.begin(), uses.end(), [](const Use& a, const Use& b) { return a.bytes > b.bytes; });
  return uses;
}

}  // namespace hebb
