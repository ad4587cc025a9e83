#pragma once
#include "layers/ops/attention.h"

namespace hebb {

/// Mean number of keys that a token of a row of this length sees.
double mean_visible(const KeyRange& range, int64_t length);

/// Keys and values of earlier tokens, for decoding and segments (docs/layers/attention.md, Decoding). Full range: all
/// tokens since the documents of the batch began, in memory that doubles when it is full. Bounded
/// range: a ring of KeyRange::size() tokens a row.
class AttentionCache : public LayerState {
 public:
  AttentionCache(Arena& arena, int64_t rows, int64_t kv_heads, int64_t head_dim, int64_t value_head_dim, DType dtype,
                 const KeyRange& range);

  /// Takes in the pass's keys [B T, K D] and values [B T, K Dv], and attends with q [B T, H D] over what
  /// every token sees. Returns [B T, H Dv].
  Var attend(Pass& pass, Var q, Var k, Var v, int64_t heads, double scale);

  std::optional<int64_t> launches(const NextToken& next) const override;
  void count_token(const NextToken&) override { ++length_; }
  bool rows_move() const override { return true; }
  void take_row(Stream& stream, int64_t row, const LayerState& from, int64_t from_row, int64_t tokens) override;

 private:
  Shape items(int64_t count, const Tensor& like) const { return {rows_, count, like.size(2)}; }
  void make_room(Stream& stream, int64_t tokens);
  void forget(Pass& pass);
  Var attend_all(Pass& pass, Var q, Var k, Var v, int64_t heads, double scale);
  Var attend_ring(Pass& pass, Var q, Var k, Var v, const RingSlots& slots, int64_t heads, double scale);
  Var attend_line(Pass& pass, Var q, Var k, Var v, int64_t heads, double scale);
  Var run(Pass& pass, Var q, const Tensor& k, const Tensor& v, const KeyIntervals& visible, int64_t heads,
          double scale) const;

  Arena& arena_;
  int64_t rows_, kv_heads_, head_dim_, value_dim_;
  KeyRange range_;
  Buffer k_, v_;           // [B, tokens, K D], [B, tokens, K Dv]
  int64_t length_ = 0;     // full range: tokens held; all rows hold the same ones
  bool is_moved_ = false;  // rows were taken: each holds its own tokens, length_ at most, at their positions
};

}  // namespace hebb
