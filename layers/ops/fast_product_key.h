#pragma once
#include <memory>

#include "kernels/fast_product_key.h"
#include "layers/layer.h"

namespace hebb {

enum class KeyUpdate { entropy, memory, none };
enum class GradThroughUpdate { full, values, none };

/// Sizes and rules of a fast-weight product-key memory (spec 40, section 1).
struct FastProductKeyOptions {
  int64_t heads, subkeys, half_dim, top_k, value_dim, chunk, lookahead;
  FastScore score;
  KeyUpdate key_update;
  GradThroughUpdate through;
  double value_step, key_rate;  // value_step = value_lr s
};

/// Everything about one row of chunks that its backward pass, or putting the fast weights back, needs:
/// lookups, reader lists, the rows of V that each chunk found, the keys of each chunk. Grows with the
/// rows touched, at most min(n n, tokens H k) per chunk.
class FastRowLog {
 public:
  /// Which chunks' old rows have memory of their own.
  enum class Keep { none, latest, all };
  /// keep_keys: the keys of all chunks stay, not only two states of them.
  FastRowLog(Arena& arena, const FastProductKeyOptions& options, int64_t batch, int64_t length, int64_t chunk, DType dtype,
             Keep keep_rows, bool keep_keys);

  int64_t count() const { return static_cast<int64_t>(chunks_.size()); }
  const FastChunk& chunk(int64_t c) const { return chunks_[static_cast<size_t>(c)]; }
  FastLookup lookup() const { return {entries_, scores_, probs_, slots_, weights_}; }
  FastReaders readers(int64_t c) const;
  Tensor rows(int64_t c) const;   // [capacity, dv]
  Tensor keys(int64_t c) const;   // keys that chunk c reads; c = count(): those after the row
  Tensor usage(int64_t c) const;  // [2, n]
  Tensor targets() const { return targets_; }
  int64_t capacity(int64_t c) const;
  int64_t total_capacity() const { return total_; }
  int64_t largest_chunk() const { return chunks_.front().tokens(); }

 private:
  int64_t slot_count_, value_dim_, entries_per_token_, key_copies_;
  Keep keep_rows_;
  std::vector<FastChunk> chunks_;
  std::vector<int64_t> first_;  // of each chunk among all chunks' distinct slots
  int64_t total_ = 0;
  Buffer entries_, scores_, probs_, slots_, weights_, targets_, unique_, starts_, readers_, local_, counts_, rows_, keys_, usage_;
};

/// vh [B T, dv] of a row of chunks, each reading the fast weights that the chunks before left (spec 40,
/// section 4); q [B T, H 2 D], v [B T, dv], w [B T] or no Var. In training the fast weights end as the
/// row left them, else as they were. `undo` carries what a repeated pass (recomputation) starts from.
/// `name`.entries and `name`.slots are recorded and forced.
Var fast_product_key_row(Pass& pass, Var q, Var v, Var w, Param& keys, Param& values, const FastProductKeyOptions& options,
                         const std::string& name, std::shared_ptr<FastRowLog>& undo);

/// Lookup and reading of tokens [first, first + count) of every row with the fast weights of now:
/// part of vh [B T, dv]. No gradient.
void fast_product_key_read(Stream& stream, Arena& arena, const FastProductKeyOptions& options, const Tensor& q, const FastChunk& chunk,
                           const Param& keys, const Param& values, const Tensor& vh);

/// One update with given pairs: token i of q [N, H 2 D] writes towards v[targets[i]] (-1: not part of the
/// update). N = batch length of `chunk`. (Spec 40, section 7.)
void fast_product_key_update(Stream& stream, Arena& arena, const FastProductKeyOptions& options, const Tensor& q, const Tensor& v,
                             const Tensor& w, const std::vector<int32_t>& targets, const FastChunk& chunk, Param& keys, Param& values);

}  // namespace hebb
