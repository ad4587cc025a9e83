#include "place.h"

#include <cstdint>
#include <map>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "sanitizer.h"

// libbacktrace, a part of GCC. Its header lies where only GCC looks.
extern "C" {
struct backtrace_state;
backtrace_state* backtrace_create_state(const char* file, int threaded, void (*failed)(void*, const char*, int),
                                        void* data);
int backtrace_pcinfo(backtrace_state* state, uintptr_t address,
                     int (*found)(void*, uintptr_t, const char* file, int line, const char* function),
                     void (*failed)(void*, const char*, int), void* data);
}

namespace simt {
namespace {

struct Line {
  std::string file;
  int number = 0;
  auto operator<=>(const Line&) const = default;
};
using Lines = std::vector<Line>;

std::mutex lines_mutex;

/// The emulator's functions and the standard library's are no places of a kernel.
bool is_kernels(std::string_view file) {
  return file.find("simt/emulator/") == std::string_view::npos && file.find("include/c++/") == std::string_view::npos;
}

/// The lines of a call, innermost first: several where functions are inlined. Under lines_mutex.
const Lines& lines_of(const char* return_address) {
  const auto ignore = [](void*, const char*, int) {};
  static backtrace_state* const state = backtrace_create_state(nullptr, 1, ignore, nullptr);
  static std::map<const char*, Lines> known;
  const auto [entry, is_new] = known.try_emplace(return_address);
  if (is_new) {
    const auto add = [](void* lines, uintptr_t, const char* file, int line, const char*) {
      if (file != nullptr && is_kernels(file)) { static_cast<Lines*>(lines)->push_back({file, line}); }
      return 0;
    };
    // One less: the address behind a call may belong to the next line.
    backtrace_pcinfo(state, reinterpret_cast<uintptr_t>(return_address) - 1, add, ignore, &entry->second);
  }
  return entry->second;
}

template <class Calls> Lines lines_of(const Calls& calls, int count) {
  Lines all;
  for (int i = 0; i < count; ++i) {
    const Lines& lines = lines_of(calls[static_cast<size_t>(i)]);
    all.insert(all.end(), lines.begin(), lines.end());
  }
  return all;
}

// A caller's frame lies above, and those of a kernel below the one that called it.
SIMT_NO_TSAN bool is_in_kernel(const Frame* frame, const Frame* entry) {
  return frame < frame->caller && frame->caller < entry;
}

}  // namespace

SIMT_NO_TSAN void Place::note(const Standing& at) {
  const auto below = [&](const void* address) {
    return reinterpret_cast<const char*>(at.entry) - static_cast<const char*>(address);
  };
  count_ = 0;
  depth_ = below(at.frame);
  for (const Frame* frame = at.frame; is_in_kernel(frame, at.entry) && count_ < kMost; frame = frame->caller) {
    calls_[static_cast<size_t>(count_)] = frame->return_address;
    below_entry_[static_cast<size_t>(count_++)] = static_cast<int32_t>(below(&frame->return_address));
  }
}

bool Place::operator==(const Place& other) const {
  // Copies of a line may meet at every step of a loop: what was found is kept, by both ways.
  std::uint64_t key = 0;
  for (const Place* place : {this, &other}) {
    for (int i = 0; i < place->count_; ++i) {
      key = (key ^ reinterpret_cast<uintptr_t>(place->calls_[static_cast<size_t>(i)])) * 0x9E3779B97F4A7C15u;
      key ^= key >> 29;
    }
    key = key * 31 + 1;
  }
  thread_local std::unordered_map<std::uint64_t, bool> known;
  const auto [entry, is_new] = known.try_emplace(key);
  if (is_new) {
    const std::lock_guard lock(lines_mutex);
    entry->second = lines_of(calls_, count_) == lines_of(other.calls_, other.count_);
  }
  return entry->second;
}

std::string Place::text() const {
  const std::lock_guard lock(lines_mutex);
  std::string all;
  const Lines lines = lines_of(calls_, count_);
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
    all += (all.empty() ? "" : " > ") + line->file.substr(line->file.find_last_of('/') + 1) + ":" +
           std::to_string(line->number);
  }
  return all.empty() ? "no line known" : all;
}

}  // namespace simt
