#include "comm/launched_rank.h"

#include <fmt/core.h>

#include <charconv>
#include <cstring>

#include "core/error.h"

namespace hebb {
namespace {

using Variables = std::function<const char*(const char*)>;

struct Launcher {
  const char *rank, *size, *local_rank, *local_size, *address, *port;  // null: it has none
};
constexpr Launcher kLaunchers[] = {
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
     nullptr, nullptr},
    {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", nullptr, nullptr, nullptr},
};

[[noreturn]] void fail(const char* name, const std::string& what, const char* found, const std::string& expected) {
  throw CommError(std::string("environment variable ") + name,
                  what + " (found " + found + ", expected " + expected + ")");
}

int read_number(const char* name, const char* text, int lowest) {
  int value = 0;
  const char* end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, value);
  if (error != std::errc() || stop != end || value < lowest) {
    fail(name, "not a number of a process", ("\"" + std::string(text) + "\"").c_str(),
         fmt::format("an integer >= {:d}", lowest));
  }
  return value;
}

/// rank < size, as the variables say.
void check_rank(const char* name, int rank, const char* text, const char* size_name, int size) {
  if (rank >= size) {
    throw CommError(std::string("environment variable ") + name,
                    fmt::format("{} must be less than {} = {:d}", text, size_name, size));
  }
}

void read_local(LaunchedRank& found, const Launcher& l, const Variables& variable) {
  const char* size = l.local_size != nullptr ? variable(l.local_size) : nullptr;
  const char* rank = variable(l.local_rank);
  if (size != nullptr) {
    found.local_size = read_number(l.local_size, size, 1);
    if (*found.local_size > found.size) {
      fail(l.local_size, "more processes than the run has", size, fmt::format("at most {} = {:d}", l.size, found.size));
    }
  }
  if (rank != nullptr) {
    found.local_rank = read_number(l.local_rank, rank, 0);
    const bool has_size = found.local_size.has_value();
    check_rank(l.local_rank, *found.local_rank, rank, has_size ? l.local_size : l.size,
               has_size ? *found.local_size : found.size);
  }
}

void read_address(LaunchedRank& found, const Launcher& l, const Variables& variable) {
  const char *address = l.address != nullptr ? variable(l.address) : nullptr,
             *port = l.port != nullptr ? variable(l.port) : nullptr;
  if (address != nullptr) { found.address = address; }
  if (port != nullptr) {
    found.port = read_number(l.port, port, 1);
    if (found.port > 65535) { fail(l.port, "no port", port, "at most 65535"); }
  }
}

}  // namespace

LaunchedRank read_launched_rank(const Variables& environment) {
  const Variables variable = [&](const char* name) {
    const char* text = environment(name);
    return text != nullptr && *text != '\0' ? text : nullptr;
  };
  for (const Launcher& l : kLaunchers) {
    const char *rank = variable(l.rank), *size = variable(l.size);
    if (rank == nullptr || size == nullptr) { continue; }
    LaunchedRank found{.rank = read_number(l.rank, rank, 0), .size = read_number(l.size, size, 1)};
    check_rank(l.rank, found.rank, rank, l.size, found.size);
    found.size_variable = l.size;
    read_local(found, l, variable);
    read_address(found, l, variable);
    return found;
  }
  return {};
}

}  // namespace hebb
