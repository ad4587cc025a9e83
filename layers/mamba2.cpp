// mamba2: gated linear attention whose step size sets both decay and write strength.
#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>

#include "layers/collectors.h"
#include "layers/decay_init.h"
#include "layers/delta_mixer.h"
#include "layers/model_config.h"
#include "layers/ops/head_norm.h"
#include "layers/ops/linear.h"
#include "layers/size_field.h"

namespace hebb {
namespace {

struct Mamba2Config final : LayerConfig {
  int64_t num_heads = 0, head_dim = 0, state_dim = 0, num_groups = 0, conv_size = 4, chunk_size = 64;
  std::optional<int64_t> norm_groups;
  std::optional<bool> conv_bias;
  bool norm_before_gate = false;
  std::string activation = "silu", dt_bias_init = "log_uniform", skip = "head", output_gate = "silu";
  std::string output_norm = "rms", initial_state = "zero";
  Json dt_limit = Json::array({Json(0.0), Json()});
  std::vector<double> dt_init{0.001, 0.1}, A_init{1.0, 16.0};

  int64_t channels() const { return num_heads * head_dim; }
  double dt_low() const { return dt_limit.items()[0].as_double(); }
  double dt_high() const {
    const Json& high = dt_limit.items()[1];
    return high.is_null() ? std::numeric_limits<double>::infinity() : high.as_double();
  }
  void fields(Fields& f) override;
  std::unique_ptr<Layer> make(const BuildContext& c) const override;
  StatisticsCollectors statistics(const StatisticsOptions&) const override { return collector_list(state_norms()); }

 private:
  bool has_valid_limits() const;
};

bool Mamba2Config::has_valid_limits() const {
  if (!dt_limit.is_array() || dt_limit.items().size() != 2) { return false; }
  const Json &low = dt_limit.items()[0], &high = dt_limit.items()[1];
  return low.is_number() && low.as_double() >= 0 &&
         (high.is_null() || (high.is_number() && high.as_double() > low.as_double()));
}

void Mamba2Config::fields(Fields& f) {
  required_size(f, "num_heads", num_heads, scaling::heads, "Heads, each with a state.");
  required_size(f, "head_dim", head_dim, scaling::head_channels, "Channels of a head's input x and output.");
  required_size(f, "state_dim", state_dim, scaling::head_channels, "Channels of B and C: rows of a head's state.");
  required_size(f, "num_groups", num_groups, scaling::heads, "Pairs of B and C, each shared by consecutive heads.");
  f.require(num_groups < 1 || num_heads % num_groups == 0, "num_groups",
            fmt::format("a divisor of num_heads ({:d})", num_heads));
  conv_width_field(f, "conv_size", conv_size, "Width of the causal convolutions on x, B and C; 0 = none.");
  f.field("conv_bias", conv_bias).help("Biases of the convolutions; true by default where there are any.");
  f.require(conv_size > 0 || !conv_bias.value_or(false), "conv_bias", "false where conv_size is 0");
  f.field("activation", activation).one_of({"silu", "none"}).help("On x, B and C, after the convolution.");
  f.field("dt_limit", dt_limit).help("[low, high]: the step size is clamped to it; high null = no upper limit.");
  f.require(has_valid_limits(), "dt_limit", "[low, high] with numbers 0 <= low < high, or null for high");
  f.field("dt_init", dt_init).size(2).min(0).help("Range of the initial step size softplus(dt_bias).");
  f.field("dt_bias_init", dt_bias_init).one_of({"log_uniform", "uniform"}).help("How it is drawn from that range.");
  f.require(dt_init.size() != 2 || dt_init[0] <= dt_init[1], "dt_init", "[low, high] with low <= high");
  f.require(dt_init.size() != 2 || dt_init[0] > 0 || dt_bias_init != "log_uniform", "dt_init",
            "[low, high] with low > 0 for \"log_uniform\"");
  f.field("A_init", A_init).size(2).above(0).help("Initial range of exp(A_log), uniform.");
  f.require(A_init.size() != 2 || A_init[0] <= A_init[1], "A_init", "[low, high] with low <= high");
  f.field("skip", skip)
      .one_of({"head", "channel", "none"})
      .help("Share of x in the output: a factor D per head or channel.");
  f.field("output_gate", output_gate).one_of({"silu", "none"}).help("Gate on the output.");
  f.field("output_norm", output_norm).one_of({"rms", "none"}).help("Norm of the output, with a weight per channel.");
  f.field("norm_groups", norm_groups)
      .min(1)
      .help("Blocks of channels with a root mean square of their own; num_groups by default.")
      .only_with(output_norm == "rms", "an output_norm")
      .scales(scaling::heads);
  f.require(!norm_groups || (num_heads >= 1 && head_dim >= 1 && channels() % *norm_groups == 0), "norm_groups",
            fmt::format("a divisor of num_heads * head_dim ({:d})", channels()));
  f.field("norm_before_gate", norm_before_gate)
      .help("norm(y) * gate in place of norm(y * gate), where there are both.");
  f.field("initial_state", initial_state).one_of({"zero", "learned"}).help("State before a document's first token.");
  f.field("chunk_size", chunk_size).help("Tokens of a chunk: a power of two from 16 to 256; speed only.");
  f.require(chunk_size >= 16 && chunk_size <= 256 && std::has_single_bit(static_cast<uint64_t>(chunk_size)),
            "chunk_size", "a power of two from 16 to 256");
}

/// Logarithms of uniform draws.
Init log_of_uniform(double low, double high) {
  return [low, high](Rng& rng, float* values, int64_t count) {
    std::generate_n(values, count, [&] { return static_cast<float>(std::log(low + (high - low) * rng.uniform())); });
  };
}

/// A projection with its convolution.
ConvolvedProjection declare_path(const BuildContext& c, const Mamba2Config& config, const std::string& name,
                                 int64_t channels) {
  ConvolvedProjection path(c, name, channels);
  path.declare_convolution(c, config.conv_size);
  if (config.conv_bias.value_or(config.conv_size > 0)) { path.declare_bias(c); }
  return path;
}

/// out = Wo norm(y * silu(Wz x)), y the readings of the recurrence. Parameters: docs/layers/mamba2.md.
class Mamba2 final : public DeltaMixer {
 public:
  Mamba2(const BuildContext& c, const Mamba2Config& config);

