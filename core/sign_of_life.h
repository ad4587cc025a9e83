#pragma once
#include <atomic>
#include <cstdint>

namespace hebb {

/// So often has work of this process come forward that takes long and does nothing else that others hear of: reading,
/// checking and writing large files, measuring, waiting for a lock. comm/flight_log.h tells the other ranks.
inline std::atomic<int64_t>& signs_of_life() {
  static std::atomic<int64_t> count{0};
  return count;
}
/// One more. Cheap: may be called often, but by no thread that goes on while the work stands still.
inline void sign_of_life() { signs_of_life().fetch_add(1, std::memory_order_relaxed); }

}  // namespace hebb
