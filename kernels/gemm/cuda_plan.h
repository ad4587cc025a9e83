#pragma once
// Included by kernels/gemm/cuda_*.cpp only.
#include <vector>

#include "core/cuda_blas.h"
#include "kernels/gemm/product_list.h"

namespace hebb::HEBB_DEVICE {

/// The descriptors of one product.
struct ProductLayouts {
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t left = nullptr, right = nullptr, out = nullptr;  // operands are swapped (cuda_layout.h)

  explicit ProductLayouts(const ProductKey& key);
  ProductLayouts(const ProductLayouts&) = delete;
  ProductLayouts& operator=(const ProductLayouts&) = delete;
  ~ProductLayouts();
};

/// Up to `most` algorithms, as the heuristic orders them. Errors: Error where there is none.
std::vector<cublasLtMatmulAlgo_t> find_algorithms(cublasLtHandle_t blas, const ProductLayouts& layouts,
                                                  const ProductKey& key, int64_t workspace_bytes, int most);

}  // namespace hebb::HEBB_DEVICE
