#include "study/ladder/runs.h"

#include <fmt/core.h>

#include <algorithm>
#include <ctime>
#include <thread>

#include "core/elapsed.h"
#include "core/host.h"
#include "core/join.h"
#include "core/key_error.h"
#include "core/plural.h"
#include "core/progress.h"
#include "core/retry.h"
#include "inspect/plan.h"
#include "study/ladder/cluster_config.h"
#include "study/ladder/shrink.h"
#include "study/report/run_results.h"
#include "train/choose_device.h"
#include "train/memory_plan.h"
#include "train/run_config.h"
#include "train/run_folder.h"

namespace hebb {
namespace {

fs::path folder_of(const Sweep& sweep, const LadderOptions& options) {
  return fs::absolute(options.folder.empty() ? fs::path("runs") / sweep.name : options.folder).lexically_normal();
}

void refuse(const fs::path& folder, const std::string& found) {
  throw CheckpointError(folder.string(), "not the folder of this sweep", found,
                        "a new folder, or that of an earlier start of the sweep");
}

/// Whether a folder holds nothing, or what a ladder writes before sweep.json.
bool is_new(const fs::path& folder) {
  std::error_code none;  // no folder
  const fs::directory_iterator entries(folder, none);
  return std::all_of(begin(entries), end(entries), [](const fs::directory_entry& entry) {
    const std::string name = entry.path().filename().string();
    return name == "lock" || name.starts_with("sweep.json.tmp-");
  });
}

/// A folder of this sweep has a sweep.json of the same name that shares a run with it.
void require_own_folder(const Sweep& sweep, const fs::path& folder) {
  const bool has_files = !is_new(folder);  // before sweep.json: a start at the same time writes that first
  if (!is_ladder(folder)) {
    if (has_files) { refuse(folder, "files without sweep.json"); }
    return;
  }
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
    const auto config = Fields::read<RunConfig>(run.config, "");
    const int64_t tokens = config.train.steps * config.train.tokens_per_step();
    const Model model(config.model);
    runs.push(Json::object(
        {{"id", run.id},
         {"tags", run.tags},
         {"steps", config.train.steps},
         {"flops", 3 * model.flops_per_token(config.train.sequence_length) * static_cast<double>(tokens)}}));
  }
  json.set("runs", runs);
  for (const SweepRun& run : sweep.planned) { planned.push(planned_result(run)); }
  json.set("planned", planned);
  if (sweep.shrunk) { json.set("shrink", Fields::write(sweep.shrunk->factors)); }
  json.set("fit", sweep.fit ? Fields::write(*sweep.fit) : Json());
  if (sweep.published) { json.set("published", Fields::write(*sweep.published)); }
  json.set("source", sweep.source);
  write_file_atomic(folder / "sweep.json", json.dump(1) + "\n");
}

}  // namespace

