#pragma once
#include "core/stream.h"
#include "kernels/attention/scratch.h"
#include "kernels/dictionary/parts.h"

namespace hebb {

/// What turns the sum of a row's values into the value that is read (docs/layers/kvm.md, Readout).
enum class KvmValueNorm { radius, mean, updates };

/// How tokens enter the state rows and how rows are read (docs/layers/kvm.md). The counts of rows are no part
/// of it: kernels get them per chunk.
struct KvmRule {
  int64_t chunk = 0, window = 0, sinks = 0;  // tokens; chunks, the query's own included; rows
  int64_t rotary = 0;                        // leading channels that memory keys leave out
  bool gate_keys = false, gate_values = false, gate_appends = false;
  KvmValueNorm value_norm = KvmValueNorm::radius;
  double eps = 1e-5;   // of the norm of memory keys
  double scale = 1.0;  // of the logits
};

/// Queries that the CPU reads out together.
constexpr int64_t kKvmTile = 64;

/// The rows of every row of the batch and kv head, with room for R. Shapes: keys [B, K, R, D] and values
/// [B, K, R, Dv] (sums), radii [B, K, R], counts [B, K, R] i32 (value norm "mean": tokens merged into the row;
/// "updates": the chunk on whose entry the row was made), key_hats and value_hats (what queries read).
struct KvmRows {
  Tensor keys, values, radii, counts, key_hats, value_hats;
};

/// The last `window` chunks as a ring of chunks: k [B, K, W C, D], v [B, K, W C, Dv], gates [B, K, W C].
struct KvmWindow {
  Tensor k, v, gates;
};

/// Steps (a chunk of every row) that the GPU reads as one group on tensor cores: what changes in them is kept until all
/// are done. Where every step changes what is read of all rows, there is no group. Rows of n chunks have n + 1 steps,
/// the last for documents that begin off the grid.
inline int64_t kvm_group(const Shape& q, const Shape& v, const KvmRule& rule, DType dtype) {
  constexpr int64_t kMost = 17;
  const int64_t steps = (q[1] + 2 * rule.chunk - 2) / rule.chunk;
  const bool groups = attention_on_tensor_cores(dtype, q, v) && rule.value_norm != KvmValueNorm::updates;
  return !groups ? 1 : steps < kMost ? steps : kMost;
}

/// Elements of 4 bytes that the GPU's kernels need beside the other scratch; q [B, T, H, D] of type `dtype`, k [B, T,
/// K, D], v [B, T, K, Dv].
inline int64_t kvm_forward_work(const Shape& q, const Shape& v, const KvmRule& rule, int64_t room, DType dtype) {
  const int64_t group = kvm_group(q, v, rule, dtype);
  const int64_t kept = group > 1 ? group * v[0] * v[2] * (room + rule.chunk * ((q[3] + v[3]) / 2)) : 0;
  const int64_t keys = v[0] * v[2] * rule.chunk, tiles = room / 64 + 2;
  return q[0] * q[1] * (q[2] * (q[3] + 1) + 2) + 8 * q[0] * (q[1] / rule.chunk + 2) + keys * (3 * tiles + 3) + 256 +
         (dtype == DType::bf16 ? keys * q[3] / 2 + 1 : 0) + kept +
         dictionary_parts_work(q, v, rule.chunk, group, room, dtype);
}
inline int64_t kvm_backward_work(const Shape& q, const Shape& k, const Shape& v, const KvmRule& rule, int64_t room,
                                 DType dtype) {
  const int64_t keys = k[0] * k[2] * rule.chunk, slices = q[3] / 256 + 1;
  return q[0] * q[1] * (q[2] * (2 * q[3] + 1 + slices) + 2 * k[2] + 2) + 8 * q[0] * (q[1] / rule.chunk + 2) +
         keys * (3 * q[3] + 1) + 256 + attention_statistics(dtype, q, v) +
         dictionary_parts_work(q, v, rule.chunk, 1, room, dtype);
}

/// Key-value means (docs/layers/kvm.md). o [B, T, H, Dv]; q [B, T, H, D], k [B, T, K, D], v [B, T, K, Dv]; gate
/// [B, T, K] logits of the merge gate, or undefined (no gate); norm_weight, norm_bias [D]; window_temp, state_temp [H]
/// or undefined (1); doc_start [B, T] i32; sizes [chunks] i32: rows that the queries of a document's chunk see.
/// Query head h reads kv head h K / H. Advances `rows` and `window`: scratch, or what rows that continue carry on from.
/// lse [B, T, H]: log-sum-exp of the logits, may be undefined. routes [B, K, T] i32: 2 row + 1 where the token founded
/// the row, 2 row where it joined it, -1 where it is still in the window; an input with `forced`; may be undefined.
/// scratch [B, K, kKvmTile, R + W C] (CPU), memory_keys [B, K, C, D], work [kvm_forward_work(...)] (GPU). The GPU takes
/// fp32, or q, k, v, o, the window's k and v and the rows' hats in bf16 with the rest in fp32: then scores compare bf16
/// copies of memory keys with the hats, and both are multiplied on tensor cores where attention is; sums, norms and
/// comparisons are in fp32. Cost: 2 H (D + Dv)(m + (W - 1/2) C) + 2 K D m flops a token, m = rows; bound by the
/// products, the rows of a head stay in cache while they are few. Rows x kv heads run in parallel, chunks in sequence.
struct KvmForward {
  Tensor o, lse, routes;
  KvmRows rows;
  KvmWindow window;
  Tensor scratch, memory_keys, work;
  Tensor q, k, v, gate, norm_weight, norm_bias, window_temp, state_temp, doc_start, sizes;
  KvmRule rule;
  bool forced;
};
HEBB_KERNEL(KvmForward)

/// Gradients with the routes as constants (docs/layers/kvm.md, Gradients), for rows that continue nothing. Replays the
/// sums from the routes, keeping the version of each row that an update made, at the token by which the update first
/// touched the row (at most T versions), then walks the chunks from last to first: `d_rows` holds the gradients of what
/// the row's present version was read as (hats) and the running gradients of its sums, which go to the tokens of each
/// update. d_norm_weight, d_norm_bias, d_window_temp and d_state_temp are added to; undefined where not wanted.
/// Scratch: rows, d_rows (without counts), versions [B, K, T, D + Dv], previous [B, K, T] i32, latest [B, K, R] i32,
/// types as of the forward pass, d_rows in fp32,
/// scratch [B, K, 2, kKvmTile, R + W C] and partial [B, K, 2 D + 2 H / K] (CPU), work [kvm_backward_work(...)] (GPU). T
/// of versions is 1 where no state is used. Cost: 2.5 times the forward readout; routing costs nothing.
struct KvmBackward {
  Tensor d_q, d_k, d_v, d_gate, d_norm_weight, d_norm_bias, d_window_temp, d_state_temp;
  KvmRows rows, d_rows;
  Tensor versions, previous, latest, scratch, partial, work;
  Tensor d_o, o, lse, routes, q, k, v, gate, norm_weight, norm_bias, window_temp, state_temp, doc_start, sizes;
  KvmRule rule;
  bool accumulate_q, accumulate_k, accumulate_v, accumulate_gate;
};
HEBB_KERNEL(KvmBackward)

}  // namespace hebb
