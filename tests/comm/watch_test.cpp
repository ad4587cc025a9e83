// Ranks as processes: however one of them ends, none lives on, and the cause is named.
#include "comm/watch.h"

#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <new>
#include <thread>

#include "comm/communicator.h"
#include "core/sign_of_life.h"
#include "tests/temp_folder.h"
#include "tests/test.h"

namespace {

constexpr int kMostRanks = 8;

/// What a test and the ranks that it forks have in common. The time of the ranks stands still until the test lets it
/// pass: a rank that gets no processor for a while is not lost.
struct Shared {
  std::atomic<double> time[kMostRanks]{};  // by rank
  std::atomic<int> rounds[kMostRanks]{};   // of the watch, where all that it has sent before has arrived
  std::atomic<bool> is_ready[kMostRanks]{};
  std::atomic<int> asked{0}, done{0};  // of a rank by the test; -1: to come to its end
};

void sleep_a_little() { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }
/// Waits for something that comes; what has not come after ten minutes never will.
void await(const std::string& what, const std::function<bool()>& is_there) {
  bool is = is_there();
  for (int i = 0; i < 600'000 && !is; ++i) {
    sleep_a_little();
    is = is_there();
  }
  INFO("waited for " << what);
  REQUIRE(is);
}

struct Rank {
  int rank;
  Watch& watch;
  FlightLog& log;
  Shared& shared;

  void ready() const { shared.is_ready[rank] = true; }
  [[noreturn]] void wait_for_ever() const {
    ready();
    for (;;) { ::pause(); }
  }
  void wait_for_end() const {
    ready();
    while (shared.asked >= 0) { sleep_a_little(); }
  }
};

/// Whether the system of the other end has all that was sent through a socket; receipts for what came are sent at once.
bool is_delivered(int fd) {
  const int yes = 1;
  int bytes = 0;
  ::setsockopt(fd, IPPROTO_TCP, TCP_QUICKACK, &yes, sizeof yes);
  return ::ioctl(fd, SIOCOUTQ, &bytes) != 0 || bytes == 0;
}

/// Processes that meet in a folder, have a watch each, and run `body`, then pass the last barrier and exit with 0.
class RankProcesses {
 public:
  /// false_rank: what the last rank does instead, without a watch.
  RankProcesses(int size, const WatchOptions& watch, const std::function<void(Rank)>& body,
                const std::function<void(FrameConnection& to_first)>& false_rank = {})
      : step_(watch.lost_seconds / 8), watches_(false_rank ? size - 1 : size), is_stopped_(static_cast<size_t>(size)) {
    void* memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    shared_ = new (memory) Shared;
    for (int r = 0; r < size; ++r) {
      const pid_t pid = ::fork();
      if (pid == 0) { run(r, size, watch, body, r == watches_ ? false_rank : nullptr); }
      pids_.push_back(pid);
    }
  }
  ~RankProcesses() {
    for (const pid_t pid : pids_) {
      if (pid > 0) { ::kill(pid, SIGKILL), ::waitpid(pid, nullptr, 0); }
    }
    ::munmap(shared_, sizeof(Shared));
  }

