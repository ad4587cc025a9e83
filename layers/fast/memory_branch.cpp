#include "layers/fast/memory_branch.h"

#include <fmt/core.h>

#include <algorithm>

#include "layers/fast/memory_mix.h"
#include "layers/model_config.h"
#include "layers/ops/convert.h"
#include "layers/ops/host_values.h"
#include "layers/ops/linear.h"
#include "layers/ops/norm.h"
#include "layers/size_field.h"

namespace hebb {
namespace {

/// "gate_mean" and the shares "gate_0" ... "gate_9" of ten equal bins of g [N].
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

}  // namespace

void MemoryBranchConfig::chunk_fields(Fields& f, std::string_view lookahead_help) {
  size_field(f, "chunk_size", chunk_size, scaling::window, "Tokens of a sequence per update.").unit("tokens");
  f.field("lookahead", lookahead).min(0).unit("tokens").help(lookahead_help);
}

void MemoryBranchConfig::gate_fields(Fields& f) {
  f.field("value_norm", value_norm).help("Give every value mean 0 and standard deviation 1.");
  f.field("gate", gate).help("Mix reading and value with a gate per token; without it they are added.");
  f.field("gate_width", gate_width)
      .min(1)
      .help("Outputs of the gate's projection, averaged before the sigmoid.")
      .only_with(gate, "gate");
}

void MemoryBranchConfig::sync_field(Fields& f) {
  f.field("sync", sync)
      .one_of({"global", "local"})
      .help("Several ranks: global has one memory for the rows of all, and one lane a rank; local, one for each lane.");
  f.require(lookahead < chunk_size, "lookahead", fmt::format("less than chunk_size ({:d})", chunk_size));
  f.require(!value_norm || value_dim > 1, "value_dim", "at least 2 with value_norm");
}

MemoryBranch::MemoryBranch(const BuildContext& c, const MemoryBranchConfig& config, std::string type, int64_t key_width,
                           bool weighted)
    : value_norm_(config.value_norm),
      weighted_(weighted),
      is_local_(config.sync == "local"),
      name_(c.name),
      type_(std::move(type)),
      d_(c.model.hidden_size),
      key_width_(key_width),
      value_dim_(config.value_dim),
      gate_width_(config.gate ? config.gate_width : 0),
      chunk_(config.chunk_size),
      lookahead_(config.lookahead),
      eps_(c.model.norm_eps) {
  q_ = declare(c, "q", d_, key_width_);
  v_ = declare(c, "v", d_, value_dim_);
  if (gate_width_ > 0) { gate_ = declare(c, "gate", d_, gate_width_); }
  o_ = declare(c, "o", value_dim_, d_);
}

MemoryBranch::Projection MemoryBranch::declare(const BuildContext& c, const std::string& name, int64_t in,
                                               int64_t out) const {
  return {&c.declare(name + "_norm.weight", {in}, init::constant(1)),
          &c.declare(name + "_proj.weight", {out, in}, init::normal(0.02)),
          &c.declare(name + "_proj.bias", {out}, init::constant(0))};
}

Param* MemoryBranch::declare_fast(const BuildContext& c, const char* name, Shape shape, const Init& init) const {
  Param& p = c.declare(name, shape, init, ParamKind::fast);
  p.spec.has_all_rows = !is_local_;
  return &p;
}

Var MemoryBranch::project(Pass& pass, const Projection& p, Var x, DType dtype) const {
  const Var n = norm(pass.tape, x, pass.param(*p.norm), {}, eps_, NormKind::rms);
  return linear(pass.tape, n, pass.param(*p.weight), pass.param(*p.bias), dtype);
}

MemoryBranch::Inputs MemoryBranch::inputs(Pass& pass, Var x) const {
  const DType dtype = sum_dtype(pass.tape.dtype(x));
  Inputs in{project(pass, q_, x, dtype), project(pass, v_, x, dtype), {}};
  if (value_norm_) { in.v = z_score(pass.tape, in.v); }
  if (gate_width_ > 0) {
    in.g = mean_gate(pass.tape, project(pass, gate_, x, dtype));
    add_gate_statistics(pass, name_, pass.tape.value(in.g));
  }
  return in;
}

Var MemoryBranch::output(Pass& pass, Var x, const Inputs& in, Var vh) const {
  const Var o = in.g ? gate_mix(pass.tape, in.g, vh, in.v) : residual_add(pass.tape, vh, in.v, 1.0);
  return project(pass, o_, convert(pass.tape, o, pass.tape.dtype(x)), pass.tape.dtype(x));
}

Var MemoryBranch::forward(Pass& pass, Var x, LayerState* state) {
  Tape& tape = pass.tape;
  const int64_t chunk = fast_chunk(pass, name_, chunk_, lookahead_);
  const Inputs in = inputs(pass, x);
  const std::vector<Var> qvw{in.q, in.v, weighted_ ? in.g : Var{}};
  if (state == nullptr || pass.fast.update == FastUpdate::per_sequence) {
    const auto rows = [&](Pass& p, const std::vector<Var>& of) { return read_rows(p, of[0], of[1], of[2]); };
    return output(pass, x, in, is_local_ ? rows(pass, qvw) : with_all_rows(pass, qvw, rows));
  }
  const Var vh = tape.output({pass.tokens(), value_dim_}, tape.dtype(in.q), "memory reading");
  static_cast<FastQueue&>(*state).advance(pass, chunk, tape.value(qvw[0]), tape.value(qvw[1]),
                                          tape.value_or_none(qvw[2]), [&](int64_t first, int64_t count) {
                                            read_tokens(pass.stream(), tape.arena(), tape.value(in.q),
                                                        {pass.batch(), pass.length(), first, count}, tape.value(vh));
                                          });
  return output(pass, x, in, vh);
}

std::unique_ptr<LayerState> MemoryBranch::make_state(Arena& arena, int64_t rows, DType dtype) const {
  const FastQueueLayout layout{.rows = rows,
                               .q_width = key_width_,
                               .v_width = value_dim_,
                               .lookahead = lookahead_,
                               .dtype = sum_dtype(dtype),
                               .weighted = weighted_};
  return std::make_unique<FastQueue>(
      arena, layout, [this](Stream& stream, const FastQueue& queue, int64_t pairs) { update(stream, queue, pairs); });
}

std::string MemoryBranch::needs_all_rows() const {
  return is_local_
             ? ""
             : "(" + type_ + ", sync \"global\") has one memory for all rows; with \"local\" each lane has its own";
}

int64_t MemoryBranch::queued(int64_t tokens) const { return std::min(tokens, chunk_ + lookahead_); }

double MemoryBranch::branch_flops() const {
  return 2 * static_cast<double>(d_) * static_cast<double>(key_width_ + 2 * value_dim_ + gate_width_);
}

}  // namespace hebb