  Var forward(Pass& pass, Var x, LayerState* state) override;
  double flops_per_token(int64_t length) const override;

 private:
  DeltaInputs inputs(Pass& pass, Var x) const;

  int64_t norm_width_;
  bool norm_before_gate_;
  Param* z_proj_;
  ConvolvedProjection x_, b_, c_;
  Param *dt_proj_, *o_proj_;
  Param *skip_ = nullptr, *o_norm_ = nullptr;
};

DeltaConfig delta_config(const Mamba2Config& config) {
  DeltaConfig d;
  d.key_heads = config.num_groups;
  d.value_heads = config.num_heads;
  d.key_dim = config.state_dim;
  d.value_dim = config.head_dim;
  d.conv_size = config.conv_size;
  d.silu = config.activation == "silu";
  d.l2_norm = false;
  d.chunk = config.chunk_size;
  d.additive = true;
  d.dt_low = config.dt_low();
  d.dt_high = config.dt_high();
  return d;
}

Mamba2::Mamba2(const BuildContext& c, const Mamba2Config& config)
    : DeltaMixer(c, delta_config(config)),
      norm_width_(config.channels() / config.norm_groups.value_or(config.num_groups)),
      norm_before_gate_(config.norm_before_gate),
      z_proj_(config.output_gate == "none"
                  ? nullptr
                  : &c.declare("z_proj.weight", {config.channels(), d_}, init::normal(c.model.init_std))),
      x_(declare_path(c, config, "x", delta_.value_channels())),
      b_(declare_path(c, config, "B", delta_.key_channels())),
      c_(declare_path(c, config, "C", delta_.key_channels())) {
  const Init normal = init::normal(c.model.init_std);
  const int64_t heads = config.num_heads, channels = config.channels();
  dt_proj_ = &c.declare("dt_proj.weight", {heads, d_}, normal);
  a_log_ = &c.declare("A_log", {heads}, log_of_uniform(config.A_init[0], config.A_init[1]));
  const auto bias_init = config.dt_bias_init == "log_uniform" ? dt_bias_init : uniform_dt_bias_init;
  dt_bias_ = &c.declare("dt_bias", {heads}, bias_init(config.dt_init[0], config.dt_init[1]));
  if (config.skip != "none") {
    skip_ = &c.declare("D", {config.skip == "head" ? heads : channels}, init::constant(1.0));
  }
  if (config.output_norm == "rms") { o_norm_ = &c.declare("o_norm.weight", {channels}, init::constant(1.0)); }
  if (config.initial_state == "learned") { declare_initial_state(c); }
  o_proj_ = &c.declare("o_proj.weight", {d_, channels}, normal);
}

/// B and C play key and query, x the value, dt the write strength.
DeltaInputs Mamba2::inputs(Pass& pass, Var x) const {
  DeltaInputs in = project(pass, x, c_, b_, x_);
  in.a = linear(pass.tape, x, pass.param(*dt_proj_), {}, sum_dtype(pass.tape.dtype(x)));  // [N, H]
  in.skip = pass.param(skip_);
  return in;
}

Var Mamba2::forward(Pass& pass, Var x, LayerState* state) {
  const Var o = read(pass, inputs(pass, x), state);  // [N, H P]
  const Var z = z_proj_ != nullptr ? linear(pass.tape, x, pass.param(*z_proj_)) : Var{};
  const Var weight = pass.param(o_norm_);
  const Var y = gated_norm(pass.tape, o,
                           {.z = z,
                            .weight = weight,
                            .head_dim = norm_width_,
                            .eps = eps_,
                            .gate = z ? HeadGate::silu : HeadGate::none,
                            .gate_first = !norm_before_gate_,
                            .dtype = pass.tape.dtype(x)});
  return linear(pass.tape, y, pass.param(*o_proj_));
}

double Mamba2::flops_per_token(int64_t) const {
  const double d = static_cast<double>(d_), heads = static_cast<double>(delta_.value_heads);
  const double n = static_cast<double>(delta_.key_dim), keys = static_cast<double>(delta_.key_channels());
  const double values = static_cast<double>(delta_.value_channels()), c = static_cast<double>(delta_.chunk);
  const double projections = 2 * d * ((z_proj_ != nullptr ? 3 : 2) * values + 2 * keys + heads);
  return projections + convolution_flops() + 2 * c * (keys + values) + 4 * n * values;
}

std::unique_ptr<Layer> Mamba2Config::make(const BuildContext& c) const { return std::make_unique<Mamba2>(c, *this); }

}  // namespace

std::unique_ptr<LayerConfig> make_mamba2_config() { return std::make_unique<Mamba2Config>(); }

}  // namespace hebb
