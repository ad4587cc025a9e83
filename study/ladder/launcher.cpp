#include "study/ladder/launcher.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <set>
#include <utility>

#include "core/host.h"
#include "core/plural.h"
#include "data/text/characters.h"
#include "study/ladder/run_command.h"
#include "study/ladder/runs.h"
#include "study/ladder/slurm.h"
#include "study/ladder/task.h"
#include "train/run_config.h"

namespace hebb {
namespace {

constexpr size_t kLargestArray = 1000;  // Slurm's MaxArraySize is 1001 where the site has not changed it
constexpr const char* kWhere = "hebb ladder --launcher";

/// A word as it is where a shell reads it as one.
std::string word(const std::string& text) {
  const bool is_plain = !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || std::string_view("_./=-+:,@").find(static_cast<char>(c)) != std::string_view::npos;
  });
  return is_plain ? text : shell_quoted(text);
}

/// The runs that one submission holds, and what they ask for.
struct Group {
  ClusterConfig cluster;
  std::string key;  // the cluster's configuration
  std::vector<size_t> runs;
};

std::vector<Group> groups_of(const Sweep& sweep, const std::vector<size_t>& runs, const LadderOptions& options) {
  std::vector<Group> groups;
  const size_t most = options.launcher == "slurm" ? kLargestArray : 1;
  for (const size_t i : runs) {
    std::vector<std::string> words = options.cluster;
    if (options.ranks > 0) { words.push_back("ranks=" + std::to_string(options.ranks)); }
    ClusterConfig cluster = read_cluster(sweep.runs[i].cluster, words);
    const auto config = Fields::read<RunConfig>(sweep.runs[i].config, "");
    if (!cluster.gpus) { cluster.gpus = config.train.device == "cuda" ? 1 : 0; }
    const std::string key = Fields::write(cluster).dump();
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&](const Group& g) { return g.key == key && g.runs.size() < most; });
    if (group == groups.end()) { group = groups.insert(group, {std::move(cluster), key, {}}); }
    group->runs.push_back(i);
  }
  return groups;
}

constexpr std::array<std::string_view, 4> kPlaceholders = {"{command}", "{name}", "{ranks}", "{folder}"};

/// The first placeholder inside quotes of a shell, where the quotes of its value would end them; or empty.
std::string quoted_placeholder(std::string_view text) {
  char quote = '\0';
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\\' && quote != '\'') {
      ++i;
    } else if (quote == '\0' ? c == '\'' || c == '"' || c == '`' : c == quote) {
      quote = quote == '\0' ? c : '\0';
    }
    for (const std::string_view name : kPlaceholders) {
      if (quote != '\0' && text.substr(i).starts_with(name)) { return std::string(name); }
    }
  }
  return "";
}

/// Checks what can be known before anything is submitted.
void check_launcher(const std::string& launcher) {
  if (launcher == "slurm") { return; }
  if (launcher.find("{command}") == std::string::npos) {
    throw ConfigError(kWhere, "\"" + launcher + "\"",
                      "slurm, or a command with {command}, and {name}, {ranks}, {folder} where it takes them");
  }
  if (const std::string name = quoted_placeholder(launcher); !name.empty()) {
    throw ConfigError(kWhere, name + " in quotes",
                      name + " without quotes: its value is quoted already, and quotes around it end those");
  }
}

Submission submission_of(const Sweep& sweep, const Group& group, const std::string& launcher,
                         const std::string& number) {
  Submission s;
  s.number = number;
  s.launcher = launcher;
  for (const size_t i : group.runs) { s.runs.push_back(sweep.runs[i].id); }
  s.evals = sweep.evals;
  s.ranks = group.cluster.ranks;
  if (!group.cluster.start.empty()) {
    s.start = fill_template(group.cluster.start, {{"ranks", std::to_string(s.ranks)}});
  } else if (s.ranks > 1 && s.is_slurm()) {
    s.start = srun_words(group.cluster);
  }
  return s;
}

