#pragma once
#include "layers/layer.h"

namespace hebb {

/// `pkm`: product key memory in the place of a feed-forward layer (spec 41).
std::unique_ptr<LayerConfig> make_pkm_config();

}  // namespace hebb