std::string time_now() {
  const std::time_t t = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&t, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

/// Why a child failed: its last line that starts with "error: ", or how it ended.
std::string failure_reason(const fs::path& console, int code) {
  std::string found =
      code > 128 ? "killed by signal " + std::to_string(code - 128) : "exit code " + std::to_string(code);
  const std::string text = fs::exists(console) ? read_file(console) : "";
  const size_t at = text.rfind("error: ");
  if (code <= 128 && at != std::string::npos && (at == 0 || text[at - 1] == '\n')) {
    found = text.substr(at + 7, text.find('\n', at) - at - 7) + " (" + found + ")";
  }
  return found;
}

void note_start(const fs::path& run, RunStatus& status, pid_t pid) {
  status.state = "running";
  status.pid = pid;
  status.host = host_name();
  status.ended = status.error = "";
  write_status(run, status);
}

std::string note_end(const fs::path& run, const std::string& id, RunStatus& status,
                     std::chrono::steady_clock::time_point begun) {
  status.ended = time_now();
  status.pid = 0;
  status.seconds += seconds_since(begun);
  write_status(run, status);
  return fmt::format("{} {} at step {:d} after {}{}", status.state == "pending" ? "stopped" : status.state, id,
                     status.step, format_duration(status.seconds), status.error.empty() ? "" : ": " + status.error);
}

void remove_lock_of_other_host(const fs::path& run) {
  if (fs::exists(run / "lock") && !read_file(run / "lock").starts_with(host_name() + " ")) { fs::remove(run / "lock"); }
}

int ranks_of(const SweepRun& run, const Sweep& sweep, const LadderOptions& options) {
  if (options.launcher.empty()) { return static_cast<int>(options.ranks > 0 ? options.ranks : sweep.ranks); }
  return static_cast<int>(options.ranks > 0 ? options.ranks : read_cluster(run.cluster, options.cluster).ranks);
}

namespace {

std::optional<StoredSplit> stored_split_in(const RunConfig& config, const fs::path& folder) {
  return folder.empty() ? std::nullopt : stored_split(config, {.run_folder = folder});
}

}  // namespace

RunConfig resolved_run(const SweepRun& run, int ranks, const fs::path& folder) {
  auto config = Fields::read<RunConfig>(run.config, "");
  config.source = run.written;
  try {
    resolve(config, ranks, false, stored_split_in(config, folder));
  } catch (const ConfigError& error) { throw ConfigError(error.what(), "in the run " + run.id); }
  return config;
}

void require_resolved(const Sweep& sweep, const LadderOptions& options, const std::vector<size_t>& runs,
                      const std::function<fs::path(size_t)>& folder_of) {
  std::vector<std::string> errors;
  for (const size_t i : runs) {
    try {
      resolved_run(sweep.runs[i], ranks_of(sweep.runs[i], sweep, options), folder_of(i));
    } catch (const ConfigError& error) { errors.emplace_back(error.what()); }
  }
  constexpr size_t kShown = 8;
  if (errors.size() > kShown) {
    errors[kShown] = "and " + plural(errors.size() - kShown, "more run");
    errors.resize(kShown + 1);
  }
  if (!errors.empty()) { throw ConfigErrors(join(errors, "\n")); }
}

RunNeeds needs_of(const SweepRun& run, int ranks, const NeedsAsked& asked) {
  RunNeeds needs{run.id, "", false, 0, 0};
  try {
    RunConfig config = run_config_of(run.config, nullptr);
    resolve(config, ranks, asked.memory, stored_split_in(config, asked.folder));
    if (asked.data) { describe_data(config); }
    if (!asked.memory) { return needs; }
    const bool is_shared = device_of(config) == DeviceKind::cpu;  // by all ranks
    needs.bytes = plan_rank_memory(config, ranks).total_bytes() * (is_shared ? ranks : 1);
    const MemoryLimit available = available_memory(device_of(config));
    needs.available = available.bytes;
    needs.is_memory = needs.bytes > needs.available;
    if (needs.is_memory) {
      needs.problem =
          fmt::format("{}: needs {} ({:d} bytes) of memory, {} ({:d} bytes) are available{}", run.id,
                      format_bytes(static_cast<double>(needs.bytes)), needs.bytes,
                      format_bytes(static_cast<double>(needs.available)), needs.available, under(available));
    }
  } catch (const Error& error) { needs.problem = run.id + ": " + error.what(); }
  return needs;
}

std::string cannot_start(const std::vector<RunNeeds>& problems, size_t runs) {
  constexpr size_t kShown = 4;
  std::string text = fmt::format("{:d} of {:d} runs cannot start", problems.size(), runs);
  for (size_t i = 0; i < std::min(kShown, problems.size()); ++i) { text += "; " + problems[i].problem; }
  return text + (problems.size() > kShown ? "; …" : "");
}

LadderRuns::LadderRuns(const Sweep& sweep, const LadderOptions& options,
                       const std::function<void(std::string_view)>& line)
    : sweep_(sweep), options_(options), line_(line), folder_(folder_of(sweep, options)) {}

void LadderRuns::open() {
  require_own_folder(sweep_, folder_);
  lock_.emplace(folder_, LockOptions{}, line_);
  require_own_folder(sweep_, folder_);  // of whoever had the lock before
  std::vector<fs::path> begun;          // by a start that was killed
  for (const fs::path& folder : {folder_, folder_ / "plots"}) {
    std::error_code none;  // no plots
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, none)) {
      const bool is_begun = entry.path().filename().string().find(".tmp-") != std::string::npos;
      if (is_begun && !entry.is_directory()) { begun.push_back(entry.path()); }  // the name of a run may hold it
    }
  }
  for (const fs::path& file : begun) {
    retried_or_throws([&] { return fs::remove(file); });
  }
}

