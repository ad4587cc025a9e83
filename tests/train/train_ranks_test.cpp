// hebb train --ranks: processes that train one model together on CPUs.
#include <fmt/core.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <map>
#include <memory>

#include "comm/launch_processes.h"
#include "core/json.h"
#include "core/random.h"
#include "core/stop_signals.h"
#include "tests/longer_limits.h"
#include "tests/temp_folder.h"
#include "tests/train/faults.h"
#include "tests/train/process.h"

namespace {

/// A configuration of a small model on synthetic rows, and runs of it.
class RankRuns {
 public:
  RankRuns() {
    config_ = folder_
                  .write("run.json", R"({"name": "ranks",
      "model": {"vocab_size": 64, "hidden_size": 32, "num_layers": 2, "layers": {
        "att": {"type": "attention", "num_heads": 2, "head_dim": 16, "rope": {"theta": 10000.0}},
        "mlp": {"type": "swiglu", "intermediate_size": 64}}, "pattern": [{"mixer": "att", "ffn": "mlp"}]},
      "data": {"sources": [{"type": "synthetic", "task": "mqar", "pairs": 4, "vocab": 64}],
               "validation": [{"name": "v", "type": "synthetic", "task": "mqar", "pairs": 4, "vocab": 64, "seed": 9,
                               "max_rows": 5}]},
      "train": {"steps": 40, "batch_size": 8, "micro_batch_size": 2, "lanes": 4, "sequence_length": 32, "device": "cpu",
                "precision": "fp32", "threads": 1, "log_every": 1, "val_every": 20,
                "checkpoint": {"every": 4, "keep": 2}, "comm": {"init_seconds": 600, "lost_seconds": 600}},
      "optimizer": {"lr": 3e-3}})")
                  .string();
  }

  fs::path write(const std::string& name, const std::string& bytes) const { return folder_.write(name, bytes); }
  fs::path folder(const std::string& name) const { return folder_ / name; }
  std::unique_ptr<Process> start(const std::string& name, std::vector<std::string> more) const {
    std::vector<std::string> words{"train", config_, "--run-dir", folder(name).string()};
    words.insert(words.end(), more.begin(), more.end());
    return std::make_unique<Process>(words, folder_ / (name + std::to_string(++started_)));
  }
  int run(const std::string& name, std::vector<std::string> more = {}) const {
    const auto process = start(name, std::move(more));
    const int code = process->wait();
    INFO(process->out() << process->err());
    CHECK((code == 0 || code == 75));
    return code;
  }
  /// Weights and moments after the last step.
  std::string result(const std::string& name) const {
    const fs::path checkpoint = folder(name) / "checkpoints" / "step_00000040";
    return read_file(checkpoint / "model.safetensors") + read_file(checkpoint / "optimizer.safetensors");
  }
  /// Processes of the ranks of a run, by rank.
  std::map<int, pid_t> ranks(const std::string& name) const {
    std::map<int, pid_t> found;
    for (const fs::directory_entry& entry : fs::directory_iterator("/proc")) {
      const std::string pid = entry.path().filename().string();
      if (pid.find_first_not_of("0123456789") != std::string::npos) { continue; }
      try {
        const std::string words = read_file(entry.path() / "cmdline"), variables = read_file(entry.path() / "environ");
        const std::string variable = "OMPI_COMM_WORLD_RANK=";
        const size_t at = variables.find(variable);
        if (words.find(folder(name).string()) != std::string::npos && at != std::string::npos) {
          found[std::atoi(variables.c_str() + at + variable.size())] = static_cast<pid_t>(std::atol(pid.c_str()));
        }
      } catch (const Error&) {}  // has ended
    }
    return found;
  }

 private:
  TempFolder folder_;
  std::string config_;
  mutable int started_ = 0;
};

/// Calls `attempt` until it has met a run at work: on a busy machine a run may have ended before the test goes on.
void until_in_time(const std::function<bool()>& attempt) {
  int tries = 0;
  while (!attempt()) { REQUIRE(++tries < 100); }
}

