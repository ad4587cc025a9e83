#pragma once
#include <map>
#include <string>
#include <vector>

#include "layers/ham/override.h"
#include "layers/model.h"

namespace hebb {

/// What replaces the thresholds of ham layers while an evaluation runs: of all, and of those in single blocks.
/// {"tau": 0.7, "blocks": {"3": {"mode": "all"}}}
struct ThresholdOverrides {
  HamOverride all;
  std::map<int64_t, HamOverride> blocks;
};
void fields(Fields& f, ThresholdOverrides& o);

/// From the texts of --tau and --select: "VALUE" for all, "BLOCK=VALUE" for one. Errors: ConfigError naming the option.
ThresholdOverrides parse_thresholds(const std::vector<std::string>& taus, const std::vector<std::string>& selects);

/// Replaces what the model's layers had before; without overrides they have their own settings again.
/// Errors: ConfigError for a model without ham layers, and for a block that has none.
void apply(const ThresholdOverrides& overrides, Model& model);

}  // namespace hebb
