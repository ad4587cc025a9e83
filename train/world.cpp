#include "train/world.h"

#include <charconv>
#include <cstdlib>
#include <cstring>

#include "core/error.h"

namespace hebb {
namespace {

int read_number(const char* name, const char* text, int lowest) {
  int value = 0;
  const char* end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, value);
  if (error != std::errc() || stop != end || value < lowest) {
    throw CommError(std::string("environment variable ") + name,
                    "not a number of a process (found \"" + std::string(text) +
                        "\", expected an integer >= " + std::to_string(lowest) + ")");
  }
  return value;
}

}  // namespace

World read_world(const std::function<const char*(const char*)>& variable) {
  struct Launcher {
    const char *rank, *size;
  };
  for (const Launcher& l : {Launcher{"RANK", "WORLD_SIZE"}, Launcher{"SLURM_PROCID", "SLURM_NTASKS"},
                            Launcher{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}}) {
    const char *rank = variable(l.rank), *size = variable(l.size);
    if (rank == nullptr || size == nullptr) { continue; }
    const World world{read_number(l.rank, rank, 0), read_number(l.size, size, 1)};
    if (world.rank >= world.size) {
      throw CommError(
          std::string("environment variable ") + l.rank,
          "no such process (found " + std::string(rank) + ", expected less than " + l.size + " = " + size + ")");
    }
    if (world.size > 1) {
      throw CommError(std::string("environment variable ") + l.size,
                      "this build trains with one process (found " + std::string(size) + ", expected 1)");
    }
    return world;
  }
  return {};
}

World read_world() {
  return read_world([](const char* name) { return std::getenv(name); });
}

}  // namespace hebb
