#pragma once
#include <memory>

#include "kernels/fwpkm/fwpkm.h"
#include "layers/layer.h"

namespace hebb {

/// What moves the keys, and what the loss is differentiated through (docs/layers/fwpkm.md, Keys).
enum class KeyUpdate { entropy, memory, none };
enum class GradThroughUpdate { full, values, none };

/// Sizes and rules of a fast-weight product-key memory (docs/layers/fwpkm.md, Keys).
struct FwpkmOptions {
  int64_t heads, subkeys, half_dim, top_k, value_dim, chunk, lookahead;
  FwpkmScore score;
  KeyUpdate key_update;
  GradThroughUpdate through;
  double value_step, key_rate;  // value_step = value_lr s
};

/// Everything about one row of chunks that its backward pass, or putting the fast weights back, needs:
/// lookups, reader lists, the slots of V that each chunk found, the keys of each chunk. Grows with the
/// slots touched, at most min(n n, tokens H k) per chunk.
class FwpkmLog {
 public:
  /// Which chunks' old values have memory of their own.
  enum class Keep { none, latest, all };
  /// keep_keys: the keys of all chunks stay, not only two states of them.
  FwpkmLog(Arena& arena, const FwpkmOptions& options, int64_t batch, int64_t length, int64_t chunk, DType dtype,
           Keep keep_values, bool keep_keys);

  const FastChunks& chunks() const { return chunks_; }
  /// The first `count` of them.
  FastChunks first_chunks(int64_t count) const;
  int64_t count() const { return chunks_.count(); }
  FwpkmLookup lookup() const { return {entries_, scores_, probs_, slots_, weights_}; }
  FwpkmReaders readers() const { return {unique_, starts_, readers_, local_, counts_}; }
  FwpkmReaders readers(int64_t c) const { return readers_of(readers(), chunks_, c, entries_per_token_, slot_count_); }
  Tensor values_before() const { return values_; }  // of all chunks, one behind the other, with Keep::all
  Tensor values_before(int64_t c) const;            // [capacity, dv]
  Tensor all_keys() const { return keys_; }         // of all chunks, with keep_keys
  Tensor keys(int64_t c) const;                     // keys that chunk c reads; c = count(): those after the row
  Tensor usage() const { return usage_; }           // [chunks, 2, n]
  Tensor usage(int64_t c) const;
  Tensor targets() const { return targets_; }
  int64_t largest_chunk() const { return chunks_.at(0).tokens(); }

 private:
  int64_t slot_count_, value_dim_, entries_per_token_, key_copies_;
  Keep keep_values_;
  FastChunks chunks_;
  int64_t most_, total_ = 0;  // distinct slots of a chunk and of all, at most
  Buffer entries_, scores_, probs_, slots_, weights_, targets_, unique_, starts_, readers_, local_, counts_, values_,
      keys_, usage_;
};

/// vh [B T, dv] of a row of chunks, each reading the fast weights that the chunks before left (docs/layers/fwpkm.md,
/// Chunks); q [B T, H 2 D], v [B T, dv], w [B T] or no Var. In training the fast weights end as the row left them, else
/// as they were. `undo` carries what a repeated pass (recomputation) starts from. `name`.entries and `name`.slots are
/// recorded and forced.
Var fwpkm_row(Pass& pass, Var q, Var v, Var w, Param& keys, Param& values, const FwpkmOptions& options,
              const std::string& name, std::shared_ptr<FwpkmLog>& undo);

/// Lookup and reading of tokens [first, first + count) of every row with the fast weights of now:
/// part of vh [B T, dv]. No gradient.
void fwpkm_read(Stream& stream, Arena& arena, const FwpkmOptions& options, const Tensor& q, const FastChunk& chunk,
                const Param& keys, const Param& values, const Tensor& vh);

/// One update with given pairs: token i of q [N, H 2 D] writes towards v[targets[i]] (-1: not part of the
/// update). N = batch length of `chunk`. Source: docs/layers/fwpkm.md, Streams.
void fwpkm_update(Stream& stream, Arena& arena, const FwpkmOptions& options, const Tensor& q, const Tensor& v,
                  const Tensor& w, const std::vector<int32_t>& targets, const FastChunk& chunk, Param& keys,
                  Param& values);

}  // namespace hebb
