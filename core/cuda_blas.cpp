#include "core/cuda_blas.h"

#include <fmt/core.h>

#include "core/shared_library.h"

namespace hebb::HEBB_DEVICE {
namespace {

struct Loaded {
  CublasLt functions;
  std::string problem, path;
};

Loaded load() {
  const std::string major = std::to_string(CUBLAS_VER_MAJOR), name = "libcublasLt.so." + major;
#ifdef HEBB_CUBLASLT_FILE
  const SharedLibrary library({HEBB_CUBLASLT_FILE, name});
#else
  const SharedLibrary library({name});
#endif
  Loaded l{.functions = {}, .problem = library.problem(), .path = {}};
  if (!l.problem.empty()) {
    l.problem = "cuBLASLt " + l.problem + "; install cuBLAS of CUDA " + major +
                ", or name the folder of its libraries in LD_LIBRARY_PATH";
    return l;
  }
  l.path = library.path();
#define HEBB_FIND(name) \
  if (!library.find("cublasLt" #name, l.functions.name)) { l.problem = l.path + " has no cublasLt" #name; }
  HEBB_CUBLASLT_FUNCTIONS(HEBB_FIND)
#undef HEBB_FIND
  return l;
}

const Loaded& loaded() {
  static const Loaded l = load();
  return l;
}

}  // namespace

const CublasLt& cublas_lt() {
  if (!loaded().problem.empty()) { throw Error(ExitCode::kOther, loaded().problem); }
  return loaded().functions;
}

std::string products_problem() { return loaded().problem; }

std::string products_library() {
  const size_t version = cublas_lt().GetVersion();  // 130100 is 13.1.0
  return fmt::format("cuBLASLt {}.{}.{}, {}", version / 10000, version / 100 % 100, version % 100, loaded().path);
}

}  // namespace hebb::HEBB_DEVICE
