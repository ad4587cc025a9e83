#pragma once
#include "layers/layer.h"

namespace hebb {

/// The last token's channels of every row, carried from segment to segment.
struct TokenShiftState final : DeviceState {
  Buffer previous;  // [B, C]
  TokenShiftState(Arena& arena, int64_t rows, int64_t channels, DType dtype)
      : previous(arena, {rows, channels}, dtype, "token shift state") {}
  std::vector<Tensor> by_row() const override { return {previous}; }
};

/// x_t + mu * (x_{t-1} - x_t), x [B T, C], mu [C]; x_{t-1} is 0 (zero_start) or x_t at a document's
/// first token. Advances `state` when given. Source: docs/layers/attention.md, Token shift.
Var token_shift(Pass& pass, Var x, Var mu, bool zero_start, TokenShiftState* state);

/// Initial values of mu: 1 - (i / n)^power for channel i of n (docs/layers/attention.md, Token shift).
Init token_shift_init(double power);

}  // namespace hebb
