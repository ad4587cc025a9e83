// A library in place of cuBLASLt, loaded as hebb loads that one.
#include "tests/cuda_host/fake_cublaslt.h"

#include <algorithm>
#include <cstring>

namespace {

FakeCublasLt fake;

struct Description {
  cublasComputeType_t compute;
};

struct Layout {
  size_t element, rows, columns, stride;
};

uint32_t number(const void* value) {
  uint32_t n = 0;
  std::memcpy(&n, value, sizeof(n));
  return n;
}

}  // namespace

extern "C" {

FakeCublasLt* fake_cublaslt() { return &fake; }

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(&fake);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t) { return CUBLAS_STATUS_SUCCESS; }
const char* cublasLtGetStatusString(cublasStatus_t) { return "a status"; }
size_t cublasLtGetVersion() { return 130204; }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* description, cublasComputeType_t compute,
                                        cudaDataType_t) {
  *description = reinterpret_cast<cublasLtMatmulDesc_t>(new Description{compute});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description) {
  delete reinterpret_cast<Description*>(description);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t, const void*,
                                              size_t) {
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t stride) {
  const size_t element = type == CUDA_R_32F ? 4 : 2;
  *layout = reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{element, rows, columns, static_cast<size_t>(stride)});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete reinterpret_cast<Layout*>(layout);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = reinterpret_cast<cublasLtMatmulPreference_t>(new FakeCublasLt::Query);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete reinterpret_cast<FakeCublasLt::Query*>(preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    size_t) {
  auto& query = *reinterpret_cast<FakeCublasLt::Query*>(preference);
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: std::memcpy(&query.workspace_bytes, value, 8); break;
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: query.schemes = number(value); break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: query.alignment[0] = number(value); break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: query.alignment[1] = number(value); break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: query.alignment[2] = number(value); break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: query.alignment[3] = number(value); break;
    default: return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t description,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatmulPreference_t preference, int most,
                                              cublasLtMatmulHeuristicResult_t* results, int* found) {
  FakeCublasLt::Query query = *reinterpret_cast<FakeCublasLt::Query*>(preference);
  query.wants_fp32_sums = reinterpret_cast<Description*>(description)->compute == CUBLAS_COMPUTE_32F;
  fake.queries.push_back(query);
  const bool finds = !fake.finds_nothing && (query.schemes & fake.finds_only_for) == fake.finds_only_for;
  fake.most.push_back(most);
  results[0] = {};
  *found = finds ? std::clamp(static_cast<int>(fake.offers.size()), 1, most) : 0;
  for (size_t i = 0; i < fake.offers.size() && static_cast<int>(i) < *found; ++i) {
    results[i] = {};
    results[i].algo.data[0] = fake.offers[i].name;
  }
  return finds ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                       const cublasLtMatmulAlgo_t* algorithm, cublasLtMatmulHeuristicResult_t* result) {
  *result = {};
  return algorithm->data[0] == fake.refused ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t, const void*, const void*, cublasLtMatrixLayout_t,
                              const void*, cublasLtMatrixLayout_t, const void* beta, const void*,
                              cublasLtMatrixLayout_t, void* out, cublasLtMatrixLayout_t layout,
                              const cublasLtMatmulAlgo_t* algorithm, void*, size_t, cudaStream_t) {
  ++fake.products;
  fake.ran.push_back(algorithm->data[0]);
  const auto offer = std::find_if(fake.offers.begin(), fake.offers.end(),
                                  [&](const FakeCublasLt::Offer& o) { return o.name == algorithm->data[0]; });
  if (offer == fake.offers.end()) { return CUBLAS_STATUS_SUCCESS; }
  fake.now_ms += offer->ms;
  float factor = 0;
  std::memcpy(&factor, beta, sizeof(factor));
  const Layout& c = *reinterpret_cast<Layout*>(layout);
  for (size_t column = 0; column < c.columns; ++column) {
    std::memset(static_cast<char*>(out) + column * c.stride * c.element, factor == 0 ? offer->byte : offer->added_byte,
                c.rows * c.element);
  }
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