std::string template_command(const Sweep& sweep, const fs::path& ladder, const Group& group, const Submission& s) {
  return fill_template(s.launcher, {{"command", word(submission_file(ladder, s.number, ".sh").string())},
                                    {"name", plain_job_name(sweep.name + "-" + s.runs[0])},
                                    {"ranks", std::to_string(group.cluster.ranks)},
                                    {"folder", word((ladder / s.runs[0]).string())}});
}

std::vector<std::string> slurm_command(const Sweep& sweep, const fs::path& ladder, const Group& group,
                                       const Submission& s, const LadderOptions& options) {
  return sbatch_words(ladder, s, group.cluster, slurm_job_name(sweep.name, s.number), options.parallel);
}

void write_script(const fs::path& ladder, const Submission& s, const std::string& text) {
  const fs::path path = submission_file(ladder, s.number, ".sh");
  write_file_atomic(path, text);
  fs::permissions(path, fs::perms::owner_exec | fs::perms::group_exec, fs::perm_options::add);
}

/// One job of another launcher. What the command prints goes to a file: it may leave a process behind that holds its
/// output.
std::string submit_by_template(const fs::path& ladder, const Submission& s, const std::string& command,
                               const ClusterConfig& cluster, const std::string& program) {
  write_script(
      ladder, s,
      fmt::format("#!/bin/sh\n# Made by hebb ladder.\ncd {}\n{}exec {} ladder {} --task {}.0\n", word(ladder.string()),
                  setup_lines(cluster), word(program), word(ladder.string()), s.number));
  const fs::path log = submission_file(ladder, s.number, ".log");
  const CommandResult result = run_command({"sh", "-c", "{ " + command + "\n} >" + word(log.string()) + " 2>&1"});
  std::string said = fs::exists(log) ? read_file(log) : "";
  if (result.code != 0) {
    std::replace(said.begin(), said.end(), '\n', ';');
    throw ConfigError(kWhere, fmt::format("{}: exit code {}: {}", command, result.code, said));
  }
  return said.substr(0, said.find('\n'));
}

/// Returns the submission with the name of its job. A refused one leaves no trace.
Submission submit(const Sweep& sweep, const fs::path& ladder, const Group& group, const LadderOptions& options) {
  Submission s = submission_of(sweep, group, options.launcher, next_submission(ladder));
  write_submission(ladder, s);
  try {
    if (s.is_slurm()) {
      write_script(ladder, s, slurm_script(ladder, s, group.cluster, options.program));
      s.job = sbatch(slurm_command(sweep, ladder, group, s, options), group.cluster);
    } else {
      s.job = submit_by_template(ladder, s, template_command(sweep, ladder, group, s), group.cluster, options.program);
    }
  } catch (...) {
    for (const char* ending : {".json", ".sh", ".log"}) { fs::remove(submission_file(ladder, s.number, ending)); }
    throw;
  }
  write_submission(ladder, s);
  return s;
}

struct Place {
  const Submission* submission;
  std::string place;
};

/// The last submission of every run.
std::map<std::string, Place> places_of(const std::vector<Submission>& submissions) {
  std::map<std::string, Place> places;
  for (const Submission& s : submissions) {
    for (size_t k = 0; k < s.runs.size(); ++k) { places[s.runs[k]] = {&s, std::to_string(k)}; }
  }
  return places;
}

/// The jobs of Slurm's queue that train runs of this ladder.
void add_slurm_jobs(const fs::path& ladder, const std::vector<Submission>& submissions, LadderJobs& jobs) {
  const std::string folder = fs::weakly_canonical(ladder).string();
  for (const SlurmTask& task : slurm_queue()) {
    if (task.folder != folder) { continue; }
    const std::string number = task.name.substr(task.name.rfind('.') + 1);
    const auto s = std::find_if(submissions.begin(), submissions.end(),
                                [&](const Submission& one) { return one.is_slurm() && one.number == number; });
    const std::optional<std::string> run = s != submissions.end() ? s->run_at(task.place) : std::nullopt;
    if (!run) { continue; }
    const bool waits = task.state == "PENDING" || task.state.starts_with("REQUEUE");
    const std::string state = read_status(ladder / *run).state;
    if (!waits && (state == "failed" || state == "done")) { continue; }  // the end of its script
    jobs.active[*run] = {!waits, task.array + "_" + task.place, waits ? task.reason : ""};
  }
}

