#pragma once
#include <optional>

#include "layers/model_config.h"
#include "layers/rope_config.h"

namespace hebb {

/// How an evaluation reads (docs/verbs/eval.md, The list).
struct ReadSettings {
  int64_t segment = 8192;          // tokens per pass: bounds activations, not results
  std::optional<YarnConfig> yarn;  // in place of that of every rope object
};
/// The keys `segment` and `rope_scaling`.
void fields(Fields& f, ReadSettings& s);

/// Checks that the layers of `model` can be read so. Errors: ConfigError for rope_scaling where no layer has a rope
/// object, or where one cannot be extended.
void check(const ReadSettings& settings, const ModelConfig& model);

}  // namespace hebb
