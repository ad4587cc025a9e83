#pragma once
#include <vector>

#include "comm/host_exchange.h"
#include "layers/layer.h"

namespace hebb {

/// The statistics of all micro-batches of a step, in order of their first rows, from those that each rank has in the
/// order of Batch::micro. own_lanes: of each rank.
std::vector<Statistics> gather_statistics(HostExchange& ranks, const std::vector<Statistics>& own, int own_lanes);

/// Means over micro-batches, but the least and greatest of what ends in _min and _max, and of standard deviations
/// (_std, beside a _mean) that of the whole: nothing depends on the size of a micro-batch.
Statistics join_statistics(const std::vector<Statistics>& micro_batches);

}  // namespace hebb
