#pragma once
#include <functional>
#include <string>
#include <vector>

#include "inspect/convert/tensors.h"

namespace hebb {

/// An option of hebb that a foreign class lacks, written into the weights.
struct Fold {
  std::string said;  // in the report: "residual_scale 0.5"
  std::function<void(Values&)> apply;
};

/// Rewrites a model (as written_out() makes it) so that the class `type` may hold it, where that changes no value that
/// the model computes. The weights need apply() of all folds, in order.
std::vector<Fold> fold_options(Json& whole, const std::string& type);

}  // namespace hebb
