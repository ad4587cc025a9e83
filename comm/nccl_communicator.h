#pragma once
#include <array>
#include <memory>
#include <string>

#include "comm/communicator.h"

namespace hebb {

// In builds with CUDA (HEBB_HAVE_NCCL). libnccl.so.2 is loaded by the first of these calls, so that programs start
// without it. Errors of all: CommError, where it cannot be loaded or is older than 2.19 as well.

/// What ranks of one communicator share; one rank makes it.
struct NcclId {
  std::array<char, 128> bytes{};
};
NcclId make_nccl_id();
std::string nccl_version();  // "2.28.9"

/// The ranks of `id` on the calling thread's device, each on a GPU of its own. Collectives are enqueued on the stream.
/// All ranks must call this within `seconds`; later calls of the library may take as long to be enqueued.
std::unique_ptr<Communicator> make_nccl_communicator(const NcclId& id, int rank, int size, double seconds);

}  // namespace hebb
