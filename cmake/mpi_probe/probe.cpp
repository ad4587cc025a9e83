#include <mpi.h>

int main() { return MPI_Finalize(); }
