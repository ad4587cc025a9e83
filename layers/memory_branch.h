#pragma once
#include "layers/layer.h"

namespace hebb {

/// The trained part of a fast-weight layer (docs/layers/fwpkm.md, Parameters and Retrieval): projections to queries,
/// values and a gate, and the way back to the residual stream.
struct MemoryBranchConfig {
  int64_t key_width = 0, value_dim = 512, gate_width = 8;
  bool value_norm = true, gate = true;
};

class MemoryBranch {
 public:
  MemoryBranch(const BuildContext& context, const MemoryBranchConfig& config);

  /// q [N, key_width], v [N, value_dim], g [N] (no Var without a gate) of x [N, d]; in fp32 where x is bf16.
  struct Inputs {
    Var q, v, g;
  };
  Inputs inputs(Pass& pass, Var x) const;
  /// y [N, d] = o_proj(o_norm(g vh + (1 - g) v)), or of vh + v without a gate.
  Var output(Pass& pass, Var x, const Inputs& in, Var vh) const;
  double flops_per_token() const;

 private:
  struct Projection {
    Param *norm, *weight, *bias;
  };
  Projection declare(const BuildContext& context, const std::string& name, int64_t in, int64_t out) const;
  Var project(Pass& pass, const Projection& p, Var x, DType dtype) const;

  MemoryBranchConfig config_;
  int64_t d_;
  double eps_;
  Projection q_, v_, gate_{}, o_;
};

/// "gate_mean" and the shares "gate_0" ... "gate_9" of ten equal bins of g [N].
void add_gate_statistics(Pass& pass, const std::string& name, const Tensor& g);

}  // namespace hebb
