#pragma once
#include <algorithm>

#include "core/workspace.h"

namespace hebb {

// Product-key memory that is rewritten while it is read (docs/layers/fwpkm.md). B sequences of T tokens move in
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

/// Some tokens of every sequence, cut into chunks of `size` of them; the last one may be shorter.
struct FastChunks {
  FastChunk all;
  int64_t size;
  int64_t count() const { return (all.count + size - 1) / size; }
  FastChunk at(int64_t c) const {
    return {all.batch, all.length, all.first + c * size, std::min(size, all.count - c * size)};
  }
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
/// of slot u, local [B T E] the u of every entry, count [1] = U. All i32. Those of several chunks lie one
/// behind the other, with room for as many slots as a chunk can touch: readers_of finds one chunk's.
struct FastReaders {
  Tensor slots, starts, readers, local, count;
};
/// Most slots that a chunk of so many entries can touch in a table of `table` slots.
inline int64_t fast_capacity(int64_t entries, int64_t table) { return std::min(entries, table); }
/// Those of chunk c. entries: of a token.
inline FastReaders readers_of(const FastReaders& all, const FastChunks& chunks, int64_t c, int64_t entries,
                              int64_t table) {
  const int64_t most = fast_capacity(chunks.all.batch * chunks.size * entries, table),
                own = chunks.at(c).tokens() * entries;
  const int64_t room = fast_capacity(own, table);
  return {all.slots.slice(c * most, {room}), all.starts.slice(c * (most + 1), {room + 1}),
          all.readers.slice(c * chunks.all.batch * chunks.size * entries, {own}), all.local, all.count.slice(c, {1})};
}

/// What tokens write: values v [., dv], weights w [.] (undefined: 1), target token of each token (i32,
/// -1: no pair). pairs_only: tokens without a pair count in no statistic of the chunk.
struct FastPairs {
  Tensor v, w, targets;
  bool pairs_only = false;
};

/// Entries of a chunk's tokens, their scores and probs. q [., H, 2, D], keys [H, 2, n, D]; key_norms
/// [H, 2, n] = |key|^2 is written unless keep_norms: the step that made the keys wrote it. keep_entries,
/// keep_slots: those are given (forced decisions); of given slots weights become the sums of scores.
/// Candidates are ranked by 2 q.key - |key|^2; the k chosen are scored from their differences, which
/// keeps fp32 exact. Bound: compute, 4 H n D FLOPs a token.
struct FastLookupKeys {
  FastLookup out;
  Tensor key_norms, q, keys;
  FastChunk chunk;
  FastScore score;
  bool keep_norms, keep_entries, keep_slots;
};
HEBB_KERNEL(FastLookupKeys)

/// Slots and weights of some tokens from their entries; nothing here depends on the keys any more.
/// keep_slots: slots are given, weights their sums of scores. subkeys: n.
struct FastSelectSlots {
  FastLookup out;
  FastChunk chunk;
  int64_t subkeys;
  bool keep_slots;
};
HEBB_KERNEL(FastSelectSlots)

/// Reader lists of chunks.
struct FastIndexReaders {
  FastReaders out;
  Tensor slots;
  FastChunks chunks;
  FastPairs pairs;
  int64_t table;  // slots of the table
};
HEBB_KERNEL_WITH_SCRATCH(FastIndexReaders)

/// vh [., dv] = sum of weights times slots of values [n n, dv]; error [R, dv] (undefined: not wanted) =
/// w (v_target - vh) of tokens with a pair. Bound: memory, E slots a token.
struct FastReadValues {
  Tensor vh, error;
  FastLookup lookup;
  Tensor values;
  FastChunk chunk;
  FastPairs pairs;
};
HEBB_KERNEL(FastReadValues)

/// values[i] += step / n_i sum over readers of a error, error [R, dv] of FastReadValues. before [U, dv]
/// (undefined: not wanted) = values[slots] before that.
/// Bound: memory, E rows of `error` a token (cache) and every touched slot once.
struct FastWriteValues {
  Tensor values, before, error;
  FastLookup lookup;
  FastReaders readers;
  FastChunk chunk;
  FastPairs pairs;
  double step;
};
HEBB_KERNEL(FastWriteValues)

/// values[slots] = before [U, dv].
struct FastRestoreValues {
  Tensor values, before;
  FastReaders readers;
};
HEBB_KERNEL(FastRestoreValues)

/// next = keys - rate d(A_0 + A_1)/d keys: the entropy step. next_norms [H, 2, n] = |next|^2. usage
/// [2, n] = m. `count`: tokens that count in m.
/// Cost: 6 E D FLOPs per codebook and token.
struct FastEntropyStep {
  Tensor next, next_norms, usage, keys, q;
  FastLookup lookup;
  FastChunk chunk;
  FastPairs pairs;
  FastScore score;
  double rate, count;
};
HEBB_KERNEL_WITH_SCRATCH(FastEntropyStep)

/// next = keys - rate d/d keys of sum w |v_target - vh|^2 / (2 pairs dv), next_norms as above.
struct FastMemoryStep {
  Tensor next, next_norms, keys, q, values, vh;
  FastLookup lookup;
  FastChunk chunk;
  FastPairs pairs;
  FastScore score;
  double rate, count;
};
HEBB_KERNEL_WITH_SCRATCH(FastMemoryStep)

/// sums[0] += sum w |e|^2 / 2; sums[1] += |values - before|^2 (f64).
struct FastMeasureStep {
  Tensor sums, values, before, vh;
  FastReaders readers;
  FastChunk chunk;
  FastPairs pairs;
};
HEBB_KERNEL(FastMeasureStep)

/// Backward of reading and, with `through`, of the value updates (docs/layers/fwpkm.md, Gradient through updates), from
/// the last chunk to the first: d_weights, d_v +=, d_w +=. before: the chunks' values before their updates, one chunk
/// behind the other; undefined: they are still in `values`.
struct FastValuesBackward {
  Tensor d_weights, d_v, d_w;
  Tensor d_out, vh, before, values;
  FastLookup lookup;
  FastReaders readers;  // of all chunks
  FastChunks chunks;
  FastPairs pairs;
  double step;
  bool through;
};
HEBB_KERNEL_WITH_SCRATCH(FastValuesBackward)

/// Through softmax and scores and, with `through`, through the entropy steps of the keys, from the last
/// chunk to the first: d_q (overwritten or added to). keys [copies, H, 2, n, D]: those that each chunk
/// read, or one copy for all. usage [chunks, 2, n].
struct FastKeysBackward {
  Tensor d_q;
  Tensor d_weights, usage, keys, q;
  FastLookup lookup;
  FastChunks chunks;
  FastScore score;
  double rate;
  bool through, accumulate;
};
HEBB_KERNEL_WITH_SCRATCH(FastKeysBackward)

}  // namespace hebb
