#pragma once
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/awake_time.h"
#include "comm/flight_log.h"
#include "comm/meeting.h"

namespace hebb {

struct WatchOptions {
  double lost_seconds = 20;         // silence after which a rank counts as lost; beats every tenth of it
  double stall_seconds = 300;       // no progress of a rank that is heard
  double start_seconds = 0;         // until started() is called; 0: no limit
  fs::path logs;                    // folder of flight records
  std::function<double()> clock{};  // of these limits, of AwakeTime
};

/// Holds the control connection of a rank on a thread of its own, sends and expects heartbeats, and ends the process
/// when the run cannot go on: another rank had an error, is gone, is silent or stands still. Rank 0 finds the cause,
/// prints it as one line on stderr and tells all; without rank 0 each rank prints it. Then it is written to the rank's
/// log, the flight record too, and the process ends with the exit code of the cause (docs/distributed.md), without
/// destructors. Silence is counted in AwakeTime: ranks that were suspended together go on together.
class Watch {
 public:
  /// log: of this rank; outlives the watch.
  Watch(ControlLinks links, int rank, const WatchOptions& options, FlightLog& log);
  /// Ends the watch without a word: other ranks take this one for lost unless finish() has returned.
  ~Watch();

  const std::vector<Member>& members() const { return members_; }
  /// The rank can communicate: from here on it stands still where it does not come forward.
  void started();
  /// Ends all ranks with an error of this one. An error of communication (CommError) may be the consequence of a rank
  /// that is gone: then that is the cause which is reported.
  [[noreturn]] void fail(ExitCode code, const std::string& text);
  /// The last barrier: returns once all ranks have called it. The watch is over then.
  void finish();

 private:
  struct Peer {
    std::unique_ptr<FrameConnection> connection{};  // null: this rank
    double heard = 0, moved = 0;                    // last frame; last change of ticks
    std::optional<Beat> beat{};
    bool is_done = false;  // has said bye

    bool is_waiting() const { return beat && beat->is_waiting(); }
  };
  struct Cause {
    int code = 0, rank = 0;
    std::string text;
  };

  bool is_hub() const { return rank_ == 0; }
  void run();
  bool look_around();
  void wait_for_frames();
  void take_frames();
  void take_frame(size_t rank, const Json& frame);
  void take_fail(size_t rank, const Json& frame);
  void hear_requests();
  void send_beats();
  void note_beat(Peer& peer, const Beat& beat);
  void look_for_lost();
  void look_for_stalls();
  bool end_is_reached();
  void suspect(const Cause& cause);
  [[noreturn]] void conclude(const Cause& cause, bool is_reported = false);
  void write_flight_record(const Cause& cause) const;
  void write_log(const Cause& cause) const;
  std::string seen_text(size_t rank) const;
  std::string waiting_text(std::optional<size_t> lost = {}) const;

  const int rank_;
  const WatchOptions options_;
  FlightLog& log_;
  const std::vector<Member> members_;
  std::vector<Peer> peers_;  // rank 0: by rank; others: rank 0 alone
  AwakeTime time_;
  double now_ = 0, next_beat_ = 0;
  std::optional<Cause> suspected_;  // an error of communication that may have another cause
  double conclude_at_ = 0;
  bool said_bye_ = false, got_bye_ = false;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Cause> own_failure_;  // requests of the main thread
  bool is_started_ = false, wants_end_ = false, is_stopped_ = false, is_over_ = false;
  std::thread thread_;
};

}  // namespace hebb
