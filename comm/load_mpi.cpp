#include "comm/load_mpi.h"

#include "core/error.h"
#include "core/files.h"
#include "core/shared_library.h"

namespace hebb {
namespace {

struct Module {
  Communicator* (*make)();
  void (*reduce_scatter)(float*, const float*, int64_t);
  const char* (*version)();
};

/// Beside the program, as a build leaves it, or where an installation has it.
fs::path module_path() {
  const fs::path folder = fs::read_symlink("/proc/self/exe").parent_path(), beside = folder / "libhebb_mpi.so";
  return fs::exists(beside) ? beside : folder.parent_path() / "lib" / "hebb" / "libhebb_mpi.so";
}

Module load() {
  const fs::path path = module_path();
  if (!fs::exists(path)) {
    throw CommError("mpi",
                    "this build is without MPI, which ranks on CPUs need; install the packages libopenmpi-dev "
                    "and openmpi-bin (tools/setup.sh --mpi), and build again");
  }
  // Open MPI loads plug-ins that look for its symbols among those of the program.
  const SharedLibrary library({path}, SharedLibrary::Symbols::shared);
  if (!library.problem().empty()) {
    throw CommError("mpi", library.problem() + "; install the packages libopenmpi3 and openmpi-bin");
  }
  const auto find = [&](const char* name) {
    void* symbol = library.find(name);
    if (symbol == nullptr) { throw CommError("mpi", path.string() + " is of another build: it has no " + name); }
    return symbol;
  };
  return {reinterpret_cast<Communicator* (*)()>(find("hebb_mpi_communicator")),
          reinterpret_cast<void (*)(float*, const float*, int64_t)>(find("hebb_mpi_reduce_scatter")),
          reinterpret_cast<const char* (*)()>(find("hebb_mpi_version"))};
}

const Module& module() {
  static const Module loaded = load();
  return loaded;
}

}  // namespace

std::unique_ptr<Communicator> load_mpi_communicator() { return std::unique_ptr<Communicator>(module().make()); }

void mpi_reduce_scatter(float* to, const float* from, int64_t n) { module().reduce_scatter(to, from, n); }

bool has_mpi() { return fs::exists(module_path()); }

std::string mpi_version() { return module().version(); }

}  // namespace hebb
