// Ranks as processes: however one of them ends, none lives on, and the cause is named.
#include "comm/watch.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>

#include "comm/communicator.h"
#include "core/sign_of_life.h"
#include "tests/temp_folder.h"
#include "tests/test.h"

namespace {

using Clock = std::chrono::steady_clock;

struct Rank {
  int rank;
  Watch& watch;
  FlightLog& log;
};

void sleep_seconds(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }
[[noreturn]] void wait_for_ever() {
  for (;;) { ::pause(); }
}

/// Processes that meet in a folder, have a watch each, and run `body`, then pass the last barrier and exit with 0.
class RankProcesses {
 public:
  /// false_rank: what the last rank does instead.
  RankProcesses(int size, const WatchOptions& watch, const std::function<void(Rank)>& body,
                const std::function<void(FrameConnection& to_first)>& false_rank = {}) {
    for (int r = 0; r < size; ++r) {
      const pid_t pid = ::fork();
      if (pid == 0) { run(r, size, watch, body, r + 1 == size ? false_rank : nullptr); }
      pids_.push_back(pid);
    }
  }
  ~RankProcesses() {
    for (const pid_t pid : pids_) {
      if (pid > 0) { ::kill(pid, SIGKILL), ::waitpid(pid, nullptr, 0); }
    }
  }

  pid_t pid(int rank) const { return pids_[static_cast<size_t>(rank)]; }
  /// Once every rank has reached signal_ready().
  void wait_until_ready() const {
    constexpr int kTries = 3000;  // half a minute: a rank that was lost before it was ready never will be
    for (size_t r = 0; r < pids_.size(); ++r) {
      for (int i = 0; i < kTries && !fs::exists(ready(r)); ++i) { sleep_seconds(0.01); }
      INFO("rank " << r << " is not ready");
      REQUIRE(fs::exists(ready(r)));
    }
  }

  struct End {
    int code = -1;  // 128+n for a signal; -1: lives
    std::string errors;
  };
  /// How the ranks have ended within some seconds, or the first `awaited` of them.
  std::vector<End> ends(double seconds, size_t awaited = SIZE_MAX) {
    const Clock::time_point last = Clock::now() + std::chrono::milliseconds(static_cast<int>(seconds * 1000));
    std::vector<End> ends(pids_.size());
    for (bool all = false; !all && Clock::now() < last; sleep_seconds(0.01)) {
      all = true;
      for (size_t r = 0; r < std::min(awaited, pids_.size()); ++r) {
        int status = 0;
        if (pids_[r] > 0 && ::waitpid(pids_[r], &status, WNOHANG) == pids_[r]) {
          ends[r].code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
          pids_[r] = 0;
        }
        all = all && pids_[r] == 0;
      }
    }
    for (size_t r = 0; r < pids_.size(); ++r) {
      const fs::path errors = folder_ / ("stderr" + std::to_string(r));
      if (fs::exists(errors)) { ends[r].errors = read_file(errors); }
    }
    return ends;
  }
  void wait_until_stopped(int rank) const {
    siginfo_t stopped{};
    REQUIRE(::waitid(P_PID, static_cast<id_t>(pid(rank)), &stopped, WSTOPPED | WNOWAIT) == 0);
  }
  const TempFolder& folder() const { return folder_; }
  void signal_all(int number) const {
    for (const pid_t pid : pids_) { ::kill(pid, number); }
  }
  Json flight_record(int rank) const {
    return parse_json_file((folder_ / ("logs/flight_0000" + std::to_string(rank) + ".json")).string());
  }

 private:
  [[noreturn]] void run(int rank, int size, WatchOptions options, const std::function<void(Rank)>& body,
                        const std::function<void(FrameConnection& to_first)>& false_rank) {
    const std::string errors = (folder_ / ("stderr" + std::to_string(rank))).string();
    ::dup2(::open(errors.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), 2);
    MeetingOptions meeting;
    meeting.agreement.size = size;
    meeting.self = this_member(rank);
    meeting.self.host = "host" + std::to_string(rank);
    meeting.folder = folder_.path();
    meeting.is_one_host = true;
    FlightLog log;
    options.logs = folder_ / "logs";
    if (false_rank) {
      const ControlLinks links = meet(meeting);
      false_rank(*links.connections[0]);
      wait_for_ever();
    }
    {
      Watch watch(meet(meeting), rank, options, log);
      sleep_seconds(0.2);  // a beat or two
      folder_.write("ready" + std::to_string(rank), "");
      body({rank, watch, log});
      watch.finish();
    }
    ::_exit(0);
  }

