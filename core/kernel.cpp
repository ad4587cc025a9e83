#include "core/kernel.h"

#include "core/error.h"

namespace hebb {

void no_cuda_kernel(const char* name) {
  throw Error(ExitCode::kOther, std::string("--device: this build has no CUDA code for ") + name +
                                    " (found cuda, expected cpu for models with this layer)");
}

}  // namespace hebb
