#pragma once
#include <optional>
#include <string>

#include "core/fields.h"

namespace hebb {

/// What an evaluation may change about a HAM layer's selection: a threshold in score units, or every or no token
/// ("all", "none"). Without both, what the model itself says.
struct HamOverride {
  std::optional<double> tau;
  std::optional<std::string> mode;
};
void fields(Fields& f, HamOverride& o);

/// A layer whose selection can be changed.
class Overridable {
 public:
  virtual ~Overridable() = default;
  /// Replaces what was given before.
  virtual void override_selection(const HamOverride& change) = 0;
};

}  // namespace hebb
