#pragma once
#include <optional>
#include <string>
#include <vector>

#include "core/fields.h"
#include "core/files.h"

namespace hebb {

/// LADDER/jobs/NUMBER.json: runs that were handed to a launcher together. Jobs read it, so that they depend on nothing
/// that may have changed since.
struct Submission {
  std::string number;             // "0001"; its script, log and mark are NUMBER.sh, NUMBER*.log, NUMBER.cancelled
  std::string launcher;           // "slurm" or a command template
  std::string job;                // what the launcher calls it; empty until it has answered
  std::vector<std::string> runs;  // ids; their places are the tasks of the job
  std::string evals;              // file; empty: none
  int64_t ranks = 1;              // of each run
  std::string start;              // words before hebb that start several; empty: hebb does, on one machine

  bool is_slurm() const { return launcher == "slurm"; }
  /// The run at a place, written as digits; nothing where there is none.
  std::optional<std::string> run_at(const std::string& place) const;
};
void fields(Fields& f, Submission& s);

/// Digits and nothing else.
bool is_number(const std::string& text);

/// In the order in which they were made. Errors: CheckpointError for a damaged file.
std::vector<Submission> read_submissions(const fs::path& ladder);
/// Errors: CheckpointError where there is none.
Submission read_submission(const fs::path& ladder, const std::string& number);
void write_submission(const fs::path& ladder, const Submission& submission);
/// A file of a submission: "0001.sh".
fs::path submission_file(const fs::path& ladder, const std::string& number, const std::string& ending);
/// The number after the last one.
std::string next_submission(const fs::path& ladder);
/// Jobs of a cancelled submission save, stop and start no more.
bool is_cancelled(const fs::path& ladder, const std::string& number);

}  // namespace hebb
