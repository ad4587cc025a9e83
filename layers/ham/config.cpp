#include "layers/ham/config.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/choice.h"
#include "layers/convolved_projection.h"
#include "layers/model_config.h"
#include "layers/size_field.h"

namespace hebb {
namespace {

void head_fields(Fields& f, HamHeads& c) {
  required_size(f, "num_heads", c.num_heads, scaling::heads, "Heads of this path.");
  required_size(f, "key_head_dim", c.key_head_dim, scaling::head_channels, "Channels of a head's queries and keys.");
  required_size(f, "value_head_dim", c.value_head_dim, scaling::head_channels, "Channels of a head's values.");
  f.field("activation", c.activation)
      .one_of({"silu", "none"})
      .help("On this path's q, k and v, after the convolution.");
}

std::string products(int64_t heads, int64_t dim) { return fmt::format("{:d} x {:d} channels", heads, dim); }

}  // namespace

void fields(Fields& f, HamRnnConfig& c) {
  head_fields(f, c);
  f.field("allow_neg_eigval", c.allow_neg_eigval)
      .help("Write strength up to 2: transitions may have eigenvalues down to -1.");
  f.field("dt_bias_init", c.dt_bias_init).one_of({"log_uniform", "ones"}).help("Initial values of the decay's bias.");
  gate_field(f, "output_gate", c.output_gate).help("Gate on the normed readings.");
}

void fields(Fields& f, HamKvConfig& c) {
  head_fields(f, c);
  f.object("rope", c.rope).help("Rotary positions of q and k: those in the row (or document).");
  if (f.reading() && c.rope) { c.rope->resolve(f, c.key_head_dim); }
}

void fields(Fields& f, HamRouterConfig& c) {
  f.field("type", c.type)
      .one_of({"prediction_error", "input", "vector"})
      .help("Score of a token: how badly the state predicts its value, or learned.");
  f.field("depth", c.depth).min(1).help("Linear layers of a learned router; without effect on prediction_error.");
  size_field(f, "hidden", c.hidden, scaling::channels(), "Channels between them; without effect at depth 1.");
  f.field("heads", c.heads).min(1).help("Outputs of the input router, aggregated like heads.");
  f.field("eda", c.eda).help("Average the score with the layer's before that has this too; learned routers only.");
  if (!f.reading()) { return; }
  f.require(c.type == "input" || c.heads == 1, "heads", "1 without router type \"input\"");
  f.require(c.learned() || !c.eda, "eda", "false with router type \"prediction_error\"");
}

void fields(Fields& f, HamThresholdConfig& c) {
  f.field("mode", c.mode)
      .one_of({"learned", "fixed", "all", "none"})
      .help("Steered to the target, constant, or every or no token is selected.");
  const char *present = "mode \"learned\" or \"fixed\"", *learned = "mode \"learned\"";
  const bool is_learned = c.mode == "learned";
  f.field("tau", c.tau)
      .above(0)
      .help("Initial or constant threshold, in units of the score.")
      .only_with(c.present(), present);
  f.field("target", c.target)
      .above(0)
      .below(1)
      .help("Wanted share of selected tokens; FLOPs are counted with it.")
      .only_with(c.present(), present);
  f.field("scope", c.scope)
      .one_of({"global", "layer"})
      .help("What is compared with the target: the mean over layers, or the layer's own share.")
      .only_with(is_learned, learned);
  f.field("freeze_steps", c.freeze_steps)
      .min(0)
      .help("First optimizer steps without updates.")
      .unit("steps")
      .only_with(is_learned, learned)
      .scales(is_learned ? scaling::steps : Scaling{});
  f.field("lr", c.lr)
      .above(0)
      .help("Learning rate of the threshold's own AdamW.")
      .only_with(is_learned, learned)
      .scales(is_learned ? scaling::step_rate : Scaling{});
  f.field("betas", c.betas).size(2).min(0).below(1).help("Its betas.").only_with(is_learned, learned);
  f.field("eps", c.eps).above(0).help("Its epsilon.").only_with(is_learned, learned);
  f.field("gain", c.gain).above(0).help("Factor of the gap in the synthetic gradient.").only_with(is_learned, learned);
  f.field("clip", c.clip).above(0).help("Largest size of the synthetic gradient.").only_with(is_learned, learned);
}

void HamConfig::fields(Fields& f) {
  f.object("rnn", rnn).help("The recurrent path.");
  f.object("kv", kv).help("The attention path.");
  conv_width_field(f, "conv_size", conv_size, "Width of the causal convolutions of both paths; 0 = none.");
  choice(f, "qkv_norm", qkv_norm,
         {{"pre_conv", NormPlace::pre_conv}, {"post_conv", NormPlace::post_conv}, {"none", NormPlace::none}})
      .help("Place of the RMS norms of q, k and v, over all channels.");
  f.field("gates", gates).one_of({"head", "scalar", "none"}).help("Sigmoid gates on the outputs of the paths.");
  f.field("aggregate", aggregate).one_of({"min", "max"}).help("How the scores of the heads become one.");
  f.object("router", router).help("How tokens are scored.");
  f.object("threshold", threshold).help("Which scores are selected.");
  f.field("chunk_size", chunk_size).min(1).help("Tokens of a chunk of the recurrence; speed only.");
  if (!f.reading()) { return; }
  if (kv.key_channels() != rnn.key_channels()) {
    f.fail("kv.key_head_dim", products(kv.num_heads, kv.key_head_dim),
           "as many as rnn: " + products(rnn.num_heads, rnn.key_head_dim));
  }
  if (kv.value_channels() != rnn.value_channels()) {
    f.fail("kv.value_head_dim", products(kv.num_heads, kv.value_head_dim),
           "as many as rnn: " + products(rnn.num_heads, rnn.value_head_dim));
  }
  if (threshold.present() && threshold.tau >= router.range()) {
    f.fail("threshold.tau", Json(threshold.tau).dump(),
           "a number > 0, < " + Json(router.range()).dump() + " (the range of the scores)");
  }
}

/// Thresholds with one common target must be one definition.
void HamConfig::check(const Fields& f, const std::string& key, const ModelConfig& model) const {
  std::vector<const LayerDefinition*> used;  // by block
  for (int64_t i = 0; i < model.num_layers; ++i) { used.push_back(model.find(model.block(i).mixer.value_or(""))); }
  const bool is_used = std::any_of(
      used.begin(), used.end(), [this](const LayerDefinition* d) { return d != nullptr && d->config.get() == this; });
  if (threshold.mode != "learned" || !is_used) { return; }
  for (const LayerDefinition* other : used) {
    const auto* ham = other != nullptr ? dynamic_cast<const HamConfig*>(other->config.get()) : nullptr;
    if (ham == nullptr || ham->threshold.mode != "learned" ||
        (threshold.scope == "layer" && ham->threshold.scope == "layer")) {
      continue;
    }
    if (!(ham->threshold == threshold)) {
      f.fail(key + ".threshold", "other values than in layers." + other->name + ".threshold",
             "equal ones in all learned ham layers with scope \"global\"");
    }
    if (ham->router.type != router.type) {
      f.fail(key + ".router.type", "\"" + router.type + "\"",
             "\"" + ham->router.type + "\", as in layers." + other->name + ", with threshold scope \"global\"");
    }
  }
}

}  // namespace hebb
