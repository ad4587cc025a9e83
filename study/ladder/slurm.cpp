#include "study/ladder/slurm.h"

#include <fmt/format.h>

#include <cctype>

#include "core/error.h"
#include "core/join.h"
#include "study/ladder/run_command.h"

namespace hebb {
namespace {

/// The first `count` - 1 parts between bars; the last one is the rest of the line.
std::vector<std::string> split(const std::string& line, size_t count) {
  std::vector<std::string> parts;
  size_t begin = 0;
  while (parts.size() + 1 < count) {
    const size_t end = line.find('|', begin);
    if (end == std::string::npos) { return {}; }
    parts.push_back(line.substr(begin, end - begin));
    begin = end + 1;
  }
  parts.push_back(line.substr(begin));
  return parts;
}

std::string one_line(const std::string& text) { return join(lines_of(text), "; "); }

std::string end_text(const std::string& state, const std::string& exit_code) {
  return state + ", exit code " + exit_code.substr(0, exit_code.find(':'));
}

/// The value of KEY=VALUE in a line of scontrol, or "".
std::string value_in(const std::string& line, const std::string& key) {
  const size_t at = line.find(" " + key + "=");
  if (at == std::string::npos) { return ""; }
  const size_t begin = at + key.size() + 2;
  return line.substr(begin, line.find(' ', begin) - begin);
}

/// Errors: Error with what a program said that has failed.
void require_success(const std::string& program, const CommandResult& result) {
  if (result.code == 0) { return; }
  const bool is_missing = result.code == 127 && !is_on_path(program);
  throw Error(ExitCode::kOther, program + ": " + (is_missing ? "no such program on PATH" : one_line(result.text())));
}

/// What the controller still knows of jobs that have ended: it forgets them after some minutes.
std::map<std::string, std::string> ends_by_controller(const std::string& array) {
  std::map<std::string, std::string> ends;
  for (const std::string& line : lines_of(run_command({"scontrol", "--oneliner", "show", "job", array}).out)) {
    const std::string place = value_in(line, "ArrayTaskId");
    if (!place.empty()) { ends[place] = end_text(value_in(line, "JobState"), value_in(line, "ExitCode")); }
  }
  return ends;
}

}  // namespace

std::vector<SlurmTask> slurm_queue() {
  const CommandResult result = run_command({"squeue", "--noheader", "--array", "--format=%F|%K|%T|%r|%j|%Z"});
  require_success("squeue", result);
  std::vector<SlurmTask> tasks;
  for (const std::string& line : lines_of(result.out)) {
    const std::vector<std::string> p = split(line, 6);
    if (!p.empty()) { tasks.push_back({p[0], p[1], p[2], p[3], p[4], p[5]}); }
  }
  return tasks;
}

std::string plain_job_name(const std::string& text) {
  std::string name = text;
  for (char& c : name) {
    const bool is_plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '_' || c == '-';
    c = is_plain ? c : '-';
  }
  return (name.starts_with('-') ? "_" : "") + name;  // no option
}

std::string slurm_job_name(const std::string& sweep, const std::string& number) {
  return plain_job_name(sweep) + "." + number;
}

std::string slurm_script(const fs::path& ladder, const Submission& submission, const ClusterConfig& cluster,
                         const std::string& program) {
  // hebb runs in the background, so that the shell hears signals while it waits. USR1 comes before the time limit, TERM
  // when Slurm itself ends the job, which then is not ours to put back.
  return fmt::format(R"(#!/bin/bash
# Made by hebb ladder.
{1}requeue=yes
child=
trap '[[ -n $child ]] && kill -USR1 $child 2>/dev/null' USR1
trap 'requeue=no' TERM
{2} ladder {0} --task {3}.$SLURM_ARRAY_TASK_ID &
child=$!
while kill -0 $child 2>/dev/null; do wait $child; done
wait $child
code=$?
if [[ ( $code == 75 || $code == 14 ) && $requeue == yes ]]; then
  for try in {{1..40}}; do  # the controller may be away for a while
    scontrol requeue ${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID && exit $code
    sleep 15
  done
fi
exit $code
)",
                     shell_quoted(ladder.string()), setup_lines(cluster), shell_quoted(program), submission.number);
}

std::vector<std::string> sbatch_words(const fs::path& ladder, const Submission& submission,
                                      const ClusterConfig& cluster, const std::string& name, int64_t parallel) {
  std::string log = submission_file(ladder, submission.number, "").string();
  for (size_t at = 0; (at = log.find('%', at)) != std::string::npos; at += 2) { log.insert(at, "%"); }
  std::string array = fmt::format("--array=0-{:d}", submission.runs.size() - 1);
  if (parallel > 0) { array += fmt::format("%{:d}", parallel); }
  std::vector<std::string> words = {"sbatch",
                                    "--parsable",
                                    "--requeue",
                                    "--open-mode=append",
                                    "--job-name=" + name,
                                    "--chdir=" + ladder.string(),
                                    "--output=" + log + ".%a.log",
                                    array,
                                    fmt::format("--ntasks={:d}", cluster.ranks)};
  const auto add = [&](const char* option, const std::string& value) {
    if (!value.empty()) { words.push_back(std::string("--") + option + "=" + value); }
  };
  const auto text = [](const std::optional<int64_t>& value) { return value ? std::to_string(*value) : ""; };
  add("nodes", text(cluster.nodes));
  add("cpus-per-task", text(cluster.cpus));
  if (cluster.gpus.value_or(0) > 0) { add("gpus-per-task", text(cluster.gpus)); }
  add("mem", cluster.memory);
  add("time", cluster.time);
  add("partition", cluster.partition);
  add("account", cluster.account);
  add("qos", cluster.qos);
  if (cluster.stop_seconds > 0) { add("signal", fmt::format("B:USR1@{:d}", cluster.stop_seconds)); }
  words.insert(words.end(), cluster.options.begin(), cluster.options.end());
  words.push_back(submission_file(ladder, submission.number, ".sh").string());
  return words;
}

std::string srun_words(const ClusterConfig& cluster) {
  return fmt::format("srun --kill-on-bad-exit=1 --ntasks={:d}{}", cluster.ranks,
                     cluster.cpus ? fmt::format(" --cpus-per-task={:d}", *cluster.cpus) : "");
}

std::string sbatch(const std::vector<std::string>& words, const ClusterConfig& cluster) {
  if (!is_on_path("sbatch")) {
    throw ConfigError("hebb ladder --launcher slurm", "no program sbatch on PATH",
                      "a machine from which jobs are submitted to Slurm");
  }
  const CommandResult result = run_command(words);
  const std::string number = result.out.substr(0, result.out.find_first_of(";\n"));
  if (result.code == 0 && is_number(number)) { return number; }
  std::string found = "sbatch refused the job: " + one_line(result.text());
  if (!cluster.partition.empty() && result.text().find("partition") != std::string::npos) {
    const CommandResult partitions = run_command({"sinfo", "--noheader", "--format=%R"});
    const std::string known = join(lines_of(partitions.out), ", ");
    if (!known.empty()) { found += " (partitions: " + known + ")"; }
  }
  throw ConfigError("hebb ladder --launcher slurm", found);
}

std::map<std::string, std::string> slurm_ends(const std::string& array) {
  std::map<std::string, std::string> ends;
  const CommandResult result = run_command({"sacct", "-X", "-n", "-P", "--format=JobID,State,ExitCode", "-j", array});
  if (result.code != 0) { return ends_by_controller(array); }
  for (const std::string& line : lines_of(result.out)) {
    const std::vector<std::string> p = split(line, 3);
    const size_t at = p.empty() ? std::string::npos : p[0].find('_');
    if (at == std::string::npos) { continue; }
    ends[p[0].substr(at + 1)] = end_text(p[1], p[2]);
  }
  return ends;
}

void scancel(const std::vector<std::string>& arrays) {
  std::vector<std::string> words = {"scancel"};
  words.insert(words.end(), arrays.begin(), arrays.end());
  require_success("scancel", run_command(words));
}

}  // namespace hebb