/// Rank 0 once it has stopped; 0 when the run ended without.
template <class Ranks> pid_t stopped_rank(const Process& process, const Ranks& ranks) {
  while (!process.ends_within(5)) {
    const auto found = ranks();
    const auto rank = found.find(0);
    if (rank == found.end()) { continue; }
    std::string state;
    std::ifstream(fmt::format("/proc/{}/stat", rank->second)) >> state >> state >> state;
    if (state == "T") { return rank->second; }
  }
  return 0;
}

}  // namespace

TEST_CASE_METHOD(RankRuns, "hebb train --ranks gives the bytes of one rank, after a stop and with another number, too",
                 "[fast]") {
  if (!has_mpi()) { return; }
  REQUIRE(run("one") == 0);
  const char* overlap = GENERATE("train.comm.overlap=false", "train.comm.overlap=true");
  std::unique_ptr<Process> first;
  int code = 0;
  until_in_time([&] {
    fs::remove_all(folder("ranks"));
    first = start("ranks", {"--ranks", "4", overlap});
    REQUIRE(first->prints("step 6/40"));
    first->kill(SIGTERM);
    code = first->wait();
    return code != 0;
  });
  CHECK(code == 75);
  CHECK_THAT(first->out(), Contains("rank  host:process  device") && Contains("stopped after step"));
  REQUIRE(run("ranks", {"--ranks=2"}) == 0);
  CHECK((result("ranks") == result("one")));
  CHECK(ranks("ranks").empty());
}

TEST_CASE_METHOD(RankRuns, "a signal to the launcher, to one rank or to all stops every rank after the same step") {
  if (!has_mpi()) { return; }
  REQUIRE(run("one") == 0);
  const int signal = GENERATE(SIGTERM, SIGUSR1);
  const std::string to = GENERATE("the launcher", "rank 2", "all ranks", "all, twice");
  CAPTURE(signal, to);
  std::unique_ptr<Process> process;
  int code = 0;
  until_in_time([&] {
    fs::remove_all(folder("ranks"));
    process = start("ranks", {"--ranks", "4"});
    REQUIRE(process->prints("step 6/40"));
    for (int times = to == "all, twice" ? 2 : 1; times > 0; --times) {
      for (const auto& [rank, pid] : ranks("ranks")) {
        if (to.starts_with("all") || (rank == 2 && to == "rank 2")) { ::kill(pid, signal); }
      }
    }
    if (to == "the launcher") { process->kill(signal); }
    code = process->wait();
    return code != 0;
  });
  INFO(process->err());
  CHECK(code == 75);
  const std::string stop = "stopped after step ";
  const auto stopped_step = [&](const std::string& text) {
    const size_t at = text.find(stop);
    return at == std::string::npos ? -1 : std::stoi(text.substr(at + stop.size()));
  };
  const int step = stopped_step(process->out());
  CHECK((6 <= step && step < 40));
  std::string said = process->out();
  for (const char* rank : {"1", "2", "3"}) {
    const std::string log = read_file(folder("ranks") / "logs" / fmt::format("rank_0000{}.log", rank));
    CHECK(stopped_step(log) == step);
    said += log;
  }
  if (to == "the launcher") { CHECK_THAT(said, Contains(fmt::format(" by {};", signal_name(signal)))); }
  if (signal == SIGTERM) { CHECK_THAT(said, !Contains(" by SIGUSR1;")); }
  if (to == "rank 2") {  // all name the signal, the others whose it was
    CHECK_THAT(process->out(), Contains(fmt::format(" by {} (rank 2);", signal_name(signal))));
    CHECK_THAT(read_file(folder("ranks") / "logs" / "rank_00001.log"),
               Contains(fmt::format(" by {} (rank 2);", signal_name(signal))));
    CHECK_THAT(read_file(folder("ranks") / "logs" / "rank_00002.log"),
               Contains(fmt::format(" by {};", signal_name(signal))));
  }
  CHECK(ranks("ranks").empty());
  REQUIRE(run("ranks", {"--ranks", "2"}) == 0);
  CHECK((result("ranks") == result("one")));
}

