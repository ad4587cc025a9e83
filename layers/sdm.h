#pragma once
#include "layers/layer.h"

namespace hebb {

/// `sdm`: sparse delta memory, a gated delta rule on a large table of slots per head (spec 30).
std::unique_ptr<LayerConfig> make_sdm_config();

}  // namespace hebb
