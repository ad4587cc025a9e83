#pragma once
#include "layers/layer.h"

namespace hebb {

/// `vq`: attention to keys quantized by a trained codebook (spec 61).
std::unique_ptr<LayerConfig> make_vq_config();

}  // namespace hebb
