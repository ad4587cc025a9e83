#pragma once
#include "core/stream.h"

namespace hebb {

// Product-key memory that is rewritten while it is read (spec 40). B sequences of T tokens move in
// lockstep: one chunk of all of them reads one state of the keys and values, then updates it. Tensors
// per token are [B T, ...] and hold all chunks; H heads, n sub-keys per codebook, k slots per head,
// D = half key size, E = H k entries per token. An entry's number is token E + j, so that ascending
// entries are in the order (sequence, token, j) in which all sums over readers run. q, v, w, vh and their
// gradients may be bf16 on a GPU; everything else is fp32 there.

/// Tokens [first, first + count) of every sequence.
struct FastChunk {
  int64_t batch, length, first, count;
  int64_t tokens() const { return batch * count; }
  int64_t token(int64_t r) const { return r / count * length + first + r % count; }
  int64_t local(int64_t token) const { return token / length * count + token % length - first; }
};

/// s = -ln(eps + |q - key|^2) (idw) or q . key.
struct FastScore {
  bool idw;
  double eps;
};

/// What a token looked up: entries [., H, 2, k] i32 (best first), their scores and softmax probs within
/// their codebook, slots [., H, k] i32 and weights, one softmax over all H k.
struct FastLookup {
  Tensor entries, scores, probs, slots, weights;
};

/// The distinct slots of one chunk, ascending: slots [U], readers[starts[u] .. starts[u + 1]) entries
/// of slot u, local [B T E] the u of every entry, count [1] = U. All i32.
struct FastReaders {
  Tensor slots, starts, readers, local, count;
};

/// What tokens write: values v [., dv], weights w [.] (undefined: 1), target token of each token (i32,
/// -1: no pair). pairs_only: tokens without a pair count in no statistic of the chunk.
struct FastPairs {
  Tensor v, w, targets;
  bool pairs_only = false;
};

/// Lookup of a chunk's tokens. q [., H, 2, D], keys [H, 2, n, D]; key_norms [H, 2, n] is scratch.
/// keep_entries, keep_slots: those are given (forced decisions). Candidates are ranked by
/// 2 q.key - |key|^2; the k chosen are scored from their differences, which keeps fp32 exact.
/// Bound: compute, 4 H n D FLOPs a token.
struct FastLookupKeys {
  FastLookup out;
  Tensor key_norms, q, keys;
  FastChunk chunk;
  FastScore score;
  bool keep_entries, keep_slots;
};
HEBB_KERNEL(FastLookupKeys)

/// Reader lists of a chunk; sorted i64 is scratch of fast_readers_scratch(stream, R E) numbers.
struct FastIndexReaders {
  FastReaders out;
  Tensor sorted, slots;
  FastChunk chunk;
  FastPairs pairs;
  int64_t table;  // slots of the table
};
HEBB_KERNEL(FastIndexReaders)
inline int64_t fast_readers_scratch(const Stream& stream, int64_t entries) {
  constexpr int64_t kGpuNumbers = 3, kMore = 1024;  // a key, two pairs of key and position, counts of digits
  return stream.on_gpu() ? kGpuNumbers * entries + kMore : entries;
}

/// vh [., dv] = sum of weights times rows of values [n n, dv]. Bound: memory, E rows a token.
struct FastReadValues {
  Tensor vh;
  FastLookup lookup;
  Tensor values;
  FastChunk chunk;
};
HEBB_KERNEL(FastReadValues)

/// rows [U, dv] = values[slots]; restore: the other way round.
struct FastKeepRows {
  Tensor rows, values;
  FastReaders readers;
  bool restore;
};
HEBB_KERNEL(FastKeepRows)

/// values[i] += step / n_i sum over readers of a w (v_target - vh). error [R, dv] is scratch.
/// Bound: memory, E rows of `error` a token (cache) and every touched row once.
struct FastWriteValues {
  Tensor values, error, vh;
  FastLookup lookup;
  FastReaders readers;
  FastChunk chunk;
  FastPairs pairs;
  double step;
};
HEBB_KERNEL(FastWriteValues)

/// next = keys - rate d(A_0 + A_1)/d keys: the entropy step. usage [2, n] = m; gamma [., H, 2, k] is
/// scratch. `count`: tokens that count in m. Cost: 6 E D FLOPs per codebook and token.
struct FastEntropyStep {
  Tensor next, usage, gamma, keys, q;
  FastLookup lookup;
  FastChunk chunk;
  FastPairs pairs;
  FastScore score;
  double rate, count;
};
HEBB_KERNEL(FastEntropyStep)

/// next = keys - rate d/d keys of sum w |v_target - vh|^2 / (2 pairs dv). index, gamma [., H, 2, k] and
/// d_weights [., H, k] are scratch.
struct FastMemoryStep {
  Tensor next, index, gamma, d_weights, keys, q, values, vh;
  FastLookup lookup;
  FastChunk chunk;
  FastPairs pairs;
  FastScore score;
  double rate, count;
};
HEBB_KERNEL(FastMemoryStep)

/// sums[0] += sum w |e|^2 / 2; sums[1] += |values - rows|^2 (f64).
struct FastMeasureStep {
  Tensor sums, values, rows, vh;
  FastReaders readers;
  FastChunk chunk;
  FastPairs pairs;
};
HEBB_KERNEL(FastMeasureStep)

/// Backward of reading and, with `through`, of the value update (spec 40, section 5): d_weights, d_v +=,
/// d_w, and the adjoint of the values before the chunk. adjoint [rows, dv] holds the rows that later
/// chunks read, place [n n] their numbers + 1 (0: none), used [1] how many (both
/// zero at first). d_vh [R, dv], at [U] are
/// scratch. rows: the chunk's values before the update; undefined: they are still in `values`.
struct FastValuesBackward {
  Tensor d_weights, d_v, d_w, adjoint, place, used, d_vh, at;
  Tensor d_out, vh, rows, values;
  FastLookup lookup;
  FastReaders readers;
  FastChunk chunk;
  FastPairs pairs;
  double step;
  bool through, earlier;  // earlier: chunks before this one need the adjoint
};
HEBB_KERNEL(FastValuesBackward)

/// Through softmax and scores: d_q (overwritten or added to), and d_keys += unless undefined. index,
/// gamma [., H, 2, k] are scratch.
struct FastLookupBackward {
  Tensor d_q, d_keys, index, gamma, d_weights, q, keys;
  FastLookup lookup;
  FastChunk chunk;
  FastScore score;
  bool accumulate;
};
HEBB_KERNEL(FastLookupBackward)

/// Through the entropy step: d_q += and d_keys (of the keys before the step, which start as d_next) +=
/// its part. d_next, d_keys [H, 2, n, D] are different memory. d_keys may be undefined. mean [2, n],
/// gamma, beta [., H, 2, k] are scratch.
struct FastEntropyBackward {
  Tensor d_q, d_keys, mean, gamma, beta, d_next, usage, keys, q;
  FastLookup lookup;
  FastChunk chunk;
  FastScore score;
  double rate;
};
HEBB_KERNEL(FastEntropyBackward)

}  // namespace hebb
