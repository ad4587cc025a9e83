// Instructions that need more than the calling thread: barriers, warp collectives, shared memory, asynchronous copies.
#include <sys/mman.h>

#include <new>

#include "block.h"

namespace simt {

void fault(const std::string& what, const Place& place) {
  Worker& w = worker();
  throw Fault(describe(w.running(), w.launch().grid.kernel) + ": " + what + " (" + place.text() + ")");
}

void fault(const std::string& what) {
  const Unwatched unwatched;
  fault(what, worker().at(SIMT_FRAME));
}

void sync_threads() {
  const Unwatched unwatched;
  worker().barrier(SIMT_FRAME, false);
}

void sync_roles() {
  const Unwatched unwatched;
  worker().barrier(SIMT_FRAME, true);
}

namespace {

[[gnu::always_inline]] inline void gather(unsigned mask, const char* name, void* arguments, Compute compute,
                                          const Frame* frame) {
  Worker& w = worker();
  Thread& thread = w.running();
  const Standing here = w.at(frame);
  Warp& warp = w.warp_of(thread);
  const unsigned own = 1u << (thread.number & 31);
  if ((mask & own) == 0) { fault(std::string("calls ") + name + " with a mask that does not name it", here); }
  Pending* pending = nullptr;
  for (Pending& p : warp.pending) {
    if (p.mask == mask) { pending = &p; }
  }
  if (pending == nullptr) {
    for (int lane = 0; w.has_finished_threads() && lane < 32; ++lane) {
      if ((mask >> lane & 1u) != 0 && w.lane_of(thread, lane).state == State::finished) {
        fault(std::string("calls ") + name + " with a mask that names lane " + std::to_string(lane) +
                  ", which has returned",
              here);
      }
    }
    pending = &warp.pending.emplace_back();
    pending->mask = mask;
    pending->name = name;
    pending->place.note(here);
  } else if (!pending->place.is_of(here) || (pending->name != name && std::string_view(pending->name) != name)) {
    fault(std::string("reaches ") + name + " while lanes of its mask wait in " + pending->name + " at " +
              pending->place.text(),
          here);
  }
  pending->arguments[static_cast<size_t>(thread.number & 31)] = arguments;
  pending->arrived |= own;
  if (pending->arrived != mask) {
    w.suspend(State::in_collective, name, frame);
    return;
  }
  if (compute != nullptr) { compute(pending->arguments.data()); }
  for (int lane = 0; lane < 32; ++lane) {
    if ((mask >> lane & 1u) != 0) { w.lane_of(thread, lane).state = State::ready; }
  }
  if (pending != &warp.pending.back()) { *pending = warp.pending.back(); }
  warp.pending.pop_back();
}

}  // namespace

void collective(unsigned mask, const char* name, void* arguments, Compute compute) {
  const Unwatched unwatched;
  gather(mask, name, arguments, compute, SIMT_FRAME);
}

void sync_warp(unsigned mask) {
  const Unwatched unwatched;
  Worker& w = worker();
  Warp& warp = w.warp_of(w.running());
  const auto lowest = static_cast<size_t>(std::countr_zero(mask | 1u << 31));
  const unsigned char generation = warp.generation[lowest];
  char* const tag = &warp.tags[lowest][generation & 1u];
  happens_before(tag);
  gather(mask, "__syncwarp", nullptr, nullptr, SIMT_FRAME);
  warp.generation[lowest] = static_cast<unsigned char>(generation + 1);
  happens_after(tag);
}

// ---- shared memory

SharedMemory::SharedMemory() { map(); }

SharedMemory::~SharedMemory() {
  const Unwatched unwatched;
  ASAN_UNPOISON_MEMORY_REGION(base_, kSharedLimit);
  munmap(base_, static_cast<size_t>(kSharedLimit));
}

void SharedMemory::map() {
  void* memory =
      mmap(nullptr, static_cast<size_t>(kSharedLimit), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) { throw std::bad_alloc(); }
  base_ = static_cast<unsigned char*>(memory);
}

void SharedMemory::begin_block(int64_t dynamic_bytes, int64_t limit) {
  limit_ = limit;
#ifdef SIMT_TSAN
  // Mapped anew, so that the accesses of the worker's previous block are neither seen as races nor ordered before
  // these.
  munmap(base_, static_cast<size_t>(kSharedLimit));
  map();
#endif
  ASAN_UNPOISON_MEMORY_REGION(base_, kSharedLimit);
  ASAN_POISON_MEMORY_REGION(base_, kSharedLimit);
  end_ = 0;
  arrays_.clear();
  if (dynamic_bytes > 0) { append(nullptr, dynamic_bytes, "(dynamic)"); }
}

void* SharedMemory::array(const void* key, int64_t bytes, const char* name) {
  for (const SharedArray& array : arrays_) {
    if (array.key == key) { return base_ + array.begin; }
  }
  return append(key, bytes, name);
}

void* SharedMemory::append(const void* key, int64_t bytes, const char* name) {
  const int64_t room = (bytes + 15) / 16 * 16;
  if (end_ + room > limit_) { return nullptr; }
  unsigned char* const begin = base_ + end_;
  const int64_t zone = std::min(kZoneBytes + room - bytes, limit_ - end_ - bytes);
  ASAN_UNPOISON_MEMORY_REGION(begin, bytes + zone);
  std::memset(begin, 0xFF, static_cast<size_t>(bytes));
  std::memset(begin + bytes, kZoneByte, static_cast<size_t>(zone));
  ASAN_POISON_MEMORY_REGION(begin + bytes, zone);
  arrays_.push_back({key, name, end_, bytes});
  end_ = std::min(end_ + room + kZoneBytes, limit_);
  return begin;
}

bool SharedMemory::holds(const void* address, int64_t bytes) const {
  const auto* begin = static_cast<const unsigned char*>(address);
  for (const SharedArray& array : arrays_) {
    if (begin >= base_ + array.begin && begin + bytes <= base_ + array.begin + array.bytes) { return true; }
  }
  return false;
}

const char* SharedMemory::damaged() const {
#ifndef SIMT_ASAN  // which reports the access itself
  for (size_t i = 0; i < arrays_.size(); ++i) {
    const int64_t begin = arrays_[i].begin + arrays_[i].bytes;
    const int64_t end = i + 1 < arrays_.size() ? arrays_[i + 1].begin : end_;
    for (int64_t at = begin; at < end; ++at) {
      if (base_[at] != kZoneByte) { return arrays_[i].name; }
    }
  }
#endif
  return nullptr;
}

unsigned char* dynamic_shared() {
  const Unwatched unwatched;
  return worker().shared().dynamic();
}

void* static_shared(const void* key, int64_t bytes, const char* name) {
  const Unwatched unwatched;
  void* memory = worker().shared().array(key, bytes, name);
  if (memory == nullptr) { fault(std::string("shared memory is exhausted by ") + name, worker().at(SIMT_FRAME)); }
  return memory;
}

bool is_shared(const void* address, int64_t bytes) {
  const Unwatched unwatched;
  return worker().shared().holds(address, bytes);
}

// ---- cp.async

namespace {

void perform(const AsyncCopy& copy) {
  report_read(copy.from, static_cast<size_t>(copy.from_bytes));
  report_write(copy.to, static_cast<size_t>(copy.bytes));
  const Unwatched unwatched;
  std::memcpy(copy.to, copy.from, static_cast<size_t>(copy.from_bytes));
  std::memset(static_cast<char*>(copy.to) + copy.from_bytes, 0, static_cast<size_t>(copy.bytes - copy.from_bytes));
}

std::vector<AsyncCopy> take_first(Thread& thread, size_t count) {
  const Unwatched unwatched;
  const auto end = thread.copies.begin() + static_cast<std::ptrdiff_t>(count);
  std::vector<AsyncCopy> first(thread.copies.begin(), end);
  thread.copies.erase(thread.copies.begin(), end);
  return first;
}

}  // namespace

void copy_to_shared(void* to, const void* from, int bytes, int from_bytes) {
  bool early = false;
  const AsyncCopy copy{to, from, bytes, from_bytes};
  {
    const Unwatched unwatched;
    Worker& w = worker();
    const Standing here = w.at(SIMT_FRAME);
    const auto misaligned = [&](const void* address) {
      return reinterpret_cast<uintptr_t>(address) % static_cast<unsigned>(bytes) != 0;
    };
    if (misaligned(to) || misaligned(from)) {
      fault("cp.async with addresses that are not multiples of " + std::to_string(bytes) + " bytes", here);
    }
    if (!w.shared().holds(to, bytes)) { fault("cp.async to an address outside of shared memory", here); }
    w.running().copies.push_back(copy);
    w.last_copy(w.running()).note(here);
    early = w.launch().settings.timing == Timing::early;
  }
  if (early) { perform(copy); }
}

void commit_copies() {
  const Unwatched unwatched;
  Thread& thread = worker().running();
  thread.group_ends.push_back(thread.copies.size());
}

void wait_copies(int groups_left) {
  std::vector<AsyncCopy> due;
  bool late = false;
  {
    const Unwatched unwatched;
    Worker& w = worker();
    Thread& thread = w.running();
    late = w.launch().settings.timing == Timing::late;
    const int groups = static_cast<int>(thread.group_ends.size()) - groups_left;
    if (groups <= 0) { return; }
    const size_t end = thread.group_ends[static_cast<size_t>(groups) - 1];
    due = take_first(thread, end);
    thread.group_ends.erase(thread.group_ends.begin(), thread.group_ends.begin() + groups);
    for (size_t& group_end : thread.group_ends) { group_end -= end; }
  }
  if (late) {
    for (const AsyncCopy& copy : due) { perform(copy); }
  }
}

}  // namespace simt
