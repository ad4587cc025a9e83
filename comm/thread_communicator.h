#pragma once
#include <functional>

#include "comm/communicator.h"

namespace hebb {

/// Runs body on `size` threads, each a rank with a communicator of its own over the memory of the process. Streams are
/// of the CPU, or of a GPU that all ranks share: then each collective waits for its stream. Returns when all have
/// ended. Where a body throws, or ends while others wait for it, the waiting ranks get a CommError; the error that came
/// first is thrown again here.
void run_ranks(int size, const std::function<void(Communicator&)>& body);

}  // namespace hebb
