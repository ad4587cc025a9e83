#include "study/ladder/task.h"

#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "core/folder_lock.h"
#include "core/join.h"
#include "core/stop_signals.h"
#include "study/ladder/child_process.h"
#include "study/ladder/run_command.h"
#include "study/ladder/runs.h"
#include "study/ladder/submission.h"
#include "study/report/read_metrics.h"
#include "train/run_config.h"

namespace hebb {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kStopped = static_cast<int>(ExitCode::kStopped), kComm = static_cast<int>(ExitCode::kComm);
constexpr int64_t kIdleStops = 3;  // in a row without a new step: the run would go round for ever

class LadderTask {
 public:
  LadderTask(const fs::path& ladder, const std::string& task, const std::string& program,
             const std::function<void(std::string_view)>& line)
      : ladder_(ladder), task_(task), program_(program), line_(line) {
    const size_t dot = task.find('.');
    submission_ = read_submission(ladder, task.substr(0, dot));
    const std::optional<std::string> run = submission_.run_at(dot == std::string::npos ? "" : task.substr(dot + 1));
    if (!run) {
      throw CheckpointError(ladder.string(), "no task " + task,
                            fmt::format("submission {} of {:d} runs", submission_.number, submission_.runs.size()),
                            "NUMBER.PLACE");
    }
    id_ = *run;
    run_ = fs::absolute(ladder / id_);
  }

  int run() {
    status_ = read_status(run_);
    if (is_cancelled(ladder_, submission_.number) || status_.state == "done") {
      line_(id_ + (status_.state == "done" ? " is done" : " was cancelled"));
      return 0;
    }
    take_over();
    const int64_t before = last_logged_step(run_);
    started_ = Clock::now();
    line_("start " + id_ + (before > 0 ? " at step " + std::to_string(before) : ""));
    const std::string config = (run_ / kLadderConfig).string();
    std::vector<std::string> train = {"train", config, "--run-dir", run_.string()};
    if (submission_.ranks > 1 && submission_.start.empty()) {
      train.insert(train.end(), {"--ranks", std::to_string(submission_.ranks)});
    }
    int code = run_child(train, submission_.start);
    bool is_done = code == 0 && submission_.evals.empty();
    if (code == 0 && !is_done && !stopped_) {
      code = run_child({"eval", submission_.evals, "--checkpoint", run_.string()}, "");
      is_done = code == 0;
    }
    return finish(code, is_done, before);
  }

 private:
  /// A run that this very job began on another machine was ended with it there: its lock holds nobody.
  void take_over() {
    if (status_.task == task_) { remove_lock_of_other_host(run_); }
    const FolderLock probe(run_);
    remove_begun(run_);
    if (status_.task != task_) { status_.idle = 0; }
    status_.task = task_;
    status_.started = time_now();
  }

  /// Exit code of `hebb ARGUMENTS`, behind the words that start several ranks.
  int run_child(const std::vector<std::string>& arguments, const std::string& start) {
    std::string program = program_;
    std::vector<std::string> words = arguments;
    if (!start.empty()) {
      program = "/bin/sh";
      words = {"-c", "exec " + start + " " + shell_quoted(program_) + " " + join(arguments, " ", shell_quoted)};
    }
    ChildProcess child(program, words, run_ / kRunConsole);
    note_start(run_, status_, child.pid());
    Clock::time_point looked = Clock::now();
    for (;;) {
      if (const std::optional<int> code = child.poll()) { return *code; }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      const Clock::time_point now = Clock::now();
      if (!stopped_ && now - looked > std::chrono::seconds(1)) {
        looked = now;
        stopped_ = is_cancelled(ladder_, submission_.number);
        if (stopped_) { line_(id_ + ": cancelled, saves and stops"); }
      }
      if (const std::string signal = signals_.received(); !signal.empty() && !stopped_) {
        stopped_ = true;
        line_(signal + ": " + id_ + " saves and stops");
      }
      if (stopped_ && !passed_on_) {  // srun hands SIGUSR1 on to all ranks
        child.stop(signals_.cause());
        passed_on_ = true;
      }
    }
  }

  bool may_go_on(int code) const {
    if (code == kStopped || code == kComm) { return true; }
    if (stopped_ && (code == 0 || code > 128)) { return true; }
    const auto config = Fields::read<RunConfig>(parse_json_file((run_ / kLadderConfig).string()), "");
    return code != 0 && code == config.train.exit_code_on_stop;
  }

  int finish(int code, bool is_done, int64_t before) {
    const bool was_cancelled = is_cancelled(ladder_, submission_.number), goes_on = !is_done && may_go_on(code);
    status_.step = last_logged_step(run_);
    status_.idle = goes_on && !was_cancelled && status_.step <= before ? status_.idle + 1 : 0;
    const bool is_idle = status_.idle >= kIdleStops;
    status_.state = is_done ? "done" : goes_on && !is_idle ? "pending" : "failed";
    if (status_.state == "failed") {
      status_.error = failure_reason(run_ / kRunConsole, code);
      if (is_idle) {
        status_.error = fmt::format("stopped {} times without a new step: {}", kIdleStops, status_.error);
      }
    }
    line_(note_end(run_, id_, status_, started_));
    if (is_done || (goes_on && was_cancelled)) { return 0; }
    if (status_.state == "pending") { return code == kComm ? kComm : kStopped; }
    return code == 0 || is_idle ? static_cast<int>(ExitCode::kOther) : code;
  }

  const StopSignals signals_;
  const fs::path ladder_;
  const std::string task_, program_;
  const std::function<void(std::string_view)>& line_;
  Submission submission_;
  std::string id_;
  fs::path run_;
  RunStatus status_;
  Clock::time_point started_;
  bool stopped_ = false, passed_on_ = false;
};

}  // namespace

int run_ladder_task(const fs::path& ladder, const std::string& task, const std::string& program,
                    const std::function<void(std::string_view)>& line) {
  return LadderTask(ladder, task, program, line).run();
}

}  // namespace hebb
