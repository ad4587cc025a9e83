#pragma once
#include "core/kernel.h"

namespace hebb {

/// The model's norms (docs/model.md, Norms).
enum class NormKind { rms, rms_unit_offset, layer };

/// h_out = h + rho branch (branch undefined: h_out is not written and h is normed);
/// y = norm(h_out; weight, bias).
/// h, branch, h_out, y [N, d]; weight [d], bias [d] ("layer" only); mean [N] ("layer" only) and
/// rstd [N] are kept for the backward pass. Statistics in f32 (f64 for f64).
/// Bound: memory, 2 reads and 2 writes of [N, d].
struct NormForward {
  Tensor y, h_out, mean, rstd;
  Tensor h, branch, weight, bias;
  double rho, eps;
  NormKind kind;
};
HEBB_KERNEL(NormForward)

/// d_h = d_h_out + norm backward of d_y; d_weight and d_bias accumulate. `h` is what was normed
/// (h_out of the forward pass). d_h_out may be undefined (0). d_h is overwritten, or added to when
/// `accumulate`. d_branch = rho times what d_h gets here, where defined.
/// Bound: memory, 3 reads and 1 write of [N, d].
struct NormBackward {
  Tensor d_h, d_branch, d_weight, d_bias;
  Tensor d_y, d_h_out, h, mean, rstd, weight;
  double rho;
  NormKind kind;
  bool accumulate;
};
HEBB_KERNEL_WITH_SCRATCH(NormBackward)

}  // namespace hebb
