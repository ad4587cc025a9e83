#pragma once
#include <memory>

#include "comm/communicator.h"

namespace hebb {

/// The ranks of an mpirun, over host memory. MPI moves bytes and adds integers; calls block. Starts MPI where nobody
/// has, and the object that started it ends it; MPI cannot be started again in a process. Call from the main thread.
/// Part of the library hebb_mpi, which exists where MPI was found when hebb was built. Errors: CommError.
std::unique_ptr<Communicator> make_mpi_communicator();

}  // namespace hebb
