#pragma once
#include "core/stream.h"
#include "kernels/attention/scratch.h"
#include "kernels/dictionary/parts.h"

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

/// Queries that the CPU reads out together.
constexpr int64_t kOvqTile = 32;

/// Steps (a chunk of every row) that the GPU does as one group: what changes in them is kept until all are done. Rows
/// of n chunks have n + 1, the last for documents that begin off the grid.
constexpr int64_t ovq_group(int64_t length, int64_t chunk) {
  constexpr int64_t kMost = 17;
  const int64_t steps = (length + 2 * chunk - 2) / chunk;
  return steps < kMost ? steps : kMost;
}

/// Blocks that choose the centroids of a chunk, each for all keys, and then each fold some of them in.
constexpr int64_t ovq_folders(int64_t chunk) { return chunk <= 128 ? 8 : chunk <= 512 ? 1024 / chunk : 1; }

/// Elements of 4 bytes that the GPU's kernels need beside the other scratch; q [B, T, H, D] of type `dtype`, v [B, T,
/// K, Dv].
inline int64_t ovq_work(const Shape& q, const Shape& v, const OvqRule& rule, int64_t room, DType dtype) {
  const int64_t units = v[0] * v[2], group = ovq_group(q[1], rule.chunk);
  const int64_t parts =
      dictionary_parts_work(q, v, rule.chunk, attention_on_tensor_cores(dtype, q, v) ? group : 1, room, dtype);
  return q[0] * q[1] * (q[2] + 2) + 8 * q[0] * (q[1] / rule.chunk + 2) + units * group * room + parts + 256;
}
inline int64_t ovq_forward_work(const Shape& q, const Shape& v, const OvqRule& rule, int64_t room, DType dtype) {
  const int64_t keys = v[0] * v[2] * rule.chunk, tiles = room / 64 + 1;
  const int64_t slots = attention_on_tensor_cores(dtype, q, v) ? keys * ovq_group(q[1], rule.chunk) : 0;
  return ovq_work(q, v, rule, room, dtype) + keys * (3 * tiles + 4 * ovq_folders(rule.chunk)) + 2 * v[2] +
         slots * ((q[3] + v[3]) / 2 + 1);
}
inline int64_t ovq_backward_work(const Shape& q, const Shape& v, const OvqRule& rule, int64_t room, DType dtype) {
  const int64_t slots = q[0] * q[1] * v[2], copied = attention_on_tensor_cores(dtype, q, v) ? (q[3] + v[3]) / 2 + 1 : 0;
  return ovq_work(q, v, rule, room, dtype) + attention_statistics(dtype, q, v) + slots * (copied + 1);
}

/// The running dictionary of every row and kv head, with room for R centroids. Shapes: keys [B, K, R, D], values
/// [B, K, R, Dv], log_counts [B, K, R], counts [B, K, R] i32. key_copies and value_copies: keys and values rounded to
/// bf16, which is what is read where queries are bf16; else undefined.
struct OvqDictionary {
  Tensor keys, values, log_counts, counts;
  Tensor key_copies = {}, value_copies = {};
};

/// Online vector-quantized attention (docs/layers/ovq.md, Forward). o [B, T, H, Dv]; q [B, T, H, D], k [B, T, K, D], v
/// [B, T, K, Dv]; doc_start [B, T] i32. Advances `dictionary` and the keys and values of the current chunk,
/// pending_k [B, K, L, D] and pending_v [B, K, L, Dv]: scratch, or what rows that continue carry on from.
/// lse [B, T, H]: log-sum-exp of the logits, may be undefined. ids [B, K, T] i32: centroid of every key,
/// -1 = not folded in; an input with `forced`; may be undefined. scratch [B, K, kOvqTile, R + L] (CPU), work
/// [ovq_forward_work(...)] (GPU). The GPU takes fp32, or q, k, v, o and pending in bf16 with the rest in fp32: then
/// keys and centroids are rounded to bf16 where they are multiplied, on tensor cores where attention is, and sums,
/// means and comparisons are in fp32. Cost: 2 H (D + Dv)(n + L/2) + 2 K D n flops a token, n = centroids; bound by the
/// products, the dictionary of a head stays in cache. Rows x kv heads run in parallel, chunks in sequence.
struct OvqForward {
  Tensor o, lse, ids;
  OvqDictionary dictionary;
  Tensor pending_k, pending_v, scratch, work;
  Tensor q, k, v, doc_start;
  OvqRule rule;
  bool forced;
};
HEBB_KERNEL(OvqForward)

/// Gradients with assignments and counts as constants (docs/layers/ovq.md, Gradients), for rows that continue nothing.
/// Folds the chunks in again, keeping by the token of a row's first key of the chunk (at most T) the row as the chunk
/// made it (CPU) or found it (GPU), then walks the chunks backwards and undoes them: never a snapshot. Scratch:
/// dictionary and d_dictionary (keys and values only), versions [B, K, T, D + Dv], inverse_norms [B, K, T, 2], types as
/// of the forward pass. previous [B, K, T] i32, latest [B, K, R] i32 and scratch [B, K, 2, kOvqTile, R + L] (CPU), work
/// [ovq_backward_work(...)] (GPU).
/// Cost: 2.5 times the forward readout.
struct OvqBackward {
  Tensor d_q, d_k, d_v;
  OvqDictionary dictionary, d_dictionary;
  Tensor versions, inverse_norms, previous, latest, scratch, work;
  Tensor d_o, o, lse, ids, q, k, v, doc_start;
  OvqRule rule;
  bool accumulate_q, accumulate_k, accumulate_v;
};
HEBB_KERNEL(OvqBackward)

}  // namespace hebb
