#include "study/ladder.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <deque>
#include <set>
#include <thread>

#include "core/parallel.h"
#include "core/progress.h"
#include "inspect/plan.h"
#include "study/child_process.h"
#include "study/ladder_progress.h"
#include "study/read_metrics.h"
#include "study/report.h"
#include "study/run_results.h"
#include "train/choose_device.h"
#include "train/memory_plan.h"
#include "train/run_config.h"
#include "train/run_lock.h"
#include "train/signals.h"

namespace hebb {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kConfigFile = "ladder-config.json";  // of a run, as given to hebb train
constexpr const char* kConsole = "console.log";

std::string now() {
  const std::time_t t = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&t, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

std::string host_name() {
  char host[256] = "localhost";
  ::gethostname(host, sizeof host - 1);
  return host;
}

fs::path folder_of(const Sweep& sweep, const LadderOptions& options) {
  return fs::absolute(options.folder.empty() ? fs::path("runs") / sweep.name : options.folder).lexically_normal();
}

/// Why a child failed: its last line that starts with "error: ", or how it ended.
std::string reason(const fs::path& console, int code) {
  std::string found =
      code > 128 ? "killed by signal " + std::to_string(code - 128) : "exit code " + std::to_string(code);
  const std::string text = fs::exists(console) ? read_file(console) : "";
  const size_t at = text.rfind("error: ");
  if (code <= 128 && at != std::string::npos && (at == 0 || text[at - 1] == '\n')) {
    found = text.substr(at + 7, text.find('\n', at) - at - 7) + " (" + found + ")";
  }
  return found;
}

void refuse(const fs::path& folder, const std::string& found) {
  throw CheckpointError(folder.string(), "not the folder of this sweep", found,
                        "a new folder, or that of an earlier start of the sweep");
}

/// A folder of this sweep has a sweep.json of the same name that shares a run with it.
void require_own_folder(const Sweep& sweep, const fs::path& folder) {
  if (!fs::exists(folder) || fs::is_empty(folder)) { return; }
  if (!is_ladder(folder)) { refuse(folder, "files without sweep.json"); }
  const LadderFolder old = read_ladder(folder);
  const bool shares = std::any_of(old.runs.begin(), old.runs.end(), [&](const LadderRun& r) {
    return std::any_of(sweep.runs.begin(), sweep.runs.end(), [&](const SweepRun& s) { return s.id == r.id; });
  });
  if (old.name != sweep.name || !shares) {
    refuse(folder, "the sweep \"" + old.name + "\"" + (shares ? "" : " with other runs"));
  }
}

void write_sweep(const Sweep& sweep, const fs::path& folder) {
  Json json = Json::object(), runs = Json::array(), planned = Json::array();
  json.set("name", sweep.name);
  for (const SweepRun& run : sweep.runs) {
    RunConfig config;
    Fields::read(run.config, "", config);
    const int64_t tokens = config.train.steps * config.train.tokens_per_step();
    const Model model(config.model);
    Json item = Json::object();
    item.set("id", run.id);
    item.set("tags", run.tags);
    item.set("steps", config.train.steps);
    item.set("flops", 3 * model.flops_per_token(config.train.sequence_length) * static_cast<double>(tokens));
    runs.push(item);
  }
  json.set("runs", runs);
  for (const SweepRun& run : sweep.planned) { planned.push(planned_result(run)); }
  json.set("planned", planned);
  json.set("fit", sweep.fit ? Fields::write(*sweep.fit) : Json());
  json.set("source", sweep.source);
  write_file_atomic(folder / "sweep.json", json.dump(1) + "\n");
}

class Ladder {
 public:
  Ladder(const Sweep& sweep, const LadderOptions& options, const Console& console)
      : sweep_(sweep),
        options_(options),
        line_(console.line),
        folder_(folder_of(sweep, options)),
        progress_(folder_, console.bar),
        parallel_(options.parallel > 0 ? options.parallel : sweep.max_parallel) {}

  int run() {
    require_own_folder(sweep_, folder_);
    fs::create_directories(folder_);
    const RunLock lock(folder_);
    const std::vector<size_t> changed = check_runs();
    for (size_t i = 0; i < sweep_.runs.size(); ++i) {
      const bool is_changed = std::find(changed.begin(), changed.end(), i) != changed.end();
      if (is_changed || status_[i].state != "done") { queue_.push_back(i); }
    }
    check_needs();
    for (const size_t i : changed) { set_aside(i); }
    write_sweep(sweep_, folder_);
    for (const size_t i : queue_) { prepare(i); }
    line_(std::to_string(sweep_.runs.size()) + " runs in " + folder_.string() + ": " +
          std::to_string(sweep_.runs.size() - queue_.size()) + " done, " + std::to_string(queue_.size()) + " to do");
    if (!queue_.empty()) {
      progress_.begin(status_);
      loop();
      progress_.end(status_);
    }
    write_results();
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

  fs::path run_folder(size_t i) const { return folder_ / sweep_.runs[i].id; }

  /// Reads all states. Returns the runs whose configuration is not the one that their folder was made with.
  std::vector<size_t> check_runs() {
    std::vector<size_t> changed;
    for (size_t i = 0; i < sweep_.runs.size(); ++i) {
      status_.push_back(read_status(run_folder(i)));
      const std::string hash = config_hash(sweep_.runs[i].config);
      if (!status_[i].config_hash.empty() && status_[i].config_hash != hash) {
        if (!options_.force) {
          throw ConfigError(run_folder(i).string(), "a run of another configuration" + differences(i),
                            "that of the sweep (--force starts changed runs anew and keeps the old folder)");
        }
        changed.push_back(i);
      }
    }
    return changed;
  }

  /// ": train.steps: 10 there, 20 here; ..." where the configuration of the earlier start can be read.
  std::string differences(size_t i) const {
    try {
      std::string text;
      const Json stored = parse_json_file((run_folder(i) / kConfigFile).string());
      for (const ConfigDifference& d : compare_configs(stored, sweep_.runs[i].config)) {
        text += (text.empty() ? ": " : "; ") + d.path + ": " + d.stored + " there, " + d.current + " here";
      }
      return text;
    } catch (const Error&) { return ""; }
  }

  /// Reads the data of every run that is to do and compares its memory with what there is, so that what cannot run
  /// shows before any of them starts.
  void check_needs() const {
    std::string text;
    size_t count = 0;
    constexpr size_t kShown = 4;
    for (const size_t i : queue_) {
      if (const std::string problem = problem_of(sweep_.runs[i].config); !problem.empty()) {
        if (++count <= kShown) { text += "; " + sweep_.runs[i].id + ": " + problem; }
      }
    }
    if (count == 0) { return; }
    const std::string found = std::to_string(count) + " of " + std::to_string(queue_.size()) + " runs cannot start" +
                              text + (count > kShown ? "; …" : "");
    if (count == queue_.size()) { throw DataError(folder_.string(), found); }
    line_("warning: " + found);
  }

  static std::string problem_of(const Json& json) {
    try {
      RunConfig config;
      Fields::read(json, "", config);
      resolve(config);
      describe_data(config);
      const int64_t needed = plan_memory(config).total_bytes(), found = available_memory_bytes(device_of(config));
      return needed <= found ? ""
                             : "needs " + format_bytes(static_cast<double>(needed)) + " of memory, " +
                                   format_bytes(static_cast<double>(found)) + " are available";
    } catch (const Error& error) { return error.what(); }
  }

  void set_aside(size_t i) {
    const fs::path kept = folder_ / (sweep_.runs[i].id + "." + status_[i].config_hash);
    line_(sweep_.runs[i].id + ": the configuration has changed; the old run is kept in " + kept.string());
    fs::remove_all(kept);
    fs::rename(run_folder(i), kept);
    status_[i] = {};
  }

  /// Waits for a process that an earlier ladder left behind, which saves and ends by itself, and writes the
  /// configuration.
  void prepare(size_t i) {
    fs::create_directories(run_folder(i));
    for (int tries = 0; status_[i].state == "running"; ++tries) {
      try {
        const RunLock probe(run_folder(i));
        break;
      } catch (const CheckpointError&) {
        constexpr int kTries = 600;  // a minute: enough for a step and a save, or the lock is somebody else's
        if (tries == kTries) { throw; }
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
      }
    }
    write_file_atomic(run_folder(i) / kConfigFile, sweep_.runs[i].config.dump(1) + "\n");
    status_[i].config_hash = config_hash(sweep_.runs[i].config);
    status_[i].state = "pending";
    write_status(run_folder(i), status_[i]);
  }

  void loop() {
    while (!queue_.empty() || !jobs_.empty()) {
      if (const std::string signal = signals_.received(); !signal.empty() && !stopped_) {
        stopped_ = true;
        line_(signal + ": the runs save and stop");
        queue_.clear();
        for (const Job& job : jobs_) { job.process.terminate(); }
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
    if (parallel_ > 1) {
      arguments.insert(arguments.end(), {"--threads", std::to_string(std::max<int64_t>(1, threads() / parallel_))});
    }
    jobs_.push_back({i, ChildProcess(options_.program, arguments, run_folder(i) / kConsole), begun.has_value(),
                     begun.value_or(Clock::now())});
    RunStatus& s = status_[i];
    s.state = "running";
    s.pid = jobs_.back().process.pid();
    s.host = host_name();
    if (!begun) { s.started = now(); }
    s.ended = s.error = "";
    write_status(run_folder(i), s);
  }

  void train(size_t i) {
    start(i, {"train", (run_folder(i) / kConfigFile).string(), "--run-dir", run_folder(i).string()});
    progress_.show(status_);
    line_("start " + sweep_.runs[i].id);
  }

  void ended(const Job& job, int code) {
    const size_t i = job.run;
    if (code == 0 && !job.is_evaluation && !sweep_.evals.empty() && !stopped_) {
      start(i, {"eval", sweep_.evals, "--checkpoint", run_folder(i).string()}, job.started);
      return;
    }
    RunStatus& s = status_[i];
    const bool is_done = code == 0 && (job.is_evaluation || sweep_.evals.empty());
    s.state = is_done ? "done" : stopped_ ? "pending" : "failed";
    s.error = s.state == "failed" ? reason(run_folder(i) / kConsole, code) : "";
    s.ended = now();
    s.pid = 0;
    s.step = last_logged_step(run_folder(i));
    write_status(run_folder(i), s);
    progress_.show(status_);
    const double seconds = std::chrono::duration<double>(Clock::now() - job.started).count();
    line_((s.state == "pending" ? "stopped" : s.state) + " " + sweep_.runs[i].id + " at step " +
          std::to_string(s.step) + " after " + format_duration(seconds) + (s.error.empty() ? "" : ": " + s.error));
    write_results();
  }

  void write_results() const {
    std::vector<Json> results;
    for (size_t i = 0; i < sweep_.runs.size(); ++i) {
      if (status_[i].state == "done") {
        results.push_back(result_of(run_folder(i), sweep_.runs[i].id, sweep_.runs[i].tags));
      }
    }
    write_file_atomic(folder_ / "results.jsonl", results_jsonl(results));
    write_file_atomic(folder_ / "results.csv", results_csv(results));
  }

  const StopSignals signals_;
  const Sweep& sweep_;
  const LadderOptions& options_;
  const std::function<void(std::string_view)>& line_;
  fs::path folder_;
  LadderProgress progress_;
  int64_t parallel_;
  std::vector<RunStatus> status_;  // by run
  std::deque<size_t> queue_;
  std::vector<Job> jobs_;
  bool stopped_ = false;
};

std::string text_of(const Json& json, const char* key) {
  const Json* v = json.find(key);
  return v != nullptr && v->is_string() ? v->as_string() : "";
}

int64_t integer_of(const Json& json, const char* key) {
  const Json* v = json.find(key);
  return v != nullptr && v->is_integer() ? v->as_int() : 0;
}

}  // namespace

RunStatus read_status(const fs::path& run) {
  const fs::path path = run / "status.json";
  RunStatus s;
  if (!fs::exists(path)) { return s; }
  try {
    const Json json = parse_json(read_file(path), path.string());
    s.state = text_of(json, "state");
    s.config_hash = text_of(json, "config_hash");
    s.host = text_of(json, "host");
    s.started = text_of(json, "started");
    s.ended = text_of(json, "ended");
    s.error = text_of(json, "error");
    s.step = integer_of(json, "step");
    s.pid = integer_of(json, "pid");
  } catch (const ConfigError& error) {
    throw CheckpointError(path.string(), std::string("not a status: ") + error.what());
  }
  static const std::set<std::string> states = {"pending", "running", "done", "failed"};
  if (states.count(s.state) == 0) {
    throw CheckpointError(path.string(), "not a status", "state \"" + s.state + "\"",
                          "pending, running, done or failed");
  }
  return s;
}

bool was_killed(const RunStatus& s) {
  return s.state == "running" && s.host == host_name() && s.pid > 0 && ::kill(static_cast<pid_t>(s.pid), 0) != 0 &&
         errno == ESRCH;
}

void write_status(const fs::path& run, const RunStatus& s) {
  Json json = Json::object();
  json.set("state", s.state);
  json.set("config_hash", s.config_hash);
  json.set("step", s.step);
  json.set("host", s.host);
  json.set("pid", s.pid);
  json.set("started", s.started);
  json.set("ended", s.ended);
  json.set("error", s.error);
  write_file_atomic(run / "status.json", json.dump(1) + "\n");
}

int run_ladder(const Sweep& sweep, const LadderOptions& options, const Console& console) {
  return Ladder(sweep, options, console).run();
}

bool is_ladder(const fs::path& folder) { return fs::exists(folder / "sweep.json"); }

LadderFolder read_ladder(const fs::path& folder) {
  const fs::path path = folder / "sweep.json";
  if (!fs::exists(path)) {
    throw CheckpointError(folder.string(), "no ladder here", fs::exists(folder) ? "no sweep.json" : "nothing",
                          "a folder that hebb ladder made");
  }
  try {
    const Json json = parse_json(read_file(path), path.string());
    LadderFolder ladder;
    ladder.name = text_of(json, "name");
    if (const Json* runs = json.find("runs"); runs != nullptr && runs->is_array()) {
      for (const Json& r : runs->items()) {
        const Json *tags = r.find("tags"), *flops = r.find("flops");
        ladder.runs.push_back({text_of(r, "id"), tags != nullptr && tags->is_object() ? *tags : Json::object(),
                               integer_of(r, "steps"),
                               flops != nullptr && flops->is_number() ? flops->as_double() : 0});
      }
    }
    if (const Json* planned = json.find("planned"); planned != nullptr && planned->is_array()) {
      ladder.planned = planned->items();
    }
    if (const Json* fit = json.find("fit"); fit != nullptr && fit->is_object()) {
      Fields::read(*fit, "fit", ladder.fit.emplace());
    }
    return ladder;
  } catch (const ConfigError& error) {
    throw CheckpointError(path.string(), std::string("not a ladder: ") + error.what());
  }
}

}  // namespace hebb
