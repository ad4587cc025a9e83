// gdn: Gated DeltaNet, a recurrent mixer with one decaying matrix per head that is written with the delta rule.
#include <fmt/core.h>

#include "layers/collectors.h"
#include "layers/decay_init.h"
#include "layers/delta_mixer.h"
#include "layers/model_config.h"
#include "layers/ops/head_norm.h"
#include "layers/ops/linear.h"
#include "layers/size_field.h"

namespace hebb {

namespace {

struct GdnConfig final : LayerConfig {
  int64_t num_heads = 0, key_head_dim = 0, value_head_dim = 0, conv_size = 4, chunk_size = 64;
  std::optional<int64_t> num_value_heads;
  bool conv_bias = false, allow_neg_eigval = false;
  std::string activation = "silu", qk_norm = "l2", output_norm = "rms";
  HeadGate output_gate = HeadGate::silu;
  std::string dt_bias_init = "log_uniform", initial_state = "zero";

  int64_t value_heads() const { return num_value_heads.value_or(num_heads); }

  void fields(Fields& f) override;
  std::unique_ptr<Layer> make(const BuildContext& c) const override;
  StatisticsCollectors statistics(const StatisticsOptions&) const override { return collector_list(state_norms()); }
};

void GdnConfig::fields(Fields& f) {
  required_size(f, "num_heads", num_heads, scaling::heads, "Heads of queries and keys.");
  size_field(f, "num_value_heads", num_value_heads, scaling::heads,
             "Heads of values, each with a state; a multiple of num_heads, its default.");
  f.require(num_heads < 1 || value_heads() % num_heads == 0, "num_value_heads",
            fmt::format("a multiple of num_heads ({:d})", num_heads));
  required_size(f, "key_head_dim", key_head_dim, scaling::head_channels, "Channels of a head's queries and keys.");
  required_size(f, "value_head_dim", value_head_dim, scaling::head_channels, "Channels of a head's values.");
  conv_width_field(f, "conv_size", conv_size, "Width of the causal convolutions on q, k and v; 0 = none.");
  f.field("conv_bias", conv_bias).help("Biases of the convolutions.");
  f.require(!conv_bias || conv_size > 0, "conv_bias", "false where conv_size is 0");
  f.field("activation", activation).one_of({"silu", "none"}).help("On q, k and v, after the convolution.");
  f.field("qk_norm", qk_norm).one_of({"l2", "none"}).help("Norm of q and k per head, after the activation.");
  f.field("allow_neg_eigval", allow_neg_eigval)
      .help("Write strength up to 2: transitions may have eigenvalues down to -1.");
  f.field("output_norm", output_norm)
      .one_of({"rms", "none"})
      .help("Norm of the output per value head, one weight for all heads.");
  gate_field(f, "output_gate", output_gate).help("Gate on the normed output.");
  f.field("dt_bias_init", dt_bias_init).one_of({"log_uniform", "ones"}).help("Initial values of the decay's bias.");
  f.field("initial_state", initial_state).one_of({"zero", "learned"}).help("State before a document's first token.");
  f.field("chunk_size", chunk_size).help("Tokens of a chunk: 16, 32, 64 or 128; speed only.");
  f.require(chunk_size == 16 || chunk_size == 32 || chunk_size == 64 || chunk_size == 128, "chunk_size",
            "16, 32, 64 or 128");
}

/// y = Wo (rms(o) * gate(Wg x)), o the readings of the gated delta rule. Parameters: docs/layers/gdn.md.
class Gdn final : public DeltaMixer {
 public:
  Gdn(const BuildContext& c, const GdnConfig& config);

  Var forward(Pass& pass, Var x, LayerState* state) override;
  double flops_per_token(int64_t length) const override;

 private:
  DeltaInputs inputs(Pass& pass, Var x) const;

