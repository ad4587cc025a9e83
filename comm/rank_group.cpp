#include "comm/rank_group.h"

#include <fmt/core.h>

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "comm/launch_processes.h"
#include "comm/load_mpi.h"
#include "comm/sha256.h"
#if HEBB_HAVE_NCCL
#include "comm/nccl_communicator.h"
#endif

namespace hebb {
namespace {

const char* environment(const char* name) { return std::getenv(name); }

#if HEBB_HAVE_NCCL
std::string library_version(bool uses_gpu) { return uses_gpu ? "NCCL " + nccl_version() : mpi_version(); }

std::string make_ids() {
  const auto bytes = make_nccl_id().bytes;
  return hexadecimal({bytes.data(), bytes.size()});
}

NcclId read_ids(const std::string& hex) {
  NcclId id;
  if (hex.size() != 2 * id.bytes.size()) { throw CommError("nccl", "rank 0 sent no id"); }
  for (size_t i = 0; i < id.bytes.size(); ++i) {
    id.bytes[i] = static_cast<char>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
  }
  return id;
}
#else
std::string library_version(bool uses_gpu) {
  if (uses_gpu) { throw CommError("nccl", "this build is without NCCL, which ranks on GPUs need"); }
  return mpi_version();
}
#endif

/// mpirun hands on the signal that it gets when `hebb train --ranks` dies once, and a rank that starts ignores it.
void signal_after_end_of(pid_t launcher) {
  std::thread([launcher] {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);  // signals are the main thread's
    wait_for_end(launcher);
    for (;;) {
      ::kill(::getpid(), SIGUSR1);
      std::this_thread::sleep_for(std::chrono::seconds(1));
    }
  }).detach();
}

/// torchrun's own store may listen at MASTER_ADDR:MASTER_PORT.
bool has_free_address(const LaunchedRank& launched) {
  const char* store = environment("TORCHELASTIC_USE_AGENT_STORE");
  return !launched.address.empty() && (store == nullptr || std::strcmp(store, "True") != 0);
}

MeetingOptions meeting_of(const LaunchedRank& launched, const RankGroupOptions& options) {
  MeetingOptions meeting;
  meeting.self = this_member(launched.rank);
  meeting.self.local_rank = launched.local_rank.value_or(-1);
  meeting.self.device = options.device;
  meeting.self.gpu_id = options.gpu_id;
  meeting.agreement = {launched.size, options.build, library_version(options.uses_gpu), options.config};
  meeting.launch = read_launch_id(environment);
  meeting.folder = options.run_folder;
  if (has_free_address(launched)) {
    meeting.address = launched.address;
    meeting.port = launched.port;
  }
  meeting.secret = options.secret;
  meeting.is_one_host = launched.local_size.value_or(0) == launched.size;
  meeting.interface = options.interface;
  meeting.init_seconds = options.init_seconds;
  meeting.notice = [](const std::string& line) { std::fprintf(stderr, "meeting: %s\n", line.c_str()); };
#if HEBB_HAVE_NCCL
  if (options.uses_gpu) { meeting.make_ids = make_ids; }
#endif
  return meeting;
}

std::unique_ptr<Communicator> make_communicator(const LaunchedRank& launched, const RankGroupOptions& options,
                                                [[maybe_unused]] const std::string& ids) {
#if HEBB_HAVE_NCCL
  if (options.uses_gpu) {
    return make_nccl_communicator(read_ids(ids), launched.rank, launched.size, options.init_seconds);
  }
#endif
  std::unique_ptr<Communicator> mpi = load_mpi_communicator();
  if (mpi->rank() != launched.rank || mpi->size() != launched.size) {
    throw CommError("mpi",
                    fmt::format("the launcher says rank {:d} of {:d}, {} says rank {:d} of {:d}; start ranks on CPUs "
                                "with hebb train --ranks or with the mpirun of this MPI",
                                launched.rank, launched.size, mpi_version(), mpi->rank(), mpi->size()));
  }
  return mpi;
}

}  // namespace

RankGroup::RankGroup(const LaunchedRank& launched, const RankGroupOptions& options) {
  ControlLinks links = meet(meeting_of(launched, options));
  const std::string ids = links.ids;
  made_folder_ = links.made_folder;
  const WatchOptions watch{.lost_seconds = options.lost_seconds,
                           .stall_seconds = options.stall_seconds,
                           .start_seconds = options.init_seconds,
                           .logs = options.run_folder / "logs"};
  watch_ = std::make_unique<Watch>(std::move(links), launched.rank, watch, log_);
  try {
    communicator_ = make_communicator(launched, options, ids);
  } catch (const Error& error) { watch_->fail(error.code(), error.what()); }
  watch_->started();
  communicator_->record_in(&log_);
}

std::vector<std::string> RankGroup::names() const {
  std::vector<std::string> names;
  for (const Member& m : members()) { names.push_back(m.name() + " on " + m.device); }
  return names;
}

std::vector<std::string> RankGroup::table() const {
  std::vector<std::string> lines{"rank  host:process  device"};
  for (const Member& m : members()) {
    lines.push_back(
        fmt::format("{:d}  {}:{:d}  {}{}{}", m.rank, m.host, m.pid, m.device, m.gpu_id.empty() ? "" : " ", m.gpu_id));
  }
  return lines;
}

void RankGroup::finish() {
  watch_->finish();
  // mpirun ends the others with SIGTERM as soon as one has exited with a code that is not 0: all keep their own.
  for (const int number : {SIGTERM, SIGINT, SIGUSR1, SIGUSR2}) { ::signal(number, SIG_IGN); }
}

void follow_launcher() {
  for (const int number : {SIGUSR1, SIGUSR2}) { ::signal(number, SIG_IGN); }
  const bool is_known = environment("HEBB_LAUNCH") != nullptr || environment("OMPI_COMM_WORLD_RANK") != nullptr;
  if (is_known) { ::prctl(PR_SET_PDEATHSIG, SIGTERM); }
  const char* launcher = environment("HEBB_LAUNCHER");
  const pid_t pid = launcher == nullptr ? 0 : static_cast<pid_t>(std::atol(launcher));
  if (pid <= 0) { return; }
  if (::kill(pid, 0) != 0 && errno == ESRCH) {
    throw CommError("hebb train --ranks", fmt::format("process {:d}, which starts the ranks, has ended", pid));
  }
  signal_after_end_of(pid);
}

}  // namespace hebb
