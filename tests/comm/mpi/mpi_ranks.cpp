// test_comm_mpi: run by mpirun. Each rank checks what it sees; one that fails ends the others by its exit code.
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "comm/lanes.h"
#include "comm/mpi_communicator.h"
#include "core/parallel.h"
#include "tests/comm/engine_checks.h"

using namespace hebb;
using namespace hebb::testing;

int main() {
  set_threads(1);
  try {
    const std::unique_ptr<Communicator> comm = make_mpi_communicator();
    expect(comm->size() == 4 || comm->size() == 1,
           "mpirun started 4 ranks (found " + std::to_string(comm->size()) + ")");
    check_engine(*comm);
    const std::vector<int64_t> sizes{70000, 1, 0, 16385, 300000, 63};
    for (const int64_t mib : {1, 64}) { check_reduction<float>(*comm, 8, sizes, mib); }
    check_reduction<float>(*comm, 4, sizes, 1);
    check_reduction<double>(*comm, 8, {5}, 1);
    if (comm->rank() == 0) { std::printf("test_comm_mpi: %d ranks agree\n", comm->size()); }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    std::_Exit(1);  // no MPI_Finalize: it would wait for the others
  }
  return 0;
}
