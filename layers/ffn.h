#pragma once
#include "layers/layer.h"

namespace hebb {

/// `swiglu`: y = down(silu(gate x) * up x) (spec 00, section 6).
std::unique_ptr<LayerConfig> make_swiglu_config();
/// `relu2`: y = down(relu(up(shifted x))^2) with an optional token shift (spec 70, section 11).
std::unique_ptr<LayerConfig> make_relu2_config();

}  // namespace hebb
