#pragma once
#include <memory>

#include "comm/communicator.h"

namespace hebb {

/// The ranks of an mpirun, over host memory. MPI moves bytes and adds integers; calls block. Starts MPI where nobody
/// has, and the object that started it ends it; MPI cannot be started again in a process. Call from the main thread.
/// Part of the library hebb_mpi, which exists where MPI was found when hebb was built. Errors: CommError.
std::unique_ptr<Communicator> make_mpi_communicator();
/// to [n] = part `rank` of the sum over all ranks of from [ranks * n], by MPI_Reduce_scatter, whose order of sums is
/// the library's own: for measurements. MPI must be started. Errors: CommError.
void reduce_scatter_by_mpi(float* to, const float* from, int64_t n);

}  // namespace hebb
