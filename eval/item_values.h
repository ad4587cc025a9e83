#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/files.h"
#include "core/json.h"

namespace hebb {

/// What a mean of an evaluation is of, item by item: the mean is the sum of `sums` over the sum of `counts`
/// (docs/verbs/eval.md, Values of items).
struct ItemValues {
  std::string mean, exponential;  // metrics: the mean, and its exponential; "" for one that is not reported
  std::vector<int64_t> examples;  // indices in the file or list of examples; empty: 0, 1, 2, ...
  std::vector<double> sums;
  std::vector<double> counts;  // empty: 1 each
};

/// The text of NAME.items.jsonl, and what it says. Errors: DataError for a file of another form.
std::string item_lines(const std::vector<ItemValues>& items);
std::vector<ItemValues> read_item_values(const fs::path& file);

/// The difference of one metric between two checkpoints on the same examples.
struct PairedDifference {
  std::string metric;
  double value = 0;             // b - a
  std::optional<double> error;  // standard error of that
  std::optional<double> p;      // of Student's paired t test, two-sided
  int64_t n = 0;                // examples that both have
};
/// One for each metric that both have examples of. Means of sums over counts and exponentials are linearised, as their
/// standard errors are.
std::vector<PairedDifference> paired_differences(const std::vector<ItemValues>& a, const std::vector<ItemValues>& b);

}  // namespace hebb
