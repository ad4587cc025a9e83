#pragma once
#include "core/tape.h"

namespace hebb {

/// Output matrix and cross-entropy in one, chunk by chunk over rows, so that [N, V] never exists
/// whole: logits = x weightᵀ; row_loss [N] f64 = cross-entropy at targets [N] i32 (0 where -100).
/// While recording it also computes the gradients of scale * sum(row_loss), times factor [1] f64 on the
/// device if defined: into weight's gradient at once, and as the gradient that arrives at x (x must have no
/// other user).
/// x [N, d], weight [V, d]. FLOPs: 6 N d V recording, else 2 N d V. Logits are fp32 in bf16, too; their gradients
/// are rounded. Scratch: the logits of a chunk (kernels/cross_entropy/cross_entropy.h).
void head_loss(Tape& tape, Var x, Var weight, const Tensor& targets, const Tensor& row_loss, double scale,
               const Tensor& factor);

}  // namespace hebb
