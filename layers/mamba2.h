#pragma once
#include "layers/layer.h"

namespace hebb {

/// `mamba2`: gated linear attention whose step size sets both decay and write strength (spec 62).
std::unique_ptr<LayerConfig> make_mamba2_config();

}  // namespace hebb
