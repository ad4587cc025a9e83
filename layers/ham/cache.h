#pragma once
#include "layers/ham/select.h"
#include "layers/ops/gated_delta.h"

namespace hebb {

/// Keys and values of the tokens that a HAM layer selected, a list for each row (docs/layers/ham.md, Decoding). Memory
/// grows in pages of 64 tokens, by half at least.
class HamCache {
 public:
  HamCache(Arena& arena, int64_t rows, int64_t heads, int64_t key_dim, int64_t value_dim, DType dtype);

  /// What SelectTokens needs to know: the slots of documents that continue into the pass, [B, 2] i32.
  Buffer held(Pass& pass);
  /// Appends the selected keys [B T, H D] and values [B T, H Dv], these times factor [B T] where given, and attends
  /// with q [B T, H D]. Returns [B T, H Dv].
  Var attend(Pass& pass, Var q, Var k, Var v, Var factor, const HamSelection& selection, double scale);

  void take_row(Stream& stream, int64_t row, const HamCache& from, int64_t from_row);

  /// Tokens of the current document that row `row` holds.
  int64_t tokens(int64_t row) const;

 private:
  struct List {
    int64_t begin = 0, end = 0;  // of the current document
  };
  void make_room(Stream& stream);
  void forget(Pass& pass, const Tensor& lo);

  Arena& arena_;
  int64_t heads_, key_dim_, value_dim_;
  std::vector<List> lists_;  // by row
  Buffer k_, v_;             // [B, slots, H D], [B, slots, H Dv]
};

/// What a HAM layer carries: the last raw projections, which both paths convolve, the delta rule's state and the list
/// of selected keys and values.
struct HamState final : LayerState {
  Buffer q_tail, k_tail, v_tail;  // [B, K-1, C]; empty without convolutions
  DeltaState delta;               // its convolutions are set for the time of a pass
  HamCache cache;
  HamState(DeltaState d, HamCache c) : delta(std::move(d)), cache(std::move(c)) {}
  bool rows_move() const override { return true; }
  void take_row(Stream& stream, int64_t row, const LayerState& from, int64_t from_row, int64_t tokens) override;
};

}  // namespace hebb
