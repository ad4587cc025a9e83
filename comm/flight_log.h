#pragma once
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "core/elapsed.h"
#include "core/files.h"
#include "core/json.h"

namespace hebb {

/// Where a rank is, as others hear of it.
struct Beat {
  int64_t ticks = 0;                    // of everything that came forward
  int64_t step = -1, micro_batch = -1;  // -1: none
  std::string phase = "start";
  int64_t entered = 0, finished = 0, in_step = 0;  // collectives; in_step: entered in this step
  std::string collective{};                        // kind of the last one; empty: none

  bool is_waiting() const { return entered > finished; }  // in a collective
  std::string place() const;                              // "step 812, backward, micro-batch 3"
  std::string collective_text() const;                    // "all-to-all 14 of step 812"
};
/// A frame of the control connection.
Json beat_frame(const Beat& beat);
/// Errors: CommError for a frame that is no complete beat with values in their ranges.
Beat read_beat(const Json& frame);

/// What a rank is doing, for messages about ranks that are lost or stand still, and its last collectives. One thread
/// writes, others may read.
class FlightLog {
 public:
  static constexpr size_t kKept = 64;  // collectives

  /// The rank is at this place of a step; micro_batch -1: at none. Phases: "forward", "backward", "reduce", "update",
  /// "save", "validation", ...
  void at(int64_t step, std::string_view phase, int64_t micro_batch = -1);
  /// Progress was made: resets the timer of a stall.
  void tick();
  /// A collective begins; returns its number. kind: "all-to-all", ...
  int64_t begin(std::string_view kind, int64_t bytes);
  /// That collective is complete, or enqueued on a GPU.
  void end(int64_t number);

  /// The rank's own log file, which gets the error that ends the run; nothing before it is open.
  void set_file(const fs::path& path);
  fs::path file() const;

  Beat beat() const;
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
  Beat beat_;
  int64_t first_step_ = -1, before_step_ = 0;  // before_step_: collectives before this step
  std::vector<Collective> last_;
  fs::path file_;
};

}  // namespace hebb
