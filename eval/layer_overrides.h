#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "layers/model.h"
#include "layers/overrides.h"

namespace hebb {

/// What replaces settings of layers while an evaluation runs (layers/overrides.h), by layer type: for all layers of the
/// type, and for single blocks.
struct LayerOverrides {
  struct Changes {
    std::shared_ptr<LayerOverride> all;  // null: none
    std::map<int64_t, std::shared_ptr<LayerOverride>> blocks;
  };
  std::map<std::string, Changes> by_type;
};
/// A key for each type that has overrides: {"thresholds": {"tau": 0.7, "blocks": {"3": {"mode": "all"}}}}.
void fields(Fields& f, LayerOverrides& o);

struct OverridableType {
  std::string type;
  const OverrideGroup* group;
};
std::vector<OverridableType> overridable_types();

/// From command-line options: the texts of each option (OverrideGroup::Option), by its name.
/// Errors: ConfigError naming the option.
LayerOverrides parse_overrides(const std::map<std::string, std::vector<std::string>>& texts);

/// Replaces what the model's layers had before; without overrides they have their own settings again.
/// Errors: ConfigError for a model without layers of such a type, and for a block that has none.
void apply(const LayerOverrides& overrides, Model& model);

}  // namespace hebb
