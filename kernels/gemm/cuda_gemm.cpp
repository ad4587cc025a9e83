// Matrix products of the CUDA device, by cuBLASLt.
#include <array>
#include <map>
#include <mutex>
#include <optional>

#include <fmt/core.h>

#include "core/cuda_check.h"
#include "kernels/gemm/cuda_layout.h"

namespace hebb::HEBB_DEVICE {
namespace {

cudaDataType_t data_type(DType dtype) {
  HEBB_ASSERT(dtype == DType::f32 || dtype == DType::bf16);
  return dtype == DType::f32 ? CUDA_R_32F : CUDA_R_16BF;
}

/// Owns the descriptors of one shape.
struct Plan {
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t left = nullptr, right = nullptr, out = nullptr;
  cublasLtMatmulAlgo_t algorithm{};

  Plan() = default;
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan() {
    cublas_lt().MatrixLayoutDestroy(out);
    cublas_lt().MatrixLayoutDestroy(right);
    cublas_lt().MatrixLayoutDestroy(left);
    cublas_lt().MatmulDescDestroy(operation);
  }
};

cublasLtMatrixLayout_t layout_of(const ColumnMajor& matrix) {
  cublasLtMatrixLayout_t layout = nullptr;
  check(cublas_lt().MatrixLayoutCreate(&layout, data_type(matrix.tensor.dtype), static_cast<uint64_t>(matrix.rows),
                                       static_cast<uint64_t>(matrix.columns), matrix.stride),
        "cublasLtMatrixLayoutCreate");
  return layout;
}

bool in_tf32(const Stream& stream, const Gemm& g) { return (stream.allows_tf32 || g.tf32) && g.a.dtype == DType::f32; }

void describe(Plan& plan, const Stream& stream, const Gemm& g) {
  const ColumnMajorProduct product = column_major(g);
  const cublasComputeType_t compute = in_tf32(stream, g) ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  check(cublas_lt().MatmulDescCreate(&plan.operation, compute, CUDA_R_32F), "cublasLtMatmulDescCreate");
  const cublasOperation_t left = product.left.is_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t right = product.right.is_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  check(cublas_lt().MatmulDescSetAttribute(plan.operation, CUBLASLT_MATMUL_DESC_TRANSA, &left, sizeof(left)),
        "transposition");
  check(cublas_lt().MatmulDescSetAttribute(plan.operation, CUBLASLT_MATMUL_DESC_TRANSB, &right, sizeof(right)),
        "transposition");
  plan.left = layout_of(product.left);
  plan.right = layout_of(product.right);
  plan.out = layout_of(product.out);
}

/// Up to 16 bytes: no algorithm asks for more (vector and tensor-map loads do not), and what whole tensors share,
/// multiples of 64, must not choose another one from run to run, nor a new one, whose code would be loaded first, while
/// a graph is recorded.
uint32_t alignment_of(const Tensor& tensor) {
  const auto address = reinterpret_cast<uintptr_t>(tensor.data);
  return address % 16 == 0 ? 16 : static_cast<uint32_t>(address & (~address + 1));
}

/// The heuristic's first choice; nothing where it has none.
std::optional<cublasLtMatmulAlgo_t> ask(const Plan& plan, const NativeStream& state, int64_t workspace_bytes,
                                        uint32_t schemes, uint32_t a, uint32_t b, uint32_t c) {
  cublasLtMatmulPreference_t preference = nullptr;
  check(cublas_lt().MatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    check(cublas_lt().MatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)),
          "cublasLtMatmulPreferenceSetAttribute");
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(workspace_bytes));
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, b);  // operands are swapped (cuda_layout.h)
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, a);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, c);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, c);
  cublasLtMatmulHeuristicResult_t best{};
  int found = 0;
  const cublasStatus_t status = cublas_lt().MatmulAlgoGetHeuristic(state.blas, plan.operation, plan.left, plan.right,
                                                                   plan.out, plan.out, preference, 1, &best, &found);
  cublas_lt().MatmulPreferenceDestroy(preference);
  const bool is_usable = status == CUBLAS_STATUS_SUCCESS && found > 0 && best.state == CUBLAS_STATUS_SUCCESS;
  return is_usable ? std::optional(best.algo) : std::nullopt;
}

/// Split products are added in fp32: in a second step or, where C is fp32, in place, in the order that counters in the
/// workspace give. The scheme "output type" would add them in bf16. Shapes of few bytes a row may have no algorithm
/// under these rules: then any scheme and no alignment beyond the element's will do.
void choose(Plan& plan, const NativeStream& state, const Gemm& g, int64_t workspace_bytes) {
  const uint32_t in_place = g.c.dtype == DType::f32 ? CUBLASLT_REDUCTION_SCHEME_INPLACE : 0;
  std::optional<cublasLtMatmulAlgo_t> found =
      ask(plan, state, workspace_bytes, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE | in_place, alignment_of(g.a),
          alignment_of(g.b), alignment_of(g.c));
  if (!found) {
    const auto element = [](const Tensor& t) { return static_cast<uint32_t>(dtype_bytes(t.dtype)); };
    found = ask(plan, state, workspace_bytes, CUBLASLT_REDUCTION_SCHEME_MASK, element(g.a), element(g.b), element(g.c));
  }
  if (!found) {
    throw Error(ExitCode::kOther, fmt::format("cublasLt {}: no algorithm for a product of {} x {} x {}",
                                              cublas_lt().GetVersion(), g.m, g.n, g.k));
  }
  plan.algorithm = *found;
}

using Key = std::array<int64_t, 16>;

Key key_of(const Stream& stream, const NativeStream& state, const Gemm& g) {
  return {reinterpret_cast<int64_t>(state.blas),
          g.m,
          g.n,
          g.k,
          g.ldc,
          g.lda,
          g.ldb,
          g.trans_a,
          g.trans_b,
          static_cast<int64_t>(g.c.dtype),
          static_cast<int64_t>(g.a.dtype),
          static_cast<int64_t>(g.b.dtype),
          alignment_of(g.c),
          alignment_of(g.a),
          alignment_of(g.b),
          in_tf32(stream, g)};
}

/// Plans by shape: the heuristic takes longer than a small product. Kept for the life of the process.
const Plan& plan_of(const Stream& stream, const NativeStream& state, const Gemm& g, int64_t workspace_bytes) {
  static std::mutex mutex;
  static std::map<Key, Plan> plans;
  const std::lock_guard lock(mutex);
  const auto [entry, is_new] = plans.try_emplace(key_of(stream, state, g));
  if (is_new) {
    try {
      // The heuristic may not be asked, nor code be loaded, while a stream is captured.
      if (state.recording != nullptr) {
        throw Error(ExitCode::kOther,
                    fmt::format("cublasLt: a product of {} x {} x {} was not enqueued before its graph was recorded",
                                g.m, g.n, g.k));
      }
      describe(entry->second, stream, g);
      choose(entry->second, state, g, workspace_bytes);
    } catch (...) {
      plans.erase(entry);
      throw;
    }
  }
  return entry->second;
}

}  // namespace

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
  check(cublas_lt().Matmul(state.blas, plan.operation, &alpha, g.b.data, plan.left, g.a.data, plan.right, &beta,
                           g.c.data, plan.out, g.c.data, plan.out, &plan.algorithm, scratch.data,
                           static_cast<size_t>(scratch.bytes), state.stream),
        "cublasLtMatmul");
}

}  // namespace hebb::HEBB_DEVICE