  pid_t pid(int rank) const { return pids_[static_cast<size_t>(rank)]; }
  bool has_ended(int rank) const {
    siginfo_t info{};
    return pid(rank) == 0 ||
           (::waitid(P_PID, static_cast<id_t>(pid(rank)), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0);
  }
  /// Once every rank that has a watch is ready, and rank 0 has heard of it.
  void wait_until_ready() const {
    for (int r = 0; r < watches_; ++r) {
      await("a rank that gets ready", [&] { return shared_->is_ready[r] || has_ended(r); });
      REQUIRE(shared_->is_ready[r]);
    }
    wait_for_rounds();
  }
  /// Lets time pass for the ranks that run, a little more than that between two beats at a time: in each of these steps
  /// all send a beat, and rank 0 hears them.
  void pass(double seconds) {
    for (double passed = 0; passed < seconds; passed += step_) { pass_step(step_); }
  }
  void pass_step(double seconds) {
    for (int r = 0; r < watches_; ++r) {
      if (does_run(r)) { shared_->time[r] = shared_->time[r] + seconds; }
    }
    wait_for_rounds();
  }
  /// Lets time pass until a rank has ended.
  void pass_until_end(int rank, double step) {
    for (int steps = 0; !has_ended(rank); ++steps) {
      REQUIRE(steps < 3000);
      pass_step(step);
    }
  }

  struct End {
    int code = -1;  // 128+n for a signal; -1: lives
    std::string errors;
  };
  /// How ranks have ended; waits for the first `awaited` of them, but for those that are stopped.
  std::vector<End> ends(size_t awaited = SIZE_MAX) {
    std::vector<End> ends(pids_.size());
    for (size_t r = 0; r < pids_.size(); ++r) {
      int status = 0;
      if (r < awaited && !is_stopped_[r]) {
        await("the end of a rank", [&] { return has_ended(static_cast<int>(r)); });
      }
      if (pids_[r] > 0 && ::waitpid(pids_[r], &status, WNOHANG) == pids_[r]) {
        ends[r].code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        pids_[r] = 0;
      }
      const fs::path errors = folder_ / ("stderr" + std::to_string(r));
      if (fs::exists(errors)) { ends[r].errors = read_file(errors); }
    }
    return ends;
  }
  void stop(int rank) {
    ::kill(pid(rank), SIGSTOP);
    wait_until_stopped(rank);
  }
  void wait_until_stopped(int rank) {
    siginfo_t stopped{};
    REQUIRE(::waitid(P_PID, static_cast<id_t>(pid(rank)), &stopped, WSTOPPED | WNOWAIT) == 0);
    is_stopped_[static_cast<size_t>(rank)] = true;
  }
  void go_on(int rank) {
    is_stopped_[static_cast<size_t>(rank)] = false;
    ::kill(pid(rank), SIGCONT);
  }
  Shared& shared() const { return *shared_; }
  Json flight_record(int rank) const {
    return parse_json_file((folder_ / ("logs/flight_0000" + std::to_string(rank) + ".json")).string());
  }

 private:
  bool does_run(int rank) const { return !is_stopped_[static_cast<size_t>(rank)] && !has_ended(rank); }
  /// Until the watches of the ranks that run have sent what there is to send, and then that of rank 0 has read it.
  void wait_for_rounds() const {
    for (const bool is_first : {false, true}) {
      int before[kMostRanks];
      for (int r = 0; r < watches_; ++r) { before[r] = shared_->rounds[r]; }
      for (int r = is_first ? 0 : 1; r < (is_first ? 1 : watches_); ++r) {
        // One more may be the rest of a round; two are a whole one between them.
        await("a round of a watch", [&] { return !does_run(r) || shared_->rounds[r] >= before[r] + 2; });
      }
    }
  }

  [[noreturn]] void run(int rank, int size, WatchOptions options, const std::function<void(Rank)>& body,
                        const std::function<void(FrameConnection& to_first)>& false_rank) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // a test that is killed leaves none of them
    const std::string errors = (folder_ / ("stderr" + std::to_string(rank))).string();
    ::dup2(::open(errors.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), 2);
    MeetingOptions meeting;
    meeting.agreement.size = size;
    meeting.self = this_member(rank);
    meeting.self.host = "host" + std::to_string(rank);
    meeting.folder = folder_.path();
    meeting.is_one_host = true;
    meeting.init_seconds = 600;
    FlightLog log;
    options.logs = folder_ / "logs";
    ControlLinks links = meet(meeting);
    if (false_rank) {
      false_rank(*links.connections[0]);
      for (;;) { ::pause(); }
    }
    std::vector<int> sockets;
    for (const auto& connection : links.connections) {
      if (connection != nullptr) { sockets.push_back(connection->fd()); }
    }
    options.clock = [this, rank, sockets] {
      const double time = shared_->time[rank];
      if (std::all_of(sockets.begin(), sockets.end(), is_delivered)) { ++shared_->rounds[rank]; }
      return time;
    };
    {
      Watch watch(std::move(links), rank, options, log);
      const Rank self{rank, watch, log, *shared_};
      body(self);
      self.ready();
      watch.finish();
    }
    ::_exit(0);
  }

