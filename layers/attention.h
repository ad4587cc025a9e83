#pragma once
#include "layers/layer.h"

namespace hebb {

/// `attention`: softmax attention, full, windowed or block-windowed (spec 10; spec 70, section 11).
std::unique_ptr<LayerConfig> make_attention_config();

}  // namespace hebb
