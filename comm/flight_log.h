#pragma once
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "core/elapsed.h"
#include "core/json.h"

namespace hebb {

/// What a rank is doing, for messages about ranks that are lost or stand still, and its last collectives. One thread
/// writes, others may read.
class FlightLog {
 public:
  static constexpr size_t kKept = 64;  // collectives

  /// The rank is at this place of a step; micro_batch -1: at none. Phases: "forward", "backward", "reduce", "update",
  /// "save", "validation", ...
  void at(int64_t step, std::string_view phase, int64_t micro_batch = -1);
  /// Something that may take long has come forward.
  void tick();
  /// A collective begins; returns its number. kind: "all-to-all", ...
  int64_t begin(std::string_view kind, int64_t bytes);
  /// That collective is complete, or enqueued on a GPU.
  void end(int64_t number);

  /// A frame of the control connection: place, ticks, collectives entered and finished.
  Json beat() const;
  /// The last collectives, oldest first, times in seconds since the log began.
  Json collectives() const;
  /// Steps that have been completed since the log began.
  int64_t steps() const;
  /// Whether the rank has been at any place of a step: before, it starts.
  bool has_begun() const;

 private:
  struct Collective {
    int64_t number = 0;
    std::string kind;
    int64_t bytes = 0, step = -1, micro_batch = -1;
    double begun = 0, ended = -1;
  };
  double now() const { return seconds_since(start_); }

  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  mutable std::mutex mutex_;
  int64_t first_step_ = -1, step_ = -1, micro_batch_ = -1, ticks_ = 0;
  int64_t entered_ = 0, finished_ = 0, before_step_ = 0;  // before_step_: collectives before this step
  std::string phase_ = "start";
  std::vector<Collective> last_;
};

/// "step 812, backward, micro-batch 3", of a beat.
std::string place_text(const Json& beat);
/// Whether the rank of a beat is in a collective.
bool is_waiting(const Json& beat);
/// "all-to-all 14 of step 812", of a beat in a collective.
std::string collective_text(const Json& beat);

}  // namespace hebb