  TempFolder folder_;
  const double step_;
  const int watches_;  // of the first ranks
  Shared* shared_ = nullptr;
  std::vector<pid_t> pids_;
  std::vector<bool> is_stopped_;
};

const WatchOptions kQuick{.lost_seconds = 0.25, .stall_seconds = 60, .logs = {}};

std::string name_of(int rank, pid_t pid) {
  return "rank " + std::to_string(rank) + " (host" + std::to_string(rank) + ":" + std::to_string(pid) + ")";
}

}  // namespace

TEST_CASE("no rank ends before all have come to the end", "[fast]") {
  RankProcesses ranks(3, kQuick, [](Rank r) {
    if (r.rank == 2) { r.wait_for_end(); }
  });
  ranks.wait_until_ready();
  ranks.pass(4 * kQuick.lost_seconds);  // nor is one of them lost
  CHECK_FALSE((ranks.has_ended(0) || ranks.has_ended(1)));
  ranks.shared().asked = -1;
  for (const auto& end : ranks.ends()) { CHECK((end.code == 0 && end.errors.empty())); }
}

TEST_CASE("a killed rank ends all with 14, and is named with what others wait for", "[fast]") {
  RankProcesses ranks(3, kQuick, [](Rank r) {
    r.log.at(812, "backward", r.rank == 1 ? 3 : 7);
    if (r.rank != 1) { r.log.begin("all-to-all", 64); }
    r.wait_for_ever();
  });
  ranks.wait_until_ready();
  ranks.pass(kQuick.lost_seconds / 10);  // a beat of each rank tells where it is
  const pid_t killed = ranks.pid(1);
  ::kill(killed, SIGKILL);
  const auto ends = ranks.ends();
  CHECK((ends[0].code == 14 && ends[1].code == 137 && ends[2].code == 14));
  CHECK_THAT(ends[0].errors, Catch::Matches("error: rank 1 \\(host1:" + std::to_string(killed) +
                                            "\\): lost: its connection closed; last seen in step 812, backward, "
                                            "micro-batch 3; ranks 0, 2 wait in all-to-all 1 of step 812 \\([0-9.]+ s "
                                            "ago\\)\n"));
  CHECK(ends[2].errors.empty());
  const Json record = ranks.flight_record(2);
  CHECK_THAT(frame_text(record, "cause"), Catch::Contains("lost: its connection closed"));
  CHECK(record.at("collectives").items().at(0).at("state").as_string() == "started");
}

TEST_CASE("without rank 0 every rank ends and says so", "[fast]") {
  RankProcesses ranks(3, kQuick, [](Rank r) { r.wait_for_ever(); });
  ranks.wait_until_ready();
  const pid_t killed = ranks.pid(0), second = ranks.pid(2);
  ::kill(killed, SIGKILL);
  const auto ends = ranks.ends();
  CHECK((ends[0].code == 137 && ends[1].code == 14 && ends[2].code == 14));
  CHECK_THAT(ends[2].errors,
             Catch::Contains(name_of(2, second) + ": error: " + name_of(0, killed) + ": lost: its connection closed"));
}

TEST_CASE("a stopped rank is lost after lost_seconds, and ends when it goes on", "[fast]") {
  RankProcesses ranks(3, kQuick, [](Rank r) { r.wait_for_ever(); });
  ranks.wait_until_ready();
  const pid_t stopped = ranks.pid(2);
  ranks.stop(2);
  ranks.pass(0.75 * kQuick.lost_seconds);
  CHECK_FALSE((ranks.has_ended(0) || ranks.has_ended(1)));
  ranks.pass(0.5 * kQuick.lost_seconds);
  const auto ends = ranks.ends();
  CHECK((ends[0].code == 14 && ends[1].code == 14 && ends[2].code == -1));
  CHECK_THAT(ends[0].errors, Catch::Contains(name_of(2, stopped) + ": lost: no heartbeat for 0.25 s"));
  ranks.go_on(2);
  CHECK(ranks.ends()[2].code == 14);
}

