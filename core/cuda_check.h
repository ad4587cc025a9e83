#pragma once
// Included by core/cuda_*.cpp only.
#include <cuda_runtime_api.h>

#include <cublasLt.h>

#include <string>

#include "core/error.h"
#include "core/upload_ring.h"

namespace hebb::cuda {

/// What Stream::native points to.
struct NativeStream {
  cudaStream_t stream = nullptr;
  void* workspace = nullptr;
  cublasLtHandle_t blas = nullptr;
  bool allows_tf32 = false;  // in products of fp32
  UploadRing ring{int64_t{2} << 20};
  GraphUploads* recording = nullptr;  // while a Graph records the stream
};

/// Of a stream that create_stream() did not make: the default stream of the process.
NativeStream& native(Stream& stream);

inline void check(cudaError_t error, const std::string& what) {
  if (error == cudaErrorMemoryAllocation) { throw MemoryError("cuda", what + ": out of memory"); }
  if (error != cudaSuccess) { throw Error(ExitCode::kOther, "cuda: " + what + ": " + cudaGetErrorString(error)); }
}

inline void check(cublasStatus_t status, const std::string& what) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw Error(ExitCode::kOther, "cublasLt: " + what + ": " + cublasLtGetStatusString(status));
  }
}

}  // namespace hebb::cuda
