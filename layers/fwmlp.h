#pragma once
#include "layers/layer.h"

namespace hebb {

/// `fwmlp`: a perceptron whose weights are rewritten while text is read (spec 42, part A).
std::unique_ptr<LayerConfig> make_fwmlp_config();

}  // namespace hebb
