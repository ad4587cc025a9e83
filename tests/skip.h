#pragma once
// Cases that this machine or this build cannot run.
#include <string>

namespace hebb::testing {

/// Prints "skipped: REASON: CASE" for the case that runs, once; the case returns then. tests/count_skips.sh counts
/// these lines. A run of nothing but such cases says so at its end, which ctest takes for a skipped test. The reason
/// has no ": ".
void skip_case(const std::string& reason);

/// Whether this build has ranks on CPUs; else the case is skipped.
bool has_mpi();

}  // namespace hebb::testing
