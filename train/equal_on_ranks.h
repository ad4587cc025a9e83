#pragma once
#include "comm/host_exchange.h"
#include "core/params.h"

namespace hebb {

/// Compares what must be equal on all ranks. Every rank calls it. Errors: NumericError naming the tensor and the rank.
void require_equal_on_ranks(Stream& stream, HostExchange& host, int ranks, const ParamStore& params);

}  // namespace hebb
