#pragma once
#include <memory>
#include <string>

#include "comm/communicator.h"

namespace hebb {

// MPI is a module beside the program (libhebb_mpi.so), loaded by the first of these calls, so that the program starts
// where MPI is not installed. Errors of all: CommError naming the package that is missing.

/// What mpi_communicator.h makes.
std::unique_ptr<Communicator> load_mpi_communicator();
/// reduce_scatter_by_mpi(), after load_mpi_communicator(). The program exports its symbols: one of the same name would
/// take the place of the module's.
void mpi_reduce_scatter(float* to, const float* from, int64_t n);
/// Whether the module is there.
bool has_mpi();
/// "Open MPI v4.1.4".
std::string mpi_version();

}  // namespace hebb