TEST_CASE_METHOD(
    RankRuns,
    "signals at random times, in steps, validations and saves, stop a run that goes on as if nothing had been",
    "[slow]") {
  if (!has_mpi()) { return; }
  REQUIRE(run("one", {"train.val_every=2", "train.checkpoint.every=2"}) == 0);
  Rng rng(11, "signals");
  int code = 75, starts = 0;
  for (; code == 75; ++starts) {
    REQUIRE(starts < 200);
    const auto process = start("ranks", {"--ranks", "2", "train.val_every=2", "train.checkpoint.every=2"});
    if (process->prints("\nstep ")) { ::usleep(static_cast<useconds_t>(rng.below(60000))); }
    process->kill(rng.below(2) == 0 ? SIGTERM : SIGUSR1);
    code = process->wait();
    INFO(process->out() << process->err());
    REQUIRE((code == 0 || code == 75));
    CHECK(leftovers(folder("ranks")) == "");
  }
  CHECK(starts > 3);
  CHECK((result("ranks") == result("one")));
}

TEST_CASE_METHOD(RankRuns, "variables of a Slurm batch script make no ranks, and ranks of mpirun keep their own",
                 "[fast]") {
  if (!has_mpi()) { return; }
  const std::vector<std::string> settings{"train.steps=2", "train.val_every=0"};
  ::setenv("SLURM_NTASKS", "4", 1);
  ::setenv("SLURM_PROCID", "3", 1);
  const int one = run("one", settings);
  std::vector<std::string> of_ranks = settings;
  of_ranks.insert(of_ranks.end(), {"--ranks", "2"});
  const int two = run("two", of_ranks);
  ::unsetenv("SLURM_NTASKS");
  ::unsetenv("SLURM_PROCID");
  REQUIRE((one == 0 && two == 0));
  const auto model = [&](const char* name) {
    return read_file(folder(name) / "checkpoints" / "step_00000002" / "model.safetensors");
  };
  CHECK((model("two") == model("one")));
  CHECK_FALSE(fs::exists(folder("one") / "logs"));
  CHECK(fs::exists(folder("two") / "logs" / "rank_00001.log"));
}

