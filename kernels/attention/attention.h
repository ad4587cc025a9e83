#pragma once
#include "core/kernel.h"
#include "kernels/common/cores.h"

namespace hebb {

/// Softmax attention over one interval of keys per query:
///   o = sum_j softmax_j(scale q k_j + bias_j) v_j  over  lo <= j < hi,   lse = log sum_j exp(...).
/// o [B, T, H, Dv], lse [B, T, H] (may be undefined); q [B, T, H, D]; k [Bk, S, K, D]; v [Bk, S, K, Dv];
/// lo, hi [B, T] i32 in the key index space [0, S]; bias [Bk, S, K] or undefined. Query head h reads kv
/// head h / (H / K). Bk is B, or 1: then all rows see one packed space of keys.
/// lo and hi must not decrease over the queries of one key space (its T, or B T, tokens): this covers
/// causal and windowed attention, documents, cached prefixes and packed subsets of keys. A query
/// without keys gives o = 0, lse = -inf. Keys of a space before all intervals or behind them are never read; those
/// between two intervals may be multiplied by 0 and must be finite.
/// Online softmax over tiles of queries x keys; tiles outside the intervals are skipped.
/// FLOPs: 2 H (D + Dv) per visible pair. Bound: multiply-adds; with few queries, reading k and v once.
/// Source: docs/layers/attention.md, Forward.
struct AttentionForward {
  Tensor o, lse;
  Tensor q, k, v, lo, hi, bias;
  double scale;
};
HEBB_KERNEL_WITH_SCRATCH(AttentionForward)

/// Whether tensor cores have kernels for these heads: bf16, sizes that are multiples of 16 up to 128. Products are
/// summed in fp32; probabilities, and their gradients, are rounded to bf16 in between.
constexpr bool attention_on_tensor_cores(DType dtype, const Shape& q, const Shape& v) {
  return dtype == DType::bf16 && q[3] % 16 == 0 && v[3] % 16 == 0 && q[3] <= 128 && v[3] <= 128;
}

/// Shared memory [bytes] that a block of those kernels takes at most, with heads of up to `width` channels.
constexpr int64_t attention_shared_bytes(int64_t width) { return (width <= 96 ? 98 : 113) * 1024; }

/// The cores that attention of these queries and values takes; `tensors`: those in bf16 that its kernels read or write.
Cores attention_cores(const Tensor& q, const Tensor& v, double scale, const std::vector<Tensor>& tensors);

/// Gradients of AttentionForward: probabilities are recomputed from lse, delta = sum_c d_o o.
/// d_q, d_k, d_v (overwritten, or added to where `accumulate_*`) shaped like q, k, v; d_bias likewise;
/// each may be undefined. All sums have a fixed order.
/// The score of a query's only key gets a gradient of exactly 0, unless has_other_keys.
/// FLOPs: 5 products, 2.5 times the forward pass.
struct AttentionBackward {
  Tensor d_q, d_k, d_v, d_bias;
  Tensor d_o, q, k, v, o, lse, lo, hi, bias;
  double scale;
  bool accumulate_q, accumulate_k, accumulate_v, accumulate_bias;
  bool has_other_keys = false;  // o and lse also count keys outside of this call
};
HEBB_KERNEL_WITH_SCRATCH(AttentionBackward)

}  // namespace hebb