TEST_CASE("it is said how long ago a rank that waits was heard of", "[fast]") {
  RankProcesses ranks(3, kQuick, [](Rank r) {
    r.log.at(4, "forward", 0);
    if (r.rank > 0) { r.log.begin("sum", 8); }
    r.wait_for_ever();
  });
  ranks.wait_until_ready();
  ranks.pass(kQuick.lost_seconds / 10);  // a beat of each rank tells where it is
  const pid_t lost = ranks.pid(1);
  for (const int rank : {1, 2}) { ranks.stop(rank); }
  ranks.pass_until_end(0, kQuick.lost_seconds / 8);
  CHECK_THAT(ranks.ends()[0].errors,
             Catch::Contains(name_of(1, lost) + ": lost: no heartbeat for 0.25 s; last seen in step 4, forward, ") &&
                 Catch::Contains("; rank 2 waits in sum 1 of step 4 (0.3 s ago)"));
}

TEST_CASE("a stopped rank 0 is lost for the others", "[fast]") {
  RankProcesses ranks(2, kQuick, [](Rank r) { r.wait_for_ever(); });
  ranks.wait_until_ready();
  const pid_t stopped = ranks.pid(0);
  ranks.stop(0);
  ranks.pass(0.75 * kQuick.lost_seconds);
  CHECK_FALSE(ranks.has_ended(1));
  ranks.pass(0.5 * kQuick.lost_seconds);
  const auto ends = ranks.ends();
  CHECK((ends[0].code == -1 && ends[1].code == 14));
  CHECK_THAT(ends[1].errors, Catch::Contains(name_of(0, stopped) + ": lost: no heartbeat for 0.25 s"));
  ranks.go_on(0);
  CHECK(ranks.ends()[0].code == 14);
}

TEST_CASE("a rank that stands still is named, not those that wait for it", "[fast]") {
  const WatchOptions options{.lost_seconds = 0.25, .stall_seconds = 0.7, .logs = {}};
  RankProcesses ranks(3, options, [](Rank r) {
    r.log.at(4, "forward", 0);
    if (r.rank != 1) { r.log.begin("all-gather", 8); }
    r.wait_for_ever();
  });
  ranks.wait_until_ready();
  const pid_t still = ranks.pid(1);
  ranks.pass(0.6);
  CHECK_FALSE(ranks.has_ended(0));
  ranks.pass(0.3);
  const auto ends = ranks.ends();
  for (const auto& end : ends) { CHECK(end.code == 14); }
  CHECK_THAT(ends[0].errors, Catch::Contains(name_of(1, still) + ": stalled: no progress for 0.7 s; last seen in step "
                                                                 "4, forward, micro-batch 0; ranks 0, 2 wait in "
                                                                 "all-gather 1 of step 4"));
}

TEST_CASE("a rank that hangs before its first sign of life is named as one that hangs later", "[fast]") {
  const WatchOptions options{.lost_seconds = 0.25, .stall_seconds = 0.7, .logs = {}};
  RankProcesses ranks(3, options, [](Rank r) {
    if (r.rank != 1) { r.log.begin("broadcast", 8); }
    r.watch.started();
    r.wait_for_ever();
  });
  ranks.wait_until_ready();
  const pid_t hangs = ranks.pid(1);
  ranks.pass(0.6);
  CHECK_FALSE(ranks.has_ended(0));
  ranks.pass(0.3);
  const auto ends = ranks.ends();
  for (const auto& end : ends) { CHECK(end.code == 14); }
  CHECK_THAT(ends[0].errors,
             Catch::Contains(name_of(1, hangs) + ": stalled: no progress for 0.7 s; last seen in start"));
}

