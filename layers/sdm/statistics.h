#pragma once
#include "layers/statistics.h"

namespace hebb {

/// How the weights of a token's slots spread ("effective_SIDE", "cumulative_SIDE_M", the series "cumulative"), and the
/// use of all slots over all tokens that were read ("unique_SIDE", "entropy_SIDE"). SIDE: "read", "write", of the
/// records SIDE_slots and SIDE_weights [1, T, H, k].
std::unique_ptr<StatisticsCollector> slot_use();

}  // namespace hebb
