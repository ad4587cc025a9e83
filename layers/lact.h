#pragma once
#include "layers/layer.h"

namespace hebb {

/// `lact`: window attention and a fast-weight SwiGLU per sequence that is trained while it is read, in large chunks
/// (spec 42, part B).
std::unique_ptr<LayerConfig> make_lact_config();

}  // namespace hebb
