// Matrix products of the CUDA device, by cuBLASLt.
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include <fmt/core.h>

#include "core/cuda_check.h"
#include "kernels/gemm/cuda_layout.h"
#include "kernels/gemm/cuda_plan.h"
#include "kernels/gemm/cuda_tune.h"

namespace hebb::HEBB_DEVICE {
namespace {

cudaDataType_t data_type(DType dtype) {
  HEBB_ASSERT(dtype == DType::f32 || dtype == DType::bf16);
  return dtype == DType::f32 ? CUDA_R_32F : CUDA_R_16BF;
}

cublasLtMatrixLayout_t layout_of(const ColumnMajor& matrix) {
  cublasLtMatrixLayout_t layout = nullptr;
  check(cublas_lt().MatrixLayoutCreate(&layout, data_type(matrix.tensor.dtype), static_cast<uint64_t>(matrix.rows),
                                       static_cast<uint64_t>(matrix.columns), matrix.stride),
        "cublasLtMatrixLayoutCreate");
  return layout;
}

/// Without tensors.
Gemm shape_of(const ProductKey& key) {
  return {.c = {nullptr, key.out, {}},
          .a = {nullptr, key.in, {}},
          .b = {nullptr, key.in, {}},
          .m = key.m,
          .n = key.n,
          .k = key.k,
          .trans_a = key.trans_a,
          .trans_b = key.trans_b,
          .ldc = key.ldc,
          .lda = key.lda,
          .ldb = key.ldb};
}

}  // namespace

ProductLayouts::ProductLayouts(const ProductKey& key) {
  const ColumnMajorProduct product = column_major(shape_of(key));
  const cublasComputeType_t compute = key.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  check(cublas_lt().MatmulDescCreate(&operation, compute, CUDA_R_32F), "cublasLtMatmulDescCreate");
  const cublasOperation_t of_left = product.left.is_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t of_right = product.right.is_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  check(cublas_lt().MatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSA, &of_left, sizeof(of_left)),
        "transposition");
  check(cublas_lt().MatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSB, &of_right, sizeof(of_right)),
        "transposition");
  left = layout_of(product.left);
  right = layout_of(product.right);
  out = layout_of(product.out);
}

ProductLayouts::~ProductLayouts() {
  cublas_lt().MatrixLayoutDestroy(out);
  cublas_lt().MatrixLayoutDestroy(right);
  cublas_lt().MatrixLayoutDestroy(left);
  cublas_lt().MatmulDescDestroy(operation);
}

namespace {

/// What an algorithm may do and expect.
struct Rules {
  int64_t workspace_bytes;
  uint32_t schemes, align_a, align_b, align_c;
};

/// The heuristic's choices; none where it has none.
std::vector<cublasLtMatmulAlgo_t> ask(cublasLtHandle_t blas, const ProductLayouts& layouts, const Rules& rules,
                                      int most) {
  cublasLtMatmulPreference_t preference = nullptr;
  check(cublas_lt().MatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    check(cublas_lt().MatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)),
          "cublasLtMatmulPreferenceSetAttribute");
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(rules.workspace_bytes));
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, rules.schemes);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, rules.align_b);  // operands are swapped (cuda_layout.h)
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, rules.align_a);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, rules.align_c);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, rules.align_c);
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(most));
  int found = 0;
  const cublasStatus_t status =
      cublas_lt().MatmulAlgoGetHeuristic(blas, layouts.operation, layouts.left, layouts.right, layouts.out, layouts.out,
                                         preference, most, results.data(), &found);
  cublas_lt().MatmulPreferenceDestroy(preference);
  std::vector<cublasLtMatmulAlgo_t> usable;
  for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < found; ++i) {
    const cublasLtMatmulHeuristicResult_t& result = results[static_cast<size_t>(i)];
    if (result.state == CUBLAS_STATUS_SUCCESS) { usable.push_back(result.algo); }
  }
  return usable;
}

}  // namespace

/// Split products are added in fp32: in a second step or, where C is fp32, in place, in the order that counters in the
/// workspace give. The scheme "output type" would add them in bf16. Shapes of few bytes a row may have no algorithm
/// under these rules: then any scheme and no alignment beyond the element's will do.
std::vector<cublasLtMatmulAlgo_t> find_algorithms(cublasLtHandle_t blas, const ProductLayouts& layouts,
                                                  const ProductKey& key, int64_t workspace_bytes, int most) {
  const uint32_t in_place = key.out == DType::f32 ? CUBLASLT_REDUCTION_SCHEME_INPLACE : 0;
  const Rules rules{workspace_bytes, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE | in_place,
                    static_cast<uint32_t>(key.align_a), static_cast<uint32_t>(key.align_b),
                    static_cast<uint32_t>(key.align_c)};
  std::vector<cublasLtMatmulAlgo_t> found = ask(blas, layouts, rules, most);
  if (found.empty()) {
    const auto in = static_cast<uint32_t>(dtype_bytes(key.in)), out = static_cast<uint32_t>(dtype_bytes(key.out));
    found = ask(blas, layouts, {workspace_bytes, CUBLASLT_REDUCTION_SCHEME_MASK, in, in, out}, most);
  }
  if (found.empty()) {
    throw Error(ExitCode::kOther, fmt::format("cublasLt {}: no algorithm for a product of {} x {} x {}",
                                              products_version(), key.m, key.n, key.k));
  }
  return found;
}

