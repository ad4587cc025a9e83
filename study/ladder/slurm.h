#pragma once
#include <map>
#include <string>
#include <vector>

#include "study/ladder/cluster_config.h"
#include "study/ladder/submission.h"

namespace hebb {

/// A task of one of the user's job arrays.
struct SlurmTask {
  std::string array, place;   // 123, 4
  std::string state, reason;  // PENDING, RUNNING, ...
  std::string name, folder;   // of the job; where it runs
};

/// The user's jobs that have not ended. Errors: Error (exit code 1) with what squeue said.
std::vector<SlurmTask> slurm_queue();

/// `text` as a word without meaning to shells: other characters than letters, digits, ".", "_" and "-" become "-".
std::string plain_job_name(const std::string& text);
/// Name of the job of a submission; it ends with the number.
std::string slurm_job_name(const std::string& sweep, const std::string& number);

/// The script of a job: starts the run of its place, and puts it back into the queue when it exits with 75 or 14.
std::string slurm_script(const fs::path& ladder, const Submission& submission, const ClusterConfig& cluster,
                         const std::string& program);

/// The command that submits it. `parallel`: tasks at a time, 0: no limit.
std::vector<std::string> sbatch_words(const fs::path& ladder, const Submission& submission,
                                      const ClusterConfig& cluster, const std::string& name, int64_t parallel);

/// Words before hebb that start several ranks in a job.
std::string srun_words(const ClusterConfig& cluster);

/// Runs the command. Returns the number of the job. Errors: ConfigError with what Slurm said.
std::string sbatch(const std::vector<std::string>& words, const ClusterConfig& cluster);

/// How the tasks of an array ended, by place ("FAILED, exit code 1"), as accounting says, or the
/// controller for some minutes.
std::map<std::string, std::string> slurm_ends(const std::string& array);

/// Errors: Error (exit code 1) with what scancel said.
void scancel(const std::vector<std::string>& arrays);

}  // namespace hebb
