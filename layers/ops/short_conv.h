#pragma once
#include "layers/layer.h"

namespace hebb {

/// The last K-1 inputs of a convolution, carried from segment to segment.
struct ShortConvState {
  Buffer previous;  // [B, K-1, C]
  ShortConvState(Arena& arena, int64_t rows, int64_t taps, int64_t channels, DType dtype)
      : previous(arena, {rows, taps - 1, channels}, dtype, "convolution state") {}
};

/// What a convolution takes: x [N, channels], weight [channels, K] and bias [channels]; no Var without a convolution or
/// without a bias.
struct ConvolvedVars {
  Var x, weight, bias;
};

/// silu (or nothing) of the causal depthwise convolution of x [B T, C] with weight [C, K], plus bias [C] or
/// no Var; inputs before a document count as 0. Without a weight only the activation. Advances `state`
/// when given (null without a weight). Keeps x; z is computed again backward.
/// Source: docs/layers/gdn.md, Recurrence.
Var short_conv(Pass& pass, Var x, Var weight, Var bias, bool silu, ShortConvState* state);

}  // namespace hebb
