// mesanet: a recurrent mixer that answers every query with the ridge regression over all it has read.
#include <algorithm>

#include "layers/convolved_projection.h"
#include "layers/decay_init.h"
#include "layers/mesanet/op.h"
#include "layers/model_config.h"
#include "layers/ops/head_norm.h"
#include "layers/ops/linear.h"
#include "layers/size_field.h"

namespace hebb {
namespace {

struct MesanetConfig final : LayerConfig {
  int64_t num_heads = 0, key_head_dim = 0, conv_size = 4, cg_steps = 30, chunk_size = 64;
  std::optional<int64_t> value_head_dim, cg_steps_decode;
  bool conv_bias = false;
  double lambda_min = 0.25, lambda_init = 1.0, decay_bias_init = 0.0, cg_epsilon = 0.0;
  std::string activation = "silu", qk_norm = "l2", solver = "cg", output_norm = "rms";
  HeadGate output_gate = HeadGate::none;

  MesanetOptions mesa() const;
  void fields(Fields& f) override;
  std::unique_ptr<Layer> make(const BuildContext& c) const override;
};

void MesanetConfig::fields(Fields& f) {
  required_size(f, "num_heads", num_heads, scaling::heads, "Heads, each with a memory of its own.");
  required_size(f, "key_head_dim", key_head_dim, scaling::head_channels, "Channels of a head's queries and keys.");
  size_field(f, "value_head_dim", value_head_dim, scaling::head_channels,
             "Channels of a head's values; key_head_dim by default.");
  conv_width_field(f, "conv_size", conv_size, "Width of the causal convolutions on q and k; 0 = none.");
  f.field("conv_bias", conv_bias).help("Biases of the convolutions.");
  f.require(!conv_bias || conv_size > 0, "conv_bias", "false where conv_size is 0");
  f.field("activation", activation).one_of({"silu", "none"}).help("On q and k, after the convolution.");
  f.field("qk_norm", qk_norm).one_of({"l2", "none"}).help("Norm of q and k per head, after the activation.");
  f.field("lambda_min", lambda_min).above(0).help("Lower bound of the ridge.");
  f.field("lambda_init", lambda_init).help("Initial value of the ridge.");
  f.require(lambda_init > lambda_min, "lambda_init", "a number > lambda_min (" + Json(lambda_min).dump() + ")");
  f.field("decay_bias_init", decay_bias_init).help("Initial value of a_proj.bias; 0 = a forget gate of 0.5.");
  f.field("cg_steps", cg_steps).min(1).help("Steps of conjugate gradients, forward and backward.");
  f.field("cg_steps_decode", cg_steps_decode).min(1).help("The same for one-token decoding; cg_steps by default.");
  f.field("cg_epsilon", cg_epsilon).min(0).help("Damping of the steps' denominators, relative to |q|^2.");
  f.field("solver", solver)
      .one_of({"cg", "exact"})
      .help("Conjugate gradients, or Cholesky (slow; for tests), which takes no notice of the cg_ keys.");
  f.field("output_norm", output_norm).one_of({"rms", "none"}).help("Norm of the output per head.");
  gate_field(f, "output_gate", output_gate).help("Gate on the normed output.");
  f.field("chunk_size", chunk_size).help("Tokens of a chunk: 16, 32 or 64; speed only.");
  f.require(chunk_size == 16 || chunk_size == 32 || chunk_size == 64, "chunk_size", "16, 32 or 64");
}

MesanetOptions MesanetConfig::mesa() const {
  MesanetOptions m;
  m.heads = num_heads;
  m.key_dim = key_head_dim;
  m.value_dim = value_head_dim.value_or(key_head_dim);
  m.conv_size = conv_size;
  m.silu = activation == "silu";
  m.l2_norm = qk_norm == "l2";
  m.rule = {solver == "exact", cg_steps, cg_epsilon, lambda_min};
  m.decode_steps = cg_steps_decode.value_or(cg_steps);
  m.chunk = chunk_size;
  return m;
}

/// y = Wo (rms(o) * gate(Wg x)), o the answers of the mesa recurrence. Parameters: docs/layers/mesanet.md.
class Mesanet final : public Layer {
 public:
  Mesanet(const BuildContext& c, const MesanetConfig& config);

  Var forward(Pass& pass, Var x, LayerState* state) override;
  std::unique_ptr<LayerState> make_state(Arena& arena, int64_t rows, DType dtype) const override {
    return std::make_unique<MesanetState>(arena, rows, mesa_, sum_dtype(dtype));
  }
  double flops_per_token(int64_t length) const override;
  int64_t state_bytes(int64_t tokens) const override;

