#pragma once
#include "layers/layer.h"

namespace hebb {

/// `ovq`: online vector-quantized attention over a growing dictionary of running means (spec 60).
std::unique_ptr<LayerConfig> make_ovq_config();

}  // namespace hebb
