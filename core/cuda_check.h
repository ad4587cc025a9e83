#pragma once
// Included by core/cuda_*.cpp only.
#include <cuda_runtime_api.h>

#include <string>
#include <type_traits>

#include "core/cuda_blas.h"
#include "core/error.h"
#include "core/upload_ring.h"

namespace hebb::HEBB_DEVICE {

/// What Stream::native points to.
struct NativeStream {
  cudaStream_t stream = nullptr;
  void* workspace = nullptr;
  cublasLtHandle_t blas = nullptr;
  UploadRing ring{int64_t{2} << 20};
  GraphUploads* recording = nullptr;  // while a Graph records the stream
};

/// Of a stream that create_stream() did not make: the default stream of the process.
NativeStream& native(Stream& stream);

/// device_problem() before it is remembered.
std::string find_device_problem();

/// Faults of kernels, which stay and are reported by whatever asks next.
inline bool is_fault(cudaError_t error) {
  return error == cudaErrorIllegalAddress || error == cudaErrorLaunchTimeout || error == cudaErrorHardwareStackError ||
         error == cudaErrorIllegalInstruction || error == cudaErrorMisalignedAddress ||
         error == cudaErrorInvalidAddressSpace || error == cudaErrorInvalidPc || error == cudaErrorLaunchFailure ||
         error == cudaErrorAssert;
}

/// Throws MemoryError, or Error with what was being done. `what` is text, or makes it.
template <class What> void check(cudaError_t error, const What& what) {
  if (error == cudaSuccess) { return; }
  std::string text;
  if constexpr (std::is_invocable_v<What>) {
    text = what();
  } else {
    text = what;
  }
  if (error == cudaErrorMemoryAllocation) { throw MemoryError("cuda", text + ": out of memory"); }
  throw Error(ExitCode::kOther, "cuda: " + text + ": " + cudaGetErrorString(error) +
                                    (is_fault(error) ? " (in this or an earlier kernel; CUDA_LAUNCH_BLOCKING=1 and "
                                                       "train.cuda_graphs=false or --no-cuda-graphs name it)"
                                                     : ""));
}

}  // namespace hebb::HEBB_DEVICE
