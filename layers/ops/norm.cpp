#include "layers/ops/norm.h"

#include "kernels/add/add.h"

namespace hebb {
namespace {

struct ResidualNormNode final : Node {
  Var h, branch, weight, bias, h_out, y;
  Tensor mean, rstd;
  double rho;
  NormKind kind;

  void backward(Tape& tape) override {
    const bool fused = static_cast<bool>(branch);
    const Tensor d_y = tape.grad(y), d_h_out = fused ? tape.grad(h_out) : Tensor{};
    if (!d_y.defined()) {  // only the residual stream goes on (the last block's h is not normed again)
      pass_residual(tape);
      return;
    }
    NormBackward args{};
    args.d_y = d_y;
    args.d_h_out = d_h_out;
    args.h = tape.value(fused ? h_out : h);
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
  }

  void pass_residual(Tape& tape) {
    tape.pass_grad(h, h_out);
    if (const GradSlot d = tape.grad_slot(branch)) {
      run(tape.stream(), AddScaled{.y = d.tensor, .x = tape.grad(h_out), .alpha = rho, .accumulate = d.accumulate});
    }
  }
};

struct ResidualAddNode final : Node {
  Var h, branch, y;
  double rho;

  void backward(Tape& tape) override {
    tape.pass_grad(h, y);
    if (rho == 1.0) {
      tape.pass_grad(branch, y);
    } else if (const GradSlot d = tape.grad_slot(branch)) {
      run(tape.stream(), AddScaled{.y = d.tensor, .x = tape.grad(y), .alpha = rho, .accumulate = d.accumulate});
    }
  }
};

}  // namespace

ResidualNorm residual_norm(Tape& tape, Var h, Var branch, double rho, Var weight, Var bias, double eps, NormKind kind) {
  const int64_t d = tape.shape(weight).numel(), rows = tape.value(h).numel() / d;
  HEBB_ASSERT(rows * d == tape.value(h).numel());
  const DType dtype = tape.dtype(h);
  ResidualNormNode node;
  node.h = h;
  node.branch = branch;
  node.weight = weight;
  node.bias = bias;
  node.rho = rho;
  node.kind = kind;
  node.h_out = branch ? tape.output(tape.shape(h), dtype, "residual") : h;
  node.y = tape.output(tape.shape(h), dtype, "norm");
  node.rstd = tape.saved({rows}, sum_dtype(dtype), "norm rstd");
  node.mean = kind == NormKind::layer ? tape.saved({rows}, sum_dtype(dtype), "norm mean") : Tensor{};
  run(tape.stream(), NormForward{.y = tape.value(node.y),
                                 .h_out = branch ? tape.value(node.h_out) : Tensor{},
                                 .mean = node.mean,
                                 .rstd = node.rstd,
                                 .h = tape.value(h),
                                 .branch = tape.value_or_none(branch),
                                 .weight = tape.value(weight),
                                 .bias = tape.value_or_none(bias),
                                 .rho = rho,
                                 .eps = eps,
                                 .kind = kind});
  const ResidualNorm result{node.h_out, node.y};
  tape.record(std::move(node));
  return result;
}

Var residual_add(Tape& tape, Var h, Var branch, double rho) {
  ResidualAddNode node;
  node.h = h;
  node.branch = branch;
  node.rho = rho;
  node.y = tape.output(tape.shape(h), tape.dtype(h), "residual");
  run(tape.stream(), AddScaled{.y = tape.value(node.y), .x = tape.value(h), .alpha = 1.0, .accumulate = false});
  run(tape.stream(), AddScaled{.y = tape.value(node.y), .x = tape.value(branch), .alpha = rho, .accumulate = true});
  return tape.record(std::move(node), &ResidualAddNode::y);
}

}  // namespace hebb
