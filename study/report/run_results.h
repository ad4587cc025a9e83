#pragma once
#include <optional>
#include <string>
#include <vector>

#include "core/files.h"
#include "core/json.h"
#include "study/report/table.h"

namespace hebb {

/// A run, one of its checkpoints, or results of evaluations alone.
struct RunPlace {
  fs::path run;                   // its folder
  std::optional<int64_t> step{};  // of the checkpoint; absent: all of the run
  fs::path results{};             // folder of result files where there is no run; empty: there is one

  fs::path config() const;  // the configuration
};
/// The run in whose checkpoints/ a folder lies, and its step; a folder of result files, or one without metrics.jsonl
/// with such files in evals/, as results; any other path as a run.
RunPlace run_place(const fs::path& path);

/// What a run folder holds as one flat object: id, the tags, loss.final (mean of the training losses logged in the last
/// 5 % of the steps), val.NAME, setting (study/report/group_by_seed.h), params.*, flops.*, tokens, step,
/// eval.NAME.METRIC, eval.NAME.source where there is one, what they were measured on (study/report/run_identity.h), and
/// the measured tokens_per_s and mem_bytes. That of a checkpoint ends at its step, and its evaluations are its own. Of
/// results alone: id, tags, step, tokens and evaluations.
/// Errors: DataError for a folder without config.json or with a damaged metrics.jsonl.
Json result_of(const RunPlace& place, const std::string& id, const Json& tags);

/// Result files of a checkpoint, or of the last step of a run that was evaluated, by name.
std::vector<fs::path> evaluation_files(const RunPlace& place);
/// Whether a folder has result files of evaluations.
bool has_results(const fs::path& folder);
/// One of them, of objects and lists where a result has them. Errors: DataError with the place of what is another.
Json read_evaluation(const fs::path& file);

/// The value under `key`, or NaN where there is no number.
double result_number(const Json& result, const std::string& key);

/// Keys of all results in order of first appearance.
std::vector<std::string> result_keys(const std::vector<Json>& results);
std::string results_jsonl(const std::vector<Json>& results);
/// All values, a row for each run, for programs. Values from different sources, data or tokenizers never share a
/// column.
Table results_table(const std::vector<Json>& results);
/// The keys that people compare: a row for each run, or a column where runs are few; KEY beside its KEY.half as
/// "mean ± half of the 95 % interval".
Table comparison_table(const std::vector<Json>& results);
/// Keys that only the files for programs hold.
bool is_detail(const std::string& key);
/// The results with keys under which values compare: " (SOURCE)" and " [data A]" stand behind those of different
/// sources of a task, different data or tokenizers. What they were measured on is left out.
std::vector<Json> with_sources_apart(const std::vector<Json>& results);

}  // namespace hebb