void LadderRuns::read() {
  for (size_t i = 0; i < sweep_.runs.size(); ++i) {
    status.push_back(read_status(run_folder(i)));
    const std::string hash = config_hash(sweep_.runs[i].config);
    if (!status[i].config_hash.empty() && status[i].config_hash != hash) {
      if (!options_.force) {
        throw ConfigError(run_folder(i).string(), "a run of another configuration" + differences(i),
                          "that of the sweep (--force starts changed runs anew and keeps the old folder)");
      }
      changed_.push_back(i);
    }
  }
  require_resolved(sweep_, options_, unfinished(),
                   [&](size_t i) { return is_changed(i) ? fs::path() : run_folder(i); });
  if (sweep_.shrunk && !unfinished().empty()) { prepare_shrunken(*sweep_.shrunk); }
}

void LadderRuns::prepare_shrunken(const ShrunkTo& shrunk) const {
  if (const auto before = is_ladder(folder_) ? read_ladder(folder_).shrink : std::nullopt;
      before && (before->documents != shrunk.factors.documents || before->joined != shrunk.factors.joined)) {
    fs::remove_all(shrunk.corpus);  // of a sweep that has changed before any of its runs began
  }
  write_sweep(sweep_, folder_);
  write_file_atomic(folder_ / "shrunk.txt", shrunk.text);
  Progress quiet;
  write_corpus(shrunk, quiet);
}

bool LadderRuns::is_changed(size_t i) const { return std::find(changed_.begin(), changed_.end(), i) != changed_.end(); }

std::vector<size_t> LadderRuns::unfinished() const {
  std::vector<size_t> runs;
  for (size_t i = 0; i < sweep_.runs.size(); ++i) {
    if (is_changed(i) || status[i].state != "done") { runs.push_back(i); }
  }
  return runs;
}

void LadderRuns::prepare(const std::vector<size_t>& runs) {
  for (const size_t i : changed_) { set_aside(i); }
  write_sweep(sweep_, folder_);
  for (const size_t i : runs) { prepare_run(i); }
}

std::string LadderRuns::differences(size_t i) const {
  try {
    const Json stored = parse_json_file((run_folder(i) / kLadderConfig).string());
    const std::string text = join(all_differences(stored, sweep_.runs[i].config), "; ", [](const ConfigDifference& d) {
      return d.path + ": " + d.stored + " there, " + d.current + " here";
    });
    return text.empty() ? "" : ": " + text;
  } catch (const Error&) { return ""; }
}

void LadderRuns::require_memory(std::vector<size_t>& runs, const std::function<int(size_t)>& ranks_of) const {
  const size_t all = runs.size();
  std::vector<RunNeeds> fit, too_large, others;
  std::vector<size_t> left;
  for (const size_t i : runs) {
    const RunNeeds needs = needs_of(sweep_.runs[i], ranks_of(i), {.memory = true, .folder = run_folder(i)});
    (needs.is_memory ? too_large : needs.problem.empty() ? fit : others).push_back(needs);
    if (!needs.is_memory) { left.push_back(i); }
  }
  for (const RunNeeds& p : too_large) { line_("cannot start: " + p.problem); }
  if (!too_large.empty() && (!options_.skips_unfit || left.empty())) {
    throw MemoryError(
        folder_.string(),
        cannot_start(too_large, all) + (left.empty() ? "" : " (--skip-unfit leaves them out and trains the others)"));
  }
  runs = left;
  warn_of_problems(others, left.size());
  warn_of_memory(std::move(fit));
}