TEST_CASE_METHOD(RankRuns, "tasks of a Slurm step are ranks, and one task is a run of its own", "[fast]") {
  if (!has_mpi()) { return; }
  const std::vector<std::string> settings{"train.steps=2", "train.val_every=0"};
  ::setenv("SLURM_STEP_NUM_TASKS", "1", 1);
  ::setenv("SLURM_PROCID", "0", 1);
  CHECK(run("one", settings) == 0);
  CHECK_FALSE(fs::exists(folder("one") / "logs"));
  // They meet in the run folder, and find that no srun or mpirun of this MPI has started them.
  ::setenv("SLURM_STEP_NUM_TASKS", "2", 1);
  std::vector<std::unique_ptr<Process>> tasks;
  for (const char* task : {"0", "1"}) {
    ::setenv("SLURM_PROCID", task, 1);
    ::setenv("SLURM_LOCALID", task, 1);
    tasks.push_back(start("two", settings));
  }
  for (const auto& task : tasks) { task->expect(14); }
  CHECK_THAT(tasks[0]->err(), Contains("the launcher says rank ") && Contains(" of 2, ") &&
                                  Contains("start ranks on CPUs with hebb train --ranks"));
  std::vector<std::string> alone = settings;
  alone.push_back("train.comm.init_seconds=1");
  start("alone", alone)->expect(14);
  for (const char* name : {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID"}) { ::unsetenv(name); }
}

TEST_CASE_METHOD(RankRuns, "a run whose ranks are killed starts again and comes out the same", "[fast]") {
  if (!has_mpi()) { return; }
  REQUIRE(run("one") == 0);
  std::unique_ptr<Process> process;
  until_in_time([&] {
    fs::remove_all(folder("ranks"));
    process = start("ranks", {"--ranks", "2", "--restart", "3"});
    REQUIRE(process->prints("step 9/40"));
    const auto pids = ranks("ranks");
    const auto second = pids.find(1);
    if (second != pids.end()) { ::kill(second->second, SIGKILL); }
    process->expect(0);
    return process->err().find("restart 1: ") != std::string::npos;
  });
  CHECK_THAT(process->err(), Contains("restart 1: 2 ranks, from step_"));
  CHECK((result("ranks") == result("one")));
}

TEST_CASE_METHOD(RankRuns, "a rank that is stopped is named, and all end", "[fast]") {
  if (!has_mpi()) { return; }
  const char* overlap = GENERATE("train.comm.overlap=false", "train.comm.overlap=true");
  std::unique_ptr<Process> process;
  std::string name;
  CHECK(comes_within(4, [&](double lost_seconds) {  // no rank but the one that is stopped is silent for so long
    name = fmt::format("ranks-{:g}", lost_seconds);
    process = start(name, {"--ranks", "2", "train.lanes=2", "train.steps=100000",
                           fmt::format("train.comm.lost_seconds={:g}", lost_seconds), overlap});
    const bool has_begun = process->prints("step 9/");
    const auto pids = ranks(name);
    const auto second = pids.find(1);
    const bool is_there = has_begun && second != pids.end();
    if (is_there) { ::kill(second->second, SIGSTOP); }
    const bool ends = process->ends();
    if (is_there) { ::kill(second->second, SIGCONT); }
    REQUIRE(ends);
    process->expect(14);
    CHECK_THAT(process->err(), Contains("lost: no heartbeat for"));
    return is_there && process->err().find("error: rank 1 (") != std::string::npos;
  }));
  CHECK(fs::exists(folder(name) / "logs" / "flight_00000.json"));
}

TEST_CASE_METHOD(RankRuns, "an error of all ranks, and of one, is said once and has its own exit code", "[fast]") {
  if (!has_mpi()) { return; }
  const auto process = start("ranks", {"--ranks", "2", "data.sources=[{\"path\": \"/nowhere/at/all.bin\"}]"});
  process->expect(3);
  CHECK_THAT(process->err(), Contains("/nowhere/at/all.bin"));
  CHECK_FALSE(fs::exists(folder("ranks")));
}

TEST_CASE_METHOD(RankRuns, "a rank without memory ends all, and says what it asked for") {
  if (!has_mpi()) { return; }
  std::unique_ptr<Process> process;
  {
    const Fault fault = Fault::no_memory(1 << 20, "1");
    process = start("ranks", {"--ranks", "2"});
  }
  REQUIRE(process->ends());
  process->expect(static_cast<int>(ExitCode::kMemory));
  CHECK_THAT(process->err(), Contains("no memory for") && Contains("bytes in use, expected room for"));
  CHECK(ranks("ranks").empty());
  CHECK(run("ranks", {"--ranks", "2"}) == 0);
}

TEST_CASE_METHOD(RankRuns, "losses that are not finite end ranks as they end one, with and without overlap") {
  if (!has_mpi()) { return; }
  const char* overlap = GENERATE("train.comm.overlap=false", "train.comm.overlap=true");
  const std::vector<std::string> settings{"optimizer.lr=1e30", "optimizer.clip_norm=0", "train.lanes=2"};
  std::vector<std::string> of_ranks = settings;
  of_ranks.insert(of_ranks.end(), {"--ranks", "2", overlap});
  const auto one = start("one", settings), two = start("two", of_ranks);
  for (const auto& process : {one.get(), two.get()}) { process->expect(static_cast<int>(ExitCode::kNumeric)); }
  const auto reason = [](const std::string& text) { return text.substr(text.find("steps in a row")); };
  CHECK_THAT(two->err(), Contains("steps in a row"));
  CHECK(reason(two->err()).substr(0, 60) == reason(one->err()).substr(0, 60));
}

TEST_CASE_METHOD(RankRuns, "a rank that is slow is named in the metrics and by a warning", "[slow]") {
  if (!has_mpi()) { return; }
  // It is held up until the warning comes, however many steps that takes: on a busy machine the other rank may be the
  // slower one for a while.
  const auto process = start("ranks", {"--ranks", "2", "train.lanes=2", "train.steps=1000000", "train.batch_size=64",
                                       "train.micro_batch_size=16", "model.hidden_size=256", "train.val_every=0",
                                       "train.checkpoint.every=1000000", "train.comm.lost_seconds=600"});
  REQUIRE(process->prints("step 2/"));
  const pid_t slow = ranks("ranks").at(1);
  const std::string warning = "has been the slowest in 20 logged steps";
  while (process->out().find(warning) == std::string::npos && process->err().find(warning) == std::string::npos) {
    REQUIRE_FALSE(process->ends_within(5));  // a tenth of the time is left to it
    ::kill(slow, SIGSTOP);
    ::usleep(50000);
    ::kill(slow, SIGCONT);
  }
  process->kill(SIGTERM);
  process->expect(75);
  // The first twenty lines in a row that name one rank are those of the warning, and the last of them is its step.
  int64_t step = 0, slowest = -1;
  int lines = 0;
  std::ifstream metrics(folder("ranks") / "metrics.jsonl");
  for (std::string line; lines < 20 && std::getline(metrics, line);) {
    const Json row = parse_json(line, "metrics.jsonl");
    if (row.find("comm") == nullptr) { continue; }
    const Json& comm = row.at("comm");
    const bool is_slow = comm.at("skew").as_double() > 1.2;
    lines = !is_slow ? 0 : comm.at("slowest").as_int() == slowest ? lines + 1 : 1;
    slowest = comm.at("slowest").as_int();
    step = row.at("step").as_int();
  }
  CHECK(lines == 20);
  CHECK(slowest == 1);
  const std::string log = read_file(folder("ranks") / "train.log");
  const size_t at = log.find(warning), line = log.rfind('\n', at);
  REQUIRE(at != std::string::npos);
  CHECK_THAT(log.substr(line, at - line), Contains(fmt::format(" rank {:d} (", slowest)));
  CHECK(log.find(fmt::format("step {:d}/", step)) < at);
  CHECK(log.find(fmt::format("step {:d}/", step + 1)) > at);
}

TEST_CASE_METHOD(RankRuns, "a full disk ends all ranks, names rank and path, and leaves the checkpoint before",
                 "[fast]") {
  if (!has_mpi()) { return; }
  const SmallDisk disk(folder("ranks"), 4096);
  if (!disk.is_there()) { return; }
  const auto process = start("ranks", {"--ranks", "2", "train.steps=100000", "train.val_every=0"});
  REQUIRE(process->prints("\nsaved "));
  disk.fill();
  REQUIRE(process->ends());
  process->expect(4);
  CHECK_THAT(process->err(), Contains("error: rank 0 (") && Contains(folder("ranks").string()));
  CHECK(ranks("ranks").empty());
  fs::remove(folder("ranks") / "filler");
  const std::string latest = read_file(folder("ranks") / "checkpoints" / "latest");
  const int64_t step = std::stoll(latest.substr(latest.find('_') + 1));
  REQUIRE(step >= 4);
  // Goes on from there.
  const auto again = start("ranks", {"--ranks", "2", "train.steps=" + std::to_string(step + 2), "train.val_every=0"});
  again->expect(0);
  CHECK_THAT(again->out(), Contains(fmt::format("\nresuming after step {:d} from ", step)));
}

TEST_CASE_METHOD(RankRuns, "data that only one rank finds damaged ends all, with one message", "[fast]") {
  if (!has_mpi()) { return; }
  // Rows of 32 tokens in their order; the rows of a batch are dealt to 4 lanes of 2 rows.
  std::vector<uint16_t> tokens(8 * 33 * 8);
  for (size_t i = 0; i < tokens.size(); ++i) { tokens[i] = static_cast<uint16_t>(i * 7 % 60 + 1); }
  tokens[(2 * 8 + 5) * 32 + 3] = 60000;  // third batch, sixth row: of the second rank
  const fs::path file =
      write("damaged.bin", std::string(reinterpret_cast<const char*>(tokens.data()), 2 * tokens.size()));
  const auto process = start("ranks", {"--ranks", "2",
                                       "data.sources=[{\"path\": \"" + file.string() +
                                           "\", \"format\": \"raw_u16\", \"shuffle\": \"none\"}]"});
  process->expect(3);
  CHECK_THAT(process->err(), Contains("error: rank 1 (") && Contains("damaged.bin"));
  CHECK(process->err().find("error: rank 0") == std::string::npos);
}

TEST_CASE_METHOD(RankRuns, "options of ranks that make no sense are refused", "[fast]") {
  const auto refused = [&](std::vector<std::string> words, const std::string& text) {
    const auto process = start("ranks", std::move(words));
    process->expect(2);
    CHECK_THAT(process->err(), Contains(text));
  };
  refused({"--ranks", "none"}, "found \"none\", expected all or a number from 1 to 4096");
  refused({"--ranks", "all"}, "\"all\" counts GPUs");
  refused({"--restart", "2"}, "--restart: needs --ranks N");
  refused({"--ranks", "3"}, "found 3 ranks, expected 1, 2, 4 with 4 lanes");
  refused({"--ranks", "2", "--restart", "1", "--resume", "somewhere"}, "together with --resume somewhere");
  ::setenv("RANK", "0", 1);
  ::setenv("WORLD_SIZE", "1", 1);
  refused({"--ranks", "2"}, "WORLD_SIZE is set");
  ::unsetenv("RANK");
  ::unsetenv("WORLD_SIZE");
}

TEST_CASE_METHOD(RankRuns, "ranks that die while rank 0 saves leave a whole checkpoint and come out the same",
                 "[slow]") {
  if (!has_mpi()) { return; }
  REQUIRE(run("one") == 0);
  const bool is_saving_rank = GENERATE(true, false);
  int call = 2;
  for (;; call += 7) {
    const std::string name = fmt::format("{}-{}", is_saving_rank ? "saving" : "other", call);
    CAPTURE(name);
    std::unique_ptr<Process> process;
    {
      const Fault fault = Fault::at_call(folder(name) / "checkpoints", call, is_saving_rank ? SIGKILL : SIGSTOP, "0");
      process = start(name, {"--ranks", "2", "train.steps=8"});
    }
    if (!is_saving_rank) {
      const pid_t saving = stopped_rank(*process, [&] { return ranks(name); });
      if (saving != 0) {
        ::kill(ranks(name).at(1), SIGKILL);
        ::kill(saving, SIGCONT);
      }
    }
    REQUIRE(process->ends());
    if (process->wait() == 0) { break; }
    const std::string before = latest_checkpoint(folder(name));
    const auto again = start(name, {"--ranks", "2"});
    again->expect(0);
    if (!before.empty()) {
      CHECK_THAT(again->out(), Contains(fmt::format("\nresuming after step {:d} from {}\n", std::stoi(before.substr(5)),
                                                    (folder(name) / "checkpoints" / before).string())));
    }
    CHECK((result(name) == result("one")));
    CHECK(leftovers(folder(name)) == "");
  }
  CHECK(call > 40);
}

TEST_CASE_METHOD(RankRuns, "killed at random times, ranks and whole runs come out the same", "[slow]") {
  if (!has_mpi()) { return; }
  REQUIRE(run("one") == 0);
  Rng rng(7, "kills");
  for (int i = 0; i < 50; ++i) {
    const std::string name = "ranks" + std::to_string(i);
    const auto process = start(name, {"--ranks", "2", "--restart", "5"});
    ::usleep(static_cast<useconds_t>(50000 + rng.below(1500000)));
    const bool is_whole = rng.below(4) == 0;
    if (is_whole) {
      process->kill(SIGKILL);
    } else if (const auto pids = ranks(name); !pids.empty()) {
      ::kill(std::next(pids.begin(), static_cast<long>(rng.below(pids.size())))->second, SIGKILL);
    }
    process->wait();
    const auto is_left = [&] { return !launched_processes(process->pid(), false).empty(); };  // mpirun, too
    for (int waited = 0; is_left() && waited < 6000; ++waited) { ::usleep(100000); }
    CHECK(!is_left());  // nothing lives on for ten minutes
    REQUIRE(run(name, {"--ranks", "4"}) == 0);
    CHECK((result(name) == result("one")));
  }
}
