#include "layers/model.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "layers/ops/embedding.h"
#include "layers/ops/head_loss.h"
#include "layers/ops/linear.h"

namespace hebb {

Model::Model(const ModelConfig& config) : config_(config) {
  const int64_t d = config_.hidden_size;
  const bool is_normal = config_.init == "normal";
  const Init normal = init::normal(config_.init_std);
  SharedObjects shared;
  embed_ = &params_.declare({"embed.weight", {config_.vocab_size, d}, is_normal ? normal : init::uniform(-1e-4, 1e-4)});
  if (config_.embed_norm) { embed_norm_ = declare_norm("embed_norm"); }
  declared_.push_back(params_.all().size());
  for (int64_t i = 0; i < config_.num_layers; ++i) {
    const BlockSpec spec = config_.block(i);
    const std::string name = fmt::format("blocks.{:d}", i);
    const auto build = [&](const std::string& role, const std::string& layer) {
      return config_.find(layer)->config->make(BuildContext{.model = config_,
                                                            .params = params_,
                                                            .block = i,
                                                            .name = name + "." + role,
                                                            .layer = layer,
                                                            .shared = shared});
    };
    Block block;
    BlockNorms norms;
    if (spec.memory) { block.memory = build("memory", *spec.memory); }
    norms.mixer = declare_norm(name + ".mixer_norm");
    block.mixer = build("mixer", *spec.mixer);
    norms.ffn = declare_norm(name + ".ffn_norm");
    block.ffn = build("ffn", *spec.ffn);
    blocks_.push_back(std::move(block));
    norms_.push_back(norms);
    declared_.push_back(params_.all().size());
  }
  final_norm_ = declare_norm("final_norm");
  if (!config_.tie_embeddings) {
    const double gain = 0.5 * std::sqrt(static_cast<double>(config_.vocab_size) / static_cast<double>(d));
    lm_head_ = &params_.declare({"lm_head.weight",
                                 {config_.vocab_size, d},
                                 is_normal ? normal : init::orthogonal(config_.vocab_size, d, gain)});
  }
}

NormParams Model::declare_norm(const std::string& name) {
  NormParams norm;
  const double start = config_.norm_kind() == NormKind::rms_unit_offset ? 0.0 : 1.0;
  norm.weight = &params_.declare({name + ".weight", {config_.hidden_size}, init::constant(start)});
  if (config_.norm_kind() == NormKind::layer) {
    norm.bias = &params_.declare({name + ".bias", {config_.hidden_size}, init::constant(0.0)});
  }
  return norm;
}

ResidualNorm Model::apply_norm(Pass& pass, const NormParams& norm, const Residual& s) const {
  return residual_norm(pass.tape, s.h, s.branch, config_.residual_scale, pass.param(*norm.weight),
                       pass.param(norm.bias), config_.norm_eps, config_.norm_kind());
}

std::vector<Var> Model::recompute(Pass& pass, const std::function<std::vector<Var>()>& fn) {
  // What layers hand to later layers leaves the scope as further outputs; on the second run they must
  // see what earlier layers had handed over, not what came later.
  const SharedValues before = pass.shared;
  return pass.tape.recompute([&pass, fn, before] {
    const SharedValues now = pass.shared;
    pass.shared = before;
    std::vector<Var> result = fn();
    const std::vector<Var> earlier = before.all();
    for (const Var var : pass.shared.all()) {
      if (std::find(earlier.begin(), earlier.end(), var) == earlier.end()) { result.push_back(var); }
    }
    if (pass.tape.recomputing()) { pass.shared = now; }
    return result;
  });
}

Var Model::run_branch(Pass& pass, Layer& layer, Var x, LayerState* state, bool again) {
  if (!again || !pass.tape.recording()) { return layer.forward(pass, x, state); }
  return recompute(pass, [&pass, &layer, x] { return std::vector<Var>{layer.forward(pass, x, nullptr)}; })[0];
}

Model::Residual Model::run_block(Pass& pass, size_t i, Residual s, ModelState::Block* state) {
  Block& block = blocks_[i];
  const std::string name = fmt::format("blocks.{:d}", i);
  pass.tape.set_scope(name + ".memory");
  if (block.memory) {
    if (s.branch) { s.h = residual_add(pass.tape, s.h, s.branch, config_.residual_scale); }
    s.branch = run_branch(pass, *block.memory, s.h, state != nullptr ? state->memory.get() : nullptr, false);
  }
  pass.tape.set_scope(name + ".mixer");
  ResidualNorm in = apply_norm(pass, norms_[i].mixer, s);
  s = {in.h, run_branch(pass, *block.mixer, in.y, state != nullptr ? state->mixer.get() : nullptr,
                        recompute_ == Recompute::mixer)};
  pass.tape.set_scope(name + ".ffn");
  in = apply_norm(pass, norms_[i].ffn, s);
  return {in.h, run_branch(pass, *block.ffn, in.y, state != nullptr ? state->ffn.get() : nullptr,
                           recompute_ == Recompute::ffn)};
}

void Model::reads(Pass& pass, size_t parameters) const {
  if (before_reading_) { before_reading_(pass.stream(), parameters); }
}

Var Model::hidden(Pass& pass, const Tensor& tokens, ModelState* state) {
  Tape& tape = pass.tape;
  Tape::Scope whole(tape);
  reads(pass, declared_[0]);
  Var h = embedding(tape, pass.param(*embed_), tokens);
  if (config_.embed_norm) {
    h = norm(tape, h, pass.param(*embed_norm_.weight), pass.param(embed_norm_.bias), config_.norm_eps,
             config_.norm_kind());
  }
  pass.shared.embeddings = h;
  Residual s{h, {}};
  for (size_t i = 0; i < blocks_.size(); ++i) {
    ModelState::Block* block_state = state != nullptr ? &state->blocks[i] : nullptr;
    reads(pass, declared_[i + 1]);
    if (recompute_ == Recompute::block && tape.recording()) {
      const std::vector<Var> out = recompute(pass, [this, &pass, i, s] {
        const Residual r = run_block(pass, i, s, nullptr);
        return std::vector<Var>{r.h, r.branch};
      });
      s = {out[0], out[1]};
    } else {
      Tape::Scope scope(tape);
      s = run_block(pass, i, s, block_state);
      scope.keep(s.h);
      scope.keep(s.branch);
      for (const Var var : pass.shared.all()) { scope.keep(var); }
    }
  }
  tape.set_scope("head");
  reads(pass, params_.all().size());
  if (state != nullptr) { state->count(pass.length()); }
  return whole.keep(apply_norm(pass, final_norm_, s).y);
}

Var Model::logits(Pass& pass, Var hidden) {
  return linear(pass.tape, hidden, pass.param(head()), {}, sum_dtype(pass.tape.dtype(hidden)));
}

void Model::loss(Pass& pass, Var hidden, const Tensor& targets, const Tensor& row_loss, double scale,
                 const Tensor& factor) {
  head_loss(pass.tape, hidden, pass.param(head()), targets, row_loss, scale, factor);
}

std::unique_ptr<ModelState> Model::make_state(Arena& arena, int64_t rows) const {
  std::unique_ptr<ModelState> state(new ModelState{&arena, rows});
  const DType dtype = params_.dtype();
  for (const Block& block : blocks_) {
    state->blocks.push_back({block.memory ? block.memory->make_state(arena, rows, dtype) : nullptr,
                             block.mixer->make_state(arena, rows, dtype), block.ffn->make_state(arena, rows, dtype)});
  }
  return state;
}

void Model::begin_step(Stream& stream, int64_t step) {
  each_layer([&](size_t, const char*, Layer& layer) { layer.begin_step(stream, step); });
}

void Model::after_step(Stream& stream, int64_t step, const Tensor& applies) {
  each_layer([&](size_t, const char*, Layer& layer) { layer.after_step(stream, step, applies); });
}

/// "blocks.2.mixer REASON" for each layer with a reason.
std::vector<std::string> Model::reasons(std::string (Layer::*reason_of)() const) const {
  std::vector<std::string> found;
  each_layer([&](size_t block, const char* role, const Layer& layer) {
    if (const std::string reason = (layer.*reason_of)(); !reason.empty()) {
      found.push_back(fmt::format("blocks.{:d}.{} {}", block, role, reason));
    }
  });
  return found;
}

std::vector<std::string> Model::needs_host() const { return reasons(&Layer::needs_host); }

std::vector<std::string> Model::needs_all_rows() const { return reasons(&Layer::needs_all_rows); }

double Model::flops_per_token(int64_t length) const {
  double flops = 2.0 * static_cast<double>(config_.hidden_size) * static_cast<double>(config_.vocab_size);
  each_layer([&](size_t, const char*, const Layer& layer) { flops += layer.flops_per_token(length); });
  return flops;
}

int64_t Model::state_bytes(int64_t tokens) const {
  int64_t bytes = 0;
  each_layer([&](size_t, const char*, const Layer& layer) { bytes += layer.state_bytes(tokens); });
  return bytes;
}

}  // namespace hebb
