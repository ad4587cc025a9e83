// What a ladder will cost, and how far it is.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "core/join.h"
#include "core/progress.h"
#include "inspect/plan.h"
#include "study/ladder/launcher.h"
#include "study/ladder/progress.h"
#include "study/ladder/run_command.h"
#include "study/ladder/runs.h"
#include "study/report/read_metrics.h"

namespace hebb {
namespace {

struct RunProgress {
  int64_t step = 0;
  double loss = NAN, tokens = 0, tokens_per_s = 0;
};

RunProgress progress_of(const fs::path& run) {
  RunProgress p;
  if (fs::exists(run / "metrics.jsonl")) {
    const RunMetrics m = read_metrics(run);
    if (!m.loss.x.empty()) {
      p.step = static_cast<int64_t>(m.loss.x.back());
      p.loss = m.loss.y.back();
      p.tokens = m.tokens.empty() ? 0 : m.tokens.back();
      p.tokens_per_s = m.tokens_per_s.empty() ? 0 : m.tokens_per_s.back();
    }
  }
  return p;
}

/// The last lines of a file, indented, with its path.
std::string tail_of(const fs::path& file) {
  if (!fs::exists(file)) { return file.string() + " is not there\n"; }
  std::vector<std::string> lines = lines_of(read_file(file));
  while (!lines.empty() && lines.back().empty()) { lines.pop_back(); }
  if (lines.empty()) { return file.string() + " is empty\n"; }
  constexpr size_t kLines = 6;
  return "the end of " + file.string() + ":\n  " + join(std::span(lines).last(std::min(kLines, lines.size())), "\n  ") +
         "\n";
}

/// What the jobs of a run add to its line: `status` becomes what they say.
std::string job_text(const LadderJobs& jobs, const std::string& run, RunStatus& status) {
  if (const auto active = jobs.active.find(run); active != jobs.active.end()) {
    const LadderJobs::Active& job = active->second;
    status.state = job.is_running ? "running" : "queued";
    status.error = "";
    return (job.job.empty() ? "" : "job " + job.job) +
           (job.is_running && !status.host.empty() ? " on " + status.host : "") +
           (job.reason.empty() || job.reason == "None" ? "" : ": " + job.reason);
  }
  if (const auto lost = jobs.lost.find(run); lost != jobs.lost.end()) {
    const bool has_started = status.state == "running";
    status.state = has_started ? "stopped" : "failed";
    return "job " + lost->second.job + (has_started ? " was killed" : " ended before hebb started") +
           (lost->second.how.empty() ? "" : " (" + lost->second.how + ")");
  }
  return "";
}

/// The logs of runs that jobs did not bring to their ends: of the first ones, which often have one cause.
std::string failures(const fs::path& folder, const LadderFolder& ladder, const LadderJobs& jobs,
                     const std::vector<RunStatus>& states) {
  std::vector<fs::path> logs;
  for (size_t i = 0; i < ladder.runs.size(); ++i) {
    const std::string& id = ladder.runs[i].id;
    if (const auto lost = jobs.lost.find(id); lost != jobs.lost.end()) {
      logs.push_back(lost->second.log);
    } else if (states[i].state == "failed" && !states[i].task.empty()) {
      logs.push_back(folder / id / kRunConsole);
    }
  }
  constexpr size_t kShown = 4;
  std::string text;
  for (size_t i = 0; i < std::min(kShown, logs.size()); ++i) { text += tail_of(logs[i]); }
  return text + (logs.size() > kShown ? "and " + std::to_string(logs.size() - kShown) + " more\n" : "");
}

/// Where a run is or will be; empty: nobody has said it.
fs::path folder_of(const SweepRun& run, const LadderOptions& options) {
  return options.folder.empty() ? fs::path() : options.folder / run.id;
}

/// A line for each run that cannot start.
std::string start_problems(const Sweep& sweep, const LadderOptions& options) {
  constexpr size_t kOthersShown = 3;  // missing data has one cause for many runs
  std::string text;
  size_t others = 0;
  for (const SweepRun& run : sweep.runs) {
    auto config = Fields::read<RunConfig>(run.config, "");
    bool is_here = options.launcher.empty();
    try {
      device_of(config);
    } catch (const ConfigError&) {  // planned for a machine with a GPU
      is_here = false;
    }
    const NeedsAsked asked{.memory = is_here,
                           .data = !sweep.shrunk,  // a shrunken sweep makes its data
                           .folder = folder_of(run, options)};
    const RunNeeds needs = needs_of(run, is_here ? ranks_of(run, sweep, options) : 1, asked);
    if (needs.problem.empty()) { continue; }
    if (needs.is_memory || ++others <= kOthersShown) { text += "cannot start: " + needs.problem + "\n"; }
  }
  return text + (others > kOthersShown ? fmt::format("and {:d} more runs cannot start\n", others - kOthersShown) : "");
}

}  // namespace

std::vector<Plan> plan_runs(const Sweep& sweep, const LadderOptions& ladder, const PlanOptions& options) {
  PlanOptions own = options;
  own.open_data = false;
  std::vector<Plan> plans;
  for (const SweepRun& run : sweep.runs) {
    SweepRun planned = run;
    set_planned_device(planned.config, options);
    own.ranks = ranks_of(run, sweep, ladder);
    plans.push_back(plan_run(resolved_run(planned, own.ranks), own));
  }
  return plans;
}

double schedule_seconds(const std::vector<double>& run_seconds, int64_t at_a_time) {
  std::vector<double> ends(static_cast<size_t>(std::max<int64_t>(at_a_time, 1)), 0.0);  // of what each place runs
  for (const double seconds : run_seconds) { *std::min_element(ends.begin(), ends.end()) += seconds; }
  return *std::max_element(ends.begin(), ends.end());
}

std::string describe_ladder(const Sweep& sweep, const LadderOptions& ladder, const PlanOptions& options, int columns) {
  const int64_t at_a_time = ladder.parallel > 0 ? ladder.parallel : sweep.max_parallel;
  std::vector<size_t> left;
  for (size_t i = 0; i < sweep.runs.size(); ++i) {
    const fs::path folder = folder_of(sweep.runs[i], ladder);
    if (folder.empty() || read_status(folder).state != "done") { left.push_back(i); }
  }
  require_resolved(sweep, ladder, left, [&](size_t i) { return folder_of(sweep.runs[i], ladder); });
  const std::vector<Plan> plans = plan_runs(sweep, ladder, options);
  std::string solved;
  double flops = 0, tokens = 0;
  std::vector<double> seconds;
  double gpu_hours = 0;
  for (const Plan& plan : plans) {
    flops += plan.training_flops();
    tokens += static_cast<double>(plan.tokens);
    if (plan.hours) {
      seconds.push_back(*plan.hours * 3600);
      gpu_hours += *plan.hours * plan.ranks;
    }
  }
  for (const SweepRun& run : sweep.runs) {
    for (const Solved& s : run.solved) {
      solved += fmt::format("{}: {} = {} gives {} {:.6g}, {:+.3f} % of {:.6g}\n", run.id, s.path, s.value, s.quantity,
                            s.reached, 100 * (s.reached - s.target) / s.target, s.target);
    }
  }
  for (const SweepRun& run : sweep.planned) {
    solved += fmt::format("{} is predicted and not trained: {:.4e} FLOPs\n", run.id,
                          planned_result(run).at("flops.total").as_double());
  }
  std::string text = compare_plans(plans, columns) + (solved.empty() ? "" : "\n" + solved);
  text += fmt::format("\n{} runs, {:.4g} tokens, {:.4e} FLOPs", plans.size(), tokens, flops);
  if (!seconds.empty()) {
    const bool has_ranks = std::any_of(plans.begin(), plans.end(), [](const Plan& plan) { return plan.ranks > 1; });
    const std::string speed = plans[0].speed.empty()
                                  ? fmt::format("{:.4g} FLOP/s{}", *options.tflops * 1e12, has_ranks ? " a rank" : "")
                                  : plans[0].speed;
    text += fmt::format(", {} at {} with {} at a time", format_duration(schedule_seconds(seconds, at_a_time)), speed,
                        at_a_time);
    if (!options.gpu.empty()) { text += fmt::format("; {:.3g} GPU hours", gpu_hours); }
  }
  const std::string problems = options.gpu.empty() ? start_problems(sweep, ladder) : "";
  return text + "\n" + (problems.empty() ? "" : "\n" + problems);
}

std::string ladder_status(const fs::path& folder) {
  const LadderFolder ladder = read_ladder(folder);
  const LadderJobs jobs = read_jobs(folder);
  size_t width = 3;
  for (const LadderRun& run : ladder.runs) { width = std::max(width, run.id.size()); }
  std::vector<RunStatus> states;
  std::vector<std::string> notes;
  std::vector<RunProgress> all;
  std::vector<int64_t> steps;
  double done_flops = 0, busy_seconds = 0;
  for (const LadderRun& run : ladder.runs) {
    states.push_back(read_status(folder / run.id));
    all.push_back(progress_of(folder / run.id));
    steps.push_back(all.back().step);
    if (was_killed(states.back()) || (states.back().state == "pending" && all.back().step > 0)) {
      states.back().state = "stopped";
    }
    notes.push_back(job_text(jobs, run.id, states.back()));
    const RunProgress& p = all.back();
    const double share = run.steps > 0 ? static_cast<double>(p.step) / static_cast<double>(run.steps) : 0;
    if (p.tokens_per_s > 0) {
      done_flops += share * run.flops;
      busy_seconds += p.tokens / p.tokens_per_s;
    }
  }
  std::string text =
      fmt::format("{:<{}} {:<8} {:>15} {:>9} {:>12}\n", "run", width, "state", "step", "loss", "time left");
  double left = 0;
  for (size_t i = 0; i < ladder.runs.size(); ++i) {
    const LadderRun& run = ladder.runs[i];
    const RunProgress& p = all[i];
    std::string eta = "-";
    if (states[i].state != "done") {
      const double share = run.steps > 0 ? 1 - static_cast<double>(p.step) / static_cast<double>(run.steps) : 0;
      const double own = p.tokens_per_s > 0 && p.step > 0 ? p.tokens / static_cast<double>(p.step) *
                                                                static_cast<double>(run.steps - p.step) / p.tokens_per_s
                                                          : -1;
      const double seconds = own >= 0 ? own : done_flops > 0 ? share * run.flops * busy_seconds / done_flops : -1;
      if (seconds >= 0) {
        left += seconds;
        eta = format_duration(seconds);
      }
    }
    const std::string step = std::to_string(p.step) + "/" + std::to_string(run.steps);
    text += fmt::format("{:<{}} {:<8} {:>15} {:>9} {:>12}", run.id, width, states[i].state, step,
                        p.step > 0 ? fmt::format("{:.4f}", p.loss) : "-", eta);
    const std::string& note = notes[i].empty() ? states[i].error : notes[i];
    text += (note.empty() ? "" : "  " + note) + "\n";
  }
  text += failures(folder, ladder, jobs, states);
  if (!jobs.problem.empty()) { text += "the states are those of the run folders: " + jobs.problem + "\n"; }
  const LadderShare share = ladder_share(ladder, states, steps);
  text += runs_text(share) + ", " + format_flops(share.flops) + " of " + format_flops(share.total_flops) +
          fmt::format(" ({}%)", share.total_flops > 0 ? static_cast<int>(100 * share.flops / share.total_flops) : 0);
  if (share.done < share.runs) {
    text += done_flops > 0 ? ", eta " + format_duration(left / static_cast<double>(std::max<int64_t>(1, share.running)))
                           : ", eta not known yet";
  }
  return text + "\n";
}

}  // namespace hebb
