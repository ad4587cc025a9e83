// sdm: sparse delta memory, a gated delta rule on a large table of slots per head.
#include <fmt/core.h>

#include <cmath>

#include "core/choice.h"
#include "kernels/sparse_delta/sparse_delta.h"
#include "layers/collectors.h"
#include "layers/convolved_projection.h"
#include "layers/decay_init.h"
#include "layers/model_config.h"
#include "layers/ops/head_norm.h"
#include "layers/ops/host_values.h"
#include "layers/ops/linear.h"
#include "layers/ops/norm.h"
#include "layers/sdm/op.h"
#include "layers/sdm/statistics.h"
#include "layers/size_field.h"

namespace hebb {
namespace {

constexpr int64_t kMaxSubkeys = 46340;  // slot numbers are 32-bit

struct SdmConfig final : LayerConfig {
  int64_t num_heads = 1, slots_per_head = 0, num_writes = 0, num_reads = 0;
  std::optional<int64_t> value_head_dim;
  bool learned_init = true, key_weighted_decay = false, bias = false;
  SlotActivation write_activation = SlotActivation::softmax, read_activation = SlotActivation::softmax;
  std::string out_norm = "rms", state_dtype = "fp32";
  HeadGate out_gate = HeadGate::sigmoid;
  double write_scale = 1.0, read_scale = 1.0, out_norm_eps = 1e-6;
  std::vector<double> A_init_range{0.0, 16.0}, dt_init_range{0.001, 0.1};
  std::optional<double> memory_init_std;

  int64_t subkeys() const { return std::llround(std::sqrt(static_cast<double>(slots_per_head))); }
  void fields(Fields& f) override;
  void check(const Fields& f, const std::string& key, const ModelConfig& model) const override {
    if (!value_head_dim && model.hidden_size % num_heads != 0) {
      f.fail(key + ".num_heads", std::to_string(num_heads),
             fmt::format("a divisor of hidden_size ({:d}) where value_head_dim is not set", model.hidden_size));
    }
    const int64_t width = value_head_dim.value_or(model.hidden_size / num_heads);
    if (out_norm == "layer" && width == 1) {
      f.fail(key + ".out_norm", "\"layer\" and slots of 1 channel",
             "\"rms\", \"none\" or more channels: a layer norm of 1 channel is its bias, whatever the memory holds");
    }
    if (state_dtype == "bf16" && width % kSparseDeltaPack != 0) {
      f.fail(key + ".state_dtype", fmt::format("\"bf16\" and slots of {:d} channels", width),
             fmt::format("\"fp32\", or a value_head_dim that is a multiple of {:d}", kSparseDeltaPack));
    }
  }
  std::unique_ptr<Layer> make(const BuildContext& c) const override;
  StatisticsCollectors statistics(const StatisticsOptions&) const override {
    return collector_list(slot_use(), state_norms());
  }
};

void SdmConfig::fields(Fields& f) {
  const std::vector<std::pair<const char*, SlotActivation>> activations{
      {"softmax", SlotActivation::softmax}, {"l2", SlotActivation::l2}, {"none", SlotActivation::none}};
  size_field(f, "num_heads", num_heads, value_head_dim ? Scaling{} : scaling::heads_of_width(2),
             "Heads, each with a table of its own.");
  f.field("slots_per_head", slots_per_head)
      .required()
      .min(1)
      .max(static_cast<double>(kMaxSubkeys * kMaxSubkeys))
      .help("Slots N = n^2 of a head's table, n sub-keys per half.")
      .scales(scaling::squared_subkeys);
  f.require(subkeys() * subkeys() == slots_per_head, "slots_per_head", "a perfect square");
  required_size(f, "num_writes", num_writes, scaling::slots_per_token, "Slots that a head writes per token.");
  required_size(f, "num_reads", num_reads, scaling::slots_per_token, "Slots that a head reads per token.");
  f.require(num_writes <= slots_per_head, "num_writes", fmt::format("at most slots_per_head ({:d})", slots_per_head));
  f.require(num_reads <= slots_per_head, "num_reads", fmt::format("at most slots_per_head ({:d})", slots_per_head));
  size_field(f, "value_head_dim", value_head_dim, scaling::channels(),
             "Width of a slot; without it hidden_size / num_heads.");
  f.field("learned_init", learned_init).help("The table begins as a trained parameter; otherwise as zeros.");
  choice(f, "write_activation", write_activation, activations)
      .help("Turns the scores of the written slots into weights.");
  choice(f, "read_activation", read_activation, activations).help("The same for the read slots.");
  f.field("write_scale", write_scale)
      .above(0)
      .help("Multiplies the scores inside \"softmax\"; ignored otherwise, as the page has it.");
  f.field("read_scale", read_scale).above(0).help("The same for the read slots.");
  f.field("key_weighted_decay", key_weighted_decay)
      .help("A written slot decays by exp(g k), k its weight, in place of exp(g).");
  f.field("out_norm", out_norm)
      .one_of({"rms", "layer", "none"})
      .help("Norm of the reading per head, one weight for all heads.");
  f.field("out_norm_eps", out_norm_eps)
      .above(0)
      .help("Epsilon of out_norm; readings are about 3e-3 at first.")
      .only_with(out_norm != "none", "an out_norm");
  gate_field(f, "out_gate", out_gate).help("Gate on the normed reading.");
  f.field("bias", bias).help("Biases on every projection.");
  f.field("A_init_range", A_init_range).size(2).min(0).help("Initial range of exp(A_log), uniform.");
  f.require(A_init_range.size() != 2 || A_init_range[0] <= A_init_range[1], "A_init_range",
            "[low, high] with low <= high");
  f.field("dt_init_range", dt_init_range).size(2).above(0).help("Initial range of softplus(dt_bias), log-uniform.");
  f.require(dt_init_range.size() != 2 || dt_init_range[0] <= dt_init_range[1], "dt_init_range",
            "[low, high] with low <= high");
  f.field("memory_init_std", memory_init_std)
      .min(0)
      .help("Standard deviation of the initial table; null: hidden_size^(-1/2).")
      .only_with(learned_init, "learned_init");
  f.field("state_dtype", state_dtype)
      .one_of({"fp32", "bf16"})
      .help(
          "Slots of the table while a bf16 run trains or validates: bf16 moves half of the bytes, gradients of decays "
          "become less exact.");
}

/// y = Wo (norm(o) * gate(Wg x)), o the readings of sparse_delta. Parameters: docs/layers/sdm.md.
class Sdm final : public Layer {
 public:
  Sdm(const BuildContext& c, const SdmConfig& config);

