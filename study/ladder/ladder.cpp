#include "study/ladder/ladder.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <thread>

#include "core/parallel.h"
#include "core/plural.h"
#include "core/stop_signals.h"
#include "study/ladder/child_process.h"
#include "study/ladder/launcher.h"
#include "study/ladder/progress.h"
#include "study/ladder/runs.h"
#include "study/report/read_metrics.h"
#include "train/run_config.h"

namespace hebb {
namespace {

using Clock = std::chrono::steady_clock;

class Ladder {
 public:
  Ladder(const Sweep& sweep, const LadderOptions& options, const Console& console)
      : sweep_(sweep),
        options_(options),
        line_(console.line),
        runs_(sweep, options, line_),
        folder_(runs_.folder()),
        progress_(folder_, console.bar),
        parallel_(options.parallel > 0 ? options.parallel : sweep.max_parallel),
        ranks_(options.ranks > 0 ? options.ranks : sweep.ranks) {}

  int run() {
    runs_.open();
    require_no_jobs(folder_);
    runs_.read();
    const std::vector<size_t> unfinished = runs_.unfinished();
    std::vector<size_t> todo = unfinished;
    check_room(todo);
    runs_.require_memory(todo, [this](size_t) { return static_cast<int>(ranks_); });
    runs_.prepare(todo);
    queue_.assign(todo.begin(), todo.end());
    const size_t left_out = unfinished.size() - todo.size();
    line_(fmt::format("{} in {}: {:d} done, {:d} to do{}", plural(sweep_.runs.size(), "run"), folder_.string(),
                      sweep_.runs.size() - unfinished.size(), todo.size(),
                      left_out > 0 ? fmt::format(", {:d} left out", left_out) : ""));
    if (!queue_.empty()) {
      progress_.begin(status_);
      loop();
      progress_.end(status_);
    }
    runs_.write_results();
    write_ladder_report(folder_);
    const auto failed =
        std::count_if(status_.begin(), status_.end(), [](const RunStatus& s) { return s.state == "failed"; });
    line_("report in " + (folder_ / "index.html").string() +
          (failed > 0 ? "; " + std::to_string(failed) + " runs failed" : ""));
    return stopped_ ? static_cast<int>(ExitCode::kStopped) : failed > 0 ? static_cast<int>(ExitCode::kOther) : 0;
  }

 private:
  struct Job {
    size_t run;
    ChildProcess process;
    bool is_evaluation;
    Clock::time_point started;
  };

  /// Errors: ConfigError where runs at the same time would take the same GPUs; a warning for more processes than cores.
  void check_room(const std::vector<size_t>& todo) const {
    if (ranks_ == 1 || todo.empty()) { return; }
    const int64_t at_a_time = std::min(parallel_, static_cast<int64_t>(todo.size()));
    for (const size_t i : todo) {
      const auto config = Fields::read<RunConfig>(sweep_.runs[i].config, "");
      if (at_a_time > 1 && device_of(config, false) == DeviceKind::cuda) {
        throw ConfigError("--ranks", fmt::format("{:d} runs of {:d} ranks at a time on GPUs", at_a_time, ranks_),
                          "--parallel 1: each run takes the first GPUs");
      }
    }
    if (at_a_time * ranks_ > threads()) {
      line_(fmt::format("warning: {:d} processes ({:d} x {:d} ranks at a time) share the {:d} cores",
                        at_a_time * ranks_, at_a_time, ranks_, threads()));
    }
  }

  void loop() {
    while (!queue_.empty() || !jobs_.empty()) {
      if (const std::string signal = signals_.received(); !signal.empty() && !stopped_) {
        stopped_ = true;
        line_(signal + ": the runs save and stop");
        queue_.clear();
        for (const Job& job : jobs_) { job.process.stop(signals_.cause()); }
      }
      while (!queue_.empty() && static_cast<int64_t>(jobs_.size()) < parallel_) {
        const size_t next = queue_.front();
        queue_.pop_front();
        train(next);
      }
      for (size_t j = 0; j < jobs_.size();) {
        if (const std::optional<int> code = jobs_[j].process.poll()) {
          const Job job = std::move(jobs_[j]);
          jobs_.erase(jobs_.begin() + static_cast<std::ptrdiff_t>(j));
          ended(job, *code);
        } else {
          ++j;
        }
      }
      progress_.update(status_);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }

  /// `begun`: when the run's training began, for its evaluations.
  void start(size_t i, std::vector<std::string> arguments, std::optional<Clock::time_point> begun = {}) {
    if (const int64_t processes = parallel_ * (begun ? 1 : ranks_); processes > 1) {  // evaluations are one process
      arguments.insert(arguments.end(), {"--threads", std::to_string(std::max<int64_t>(1, threads() / processes))});
    }
    jobs_.push_back({i, ChildProcess(options_.program, arguments, runs_.run_folder(i) / kRunConsole), begun.has_value(),
                     begun.value_or(Clock::now())});
    if (!begun) { status_[i].started = time_now(); }
    note_start(runs_.run_folder(i), status_[i], jobs_.back().process.pid());
  }

  void train(size_t i) {
    std::vector<std::string> words = {"train", (runs_.run_folder(i) / kLadderConfig).string(), "--run-dir",
                                      runs_.run_folder(i).string()};
    if (ranks_ > 1) { words.insert(words.end(), {"--ranks", std::to_string(ranks_)}); }
    start(i, words);
    progress_.show(status_);
    line_("start " + sweep_.runs[i].id);
  }

  void ended(const Job& job, int code) {
    const size_t i = job.run;
    if (code == 0 && !job.is_evaluation && !sweep_.evals.empty() && !stopped_) {
      start(i, {"eval", sweep_.evals, "--checkpoint", runs_.run_folder(i).string()}, job.started);
      return;
    }
    RunStatus& s = status_[i];
    const bool is_done = code == 0 && (job.is_evaluation || sweep_.evals.empty());
    s.state = is_done ? "done" : stopped_ ? "pending" : "failed";
    s.error = s.state == "failed" ? failure_reason(runs_.run_folder(i) / kRunConsole, code) : "";
    s.step = last_logged_step(runs_.run_folder(i));
    const std::string line = note_end(runs_.run_folder(i), sweep_.runs[i].id, s, job.started);
    progress_.show(status_);
    line_(line);
    runs_.write_results();
  }

  const StopSignals signals_;
  const Sweep& sweep_;
  const LadderOptions& options_;
  const std::function<void(std::string_view)>& line_;
  LadderRuns runs_;
  const fs::path& folder_;
  LadderProgress progress_;
  int64_t parallel_, ranks_;
  std::vector<RunStatus>& status_ = runs_.status;
  std::deque<size_t> queue_;
  std::vector<Job> jobs_;
  bool stopped_ = false;
};

}  // namespace

int run_ladder(const Sweep& sweep, const LadderOptions& options, const Console& console) {
  return Ladder(sweep, options, console).run();
}

}  // namespace hebb