void LadderRuns::warn_of_problems(const std::vector<RunNeeds>& problems, size_t runs) const {
  if (problems.empty()) { return; }
  const std::string found = cannot_start(problems, runs);
  if (problems.size() == runs) { throw DataError(folder_.string(), found); }
  line_("warning: " + found);
}

void LadderRuns::warn_of_memory(std::vector<RunNeeds> runs) const {
  const auto at_a_time =
      std::min(static_cast<size_t>(options_.parallel > 0 ? options_.parallel : sweep_.max_parallel), runs.size());
  if (at_a_time < 2) { return; }
  std::sort(runs.begin(), runs.end(), [](const RunNeeds& a, const RunNeeds& b) { return a.bytes > b.bytes; });
  int64_t bytes = 0;
  for (size_t i = 0; i < at_a_time; ++i) { bytes += runs[i].bytes; }
  if (bytes <= runs[0].available) { return; }
  line_(fmt::format(
      "warning: the {:d} largest runs together need {} of memory, {} are available: --parallel 1 trains "
      "one after the other",
      at_a_time, format_bytes(static_cast<double>(bytes)), format_bytes(static_cast<double>(runs[0].available))));
}

void LadderRuns::warn_of_data(const std::vector<size_t>& runs, const std::function<int(size_t)>& ranks_of) const {
  std::vector<RunNeeds> problems;
  for (const size_t i : runs) {
    const RunNeeds needs = needs_of(sweep_.runs[i], ranks_of(i), {.folder = run_folder(i)});
    if (!needs.problem.empty()) { problems.push_back(needs); }
  }
  warn_of_problems(problems, runs.size());
}

void LadderRuns::set_aside(size_t i) {
  const fs::path kept = folder_ / (sweep_.runs[i].id + "." + status[i].config_hash);
  line_(sweep_.runs[i].id + ": the configuration has changed; the old run is kept in " + kept.string());
  retried_or_throws([&] { return fs::remove_all(kept); });
  retried_or_throws([&] { return fs::rename(run_folder(i), kept); });
  status[i] = {};
}

void LadderRuns::prepare_run(size_t i) {
  retried_or_throws([&] { return fs::create_directories(run_folder(i)); });
  // A minute: enough for a step and a save, or the lock is somebody else's.
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (status[i].state == "running") {
    try {
      const FolderLock probe(run_folder(i));
      break;
    } catch (const CheckpointError&) {
      if (std::chrono::steady_clock::now() > end) { throw; }
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }
  remove_begun(run_folder(i));
  write_file_atomic(run_folder(i) / kLadderConfig, sweep_.runs[i].config.dump(1) + "\n");
  status[i].config_hash = config_hash(sweep_.runs[i].config);
  status[i].state = "pending";
  status[i].ended = status[i].error = status[i].task = "";
  status[i].idle = 0;
  write_status(run_folder(i), status[i]);
}

void LadderRuns::write_results() const {
  std::vector<Json> results;
  for (size_t i = 0; i < sweep_.runs.size(); ++i) {
    if (status[i].state == "done") {
      results.push_back(result_of({run_folder(i)}, sweep_.runs[i].id, sweep_.runs[i].tags));
    }
  }
  write_file_atomic(folder_ / "results.jsonl", results_jsonl(results));
  write_file_atomic(folder_ / "results.csv", results_table(results).csv());
}

}  // namespace hebb
