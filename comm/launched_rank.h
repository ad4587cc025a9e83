#pragma once
#include <functional>
#include <optional>
#include <string>

namespace hebb {

/// What a launcher tells a process about its place in the run.
struct LaunchedRank {
  int rank = 0, size = 1;
  std::optional<int> local_rank{}, local_size{};  // on its host, where the launcher says so
  std::string address{};                          // where ranks meet, where the launcher says so
  int port = 0;
  std::string size_variable{};  // the variable that gave `size`; empty: no launcher
};

/// Reads the variables of the first launcher that sets both rank and size: torchrun and its like, Open MPI's mpirun,
/// Slurm's srun; one process without them. Open MPI comes before Slurm, whose variables its ranks inherit inside an
/// allocation. SLURM_NTASKS does not count: batch scripts have it too, and are one process.
/// `environment` gives the value of a variable or null; an empty one is none. Errors: CommError naming the variable for
/// values that are no numbers or out of range.
LaunchedRank read_launched_rank(const std::function<const char*(const char*)>& environment);

}  // namespace hebb
