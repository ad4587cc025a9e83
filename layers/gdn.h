#pragma once
#include "layers/layer.h"

namespace hebb {

/// `gdn`: Gated DeltaNet, a recurrent mixer with one decaying matrix per head that is written with the
/// delta rule (spec 20).
std::unique_ptr<LayerConfig> make_gdn_config();

/// Initial values of the decay's parameters, shared with other layers of the family (spec 20, section 2):
/// log(max(U(low, high), 1e-4)), and the inverse softplus of max(exp(U(ln low, ln high)), 1e-4).
Init a_log_init(double low, double high);
Init dt_bias_init(double low, double high);

}  // namespace hebb
