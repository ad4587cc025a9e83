#pragma once
// Included by core/cuda_*.cpp and kernels/gemm/cuda_*.cpp only.
#include <cublasLt.h>

#include <string>

#include "core/cuda_device.h"
#include "core/error.h"

#define HEBB_CUBLASLT_FUNCTIONS(F) \
  F(Create)                        \
  F(Destroy)                       \
  F(GetStatusString)               \
  F(GetVersion)                    \
  F(Matmul)                        \
  F(MatmulAlgoCheck)               \
  F(MatmulAlgoGetHeuristic)        \
  F(MatmulDescCreate)              \
  F(MatmulDescDestroy)             \
  F(MatmulDescSetAttribute)        \
  F(MatmulPreferenceCreate)        \
  F(MatmulPreferenceDestroy) F(MatmulPreferenceSetAttribute) F(MatrixLayoutCreate) F(MatrixLayoutDestroy)

namespace hebb::HEBB_DEVICE {

/// The functions of cuBLASLt that hebb calls: `cublasLtMatmul` is `Matmul`.
struct CublasLt {
#define HEBB_DECLARE(name) decltype(&::cublasLt##name) name = nullptr;
  HEBB_CUBLASLT_FUNCTIONS(HEBB_DECLARE)
#undef HEBB_DECLARE
};

/// Of the library that the first call loads: the one that the build found, or else libcublasLt.so of the headers' major
/// version where the system's loader finds it. Errors: Error with what was looked for.
const CublasLt& cublas_lt();

inline void check(cublasStatus_t status, const std::string& what) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw Error(ExitCode::kOther, "cublasLt: " + what + ": " + cublas_lt().GetStatusString(status));
  }
}

}  // namespace hebb::HEBB_DEVICE
