#pragma once
#include <optional>
#include <string>

#include "layers/overrides.h"

namespace hebb {

/// What an evaluation may change about a HAM layer's selection: a threshold in score units, or every or no token
/// ("all", "none"). Without both, what the model itself says.
struct HamOverride final : LayerOverride {
  std::optional<double> tau;
  std::optional<std::string> mode;

  void fields(Fields& f) override;
};

/// The key "thresholds" of evaluations, --tau and --select.
const OverrideGroup& ham_overrides();

}  // namespace hebb
