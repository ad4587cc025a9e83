// What the module libhebb_mpi.so offers to comm/load_mpi.cpp; all else comes from the program that loads it.
#include <mpi.h>

#include "comm/mpi_communicator.h"

extern "C" {

hebb::Communicator* hebb_mpi_communicator() { return hebb::make_mpi_communicator().release(); }

void hebb_mpi_reduce_scatter(float* to, const float* from, int64_t n) { hebb::reduce_scatter_by_mpi(to, from, n); }

/// The first words of what the library says about itself, up to a comma.
const char* hebb_mpi_version() {
  static char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);
  for (char* c = text; *c != '\0'; ++c) {
    if (*c == ',' || *c == '\n') { *c = '\0'; }
  }
  return text;
}
}
