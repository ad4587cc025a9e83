#include "layers/ops/norm.h"

#include "kernels/add/add.h"

namespace hebb {
namespace {

/// d_to += rho d_from.
void pass_scaled(Tape& tape, Var to, Var from, double rho) {
  if (const GradSlot d = tape.grad_slot(to)) {
    run(tape.stream(), AddScaled{.y = d.tensor, .x = tape.grad(from), .alpha = rho, .accumulate = d.accumulate});
  }
}

}  // namespace

ResidualNorm residual_norm(Tape& tape, Var h, Var branch, double rho, Var weight, Var bias, double eps, NormKind kind) {
  const int64_t d = tape.shape(weight).numel(), rows = tape.value(h).numel() / d;
  HEBB_ASSERT(rows * d == tape.value(h).numel());
  const DType dtype = tape.dtype(h);
  const bool fused = static_cast<bool>(branch);
  const Var h_out = fused ? tape.output(tape.shape(h), dtype, "residual") : h,
            y = tape.output(tape.shape(h), dtype, "norm");
  const Tensor rstd = tape.saved({rows}, sum_dtype(dtype), "norm rstd"),
               mean = kind == NormKind::layer ? tape.saved({rows}, sum_dtype(dtype), "norm mean") : Tensor{};
  run(tape.stream(), NormForward{.y = tape.value(y),
                                 .h_out = fused ? tape.value(h_out) : Tensor{},
                                 .mean = mean,
                                 .rstd = rstd,
                                 .h = tape.value(h),
                                 .branch = tape.value_or_none(branch),
                                 .weight = tape.value(weight),
                                 .bias = tape.value_or_none(bias),
                                 .rho = rho,
                                 .eps = eps,
                                 .kind = kind});
  return tape.record(ResidualNorm{h_out, y}, [=](Tape& tape) {
    const Tensor d_y = tape.grad(y), d_h_out = fused ? tape.grad(h_out) : Tensor{};
    if (!d_y.defined()) {  // only the residual stream goes on (the last block's h is not normed again)
      tape.pass_grad(h, h_out);
      pass_scaled(tape, branch, h_out, rho);
      return;
    }
    NormBackward args{};
    args.d_y = d_y;
    args.d_h_out = d_h_out;
    args.h = tape.value(h_out);
    args.mean = mean;
    args.rstd = rstd;
    args.weight = tape.value(weight);
    args.rho = rho;
    args.kind = kind;
    args.d_weight = tape.grad_slot(weight).tensor;
    args.d_bias = tape.grad_slot(bias).tensor;
    const GradSlot d_h = tape.grad_slot(h);
    args.d_h = d_h.tensor;
    args.accumulate = d_h.accumulate;
    // One tensor serves both where no other gradient is in it (the embeddings may have other readers).
    const bool shares = fused && rho == 1.0 && !d_h.accumulate;
    if (fused && !shares) {
      const GradSlot d_branch = tape.grad_slot(branch);
      HEBB_ASSERT(!d_branch.accumulate);
      args.d_branch = d_branch.tensor;
    }
    run(tape.workspace(), args);
    if (shares) { tape.pass_grad(branch, h); }
  });
}

Var residual_add(Tape& tape, Var h, Var branch, double rho) {
  const Var y = tape.output(tape.shape(h), tape.dtype(h), "residual");
  run(tape.stream(), AddScaled{.y = tape.value(y), .x = tape.value(h), .alpha = 1.0, .accumulate = false});
  run(tape.stream(), AddScaled{.y = tape.value(y), .x = tape.value(branch), .alpha = rho, .accumulate = true});
  return tape.record(y, [=](Tape& tape) {
    tape.pass_grad(h, y);
    if (rho == 1.0) {
      tape.pass_grad(branch, y);
    } else {
      pass_scaled(tape, branch, y, rho);
    }
  });
}

}  // namespace hebb
