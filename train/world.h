#pragma once
#include <functional>
#include <string>

namespace hebb {

/// This process among those of the run.
struct World {
  int rank = 0, size = 1;
};

/// Rank and size as the launcher says (comm/launched_rank.h). `variable` reads the environment. Errors: CommError for
/// values that are no ranks, and for more than one process, which this build does not support.
World read_world(const std::function<const char*(const char*)>& variable);
World read_world();

}  // namespace hebb
