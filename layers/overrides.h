#pragma once
// Settings of a layer that an evaluation or generation may replace while it runs.
#include <memory>
#include <string>
#include <vector>

#include "core/fields.h"

namespace hebb {

/// Values for some of these settings of a layer; those that are not set stay the layer's own.
class LayerOverride {
 public:
  virtual ~LayerOverride() = default;
  virtual void fields(Fields& f) = 0;
};

/// What a layer type brings (LayerConfig::overrides): a key of evaluations, whose object holds the values for all
/// layers of the type and, under "blocks", for single blocks.
struct OverrideGroup {
  /// The same on the command line: "VALUE" for all layers, "BLOCK=VALUE" for one.
  struct Option {
    std::string name, key;  // "--tau" sets "tau"
    std::string expected;   // "a number >= 0", for messages
    std::string value, help;
  };
  std::string key, help;
  std::unique_ptr<LayerOverride> (*make)();
  std::vector<Option> options{};
};

}  // namespace hebb
