#pragma once
#include <string>
#include <vector>

#include "core/json.h"
#include "eval/item_values.h"

namespace hebb {

/// The results of one checkpoint (result files), what it is called, and where they lie.
struct CheckpointResults {
  std::string label;
  std::vector<Json> results;
  fs::path folder = {};
};

/// Results of several checkpoints side by side: a line for each metric, a column for each checkpoint. Losses and
/// perplexities per token of different tokenizers have lines of their own: they do not compare.
/// columns: of the table at most; 0: any.
std::string comparison_text(const std::vector<CheckpointResults>& checkpoints, int columns = 0);

/// The differences of the others to the first checkpoint, with standard errors and p of paired tests on the same
/// examples, corrected by Holm over the table; "" where there is nothing to compare.
std::string differences_text(const std::vector<CheckpointResults>& checkpoints, int columns = 0);

/// Paired differences b - a of two results of the same evaluation; none where inputs or kinds differ or values of items
/// are not there. Means over tokens of different tokenizers are left out.
std::vector<PairedDifference> result_differences(const Json& a, const fs::path& folder_a, const Json& b,
                                                 const fs::path& folder_b);

/// "0.012", "< 0.0001"
std::string p_text(double p);

/// Whether the metric of a kind of evaluation is a mean over tokens, whose unit is the tokenizer's.
bool is_per_token(const std::string& kind, const std::string& metric);

/// A metric of a result: "2.5", "2.5 ± 0.25" where it has a standard error, "0 [0, 0.06]" for a share of none or all,
/// "0.3 ± 0.1 of 4 tasks" for a mean over parts.
std::string metric_text(const Json& metric);

/// What a checkpoint is called beside others: RUN:STEP, or the folder's name.
std::string checkpoint_label(const std::string& weights);

}  // namespace hebb