namespace {

struct Plan {
  explicit Plan(const ProductKey& key) : layouts(key) {}
  ProductLayouts layouts;
  cublasLtMatmulAlgo_t algorithm{};
};

/// Kept for the life of the process.
struct Plans {
  std::mutex mutex;
  std::map<std::pair<cublasLtHandle_t, ProductKey>, Plan> made;
  std::map<ProductKey, cublasLtMatmulAlgo_t> chosen;  // by measurement
};
Plans& plans() {
  static Plans all;
  return all;
}

cublasLtMatmulAlgo_t algorithm_of(const TunedProduct& tuned) {
  cublasLtMatmulAlgo_t algorithm;
  static_assert(sizeof(algorithm) == sizeof(tuned.algorithm));
  std::memcpy(&algorithm, tuned.algorithm.data(), sizeof(algorithm));
  return algorithm;
}

/// Plans by shape: the heuristic takes longer than a small product.
const Plan& plan_of(const Stream& stream, const NativeStream& state, const Gemm& g, int64_t workspace_bytes) {
  Plans& all = plans();
  const std::pair key{state.blas, product_key(stream, g)};
  const std::lock_guard lock(all.mutex);
  if (const auto known = all.made.find(key); known != all.made.end()) { return known->second; }
  // The heuristic may not be asked, nor code be loaded, while a stream is captured.
  if (state.recording != nullptr) {
    throw Error(ExitCode::kOther,
                fmt::format("cublasLt: a product of {} x {} x {} was not enqueued before its graph was recorded", g.m,
                            g.n, g.k));
  }
  const auto entry = all.made.try_emplace(key, key.second).first;
  Plan& plan = entry->second;
  if (const auto chosen = all.chosen.find(key.second); chosen != all.chosen.end()) {
    plan.algorithm = chosen->second;
    return plan;
  }
  try {
    plan.algorithm = find_algorithms(state.blas, plan.layouts, key.second, workspace_bytes, 1).front();
  } catch (...) {
    all.made.erase(entry);
    throw;
  }
  return plan;
}

}  // namespace

int64_t products_version() { return static_cast<int64_t>(cublas_lt().GetVersion()); }

std::string take_algorithms(Stream& stream, std::span<const TunedProduct> products) {
  const NativeStream& state = native(stream);
  const int64_t workspace_bytes = stream_scratch(stream).bytes;
  for (const TunedProduct& tuned : products) {
    const ProductLayouts layouts(tuned.product);
    const cublasLtMatmulAlgo_t algorithm = algorithm_of(tuned);
    cublasLtMatmulHeuristicResult_t result{};
    const cublasStatus_t status = cublas_lt().MatmulAlgoCheck(
        state.blas, layouts.operation, layouts.left, layouts.right, layouts.out, layouts.out, &algorithm, &result);
    if (status != CUBLAS_STATUS_SUCCESS || result.workspaceSize > static_cast<size_t>(workspace_bytes)) {
      return fmt::format("the algorithm of the product of {} x {} x {}", tuned.product.m, tuned.product.n,
                         tuned.product.k);
    }
  }
  Plans& all = plans();
  const std::lock_guard lock(all.mutex);
  for (const TunedProduct& tuned : products) { all.chosen[tuned.product] = algorithm_of(tuned); }
  return "";
}

void run(Stream& stream, const Gemm& g) {
  HEBB_ASSERT(g.a.dtype == g.b.dtype && (g.a.dtype == g.c.dtype || g.c.dtype == DType::f32));
  if (g.m == 0 || g.n == 0) { return; }
  NativeStream& state = native(stream);
  if (g.k == 0) {
    if (!g.accumulate) {
      check(
          cudaMemset2DAsync(g.c.data, static_cast<size_t>(g.ldc * dtype_bytes(g.c.dtype)), 0,
                            static_cast<size_t>(g.n * dtype_bytes(g.c.dtype)), static_cast<size_t>(g.m), state.stream),
          "cudaMemset2DAsync");
    }
    return;
  }
  const StreamScratch scratch = stream_scratch(stream);
  const Plan& plan = plan_of(stream, state, g, scratch.bytes);
  const auto alpha = static_cast<float>(g.alpha);
  const float beta = g.accumulate ? 1.0f : 0.0f;
  const ProductLayouts& layouts = plan.layouts;
  check(cublas_lt().Matmul(state.blas, layouts.operation, &alpha, g.b.data, layouts.left, g.a.data, layouts.right,
                           &beta, g.c.data, layouts.out, g.c.data, layouts.out, &plan.algorithm, scratch.data,
                           static_cast<size_t>(scratch.bytes), state.stream),
        "cublasLtMatmul");
}

}  // namespace hebb::HEBB_DEVICE
