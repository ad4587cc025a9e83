#include "train/world.h"

#include <cstdlib>

#include "comm/launched_rank.h"
#include "core/error.h"

namespace hebb {

World read_world(const std::function<const char*(const char*)>& variable) {
  const LaunchedRank launched = read_launched_rank(variable);
  if (launched.size > 1) {
    throw CommError("environment variable " + launched.size_variable,
                    "this build trains with one process (found " + std::to_string(launched.size) + ", expected 1)");
  }
  return {launched.rank, launched.size};
}

World read_world() {
  return read_world([](const char* name) { return std::getenv(name); });
}

}  // namespace hebb
