#pragma once
#include "core/params.h"
#include "core/tape.h"
#include "kernels/norm/norm.h"

namespace hebb {

/// Weight and, for LayerNorm, bias of one norm.
struct NormParams {
  Param* weight = nullptr;
  Param* bias = nullptr;
};

/// The residual stream and what the next layer reads, both [N, d].
struct ResidualNorm {
  Var h, y;
};

/// h' = h + rho branch; y = norm(h'). Without a branch h' = h. h, branch [N, d] (any shape whose last
/// dimensions multiply to rows of d = weight's size). Source: docs/model.md, Blocks and Norms.
ResidualNorm residual_norm(Tape& tape, Var h, Var branch, double rho, Var weight, Var bias, double eps, NormKind kind);

/// norm over the last d = weight's size channels of x.
inline Var norm(Tape& tape, Var x, Var weight, Var bias, double eps, NormKind kind) {
  return residual_norm(tape, x, {}, 1.0, weight, bias, eps, kind).y;
}

/// h + rho branch.
Var residual_add(Tape& tape, Var h, Var branch, double rho);

}  // namespace hebb
