#pragma once
#include "layers/layer.h"

namespace hebb {

/// `kvm`: Key-Value Means, softmax attention over a window and a state of summed keys and values (spec 70).
std::unique_ptr<LayerConfig> make_kvm_config();

}  // namespace hebb