bool has_slurm_runs(const fs::path& ladder, const std::map<std::string, Place>& places) {
  return std::any_of(places.begin(), places.end(), [&](const auto& p) {
    return p.second.submission->is_slurm() && read_status(ladder / p.first).state != "done";
  });
}

std::string fits_text(size_t done, size_t all) {
  return fmt::format(
      "{} of {} runs are done; the tables and fits of all are made by the next hebb ladder or hebb report", done, all);
}

}  // namespace

LadderJobs read_jobs(const fs::path& ladder) {
  LadderJobs jobs;
  const std::vector<Submission> submissions = read_submissions(ladder);
  const std::map<std::string, Place> places = places_of(submissions);
  if (has_slurm_runs(ladder, places)) {
    try {
      add_slurm_jobs(ladder, submissions, jobs);
    } catch (const Error& error) { jobs.problem = error.what(); }
  }
  std::map<std::string, std::map<std::string, std::string>> ends;  // by array
  for (const auto& [run, place] : places) {
    const Submission& s = *place.submission;
    const RunStatus status = read_status(ladder / run);
    const bool has_ended = !(status.state == "running" || (status.state == "pending" && status.ended.empty()));
    const bool is_cancelled = hebb::is_cancelled(ladder, s.number);
    if (has_ended || is_cancelled || jobs.active.count(run) > 0) { continue; }
    if (!s.is_slurm()) {
      if (was_killed(status)) {
        jobs.lost[run] = {s.job, "", submission_file(ladder, s.number, ".log")};
      } else {
        jobs.active[run] = {status.state == "running", s.job, ""};
      }
    } else if (jobs.problem.empty()) {
      if (ends.count(s.job) == 0) { ends[s.job] = slurm_ends(s.job); }
      jobs.lost[run] = {s.job + "_" + place.place, ends[s.job][place.place],
                        submission_file(ladder, s.number, "." + place.place + ".log")};
    }
  }
  return jobs;
}

void require_no_jobs(const fs::path& ladder) {
  const LadderJobs jobs = read_jobs(ladder);
  if (!jobs.problem.empty()) {
    throw CheckpointError(ladder.string(),
                          "jobs may train runs of this ladder, and Slurm does not say: " + jobs.problem);
  }
  if (!jobs.active.empty()) {
    throw CheckpointError(ladder.string(),
                          fmt::format("{} runs are queued or running as jobs ({} in job {})", jobs.active.size(),
                                      jobs.active.begin()->first, jobs.active.begin()->second.job),
                          "no launcher", "the --launcher that was used before, --status or --cancel");
  }
}