 private:
  struct Gate {
    Param *weight, *bias;
  };
  int64_t d_;
  double eps_;
  std::string name_;
  MesanetOptions mesa_;
  HeadGate gate_;
  ConvolvedProjection q_, k_, v_;
  Gate a_, b_;
  Param *lambda_raw_, *o_proj_;
  Param *g_proj_ = nullptr, *o_norm_ = nullptr;
};

Mesanet::Mesanet(const BuildContext& c, const MesanetConfig& config)
    : d_(c.model.hidden_size),
      eps_(c.model.norm_eps),
      name_(c.name),
      mesa_(config.mesa()),
      gate_(config.output_gate),
      q_(c, "q", mesa_.key_channels()),
      k_(c, "k", mesa_.key_channels()),
      v_(c, "v", mesa_.value_channels()) {
  const Init normal = init::normal(c.model.init_std);
  const int64_t heads = mesa_.heads, values = mesa_.value_channels();
  a_ = {&c.declare("a_proj.weight", {heads, d_}, normal),
        &c.declare("a_proj.bias", {heads}, init::constant(config.decay_bias_init))};
  b_ = {&c.declare("b_proj.weight", {heads, d_}, normal), &c.declare("b_proj.bias", {heads}, init::constant(0))};
  const double raw = inverse_softplus(config.lambda_init - config.lambda_min);
  lambda_raw_ = &c.declare("lambda_raw", {heads, mesa_.key_dim}, init::constant(raw)).read_in_fp32();
  lambda_raw_->spec.decay_exempt = true;
  for (ConvolvedProjection* path : {&q_, &k_}) { path->declare_convolution(c, mesa_.conv_size); }
  for (ConvolvedProjection* path : {&q_, &k_}) {
    if (config.conv_bias) { path->declare_bias(c); }
  }
  if (gate_ != HeadGate::none) { g_proj_ = &c.declare("g_proj.weight", {values, d_}, normal); }
  if (config.output_norm == "rms") { o_norm_ = &c.declare("o_norm.weight", {mesa_.value_dim}, init::constant(1)); }
  o_proj_ = &c.declare("o_proj.weight", {d_, values}, normal);
}

Var Mesanet::forward(Pass& pass, Var x, LayerState* state) {
  Tape& tape = pass.tape;
  // The solve is in fp32 whatever x is: with bf16 operands it is off by 5e-3 (docs/layers/mesanet.md, Precision).
  const DType wide = sum_dtype(tape.dtype(x));
  const auto gate = [&](const Gate& g) { return linear(tape, x, pass.param(*g.weight), pass.param(*g.bias), wide); };
  MesanetInputs in;
  in.q = q_.project(pass, x, wide);    // [N, H dk]
  in.k = k_.project(pass, x, wide);    // [N, H dk]
  in.v = v_.project(pass, x, wide).x;  // [N, H dv]
  in.a = gate(a_);                     // [N, H]
  in.b = gate(b_);                     // [N, H]
  in.lambda_raw = pass.param(lambda_raw_);
  const Var o = mesa(pass, in, mesa_, static_cast<MesanetState*>(state), name_);
  const Var z = g_proj_ != nullptr ? linear(tape, x, pass.param(g_proj_)) : Var{};
  const Var y = gated_norm(tape, o,
                           {.z = z,
                            .weight = pass.param(o_norm_),
                            .head_dim = mesa_.value_dim,
                            .eps = eps_,
                            .gate = gate_,
                            .dtype = tape.dtype(x)});
  return linear(tape, y, pass.param(o_proj_));
}

double Mesanet::flops_per_token(int64_t) const {
  const double d = static_cast<double>(d_), heads = static_cast<double>(mesa_.heads);
  const double dk = static_cast<double>(mesa_.key_dim), dv = static_cast<double>(mesa_.value_dim);
  const double c = static_cast<double>(mesa_.chunk), taps = static_cast<double>(mesa_.conv_size);
  const double projections = 2 * d * heads * (2 * dk + (g_proj_ != nullptr ? 3 : 2) * dv + 2);
  const double convolutions = taps > 0 ? (2 * taps + 3) * 2 * heads * dk : 0;
  const double states = heads * (2 * dk * (dk + dv) + 2 * dk * dv + 2 * c * (dk + dv));
  const double solve = static_cast<double>(mesa_.rule.steps) * heads * (2 * dk * dk + 4 * c * dk + 12 * dk);
  return projections + convolutions + states + solve;
}

int64_t Mesanet::state_bytes(int64_t) const {
  const int64_t inputs = std::max<int64_t>(0, mesa_.conv_size - 1) * 2 * mesa_.key_channels();
  return 4 * mesa_.key_channels() * (mesa_.key_dim + mesa_.value_dim) + 2 * inputs;  // fp32 and bf16
}

std::unique_ptr<Layer> MesanetConfig::make(const BuildContext& c) const { return std::make_unique<Mesanet>(c, *this); }

}  // namespace

std::unique_ptr<LayerConfig> make_mesanet_config() { return std::make_unique<MesanetConfig>(); }

}  // namespace hebb