  fs::path ready(size_t rank) const { return folder_ / ("ready" + std::to_string(rank)); }

  TempFolder folder_;
  std::vector<pid_t> pids_;
};

const WatchOptions kQuick{.lost_seconds = 0.6, .stall_seconds = 60, .logs = {}};

std::string name_of(int rank, pid_t pid) {
  return "rank " + std::to_string(rank) + " (host" + std::to_string(rank) + ":" + std::to_string(pid) + ")";
}

}  // namespace

TEST_CASE("no rank ends before all have come to the end", "[fast]") {
  RankProcesses ranks(3, kQuick, [](Rank r) { sleep_seconds(r.rank == 2 ? 1 : 0); });
  ranks.wait_until_ready();
  const auto early = ranks.ends(0.3);
  CHECK((early[0].code == -1 && early[1].code == -1));
  for (const auto& end : ranks.ends(5)) { CHECK((end.code == 0 && end.errors.empty())); }
}

TEST_CASE("a killed rank ends all with 14, and is named with what others wait for", "[fast]") {
  RankProcesses ranks(3, kQuick, [](Rank r) {
    r.log.at(812, "backward", r.rank == 1 ? 3 : 7);
    if (r.rank != 1) { r.log.begin("all-to-all", 64); }
    wait_for_ever();
  });
  ranks.wait_until_ready();
  sleep_seconds(0.3);  // that beats tell where ranks are
  const pid_t killed = ranks.pid(1);
  ::kill(killed, SIGKILL);
  const auto ends = ranks.ends(3);
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
  RankProcesses ranks(3, kQuick, [](Rank) { wait_for_ever(); });
  ranks.wait_until_ready();
  const pid_t killed = ranks.pid(0), second = ranks.pid(2);
  ::kill(killed, SIGKILL);
  const auto ends = ranks.ends(3);
  CHECK((ends[0].code == 137 && ends[1].code == 14 && ends[2].code == 14));
  CHECK_THAT(ends[2].errors,
             Catch::Contains(name_of(2, second) + ": error: " + name_of(0, killed) + ": lost: its connection closed"));
}

TEST_CASE("a stopped rank is lost after lost_seconds, and ends when it goes on", "[fast]") {
  RankProcesses ranks(3, kQuick, [](Rank) { wait_for_ever(); });
  ranks.wait_until_ready();
  const pid_t stopped = ranks.pid(2);
  const Clock::time_point begin = Clock::now();
  ::kill(stopped, SIGSTOP);
  auto ends = ranks.ends(1.5);
  CHECK((ends[0].code == 14 && ends[1].code == 14 && ends[2].code == -1));
  CHECK(Clock::now() - begin > std::chrono::milliseconds(500));
  CHECK_THAT(ends[0].errors, Catch::Contains(name_of(2, stopped) + ": lost: no heartbeat for 0.6 s"));
  ::kill(stopped, SIGCONT);
  CHECK(ranks.ends(3)[2].code == 14);
}

TEST_CASE("a stopped rank 0 is lost for the others", "[fast]") {
  RankProcesses ranks(2, kQuick, [](Rank) { wait_for_ever(); });
  ranks.wait_until_ready();
  const pid_t stopped = ranks.pid(0);
  ::kill(stopped, SIGSTOP);
  const auto ends = ranks.ends(2);
  CHECK((ends[0].code == -1 && ends[1].code == 14));
  CHECK_THAT(ends[1].errors, Catch::Contains(name_of(0, stopped) + ": lost: no heartbeat for 0.6 s"));
  ::kill(stopped, SIGCONT);
  CHECK(ranks.ends(3)[0].code == 14);
}

