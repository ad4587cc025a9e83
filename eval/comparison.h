#pragma once
#include <string>
#include <vector>

#include "core/json.h"

namespace hebb {

/// The results of one checkpoint (result files), and what it is called.
struct CheckpointResults {
  std::string label;
  std::vector<Json> results;
};

/// Results of several checkpoints side by side: a line for each metric, a column for each checkpoint. Losses and
/// perplexities per token of different tokenizers have lines of their own: they do not compare.
std::string comparison_text(const std::vector<CheckpointResults>& checkpoints);

/// Whether the metric of a kind of evaluation is a mean over tokens, whose unit is the tokenizer's.
bool is_per_token(const std::string& kind, const std::string& metric);

/// A metric of a result: "2.5", "2.5 ± 0.25" where it has a standard error.
std::string metric_text(const Json& metric);

/// What a checkpoint is called beside others: RUN:STEP, or the folder's name.
std::string checkpoint_label(const std::string& weights);

}  // namespace hebb