  HeadGate gate_;
  ConvolvedProjection q_, k_, v_;
  Param *a_proj_, *b_proj_, *o_proj_;
  Param *g_proj_ = nullptr, *o_norm_ = nullptr;
};

DeltaConfig delta_config(const GdnConfig& config) {
  DeltaConfig d;
  d.key_heads = config.num_heads;
  d.value_heads = config.value_heads();
  d.key_dim = config.key_head_dim;
  d.value_dim = config.value_head_dim;
  d.conv_size = config.conv_size;
  d.silu = config.activation == "silu";
  d.l2_norm = config.qk_norm == "l2";
  d.beta_scale = config.allow_neg_eigval ? 2.0 : 1.0;
  d.chunk = config.chunk_size;
  return d;
}

Gdn::Gdn(const BuildContext& c, const GdnConfig& config)
    : DeltaMixer(c, delta_config(config)),
      gate_(config.output_gate),
      q_(c, "q", delta_.key_channels()),
      k_(c, "k", delta_.key_channels()),
      v_(c, "v", delta_.value_channels()) {
  const Init normal = init::normal(c.model.init_std);
  const int64_t heads = delta_.value_heads, values = delta_.value_channels();
  a_proj_ = &c.declare("a_proj.weight", {heads, d_}, normal);
  b_proj_ = &c.declare("b_proj.weight", {heads, d_}, normal);
  a_log_ = &c.declare("A_log", {heads}, a_log_init(0.0, 16.0));
  dt_bias_ = &c.declare("dt_bias", {heads},
                        config.dt_bias_init == "ones" ? init::constant(1.0) : hebb::dt_bias_init(0.001, 0.1));
  for (ConvolvedProjection* path : {&q_, &k_, &v_}) {
    path->declare_convolution(c, delta_.conv_size);
    if (config.conv_bias) { path->declare_bias(c); }
  }
  if (gate_ != HeadGate::none) { g_proj_ = &c.declare("g_proj.weight", {values, d_}, normal); }
  if (config.output_norm == "rms") { o_norm_ = &c.declare("o_norm.weight", {delta_.value_dim}, init::constant(1.0)); }
  if (config.initial_state == "learned") { declare_initial_state(c); }
  o_proj_ = &c.declare("o_proj.weight", {d_, values}, normal);
}

DeltaInputs Gdn::inputs(Pass& pass, Var x) const {
  DeltaInputs in = project(pass, x, q_, k_, v_);
  const DType gates = sum_dtype(pass.tape.dtype(x));             // fp32 also where x is bf16
  in.a = linear(pass.tape, x, pass.param(*a_proj_), {}, gates);  // [N, HV]
  in.b = linear(pass.tape, x, pass.param(*b_proj_), {}, gates);  // [N, HV]
  return in;
}

Var Gdn::forward(Pass& pass, Var x, LayerState* state) {
  const Var o = read(pass, inputs(pass, x), state);  // [N, HV dv]
  const Var z = g_proj_ != nullptr ? linear(pass.tape, x, pass.param(*g_proj_)) : Var{};
  const Var weight = pass.param(o_norm_);
  const Var y =
      gated_norm(pass.tape, o, {.z = z, .weight = weight, .head_dim = delta_.value_dim, .eps = eps_, .gate = gate_});
  return linear(pass.tape, y, pass.param(*o_proj_));
}

double Gdn::flops_per_token(int64_t) const {
  const double d = static_cast<double>(d_), heads = static_cast<double>(delta_.value_heads);
  const double dk = static_cast<double>(delta_.key_dim), keys = static_cast<double>(delta_.key_channels());
  const double values = static_cast<double>(delta_.value_channels()), c = static_cast<double>(delta_.chunk);
  const double projections = 2 * d * (2 * keys + (g_proj_ != nullptr ? 3 : 2) * values + 2 * heads);
  const double core = heads * (1 + 3.5 * c + c * c / 2) + 6 * c * heads * dk + 4 * c * values + 6 * dk * values;
  return projections + convolution_flops() + core;
}

std::unique_ptr<Layer> GdnConfig::make(const BuildContext& c) const { return std::make_unique<Gdn>(c, *this); }

}  // namespace

std::unique_ptr<LayerConfig> make_gdn_config() { return std::make_unique<GdnConfig>(); }

}  // namespace hebb