TEST_CASE("a rank that starts to communicate has the limit of the start, not that of a stall", "[fast]") {
  // Work before the ranks met, and of a rank that only starts, is no progress that could stop.
  const WatchOptions options{.lost_seconds = 0.25, .stall_seconds = 0.1, .start_seconds = 0.5, .logs = {}};
  RankProcesses ranks(2, options, [](Rank r) {
    sign_of_life();
    if (r.rank == 0) {
      r.log.begin("broadcast", 8);
      r.watch.started();
    }
    r.wait_for_ever();
  });
  ranks.wait_until_ready();
  ranks.pass(0.4);
  CHECK_FALSE((ranks.has_ended(0) || ranks.has_ended(1)));
  ranks.pass(1.3);  // rank 0 looks for another cause for a second
  const auto ends = ranks.ends();
  for (const auto& end : ends) { CHECK(end.code == 14); }
  CHECK_THAT(ends[0].errors, Catch::Contains("MPI or NCCL did not start within 0.5 s after ranks met"));
}

TEST_CASE("large files that are read and written are signs of life of a rank", "[fast]") {
  const TempFolder folder;
  FlightLog log;
  const fs::path file = folder / "file";
  const auto write = [&] {
    FileWriter writer(file);
    writer.write("1", 1);
    writer.close();
  };
  write();
  CHECK(log.beat().ticks == 0);  // of a rank that has not started
  log.tick();
  const auto comes_forward = [&](const std::function<void()>& work) {
    const int64_t before = log.beat().ticks;
    work();
    return log.beat().ticks > before;
  };
  CHECK_FALSE(comes_forward([] {}));
  CHECK(comes_forward(write));
  CHECK(comes_forward([&] { MappedFile map(file); }));
}

TEST_CASE("a slow rank that comes forward stops nobody", "[fast]") {
  const WatchOptions options{.lost_seconds = 0.25, .stall_seconds = 0.25, .logs = {}};
  RankProcesses ranks(2, options, [](Rank r) {
    r.log.at(0, "save");
    if (r.rank == 1) {
      const int64_t waits = r.log.begin("broadcast", 8);
      r.wait_for_end();
      r.log.end(waits);
      return;
    }
    r.ready();
    for (int asked = 0; asked >= 0; sleep_a_little()) {
      asked = r.shared.asked;
      if (asked > r.shared.done) {
        r.log.tick();
        r.shared.done = asked;
      }
    }
  });
  ranks.wait_until_ready();
  for (int i = 1; i <= 6; ++i) {
    ranks.shared().asked = i;
    await("a sign of life", [&] { return ranks.shared().done == i || ranks.has_ended(0); });
    ranks.pass(0.5 * options.stall_seconds);
  }
  ranks.shared().asked = -1;
  for (const auto& end : ranks.ends()) {
    INFO(end.errors);
    CHECK((end.code == 0 && end.errors.empty()));
  }
}

TEST_CASE("ranks that wait for each other are a stall", "[fast]") {
  const WatchOptions options{.lost_seconds = 0.25, .stall_seconds = 0.5, .logs = {}};
  RankProcesses ranks(2, options, [](Rank r) {
    r.log.at(0, "forward");
    if (r.rank == 0) { r.log.end(r.log.begin("sum", 8)); }
    r.log.begin(r.rank == 0 ? "barrier" : "sum", 8);
    r.wait_for_ever();
  });
  ranks.wait_until_ready();
  ranks.pass(0.4);
  CHECK_FALSE(ranks.has_ended(0));
  ranks.pass(0.3);
  const auto ends = ranks.ends();
  CHECK((ends[0].code == 14 && ends[1].code == 14));
  CHECK_THAT(ends[0].errors, Catch::Contains("all ranks wait for each other") &&
                                 Catch::Contains("has entered the fewest collectives; rank 0 waits in barrier 2 of "
                                                 "step 0 (0.0 s ago); rank 1 waits in sum 1 of step 0 ("));
}

TEST_CASE("ranks that wait for each other are a stall although another one has come to its end", "[fast]") {
  const WatchOptions options{.lost_seconds = 0.25, .stall_seconds = 0.5, .logs = {}};
  RankProcesses ranks(3, options, [](Rank r) {
    if (r.rank == 0) { return; }
    r.log.at(0, "forward");
    if (r.rank == 2) { r.log.end(r.log.begin("sum", 8)); }
    r.log.begin("sum", 8);
    r.wait_for_ever();
  });
  ranks.wait_until_ready();
  const pid_t last = ranks.pid(1);
  ranks.pass_until_end(0, options.lost_seconds / 8);
  CHECK_THAT(ranks.ends()[0].errors, Catch::Contains("all ranks wait for each other") &&
                                         Catch::Contains(name_of(1, last) + " has entered the fewest collectives"));
}

