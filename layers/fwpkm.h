#pragma once
#include "layers/layer.h"

namespace hebb {

/// `fwpkm`: a product-key memory whose table and keys are rewritten while text is read (spec 40).
std::unique_ptr<LayerConfig> make_fwpkm_config();

}  // namespace hebb
