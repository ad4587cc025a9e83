#pragma once
#include <map>
#include <string>
#include <vector>

#include "layers/model.h"

namespace hebb {

/// Test-time changes of the selection of HAM layers (spec 50, section 5): for all of them, and for single blocks.
struct ThresholdOverrides {
  ThresholdOverride all;
  std::map<int64_t, ThresholdOverride> blocks;

  bool empty() const { return !all.tau && !all.mode && blocks.empty(); }
};
/// {"tau": 0.7} or {"mode": "all" | "none"}, and the same under "blocks": {"3": ...}.
void fields(Fields& f, ThresholdOverrides& o);

/// From command-line options: `taus` "0.7" or "BLOCK=0.7", `modes` "all", "none", "BLOCK=all", "BLOCK=none".
/// Errors: ConfigError naming the option.
ThresholdOverrides parse_threshold_overrides(const std::vector<std::string>& taus,
                                             const std::vector<std::string>& modes);

/// Replaces what the model's layers had before; empty overrides give them back their own thresholds.
/// Errors: ConfigError for a model without HAM layers, and for a block that has none.
void apply(const ThresholdOverrides& overrides, Model& model);

}  // namespace hebb
