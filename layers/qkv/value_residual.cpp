#include "layers/qkv/value_residual.h"

#include <fmt/core.h>

#include "layers/model_config.h"
#include "layers/ops/grad_target.h"
#include "layers/ops/linear.h"
#include "layers/qkv/value_residual_op.h"

namespace hebb {
namespace {

/// The member whose mixer block i is, if it belongs to the group.
const ValueResidualMember* member(const ModelConfig& model, int64_t block, const std::string& group) {
  const auto* m = dynamic_cast<const ValueResidualMember*>(model.find(*model.block(block).mixer)->config.get());
  return m != nullptr && m->value_residual().on() && m->value_residual().group == group ? m : nullptr;
}

}  // namespace

void ValueResidualConfig::fields(Fields& f) {
  f.field("value_residual", kind)
      .one_of({"none", "lambda", "gated"})
      .help("Mix the values with those of the group's first block.");
  f.field("value_residual_rank", rank)
      .min(1)
      .help("Rank of the gate's projection.")
      .only_with(kind == "gated", "value_residual \"gated\"")
      .scales(kind == "gated" ? scaling::rank : Scaling{});
  f.field("value_residual_group", group)
      .help("Layers of one group share one v_first.")
      .only_with(on(), "value_residual");
  f.field("value_residual_source", source)
      .one_of({"first", "embedding"})
      .help("v_first is the first block's v_proj of its own input, or of its mixer_norm of the embeddings.")
      .only_with(on(), "value_residual");
}

void ValueResidualMember::check_group(const Fields& f, const std::string& key, const ModelConfig& model) const {
  if (!value_residual().on()) { return; }
  const std::string& group = value_residual().group;
  const ValueResidualMember* first = nullptr;
  for (int64_t i = 0; i < model.num_layers; ++i) {
    const ValueResidualMember* m = member(model, i, group);
    first = first == nullptr ? m : first;
    if (m == this && m->value_channels() != first->value_channels()) {
      f.fail(key + ".value_residual_group", fmt::format("\"{}\" with {:d} value channels", group, value_channels()),
             fmt::format("layers with the same num_kv_heads * value_head_dim ({:d} in the group's first block)",
                         first->value_channels()));
    }
  }
}

ValueResidual::ValueResidual(const BuildContext& c, const ValueResidualConfig& config, int64_t channels)
    : config_(config),
      d_(c.model.hidden_size),
      channels_(channels),
      norm_eps_(c.model.norm_eps),
      norm_kind_(c.model.norm_kind()) {
  int64_t first = c.block;
  for (int64_t i = c.model.num_layers - 1; i >= 0; --i) {
    if (const ValueResidualMember* m = member(c.model, i, config_.group)) {
      first = i;
      const bool later = i > c.block;
      gives_first_ = gives_first_ || (later && m->value_residual().source == "first");
      gives_embedding_ = gives_embedding_ || (later && m->value_residual().source == "embedding");
    }
  }
  is_first_ = first == c.block;
  starts_from_embeddings_ = c.block == 0 && !c.model.block(0).memory;
  const std::string norm = fmt::format("blocks.{:d}.mixer_norm.", c.block);
  mixer_norm_ = {c.params.find(norm + "weight"), c.params.find(norm + "bias")};
  HEBB_ASSERT(mixer_norm_.weight != nullptr);
  if (config_.kind == "lambda") {
    lambda_ = &c.declare("vres_lambda", {channels_}, init::constant(0.5));
    return;
  }
  down_ = &c.declare("vres_down.weight", {config_.rank, d_}, init::constant(0));
  up_ = &c.declare("vres_up.weight", {channels_, config_.rank}, init::orthogonal(channels_, config_.rank, 0.1));
  bias_ = &c.declare("vres_bias", {channels_}, [](Rng&, float* values, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      const double at = count > 1 ? static_cast<double>(i) / static_cast<double>(count - 1) : 0.0;
      values[i] = static_cast<float>(0.73 - 0.4 * (at - 0.5));
    }
  });
}

Var ValueResidual::from_embeddings(Pass& pass, Param& v_proj) const {
  const Var h = norm(pass.tape, pass.shared.embeddings, pass.param(*mixer_norm_.weight), pass.param(mixer_norm_.bias),
                     norm_eps_, norm_kind_);
  return linear(pass.tape, h, pass.param(v_proj));
}

void ValueResidual::publish(Pass& pass, Var v, Param& v_proj) const {
  if (gives_first_) { pass.shared.first_values[config_.group] = v; }
  if (starts_from_embeddings_ && gives_embedding_) {
    pass.shared.embedding_values[config_.group] = v;
  } else if (!starts_from_embeddings_ && (gives_embedding_ || config_.source == "embedding")) {
    pass.shared.embedding_values[config_.group] = from_embeddings(pass, v_proj);
  }
}

Var ValueResidual::apply(Pass& pass, Var x, Var v, Param& v_proj) const {
  Tape& tape = pass.tape;
  if (is_first_) { publish(pass, v, v_proj); }
  const bool gated = config_.kind == "gated";
  if (is_first_ && (config_.source == "first" || starts_from_embeddings_)) {
    // The parameters multiply v_first - v, which is 0 here.
    reach(tape, {pass.param(lambda_), pass.param(down_), pass.param(up_), pass.param(bias_)});
    return v;
  }
  const auto& firsts = config_.source == "first" ? pass.shared.first_values : pass.shared.embedding_values;
  const Var first = firsts.at(config_.group);
  const Var mix = gated ? linear(tape, linear(tape, x, pass.param(*down_)), pass.param(*up_), pass.param(*bias_))
                        : pass.param(*lambda_);
  return value_residual(tape, v, first, mix, gated);
}

double ValueResidual::flops_per_token() const {
  return config_.kind == "gated" ? 2.0 * static_cast<double>(config_.rank * (d_ + channels_)) : 0.0;
}

}  // namespace hebb
