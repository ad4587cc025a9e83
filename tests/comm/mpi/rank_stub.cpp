// rank_stub FOLDER STEPS [FAULT RANK STEP [PAUSE]]: a run of several ranks in small, started as hebb train is. A step
// adds a number of every rank to the state; rank 0 saves it after every second step. FAULT happens once, on one rank,
// before a step: kill (after PAUSE seconds), exit1, data (an error).
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

#include "comm/rank_group.h"
#include "core/elapsed.h"
#include "core/error.h"

using namespace hebb;

namespace {

volatile sig_atomic_t is_asked = 0;

struct Arguments {
  fs::path folder;
  int64_t steps = 0;
  std::string fault;
  int rank = -1;
  int64_t step = -1;
  double pause = 0;
};

void fault(RankGroup& group, const Arguments& a, int64_t step) {
  const fs::path marker = a.folder / "faulted";
  if (a.fault.empty() || group.communicator().rank() != a.rank || step != a.step || fs::exists(marker)) { return; }
  std::ofstream(marker).flush();
  if (a.fault == "kill") {
    std::this_thread::sleep_for(duration_of(a.pause));
    ::kill(::getpid(), SIGKILL);
  }
  if (a.fault == "exit1") { ::_exit(1); }
  if (a.fault == "data") { group.fail(ExitCode::kData, "shard.bin: checksum differs"); }
}

/// Exit code: 0, or 75 after a signal.
int train(RankGroup& group, const Arguments& a) {
  Communicator& comm = group.communicator();
  Stream stream;
  int64_t step = 0, state = 0;
  std::ifstream(a.folder / "state") >> step >> state;
  uint8_t stop = 0;
  while (step < a.steps && stop == 0) {
    fault(group, a, step);
    group.log().at(step, "forward", 0);
    int64_t value = (comm.rank() + 1) * (step + 1);
    comm.sum(stream, {&value, DType::i64, {1}});
    state = state * 31 + value;
    ++step;
    stop = is_asked != 0 ? 1 : 0;
    comm.any(stream, {&stop, DType::u8, {1}});
    if (comm.rank() == 0 && (step % 2 == 0 || stop != 0)) {
      write_file_atomic(a.folder / "state", std::to_string(step) + " " + std::to_string(state));
      fs::create_directories(a.folder / "checkpoints");
      write_file_atomic(a.folder / "checkpoints" / "latest", "step_" + std::to_string(step) + "\n");
    }
    if (a.fault == "slow") { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }
  }
  if (comm.rank() == 0) { write_file_atomic(a.folder / "result", std::to_string(step) + " " + std::to_string(state)); }
  return stop != 0 ? static_cast<int>(ExitCode::kStopped) : 0;
}

int run(const Arguments& a) {
  follow_launcher();
  const LaunchedRank launched = read_launched_rank([](const char* name) -> const char* { return std::getenv(name); });
  RankGroupOptions options;
  options.run_folder = a.folder;
  options.device = "cpu";
  options.init_seconds = 600;
  options.lost_seconds = 600;
  RankGroup group(launched, options);
  for (const int number : {SIGTERM, SIGUSR1}) {
    ::signal(number, [](int) { is_asked = 1; });
  }
  const int code = train(group, a);
  group.finish();
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments a;
  a.folder = argv[1];
  a.steps = std::atol(argv[2]);
  if (argc > 3) { a.fault = argv[3]; }
  if (argc > 5) { a.rank = std::atoi(argv[4]), a.step = std::atol(argv[5]); }
  if (argc > 6) { a.pause = std::atof(argv[6]); }
  try {
    return run(a);
  } catch (const Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return static_cast<int>(error.code());
  }
}
