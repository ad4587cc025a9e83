#pragma once
#include "core/kernel.h"

namespace hebb {

/// What turns the sum of a slot's values into the value that is read (docs/layers/kvm.md, Readout).
enum class KvmValueNorm { radius, mean, updates };

/// How tokens enter the state slots and how slots are read (docs/layers/kvm.md). The counts of slots are no part
/// of it: kernels get them per chunk.
struct KvmRule {
  int64_t chunk = 0, window = 0, sinks = 0;  // tokens; chunks, the query's own included; slots
  int64_t rotary = 0;                        // leading channels that memory keys leave out
  bool gate_keys = false, gate_values = false, gate_appends = false;
  KvmValueNorm value_norm = KvmValueNorm::radius;
  double eps = 1e-5;   // of the norm of memory keys
  double scale = 1.0;  // of the logits
};

/// The slots of every row of the batch and kv head, with room for R. Shapes: keys [B, K,
/// R, D] and values [B, K, R, Dv] (sums), radii [B, K, R], counts [B, K, R] i32 (value norm "mean": tokens merged into
/// the slot; "updates": the chunk on whose entry the slot was made), key_hats and value_hats (what queries read).
struct KvmSlots {
  Tensor keys, values, radii, counts, key_hats, value_hats;
};

/// The last `window` chunks as a ring of chunks: k [B, K, W C, D], v [B, K, W C, Dv], gates [B, K, W C].
struct KvmWindow {
  Tensor k, v, gates;
};

/// Key-value means (docs/layers/kvm.md). o [B, T, H, Dv]; q [B, T, H, D], k [B, T, K, D], v [B, T, K, Dv]; gate
/// [B T, K] logits of the merge gate, or undefined (no gate); norm_weight, norm_bias [D]; window_temp, state_temp [H]
/// or undefined (1); doc_start [B, T] i32; sizes [chunks] i32: slots that the queries of a document's chunk see.
/// Query head h reads kv head h K / H. Advances `slots` and `window`.
/// lse [B, T, H]: log-sum-exp of the logits, may be undefined. routes [B, K, T] i32: 2 slot + 1 where the token founded
/// the slot, 2 slot where it joined it, -1 where it is still in the window; an input with `forced`; may be undefined.
/// The GPU takes fp32, or q, k, v, o, the window's k and v and the slots' hats in bf16 with the rest in fp32: then
/// scores compare bf16 copies of memory keys with the hats, and both are multiplied on tensor cores where attention is;
/// sums, norms and comparisons are in fp32. Cost: 2 H (D + Dv)(m + (W - 1/2) C) + 2 K D m flops a token, m = slots;
/// bound by the products, the slots of a head stay in cache while they are few. Rows of the batch x kv heads run in
/// parallel, chunks in sequence.
struct KvmForward {
  Tensor o, lse, routes;
  KvmSlots slots;
  KvmWindow window;
  Tensor q, k, v, gate, norm_weight, norm_bias, window_temp, state_temp, doc_start, sizes;
  KvmRule rule;
  bool forced;
};
HEBB_KERNEL_WITH_SCRATCH(KvmForward)

/// Gradients with the routes as constants (docs/layers/kvm.md, Gradients), for rows that continue nothing. Replays the
/// sums from the routes. The version of a slot that an update made is kept at the token by which the update first
/// touched it, at most T versions. Then scans the chunks in reverse. d_norm_weight, d_norm_bias, d_window_temp and
/// d_state_temp are added to; undefined where not wanted. room: slots of the last chunk, 1 at least.
/// Cost: 2.5 times the forward readout; routing costs nothing.
struct KvmBackward {
  Tensor d_q, d_k, d_v, d_gate, d_norm_weight, d_norm_bias, d_window_temp, d_state_temp;
  Tensor d_o, o, lse, routes, q, k, v, gate, norm_weight, norm_bias, window_temp, state_temp, doc_start, sizes;
  KvmRule rule;
  int64_t room;
  bool accumulate_q, accumulate_k, accumulate_v, accumulate_gate;
};
HEBB_KERNEL_WITH_SCRATCH(KvmBackward)

}  // namespace hebb