  Var forward(Pass& pass, Var x, LayerState* state) override;
  std::unique_ptr<LayerState> make_state(Arena& arena, int64_t rows, DType dtype) const override {
    return std::make_unique<SparseDeltaState>(arena, rows, delta_, sum_dtype(dtype));
  }
  void inspect_state(Stream& stream, const LayerState& state, int64_t, Inspector& to) const override {
    to.records[name_ + ".state"] = record_of(stream, static_cast<const SparseDeltaState&>(state).memory);
  }
  double flops_per_token(int64_t length) const override;
  int64_t state_bytes(int64_t) const override { return 4 * delta_.heads * delta_.slots() * delta_.value_dim; }

 private:
  struct Projection {
    Param *weight = nullptr, *bias = nullptr;
  };
  Projection declare_projection(const BuildContext& c, const std::string& name, int64_t out, int64_t in,
                                bool bias) const;
  static Var project(Pass& pass, Var x, const Projection& p, std::optional<DType> dtype = {}) {
    return linear(pass.tape, x, pass.param(*p.weight), pass.param(p.bias), dtype);
  }

  int64_t d_;
  double eps_;
  std::string name_;
  SparseDeltaConfig delta_;
  HeadGate gate_;
  bool has_narrow_slots_;  // in bf16 runs
  Projection q_, k_, v_, a_, b_, g_, o_;
  Param *a_log_, *dt_bias_, *norm_weight_ = nullptr, *norm_bias_ = nullptr, *memory_ = nullptr;
};

SparseDeltaConfig delta_config(const SdmConfig& config, int64_t hidden_size) {
  SparseDeltaConfig d;
  d.heads = config.num_heads;
  d.subkeys = config.subkeys();
  d.value_dim = config.value_head_dim.value_or(hidden_size / config.num_heads);
  d.write = {config.num_writes, config.write_activation, config.write_scale};
  d.read = {config.num_reads, config.read_activation, config.read_scale};
  d.key_weighted_decay = config.key_weighted_decay;
  return d;
}

Sdm::Sdm(const BuildContext& c, const SdmConfig& config)
    : d_(c.model.hidden_size),
      eps_(config.out_norm_eps),
      name_(c.name),
      delta_(delta_config(config, d_)),
      gate_(config.out_gate),
      has_narrow_slots_(config.state_dtype == "bf16") {
  const int64_t heads = delta_.heads, values = heads * delta_.value_dim, scores = heads * 2 * delta_.subkeys;
  q_ = declare_projection(c, "q_proj", scores, d_, config.bias);
  k_ = declare_projection(c, "k_proj", scores, d_, config.bias);
  v_ = declare_projection(c, "v_proj", values, d_, config.bias);
  a_ = declare_projection(c, "a_proj", heads, d_, config.bias);
  b_ = declare_projection(c, "b_proj", heads, d_, config.bias);
  if (gate_ != HeadGate::none) { g_ = declare_projection(c, "g_proj", values, d_, config.bias); }
  o_ = declare_projection(c, "o_proj", d_, values, config.bias);
  a_log_ = &c.declare("A_log", {heads}, a_log_init(config.A_init_range[0], config.A_init_range[1]));
  dt_bias_ = &c.declare("dt_bias", {heads}, dt_bias_init(config.dt_init_range[0], config.dt_init_range[1]));
  if (config.out_norm != "none") {
    norm_weight_ = &c.declare("o_norm.weight", {delta_.value_dim}, init::constant(1.0));
  }
  if (config.out_norm == "layer") { norm_bias_ = &c.declare("o_norm.bias", {delta_.value_dim}, init::constant(0.0)); }
  if (config.learned_init) {
    const double std = config.memory_init_std.value_or(std::pow(static_cast<double>(d_), -0.5));
    ParamSpec spec{c.name + ".memory", {heads, delta_.slots(), delta_.value_dim}, init::truncated_normal(std)};
    spec.initial_state = true;
    spec.memory_table = has_narrow_slots_;  // slots begin as its rounded copy
    memory_ = &c.params.declare(std::move(spec));
  }
}

Sdm::Projection Sdm::declare_projection(const BuildContext& c, const std::string& name, int64_t out, int64_t in,
                                        bool bias) const {
  Projection p;
  p.weight = &c.declare(name + ".weight", {out, in}, init::truncated_normal(std::pow(static_cast<double>(d_), -0.5)));
  if (bias) { p.bias = &c.declare(name + ".bias", {out}, init::constant(0.0)); }
  return p;
}

Var Sdm::forward(Pass& pass, Var x, LayerState* state) {
  Tape& tape = pass.tape;
  SparseDeltaVars in;
  const DType dtype = sum_dtype(tape.dtype(x));  // scores, gates and the memory are in fp32 whatever x is
  in.q = project(pass, x, q_, dtype);            // [N, H 2n]
  in.k = project(pass, x, k_, dtype);            // [N, H 2n]
  in.v = project(pass, x, v_, dtype);            // [N, H D]
  in.a = project(pass, x, a_, dtype);            // [N, H]
  in.b = project(pass, x, b_, dtype);            // [N, H]
  in.a_log = pass.param(*a_log_);
  in.dt_bias = pass.param(*dt_bias_);
  in.memory = pass.param(memory_);
  auto* const carried = static_cast<SparseDeltaState*>(state);
  const DType slots = carried == nullptr && has_narrow_slots_ ? tape.dtype(x) : dtype;
  Var y = sparse_delta(pass, in, delta_, carried, name_, slots);  // [N, H D]
  Var weight = pass.param(norm_weight_);
  if (norm_bias_ != nullptr) {
    const Shape flat = tape.shape(y), by_head{flat[0] * delta_.heads, delta_.value_dim};
    y = tape.view(norm(tape, tape.view(y, by_head), weight, pass.param(*norm_bias_), eps_, NormKind::layer), flat);
    weight = {};
  }
  const Var z = gate_ != HeadGate::none ? project(pass, x, g_) : Var{};
  const Var gated = gated_norm(
      tape, y,
      {.z = z, .weight = weight, .head_dim = delta_.value_dim, .eps = eps_, .gate = gate_, .dtype = tape.dtype(x)});
  return project(pass, gated, o_);
}

double Sdm::flops_per_token(int64_t) const {
  const double d = static_cast<double>(d_), heads = static_cast<double>(delta_.heads),
               n = static_cast<double>(delta_.subkeys);
  const double values = heads * static_cast<double>(delta_.value_dim);
  const double accesses = 4 * static_cast<double>(delta_.write.count) + 2 * static_cast<double>(delta_.read.count);
  return 2 * d * (4 * heads * n + (gate_ != HeadGate::none ? 3 : 2) * values + 2 * heads) + values * accesses;
}

std::unique_ptr<Layer> SdmConfig::make(const BuildContext& c) const { return std::make_unique<Sdm>(c, *this); }

}  // namespace

std::unique_ptr<LayerConfig> make_sdm_config() { return std::make_unique<SdmConfig>(); }

}  // namespace hebb