TEST_CASE("the error of a rank ends all with its code, in one line", "[fast]") {
  const int failing = GENERATE(0, 2);
  RankProcesses ranks(3, kQuick, [&](Rank r) {
    r.ready();
    if (r.rank == failing) { r.watch.fail(ExitCode::kData, "shard.bin: checksum differs"); }
    r.wait_for_ever();
  });
  const pid_t pid = ranks.pid(failing);
  ranks.pass_until_end(0, kQuick.lost_seconds / 8);
  const auto ends = ranks.ends();
  std::string errors;
  for (const auto& end : ends) {
    CHECK(end.code == 3);
    errors += end.errors;
  }
  CHECK(errors == "error: " + (failing == 0 ? "" : name_of(failing, pid) + ": ") + "shard.bin: checksum differs\n");
}

TEST_CASE("an error of communication gives way to the rank that is gone", "[fast]") {
  RankProcesses ranks(3, kQuick, [&](Rank r) {
    r.ready();
    if (r.rank == 2) { r.wait_for_ever(); }
    r.watch.fail(ExitCode::kComm, "mpi: exchange: connection reset");
  });
  ranks.wait_until_ready();
  const pid_t killed = ranks.pid(2);
  ranks.pass(0.5);  // rank 0 looks for another cause for a second
  ::kill(killed, SIGKILL);
  const auto ends = ranks.ends();
  CHECK((ends[0].code == 14 && ends[1].code == 14));
  CHECK_THAT(ends[0].errors, Catch::Contains("error: " + name_of(2, killed) + ": lost"));
  CHECK((ends[0].errors + ends[1].errors).find("reset") == std::string::npos);
}

TEST_CASE("an error that rank 0 does not hear of any more is still the end of its rank", "[fast]") {
  const WatchOptions options{.lost_seconds = 1e6, .stall_seconds = 60, .logs = {}};
  RankProcesses ranks(2, options, [](Rank r) {
    ::raise(SIGSTOP);
    r.watch.fail(ExitCode::kData, "shard.bin: checksum differs");
    r.wait_for_ever();
  });
  for (const int r : {0, 1}) { ranks.wait_until_stopped(r); }
  ranks.go_on(1);
  ranks.pass_until_end(1, 1);
  ranks.go_on(0);
  const auto ends = ranks.ends();
  CHECK(ends[1].code == 3);
  CHECK_THAT(ends[1].errors, Catch::Contains("shard.bin: checksum differs") && !Catch::Contains("lost"));
}

TEST_CASE("communicators write down their collectives", "[fast][threads]") {
  FlightLog log;
  SelfCommunicator self;
  self.record_in(&log);
  Stream stream;
  int64_t value = 3;
  log.at(5, "reduce");
  self.sum(stream, {&value, DType::i64, {1}});
  for (int i = 0; i < 100; ++i) { self.barrier(stream); }
  const Beat beat = log.beat();
  CHECK(!beat.is_waiting());
  CHECK((beat.place() == "step 5, reduce" && beat.collective_text() == "barrier 101 of step 5"));
  const Json list = log.collectives();
  CHECK(list.items().size() == FlightLog::kKept);
  CHECK(list.items().back().at("number").as_int() == 101);
  log.at(7, "forward");
  CHECK(log.steps() == 2);
}

TEST_CASE("a rank that begins early disturbs no meeting", "[fast]") {
  // Six ranks on few cores: the first welcome ranks send beats while rank 0 waits for the others.
  RankProcesses ranks(6, kQuick, [](Rank) {});
  for (const auto& end : ranks.ends()) { CHECK((end.code == 0 && end.errors.empty())); }
}

