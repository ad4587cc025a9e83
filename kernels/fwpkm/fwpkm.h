#pragma once
#include <algorithm>

#include "core/kernel.h"

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
struct FwpkmScore {
  bool idw;
  double eps;
};

/// What a token looked up: entries [., H, 2, k] i32 (best first), their scores and softmax probs within
/// their codebook, slots [., H, k] i32 and weights, one softmax over all H k.
struct FwpkmLookup {
  Tensor entries, scores, probs, slots, weights;
};

/// The distinct slots of one chunk, ascending: slots [U], readers[starts[u] .. starts[u + 1]) entries
/// of slot u, local [B T E] the u of every entry, count [1] = U. All i32. Those of several chunks lie one
/// behind the other, with room for as many slots as a chunk can touch: readers_of finds one chunk's.
struct FwpkmReaders {
  Tensor slots, starts, readers, local, count;
};
/// Most slots that a chunk of so many entries can touch in a table of `table` slots.
inline int64_t fwpkm_capacity(int64_t entries, int64_t table) { return std::min(entries, table); }
/// Those of chunk c. entries: of a token.
inline FwpkmReaders readers_of(const FwpkmReaders& all, const FastChunks& chunks, int64_t c, int64_t entries,
                               int64_t table) {
  const int64_t most = fwpkm_capacity(chunks.all.batch * chunks.size * entries, table),
                own = chunks.at(c).tokens() * entries;
  const int64_t room = fwpkm_capacity(own, table);
  return {all.slots.slice(c * most, {room}), all.starts.slice(c * (most + 1), {room + 1}),
          all.readers.slice(c * chunks.all.batch * chunks.size * entries, {own}), all.local, all.count.slice(c, {1})};
}

/// What tokens write: values v [., dv], weights w [.] (undefined: 1), target token of each token (i32,
/// -1: no pair). pairs_only: tokens without a pair count in no statistic of the chunk.
struct FwpkmPairs {
  Tensor v, w, targets;
  bool pairs_only = false;
};

/// Entries of a chunk's tokens, their scores and probs. q [., H, 2, D], keys [H, 2, n, D]; key_norms
/// [H, 2, n] = |key|^2 is written unless keep_norms: the step that made the keys wrote it. keep_entries,
/// keep_slots: those are given (forced decisions); of given slots weights become the sums of scores.
/// Candidates are ranked by 2 q.key - |key|^2; the k chosen are scored from their differences, which
/// keeps fp32 exact. Bound: compute, 4 H n D FLOPs a token.
struct FwpkmLookupKeys {
  FwpkmLookup out;
  Tensor key_norms, q, keys;
  FastChunk chunk;
  FwpkmScore score;
  bool keep_norms, keep_entries, keep_slots;
};
HEBB_KERNEL(FwpkmLookupKeys)

/// Slots and weights of some tokens from their entries; nothing here depends on the keys any more.
/// keep_slots: slots are given, weights their sums of scores. subkeys: n.
struct FwpkmSelectSlots {
  FwpkmLookup out;
  FastChunk chunk;
  int64_t subkeys;
  bool keep_slots;
};
HEBB_KERNEL(FwpkmSelectSlots)

/// Reader lists of chunks.
struct FwpkmIndexReaders {
  FwpkmReaders out;
  Tensor slots;
  FastChunks chunks;
  FwpkmPairs pairs;
  int64_t table;  // slots of the table
};
HEBB_KERNEL_WITH_SCRATCH(FwpkmIndexReaders)

/// vh [., dv] = sum of weights times slots of values [n n, dv]; error [R, dv] (undefined: not wanted) =
/// w (v_target - vh) of tokens with a pair. Bound: memory, E slots a token.
struct FwpkmReadValues {
  Tensor vh, error;
  FwpkmLookup lookup;
  Tensor values;
  FastChunk chunk;
  FwpkmPairs pairs;
};
HEBB_KERNEL(FwpkmReadValues)

/// values[i] += step / n_i sum over readers of a error, error [R, dv] of FwpkmReadValues. before [U, dv]
/// (undefined: not wanted) = values[slots] before that.
/// Bound: memory, E rows of `error` a token (cache) and every touched slot once.
struct FwpkmWriteValues {
  Tensor values, before, error;
  FwpkmLookup lookup;
  FwpkmReaders readers;
  FastChunk chunk;
  FwpkmPairs pairs;
  double step;
};
HEBB_KERNEL(FwpkmWriteValues)

/// values[slots] = before [U, dv].
struct FwpkmRestoreValues {
  Tensor values, before;
  FwpkmReaders readers;
};
HEBB_KERNEL(FwpkmRestoreValues)

/// next = keys - rate d(A_0 + A_1)/d keys: the entropy step. next_norms [H, 2, n] = |next|^2. usage
/// [2, n] = m. `count`: tokens that count in m.
/// Cost: 6 E D FLOPs per codebook and token.
struct FwpkmEntropyStep {
  Tensor next, next_norms, usage, keys, q;
  FwpkmLookup lookup;
  FastChunk chunk;
  FwpkmPairs pairs;
  FwpkmScore score;
  double rate, count;
};
HEBB_KERNEL_WITH_SCRATCH(FwpkmEntropyStep)

/// next = keys - rate d/d keys of sum w |v_target - vh|^2 / (2 pairs dv), next_norms as above.
struct FwpkmMemoryStep {
  Tensor next, next_norms, keys, q, values, vh;
  FwpkmLookup lookup;
  FastChunk chunk;
  FwpkmPairs pairs;
  FwpkmScore score;
  double rate, count;
};
HEBB_KERNEL_WITH_SCRATCH(FwpkmMemoryStep)

/// sums[0] += sum w |e|^2 / 2; sums[1] += |values - before|^2 (f64).
struct FwpkmMeasureStep {
  Tensor sums, values, before, vh;
  FwpkmReaders readers;
  FastChunk chunk;
  FwpkmPairs pairs;
};
HEBB_KERNEL(FwpkmMeasureStep)

/// Backward of reading and, with `through`, of the value updates (docs/layers/fwpkm.md, Gradient through updates), from
/// the last chunk to the first: d_weights, d_v +=, d_w +=. before: the chunks' values before their updates, one chunk
/// behind the other; undefined: they are still in `values`.
struct FwpkmValuesBackward {
  Tensor d_weights, d_v, d_w;
  Tensor d_out, vh, before, values;
  FwpkmLookup lookup;
  FwpkmReaders readers;  // of all chunks
  FastChunks chunks;
  FwpkmPairs pairs;
  double step;
  bool through;
};
HEBB_KERNEL_WITH_SCRATCH(FwpkmValuesBackward)

/// Through softmax and scores and, with `through`, through the entropy steps of the keys, from the last
/// chunk to the first: d_q (overwritten or added to). keys [copies, H, 2, n, D]: those that each chunk
/// read, or one copy for all. usage [chunks, 2, n].
struct FwpkmKeysBackward {
  Tensor d_q;
  Tensor d_weights, usage, keys, q;
  FwpkmLookup lookup;
  FastChunks chunks;
  FwpkmScore score;
  double rate;
  bool through, accumulate;
};
HEBB_KERNEL_WITH_SCRATCH(FwpkmKeysBackward)

}  // namespace hebb
