#pragma once
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/launched_rank.h"
#include "comm/watch.h"

namespace hebb {

/// What a process must know to become a rank of a run.
struct RankGroupOptions {
  fs::path run_folder;                                                // shared by all ranks
  bool uses_gpu = false;                                              // NCCL, else MPI
  std::string device, gpu_id, build;                                  // Member, Agreement
  Json config{};                                                      // what ranks must agree on
  std::string interface, secret;                                      // MeetingOptions
  double init_seconds = 300, lost_seconds = 20, stall_seconds = 300;  // meeting, then the watch
};

/// A process as one of several ranks of a run: met the others, watched, with a communicator.
class RankGroup {
 public:
  /// Errors of the meeting are thrown; once ranks have met, errors end all of them (Watch::fail).
  RankGroup(const LaunchedRank& launched, const RankGroupOptions& options);

  Communicator& communicator() { return *communicator_; }
  FlightLog& log() { return log_; }
  const std::vector<Member>& members() const { return watch_->members(); }
  HostPlace place() const { return host_place(members(), communicator_->rank()); }
  /// Name of each rank with its device, for messages.
  std::vector<std::string> names() const;
  /// Whether this start made the run folder.
  bool made_folder() const { return made_folder_; }
  /// Lines for the start of a run: each rank with host, process and device.
  std::vector<std::string> table() const;

  /// Ends all ranks with an error of this one.
  [[noreturn]] void fail(ExitCode code, const std::string& text) { watch_->fail(code, text); }
  /// Waits for all ranks to come to the end; signals to stop are ignored from then on.
  void finish();

 private:
  bool made_folder_ = false;
  FlightLog log_;
  std::unique_ptr<Watch> watch_;
  std::unique_ptr<Communicator> communicator_;
};

/// For a process that a launcher has started: it gets SIGTERM when that launcher dies, where hebb or Open MPI is the
/// launcher, and SIGUSR1 again and again when the `hebb train --ranks` behind mpirun does. SIGUSR1 and SIGUSR2 that
/// come before training starts are ignored: launchers send them again. Errors: CommError where the `hebb train --ranks`
/// has ended already.
void follow_launcher();

}  // namespace hebb
