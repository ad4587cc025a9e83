#pragma once
#include "core/kernel.h"

namespace hebb {

enum class OvqGrowth { plateau, linear, full };

/// How a dictionary grows and learns (docs/layers/ovq.md, Size, Selection and Update).
struct OvqRule {
  int64_t chunk = 0, max_centroids = 0;
  OvqGrowth growth = OvqGrowth::plateau;
  int64_t growth_length = 0;  // linear only
  bool random = false;        // founders by random scores instead of the least similar keys
  double rate = 0;            // constant step size; 0: the mean
  bool normalize_keys = false, normalize_values = false;
  bool second_founds = false;  // the first key of a document is the zero vector (v_shift)
  int64_t layer = 0;           // names the random scores

  using Wide = __int128;  // t N exceeds 64 bits where max_centroids means "no bound"

  /// Centroids after t tokens of a document, t a multiple of chunk.
  constexpr int64_t size(int64_t t) const {
    if (t == 0) { return 0; }
    const int64_t n = max_centroids, most = n < t ? n : t;
    const Wide length = growth == OvqGrowth::linear ? growth_length : t;
    const int64_t grown = growth == OvqGrowth::full ? t : static_cast<int64_t>(Wide{t} * n / (length + n));
    return grown < 1 ? 1 : grown < most ? grown : most;
  }
};

/// The running dictionary of every row and kv head, with room for R centroids. Shapes: keys [B, K, R, D], values
/// [B, K, R, Dv], log_counts [B, K, R], counts [B, K, R] i32. key_copies and value_copies: keys and values rounded to
/// bf16, which is what is read where queries are bf16; else undefined.
struct OvqDictionary {
  Tensor keys, values, log_counts, counts;
  Tensor key_copies = {}, value_copies = {};
};

/// Online vector-quantized attention (docs/layers/ovq.md, Forward). o [B, T, H, Dv]; q [B, T, H, D], k [B, T, K, D], v
/// [B, T, K, Dv]; doc_start [B, T] i32. Advances `dictionary` and the keys and values of the current chunk,
/// pending_k [B, K, L, D] and pending_v [B, K, L, Dv].
/// lse [B, T, H]: log-sum-exp of the logits, may be undefined. ids [B, K, T] i32: centroid of every key,
/// -1 = not folded in; an input with `forced`; may be undefined. The GPU takes fp32, or q, k, v, o and pending in bf16
/// with the rest in fp32: then keys and centroids are rounded to bf16 where they are multiplied, on tensor cores where
/// attention is, and sums, means and comparisons are in fp32. Cost: 2 H (D + Dv)(n + L/2) + 2 K D n flops a token, n =
/// centroids; bound by the products, the dictionary of a head stays in cache. Rows x kv heads run in parallel, chunks
/// in sequence.
struct OvqForward {
  Tensor o, lse, ids;
  OvqDictionary dictionary;
  Tensor pending_k, pending_v;
  Tensor q, k, v, doc_start;
  OvqRule rule;
  bool forced;
};
HEBB_KERNEL_WITH_SCRATCH(OvqForward)

/// Gradients with assignments and counts as constants (docs/layers/ovq.md, Gradients), for rows that continue nothing.
/// Folds the chunks in again. A slot that a chunk changes is kept at the token of its first key there, at most T of
/// them: as the chunk made it (CPU) or found it (GPU). Then scans the chunks in reverse and undoes them.
/// room: centroids that the longest document reaches, 1 at least. Cost: 2.5 times the forward readout.
struct OvqBackward {
  Tensor d_q, d_k, d_v;
  Tensor d_o, o, lse, ids, q, k, v, doc_start;
  OvqRule rule;
  int64_t room;
  bool accumulate_q, accumulate_k, accumulate_v;
};
HEBB_KERNEL_WITH_SCRATCH(OvqBackward)

}  // namespace hebb