TEST_CASE("a rank that stands still is named, not those that wait for it", "[fast]") {
  const WatchOptions options{.lost_seconds = 5, .stall_seconds = 0.7, .logs = {}};
  RankProcesses ranks(3, options, [](Rank r) {
    r.log.at(4, "forward", 0);
    if (r.rank != 1) { r.log.begin("all-gather", 8); }
    wait_for_ever();
  });
  const pid_t still = ranks.pid(1);
  const auto ends = ranks.ends(6);
  for (const auto& end : ends) { CHECK(end.code == 14); }
  CHECK_THAT(ends[0].errors, Catch::Contains(name_of(1, still) + ": stalled: no progress for 0.7 s; last seen in step "
                                                                 "4, forward, micro-batch 0; ranks 0, 2 wait in "
                                                                 "all-gather 1 of step 4"));
}

TEST_CASE("a rank that hangs before its first sign of life is named as one that hangs later", "[fast]") {
  const WatchOptions options{.lost_seconds = 20, .stall_seconds = 0.7, .logs = {}};
  RankProcesses ranks(3, options, [](Rank r) {
    if (r.rank != 1) { r.log.begin("broadcast", 8); }
    r.watch.started();
    wait_for_ever();
  });
  const pid_t hangs = ranks.pid(1);
  const auto ends = ranks.ends(300);
  for (const auto& end : ends) { CHECK(end.code == 14); }
  CHECK_THAT(ends[0].errors,
             Catch::Contains(name_of(1, hangs) + ": stalled: no progress for 0.7 s; last seen in start"));
}

TEST_CASE("a rank that starts to communicate has the limit of the start, not that of a stall", "[fast]") {
  // Work before the ranks met, and of a rank that only starts, is no progress that could stop.
  const WatchOptions options{.lost_seconds = 20, .stall_seconds = 0.1, .start_seconds = 1.5, .logs = {}};
  RankProcesses ranks(2, options, [](Rank r) {
    sign_of_life();
    if (r.rank == 0) {
      r.log.begin("broadcast", 8);
      r.watch.started();
    }
    wait_for_ever();
  });
  const auto ends = ranks.ends(300);
  for (const auto& end : ends) { CHECK(end.code == 14); }
  CHECK_THAT(ends[0].errors, Catch::Contains("MPI or NCCL did not start within 1.5 s after ranks met"));
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
  const WatchOptions options{.lost_seconds = 10, .stall_seconds = 2.5, .logs = {}};
  RankProcesses ranks(2, options, [](Rank r) {
    r.log.at(0, "save");
    const int64_t waits = r.rank == 1 ? r.log.begin("broadcast", 8) : 0;
    for (int i = 0; i < 35; ++i) {
      sleep_seconds(0.1);
      if (r.rank == 0) { r.log.tick(); }
    }
    if (r.rank == 1) { r.log.end(waits); }
  });
  for (const auto& end : ranks.ends(20)) {
    INFO(end.errors);
    CHECK((end.code == 0 && end.errors.empty()));
  }
}

TEST_CASE("ranks that wait for each other are a stall", "[fast]") {
  const WatchOptions options{.lost_seconds = 5, .stall_seconds = 0.5, .logs = {}};
  RankProcesses ranks(2, options, [](Rank r) {
    r.log.at(0, "forward");
    if (r.rank == 0) { r.log.end(r.log.begin("sum", 8)); }
    r.log.begin(r.rank == 0 ? "barrier" : "sum", 8);
    wait_for_ever();
  });
  const auto ends = ranks.ends(5);
  CHECK((ends[0].code == 14 && ends[1].code == 14));
  CHECK_THAT(ends[0].errors, Catch::Contains("all ranks wait for each other") &&
                                 Catch::Contains("has entered the fewest collectives; rank 0 waits in barrier 2 of "
                                                 "step 0 (0.0 s ago); rank 1 waits in sum 1 of step 0 ("));
}

TEST_CASE("the error of a rank ends all with its code, in one line", "[fast]") {
  const int failing = GENERATE(0, 2);
  RankProcesses ranks(3, kQuick, [&](Rank r) {
    if (r.rank == failing) { r.watch.fail(ExitCode::kData, "shard.bin: checksum differs"); }
    wait_for_ever();
  });
  const pid_t pid = ranks.pid(failing);
  const auto ends = ranks.ends(5);
  std::string errors;
  for (const auto& end : ends) {
    CHECK(end.code == 3);
    errors += end.errors;
  }
  CHECK(errors == "error: " + (failing == 0 ? "" : name_of(failing, pid) + ": ") + "shard.bin: checksum differs\n");
}