int launch_ladder(const Sweep& sweep, const LadderOptions& options, const Console& console) {
  LadderRuns runs(sweep, options, console.line);
  runs.open();
  const fs::path ladder = fs::weakly_canonical(runs.folder());
  const LadderJobs jobs = read_jobs(ladder);
  if (!jobs.problem.empty()) { throw Error(ExitCode::kOther, jobs.problem); }
  runs.read();
  const std::vector<size_t> unfinished = runs.unfinished();
  std::vector<size_t> todo;
  for (const size_t i : unfinished) {
    const auto active = jobs.active.find(sweep.runs[i].id);
    if (active == jobs.active.end()) {
      todo.push_back(i);
    } else if (runs.is_changed(i)) {
      throw ConfigError(runs.run_folder(i).string(), "a changed run that job " + active->second.job + " trains",
                        "hebb ladder --cancel first");
    }
  }
  const std::vector<Group> groups = groups_of(sweep, todo, options);
  check_launcher(options.launcher);
  const auto ranks_of = [&](size_t i) {
    const auto group = std::find_if(groups.begin(), groups.end(), [&](const Group& g) {
      return std::find(g.runs.begin(), g.runs.end(), i) != g.runs.end();
    });
    return static_cast<int>(group->cluster.ranks);
  };
  if (!todo.empty()) { runs.warn_of_data(todo, ranks_of); }
  // Nothing tells here whether a job on another machine lives, but its launcher has said that it does not.
  for (const size_t i : todo) { remove_lock_of_other_host(runs.run_folder(i)); }
  runs.prepare(todo);
  const auto waiting =
      std::count_if(jobs.active.begin(), jobs.active.end(), [](const auto& job) { return !job.second.is_running; });
  console.line(fmt::format("{} runs in {}: {} done, {} queued, {} running, {} to submit", sweep.runs.size(),
                           runs.folder().string(), sweep.runs.size() - unfinished.size(), waiting,
                           static_cast<long>(jobs.active.size()) - waiting, todo.size()));
  for (const Group& group : groups) {
    const Submission s = submit(sweep, ladder, group, options);
    console.line(fmt::format("submitted {}{}", s.runs.size() == 1 ? s.runs[0] : std::to_string(s.runs.size()) + " runs",
                             s.job.empty() ? "" : " as job " + s.job));
  }
  runs.write_results();
  if (!unfinished.empty()) {
    console.line(fits_text(sweep.runs.size() - unfinished.size(), sweep.runs.size()));
    return 0;
  }
  write_ladder_report(runs.folder());
  console.line("report in " + (runs.folder() / "index.html").string());
  return 0;
}

std::string describe_jobs(const Sweep& sweep, const LadderOptions& options) {
  std::vector<size_t> all;
  for (size_t i = 0; i < sweep.runs.size(); ++i) { all.push_back(i); }
  const std::vector<Group> groups = groups_of(sweep, all, options);
  check_launcher(options.launcher);
  const fs::path ladder = fs::weakly_canonical(fs::absolute(options.folder));
  std::string text;
  for (size_t g = 0; g < groups.size(); ++g) {
    const Submission s = submission_of(sweep, groups[g], options.launcher, fmt::format("{:04}", g + 1));
    text += (s.is_slurm() ? join(slurm_command(sweep, ladder, groups[g], s, options), " ", word)
                          : template_command(sweep, ladder, groups[g], s)) +
            "\n";
  }
  return text;
}

std::string cancel_jobs(const fs::path& ladder) {
  const LadderFolder folder = read_ladder(ladder);
  const LadderJobs jobs = read_jobs(ladder);
  std::set<std::string> arrays;
  size_t others = 0;
  // The marks come first: what scancel stops does not go back into the queue.
  for (const Submission& s : read_submissions(ladder)) {
    const bool has_active =
        std::any_of(s.runs.begin(), s.runs.end(), [&](const std::string& run) { return jobs.active.count(run) > 0; });
    if (!has_active && jobs.problem.empty()) { continue; }
    write_file_atomic(submission_file(ladder, s.number, ".cancelled"), "");
    if (s.is_slurm() && !s.job.empty()) { arrays.insert(s.job); }
    others += s.is_slurm() ? 0 : 1;
  }
  for (const auto& [run, job] : jobs.active) {  // an array whose number a killed ladder did not write down
    const std::string array = job.job.substr(0, job.job.find('_'));
    if (is_number(array) && others == 0) { arrays.insert(array); }
  }
  if (!arrays.empty()) { scancel({arrays.begin(), arrays.end()}); }
  if (jobs.active.empty()) { return folder.name + ": no job waits or runs\n"; }
  return fmt::format("{}: cancelled the jobs of {}; those that run save first\n", folder.name,
                     plural(jobs.active.size(), "run"));
}

}  // namespace hebb
