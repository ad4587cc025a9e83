#include "layers/memory_branch.h"

#include <fmt/core.h>

#include <algorithm>

#include "layers/model_config.h"
#include "layers/ops/convert.h"
#include "layers/ops/host_values.h"
#include "layers/ops/linear.h"
#include "layers/ops/memory_mix.h"
#include "layers/ops/norm.h"

namespace hebb {

MemoryBranch::MemoryBranch(const BuildContext& c, const MemoryBranchConfig& config)
    : config_(config), d_(c.model.hidden_size), eps_(c.model.norm_eps) {
  q_ = declare(c, "q", d_, config_.key_width);
  v_ = declare(c, "v", d_, config_.value_dim);
  if (config_.gate) { gate_ = declare(c, "gate", d_, config_.gate_width); }
  o_ = declare(c, "o", config_.value_dim, d_);
}

MemoryBranch::Projection MemoryBranch::declare(const BuildContext& c, const std::string& name, int64_t in,
                                               int64_t out) const {
  return {&c.declare(name + "_norm.weight", {in}, init::constant(1)),
          &c.declare(name + "_proj.weight", {out, in}, init::normal(0.02)),
          &c.declare(name + "_proj.bias", {out}, init::constant(0))};
}

Var MemoryBranch::project(Pass& pass, const Projection& p, Var x, DType dtype) const {
  const Var n = norm(pass.tape, x, pass.param(*p.norm), {}, eps_, NormKind::rms);
  return linear(pass.tape, n, pass.param(*p.weight), pass.param(*p.bias), dtype);
}

MemoryBranch::Inputs MemoryBranch::inputs(Pass& pass, Var x) const {
  const DType dtype = sum_dtype(pass.tape.dtype(x));
  Inputs in{project(pass, q_, x, dtype), project(pass, v_, x, dtype), {}};
  if (config_.value_norm) { in.v = z_score(pass.tape, in.v); }
  if (config_.gate) { in.g = mean_gate(pass.tape, project(pass, gate_, x, dtype)); }
  return in;
}

Var MemoryBranch::output(Pass& pass, Var x, const Inputs& in, Var vh) const {
  const Var o = in.g ? gate_mix(pass.tape, in.g, vh, in.v) : residual_add(pass.tape, vh, in.v, 1.0);
  return project(pass, o_, convert(pass.tape, o, pass.tape.dtype(x)), pass.tape.dtype(x));
}

double MemoryBranch::flops_per_token() const {
  const double widths =
      static_cast<double>(config_.key_width + 2 * config_.value_dim + (config_.gate ? config_.gate_width : 0));
  return 2 * static_cast<double>(d_) * widths;
}

void add_gate_statistics(Pass& pass, const std::string& name, const Tensor& g) {
  if (!pass.measures()) { return; }
  auto& s = (*pass.statistics)[name];
  const std::vector<double> gates = host_values(pass.stream(), g);
  const double share = 1.0 / static_cast<double>(gates.size());
  for (int bin = 0; bin < 10; ++bin) { s[fmt::format("gate_{:d}", bin)] = 0; }
  s["gate_mean"] = 0;
  for (const double gate : gates) {
    s["gate_mean"] += share * gate;
    s[fmt::format("gate_{:d}", std::clamp(static_cast<int>(10 * gate), 0, 9))] += share;
  }
}

}  // namespace hebb
