#pragma once
#include "layers/ops/short_conv.h"

namespace hebb {

/// One of the raw projections on its way into a recurrence: convolution, SiLU, l2 norm per head (docs/layers/gdn.md,
/// Recurrence), each if wanted. For nodes that keep the projection alone and prepare it again backward.
struct RecurrenceInput : ConvolvedVars {
  Shape shape;  // [B, T, heads, head_dim]
  bool silu, normed;

  int64_t tokens() const { return shape[0] * shape[1]; }
  Shape flat() const { return {shape[0], shape[1], shape[2] * shape[3]}; }
  Shape matrix() const { return {tokens(), shape[2] * shape[3]}; }
};

/// What enters the recurrence.
struct PreparedInput {
  Buffer memory, scale;  // scale: factors of the l2 norm
  Tensor values;         // [B, T, heads, head_dim]: in memory, in `into`, or the raw projection itself
};

/// The earlier inputs of one of the convolutions of `state`; undefined where nothing is carried.
template <class State> Tensor carried(const State* state, std::unique_ptr<ShortConvState> State::*input) {
  return state != nullptr && state->*input ? (state->*input)->previous.tensor() : Tensor{};
}

/// previous: the convolution's earlier inputs, or undefined; into: where the values must lie, or undefined.
PreparedInput prepare_input(Tape& tape, const RecurrenceInput& in, const Tensor& doc_start, const Tensor& previous,
                            const Tensor& into);

/// From the gradient at the prepared values (overwritten) to the raw projection, filter and bias.
void finish_input(Tape& tape, const RecurrenceInput& in, const Tensor& doc_start, const PreparedInput& prepared,
                  const Tensor& d_values);

}  // namespace hebb
