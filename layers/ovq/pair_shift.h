#pragma once
#include "layers/layer.h"

namespace hebb {

/// The last token's keys and values, carried from segment to segment.
struct PairShiftState {
  Buffer k, v;  // [B, C], [B, Cv]
  PairShiftState(Arena& arena, int64_t rows, int64_t keys, int64_t values, DType dtype)
      : k(arena, {rows, keys}, dtype, "shifted key"), v(arena, {rows, values}, dtype, "shifted value") {}
};

/// [B T, C] and [B T, Cv].
struct KeysAndValues {
  Var k, v;
};

/// Key t-1 with a mix of the values t-1 and t; k [B T, C], v [B T, Cv], shift [1]. Advances `state` when given.
/// Source: docs/layers/ovq.md, Forward (v_shift).
KeysAndValues pair_shift(Pass& pass, Var k, Var v, Var shift, PairShiftState* state);

}  // namespace hebb
