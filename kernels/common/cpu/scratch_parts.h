#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>

#include "core/parallel.h"

namespace hebb::cpu {

/// Hands out parts of one slot of scratch, each on a cache line of its own. Without memory it only counts.
template <class S> class ScratchParts {
 public:
  explicit ScratchParts(S* base) : base_(base) {}
  S* take(int64_t count) {
    S* p = base_ != nullptr ? base_ + used_ : nullptr;
    used_ += (count + 15) / 16 * 16;
    return p;
  }
  double* doubles(int64_t count) {
    return reinterpret_cast<double*>(take(count * static_cast<int64_t>(sizeof(double) / sizeof(S))));
  }
  int64_t used() const { return used_; }

 private:
  S* base_;
  int64_t used_ = 0;
};

/// Elements that a Part of these sizes takes of a slot. Counted in floats: in doubles it takes as many or fewer.
template <class Part, class... Sizes> int64_t elements_of(const Sizes&... sizes) {
  ScratchParts<float> parts(nullptr);
  const Part part(parts, sizes...);
  return parts.used();
}

/// Calls f(task, slot) for every task, in order, each slot on one thread at a time; f's result must not depend on the
/// slot.
template <class F> void for_tasks(int64_t tasks, int64_t slots, F&& f) {
  std::atomic<int64_t> next{0};
  parallel_each(std::min(slots, tasks), 1, [&](int64_t slot) {
    for (int64_t task = next++; task < tasks; task = next++) { f(task, slot); }
  });
}

}  // namespace hebb::cpu
