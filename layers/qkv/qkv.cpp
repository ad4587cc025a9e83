#include "layers/qkv/qkv.h"

#include <fmt/core.h>

#include <cmath>

#include "layers/model_config.h"
#include "layers/ops/head_norm.h"
#include "layers/ops/linear.h"
#include "layers/ops/rope.h"
#include "layers/ops/scaled_l2_norm.h"

namespace hebb {

void QkvConfig::fields(Fields& f, const std::vector<std::string>& qk_norms) {
  HeadsConfig::fields(f);
  f.object("rope", rope).help("Rotary positions; absent: none (NoPE).");
  f.field("qk_norm", qk_norm).one_of(qk_norms).help("Norm of every head's q and k, before RoPE.");
  f.field("token_shift", token_shift).help("Mix the channels of q, k and v with the previous token's.");
  value_residual.fields(f);
  if (!f.reading()) { return; }
  num_kv_heads = kv_heads();
  value_head_dim = value_dim();
  if (!rope) { return; }
  if (rope_is_partial && rope->dims.value_or(head_dim) >= head_dim) {
    f.fail("rope.dims", rope->dims ? std::to_string(*rope->dims) : "nothing",
           fmt::format("an even integer below head_dim ({:d})", head_dim));
  }
  rope->resolve(f, head_dim);
}

Qkv::Qkv(const BuildContext& c, const QkvConfig& config, const Init& matrix)
    : config_(config), d_(c.model.hidden_size), norm_eps_(c.model.norm_eps) {
  const int64_t d = config_.head_dim, q = config_.num_heads * d, k = config_.kv_heads() * d;
  const int64_t v = config_.kv_heads() * config_.value_dim();
  q_proj_ = &c.declare("q_proj.weight", {q, d_}, matrix);
  k_proj_ = &c.declare("k_proj.weight", {k, d_}, matrix);
  v_proj_ = &c.declare("v_proj.weight", {v, d_}, matrix);
  if (config_.qk_norm == "rms" || config_.qk_norm == "layer") {
    for (auto [norm, name] : {std::pair{&q_norm_, "q_norm"}, std::pair{&k_norm_, "k_norm"}}) {
      norm->params.weight = &c.declare(std::string(name) + ".weight", {d}, init::constant(1));
      if (config_.qk_norm == "layer") {
        norm->params.bias = &c.declare(std::string(name) + ".bias", {d}, init::constant(0));
      }
    }
  } else if (config_.qk_norm == "l2") {
    q_norm_.beta = &c.declare("beta", {config_.num_heads}, init::constant(std::sqrt(static_cast<double>(d))));
  }
  if (config_.token_shift) {
    // rho falls from 1 at the first block (docs/layers/attention.md, Token shift).
    const double rho = 1.0 - static_cast<double>(c.block) / static_cast<double>(c.model.num_layers);
    q_shift_ = &c.declare("q_shift", {q}, token_shift_init(0.2 * rho));
    k_shift_ = &c.declare("k_shift", {k}, token_shift_init(0.7 * rho));
    v_shift_ = &c.declare("v_shift", {v}, token_shift_init(0.7 * rho));
  }
  if (config_.value_residual.on()) { value_residual_.emplace(c, config_.value_residual, v); }
}

Var Qkv::normalize(Pass& pass, Var x, const HeadNorm& n) const {
  if (config_.qk_norm == "none") { return x; }
  if (config_.qk_norm == "l2") {
    return n.beta != nullptr ? scaled_l2_norm(pass.tape, x, config_.head_dim, pass.param(*n.beta))
                             : l2_norm(pass.tape, x, config_.head_dim);
  }
  return norm(pass.tape, x, pass.param(*n.params.weight), pass.param(n.params.bias), norm_eps_,
              n.params.bias != nullptr ? NormKind::layer : NormKind::rms);
}

Qkv::Heads Qkv::forward(Pass& pass, Var x, QkvState* state) const {
  Tape& tape = pass.tape;
  Heads h{linear(tape, x, pass.param(*q_proj_)), linear(tape, x, pass.param(*k_proj_)),
          linear(tape, x, pass.param(*v_proj_))};
  if (value_residual_) { h.v = value_residual_->apply(pass, x, h.v, *v_proj_); }
  if (config_.token_shift) {
    h.q = token_shift(pass, h.q, pass.param(*q_shift_), false, state != nullptr ? &*state->q : nullptr);
    h.k = token_shift(pass, h.k, pass.param(*k_shift_), false, state != nullptr ? &*state->k : nullptr);
    h.v = token_shift(pass, h.v, pass.param(*v_shift_), false, state != nullptr ? &*state->v : nullptr);
  }
  h.q = normalize(pass, h.q, q_norm_);
  h.k = normalize(pass, h.k, k_norm_);
  if (config_.rope) {
    h.q = rope(pass, h.q, config_.num_heads, config_.rope->spec());
    h.k = rope(pass, h.k, config_.kv_heads(), config_.rope->spec());
  }
  return h;
}

QkvState Qkv::make_state(Arena& arena, int64_t rows, DType dtype) const {
  QkvState s;
  if (config_.token_shift) {
    s.q.emplace(arena, rows, q_shift_->spec.shape.numel(), dtype);
    s.k.emplace(arena, rows, k_shift_->spec.shape.numel(), dtype);
    s.v.emplace(arena, rows, v_shift_->spec.shape.numel(), dtype);
  }
  return s;
}

double Qkv::scale() const {
  return config_.qk_norm == "l2" ? 1.0 : 1.0 / std::sqrt(static_cast<double>(config_.head_dim));
}

int64_t Qkv::channels() const {
  return (config_.num_heads + config_.kv_heads()) * config_.head_dim + config_.kv_heads() * config_.value_dim();
}

double Qkv::flops_per_token() const {
  return 2.0 * static_cast<double>(d_ * channels()) + (value_residual_ ? value_residual_->flops_per_token() : 0.0);
}

int64_t Qkv::carried() const { return config_.token_shift ? channels() : 0; }

}  // namespace hebb
