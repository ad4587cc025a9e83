#pragma once
#include "core/tape.h"

namespace hebb {

/// silu(x scale[:, column] + offset[:, column]) divided by its length plus 1e-5, per head of head_dim channels.
/// x [N, F D]; scale, offset [F D, 2]. Keeps nothing but its inputs. Source: docs/layers/lact.md, Forward.
Var lact_keys(Tape& tape, Var x, Var scale, Var offset, int64_t column, int64_t head_dim);

/// left right + half the identity per head: left [F, rows, rank], right [F, rank, columns]. Source:
/// docs/layers/lact.md, Parameters.
Var lact_initial(Tape& tape, Var left, Var right);

/// base + silu(gate) x: base, x [N, F D], gate [N, F].
Var lact_mix(Tape& tape, Var base, Var x, Var gate);

}  // namespace hebb