TEST_CASE("the dead wait for nothing", "[fast]") {
  RankProcesses ranks(3, kQuick, [](Rank r) {
    r.log.at(5, "forward");
    r.log.begin("sum", 8);
    r.wait_for_ever();
  });
  ranks.wait_until_ready();
  ranks.pass(kQuick.lost_seconds / 10);  // a beat of each rank tells where it is
  ::kill(ranks.pid(2), SIGKILL);
  const auto ends = ranks.ends();
  CHECK_THAT(ends[0].errors, Catch::Contains("; ranks 0, 1 wait in sum 1 of step 5 (") && !Catch::Contains("2 wait"));
}

TEST_CASE("ranks that were suspended together go on", "[fast]") {
  RankProcesses ranks(3, kQuick, [](Rank) { ::raise(SIGSTOP); });
  for (int r = 0; r < 3; ++r) { ranks.wait_until_stopped(r); }  // all have met, and stand still
  for (std::atomic<double>& time : ranks.shared().time) { time = 100 * kQuick.lost_seconds; }
  for (int r = 0; r < 3; ++r) { ranks.go_on(r); }
  for (const auto& end : ranks.ends()) {
    INFO(end.errors);
    CHECK((end.code == 0 && end.errors.empty()));
  }
}

TEST_CASE("a bad frame is an error of the rank that sent it", "[fast]") {
  const auto beat_with = [](const char* key, const Json& value) {
    Json frame = beat_frame({});
    frame.set(key, value);
    return frame;
  };
  const auto fail_with = [](int64_t code, int rank) {
    return Json::object({{"kind", "fail"}, {"code", code}, {"rank", rank}, {"text", "no disk"}});
  };
  struct Case {
    Json frame;
    int code;
    const char* text;
  };
  const std::vector<Case> cases{
      {beat_with("ticks", "12"), 14, "a frame whose ticks is no integer"},
      {beat_with("ticks", -1), 14, "a frame whose ticks is out of range"},
      {beat_with("finished", 1), 14, "a frame whose finished is out of range"},
      {beat_with("phase", "\x1b[2J"), 14, "a frame whose phase is no word"},
      {beat_with("micro_batch", uint64_t{1} << 63), 14, "a frame whose micro_batch is no integer"},
      {Json::object({{"kind", "beat"}, {"step", 3}}), 14, "a frame without ticks"},
      {Json::object({{"kind", "hello"}}), 14, "unexpected frame hello"},
      {fail_with(3, 0), 14, "a frame whose rank is out of range"},
      {fail_with(0, 1), 1, "no disk"},
      {fail_with(256, 1), 1, "no disk"},
      {fail_with(int64_t{1} << 40, 1), 1, "no disk"},
      {fail_with(-4, 1), 1, "no disk"},
      {fail_with(4, 1), 4, "no disk"},
  };
  for (const Case& c : cases) {
    const WatchOptions options{.lost_seconds = 1e6, .stall_seconds = 60, .logs = {}};
    RankProcesses ranks(
        2, options, [](Rank r) { r.wait_for_ever(); }, [&](FrameConnection& to_first) { to_first.send(c.frame); });
    const pid_t pid = ranks.pid(1);
    INFO(c.frame.dump());
    ranks.pass_until_end(0, 1);
    const auto ends = ranks.ends(1);
    CHECK(ends[0].code == c.code);
    CHECK_THAT(ends[0].errors, Catch::Contains("error: " + name_of(1, pid) + ": ") && Catch::Contains(c.text));
  }
}

TEST_CASE("the log of each rank ends with the error that ended the run", "[fast]") {
  const TempFolder folder;
  const auto log_of = [&](int rank) { return folder / ("log" + std::to_string(rank)); };
  RankProcesses ranks(3, kQuick, [&](Rank r) {
    write_file_atomic(log_of(r.rank), "step 1\n");
    r.log.set_file(log_of(r.rank));
    r.wait_for_ever();
  });
  ranks.wait_until_ready();
  ::kill(ranks.pid(1), SIGKILL);
  ranks.ends();
  for (const int r : {0, 2}) {
    CHECK_THAT(read_file(log_of(r)), Catch::StartsWith("step 1\n") &&
                                         Catch::Contains("[error] rank " + std::to_string(r)) &&
                                         Catch::Contains(": lost: its connection closed; last seen in start\n"));
  }
}