TEST_CASE("an error of communication gives way to the rank that is gone", "[fast]") {
  RankProcesses ranks(3, kQuick, [&](Rank r) {
    if (r.rank == 2) { wait_for_ever(); }
    sleep_seconds(0.3);
    r.watch.fail(ExitCode::kComm, "mpi: exchange: connection reset");
  });
  ranks.wait_until_ready();
  const pid_t killed = ranks.pid(2);
  sleep_seconds(0.4);
  ::kill(killed, SIGKILL);
  const auto ends = ranks.ends(4);
  CHECK((ends[0].code == 14 && ends[1].code == 14));
  CHECK_THAT(ends[0].errors, Catch::Contains("error: " + name_of(2, killed) + ": lost"));
  CHECK((ends[0].errors + ends[1].errors).find("reset") == std::string::npos);
}

TEST_CASE("an error that rank 0 does not hear of any more is still the end of its rank", "[fast]") {
  RankProcesses ranks(2, kQuick, [](Rank r) {
    ::raise(SIGSTOP);
    r.watch.fail(ExitCode::kData, "shard.bin: checksum differs");
    wait_for_ever();
  });
  for (const int r : {0, 1}) { ranks.wait_until_stopped(r); }
  ::kill(ranks.pid(1), SIGCONT);
  siginfo_t ended{};
  REQUIRE(::waitid(P_PID, static_cast<id_t>(ranks.pid(1)), &ended, WEXITED | WNOWAIT) == 0);
  ::kill(ranks.pid(0), SIGCONT);
  const auto ends = ranks.ends(20);
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
  const WatchOptions options{.lost_seconds = 0.5, .stall_seconds = 60, .logs = {}};
  RankProcesses ranks(6, options, [](Rank) {});
  for (const auto& end : ranks.ends(10)) { CHECK((end.code == 0 && end.errors.empty())); }
}

TEST_CASE("the dead wait for nothing", "[fast]") {
  RankProcesses ranks(3, kQuick, [](Rank r) {
    r.log.at(5, "forward");
    r.log.begin("sum", 8);
    wait_for_ever();
  });
  ranks.wait_until_ready();
  sleep_seconds(0.3);  // that beats tell where ranks are
  ::kill(ranks.pid(2), SIGKILL);
  const auto ends = ranks.ends(10);
  CHECK_THAT(ends[0].errors, Catch::Contains("; ranks 0, 1 wait in sum 1 of step 5 (") && !Catch::Contains("2 wait"));
}

TEST_CASE("ranks that were suspended together go on", "[fast]") {
  const WatchOptions options{.lost_seconds = 1, .stall_seconds = 60, .logs = {}};
  RankProcesses ranks(3, options, [](Rank) { ::raise(SIGSTOP); });
  for (int r = 0; r < 3; ++r) { ranks.wait_until_stopped(r); }  // all have met, and stand still
  sleep_seconds(2.5);
  ranks.signal_all(SIGCONT);
  for (const auto& end : ranks.ends(30)) {
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
    const WatchOptions options{.lost_seconds = 60, .stall_seconds = 60, .logs = {}};
    RankProcesses ranks(
        2, options, [](Rank) { wait_for_ever(); }, [&](FrameConnection& to_first) { to_first.send(c.frame); });
    const pid_t pid = ranks.pid(1);
    INFO(c.frame.dump());
    const auto ends = ranks.ends(30, 1);
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
    wait_for_ever();
  });
  for (int r = 0; r < 3; ++r) {
    while (!fs::exists(log_of(r))) { sleep_seconds(0.01); }
  }
  ranks.wait_until_ready();
  sleep_seconds(0.1);  // until the last one has opened its log
  ::kill(ranks.pid(1), SIGKILL);
  ranks.ends(10);
  for (const int r : {0, 2}) {
    CHECK_THAT(read_file(log_of(r)), Catch::StartsWith("step 1\n") &&
                                         Catch::Contains("[error] rank " + std::to_string(r)) &&
                                         Catch::Contains(": lost: its connection closed; last seen in start\n"));
  }
}
