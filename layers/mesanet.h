#pragma once
#include "layers/layer.h"

namespace hebb {

/// `mesanet`: a recurrent mixer that answers every query with the ridge regression over all it has read (spec 63).
std::unique_ptr<LayerConfig> make_mesanet_config();

}  // namespace hebb
