// ovq: online vector-quantized attention over a growing dictionary of running means.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>

#include "core/choice.h"
#include "layers/collectors.h"
#include "layers/convolved_projection.h"
#include "layers/model_config.h"
#include "layers/ops/head_norm.h"
#include "layers/ops/linear.h"
#include "layers/ops/scaled_l2_norm.h"
#include "layers/ops/short_conv.h"
#include "layers/ovq/op.h"
#include "layers/ovq/pair_shift.h"
#include "layers/size_field.h"

namespace hebb {
namespace {

struct OvqConfig final : LayerConfig {
  HeadsConfig heads;
  int64_t chunk_size = 128, max_centroids = 0, qk_conv = 0;
  std::optional<int64_t> eval_max_centroids, growth_length;
  OvqGrowth growth = OvqGrowth::plateau;
  std::string select = "spread", normalize_centroids = "none";
  Json centroid_lr = "mean";
  bool v_shift = false;

  void fields(Fields& f) override;
  std::unique_ptr<Layer> make(const BuildContext& c) const override;
  StatisticsCollectors statistics(const StatisticsOptions&) const override {
    return collector_list(slot_tokens("assign", "centroid_tokens"));
  }
};

void OvqConfig::fields(Fields& f) {
  heads.fields(f);
  size_field(f, "chunk_size", chunk_size, scaling::window,
             "Tokens that are attended to one by one before they are folded in; part of the model's meaning.")
      .unit("tokens");
  required_size(f, "max_centroids", max_centroids, scaling::length(), "Centroids of a dictionary in training.");
  size_field(f, "eval_max_centroids", eval_max_centroids, scaling::length(),
             "Centroids whenever the model is not training; max_centroids by default.");
  choice(f, "growth", growth,
         {{"plateau", OvqGrowth::plateau}, {"linear", OvqGrowth::linear}, {"full", OvqGrowth::full}})
      .help("How the dictionary grows with the tokens.");
  size_field(f, "growth_length", growth_length, scaling::length(),
             "With linear growth: the length at which it has the plateau's size.")
      .unit("tokens");
  const bool is_linear = growth == OvqGrowth::linear;
  f.require(is_linear == growth_length.has_value(), "growth_length",
            is_linear ? "an integer >= 1 with growth \"linear\"" : "no value without growth \"linear\"");
  f.field("select", select).one_of({"spread", "random"}).help("Keys that found centroids: the least similar, or any.");
  f.field("centroid_lr", centroid_lr).help("Step of a centroid: \"mean\", or a constant step in (0, 1].");
  f.require(centroid_lr == Json("mean") ||
                (centroid_lr.is_number() && centroid_lr.as_double() > 0 && centroid_lr.as_double() <= 1),
            "centroid_lr", "\"mean\" or a number > 0, <= 1");
  f.field("normalize_centroids", normalize_centroids)
      .one_of({"none", "key", "key_value"})
      .help("Unit norm after each update.");
  conv_width_field(f, "qk_conv", qk_conv, "Width of the causal convolutions on q and k; 0 = none.");
  f.field("v_shift", v_shift).help("Pairs a key with a mix of its own and the next token's value.");
}

OvqRule rule_of(const OvqConfig& config, int64_t layer) {
  OvqRule rule;
  rule.chunk = std::min(config.chunk_size, kLongestDocument + 1);
  rule.max_centroids = config.max_centroids;
  rule.growth = config.growth;
  rule.growth_length = config.growth_length.value_or(0);
  rule.random = config.select == "random";
  rule.rate = config.centroid_lr.is_number() ? config.centroid_lr.as_double() : 0;
  rule.normalize_keys = config.normalize_centroids != "none";
  rule.normalize_values = config.normalize_centroids == "key_value";
  rule.second_founds = config.v_shift;
  rule.layer = layer;
  return rule;
}

/// Convolution weights that pass their input through.
Init identity_taps(int64_t taps) {
  return [taps](Rng&, float* values, int64_t count) {
    for (int64_t i = 0; i < count; ++i) { values[i] = i % taps == taps - 1 ? 1.0f : 0.0f; }
  };
}

struct State final : DeviceState {
  OvqState core;
  std::optional<ShortConvState> q_conv, k_conv;
  std::optional<PairShiftState> shift;
  explicit State(OvqState s) : core(std::move(s)) {}
  std::vector<Tensor> by_row() const override {
    std::vector<Tensor> all = core.by_row();
    if (q_conv) { all.insert(all.end(), {q_conv->previous, k_conv->previous}); }
    if (shift) { all.insert(all.end(), {shift->k, shift->v}); }
    return all;
  }
};

/// y = Wo o, o the softmax reading of centroids and the own chunk. Parameters: docs/layers/ovq.md.
class Ovq final : public Layer {
 public:
  Ovq(const BuildContext& c, const OvqConfig& config);

  Var forward(Pass& pass, Var x, LayerState* state) override;
  std::unique_ptr<LayerState> make_state(Arena& arena, int64_t rows, DType dtype) const override;
  void inspect_state(Stream&, const LayerState&, int64_t tokens, Inspector& to) const override {
    to.records[name_ + ".slots_in_use"] = {{1}, {evaluation_rule().size(tokens / rule_.chunk * rule_.chunk)}, {}};
  }
  double flops_per_token(int64_t length) const override;
  int64_t state_bytes(int64_t tokens) const override;

 private:
  OvqRule evaluation_rule() const {
    OvqRule rule = rule_;
    rule.max_centroids = eval_centroids_;
    return rule;
  }
  int64_t query_channels() const { return shape_.heads * shape_.key_dim; }
  int64_t key_channels() const { return shape_.kv_heads * shape_.key_dim; }
  int64_t value_channels() const { return shape_.kv_heads * shape_.value_dim; }

  int64_t d_, taps_, eval_centroids_;
  HeadSizes shape_;
  OvqRule rule_;
  std::string name_;
  Param *q_proj_, *k_proj_, *v_proj_, *o_proj_, *beta_;
  Param *q_conv_ = nullptr, *k_conv_ = nullptr, *v_shift_ = nullptr;
};

Ovq::Ovq(const BuildContext& c, const OvqConfig& config)
    : d_(c.model.hidden_size),
      taps_(config.qk_conv),
      eval_centroids_(config.eval_max_centroids.value_or(config.max_centroids)),
      shape_(config.heads.sizes()),
      rule_(rule_of(config, c.block)),
      name_(c.name) {
  const Init projection = c.model.projection_init();
  q_proj_ = &c.declare("q_proj.weight", {query_channels(), d_}, projection);
  k_proj_ = &c.declare("k_proj.weight", {key_channels(), d_}, projection);
  v_proj_ = &c.declare("v_proj.weight", {value_channels(), d_}, projection);
  o_proj_ = &c.declare("o_proj.weight", {d_, shape_.heads * shape_.value_dim}, c.model.output_init());
  beta_ = &c.declare("beta", {shape_.heads}, init::constant(std::sqrt(static_cast<double>(shape_.key_dim))));
  if (taps_ > 0) {
    q_conv_ = &c.declare("q_conv.weight", {query_channels(), taps_}, identity_taps(taps_)).read_in_fp32();
    k_conv_ = &c.declare("k_conv.weight", {key_channels(), taps_}, identity_taps(taps_)).read_in_fp32();
  }
  if (config.v_shift) { v_shift_ = &c.declare("v_shift", {1}, init::constant(0)); }
}

Var Ovq::forward(Pass& pass, Var x, LayerState* state) {
  Tape& tape = pass.tape;
  auto* s = static_cast<State*>(state);
  Var q = linear(tape, x, pass.param(*q_proj_));  // [N, H D]
  Var k = linear(tape, x, pass.param(*k_proj_));  // [N, K D]
  Var v = linear(tape, x, pass.param(*v_proj_));  // [N, K Dv]
  if (q_conv_ != nullptr) {
    q = short_conv(pass, q, pass.param(*q_conv_), {}, false, s != nullptr ? &*s->q_conv : nullptr);
    k = short_conv(pass, k, pass.param(*k_conv_), {}, false, s != nullptr ? &*s->k_conv : nullptr);
  }
  q = scaled_l2_norm(tape, q, shape_.key_dim, pass.param(*beta_));
  k = l2_norm(tape, k, shape_.key_dim);
  if (v_shift_ != nullptr) {
    const KeysAndValues pairs = pair_shift(pass, k, v, pass.param(*v_shift_), s != nullptr ? &*s->shift : nullptr);
    k = pairs.k;
    v = pairs.v;
  }
  const OvqRule rule = pass.training ? rule_ : evaluation_rule();
  const Var o = ovq_attention(pass, q, k, v, shape_, rule, s != nullptr ? &s->core : nullptr, name_);
  return linear(tape, o, pass.param(*o_proj_));
}

std::unique_ptr<LayerState> Ovq::make_state(Arena& arena, int64_t rows, DType dtype) const {
  const int64_t room = std::min(std::max(rule_.max_centroids, eval_centroids_), kLongestDocument);
  auto state = std::make_unique<State>(OvqState(arena, rows, shape_, room, rule_.chunk, dtype));
  if (taps_ > 0) {
    state->q_conv.emplace(arena, rows, taps_, query_channels(), dtype);
    state->k_conv.emplace(arena, rows, taps_, key_channels(), dtype);
  }
  if (v_shift_ != nullptr) { state->shift.emplace(arena, rows, key_channels(), value_channels(), dtype); }
  return state;
}

double Ovq::flops_per_token(int64_t length) const {
  double read = 0;
  for (int64_t t = 0; t < length; t += rule_.chunk) {
    read += static_cast<double>(rule_.size(t)) * static_cast<double>(std::min(rule_.chunk, length - t));
  }
  read /= static_cast<double>(length);
  const double d = static_cast<double>(d_), heads = static_cast<double>(shape_.heads);
  const double keys = static_cast<double>(key_channels()), values = static_cast<double>(value_channels());
  const double width = static_cast<double>(shape_.key_dim + shape_.value_dim),
               l = static_cast<double>(std::min(rule_.chunk, length));
  const double queries = static_cast<double>(query_channels()), out = heads * static_cast<double>(shape_.value_dim);
  return 2 * d * (queries + keys + values + out) + 2 * heads * width * (read + (l + 1) / 2) + 2 * keys * read +
         3 * (keys + values) + 2 * static_cast<double>(taps_) * (queries + keys);
}

int64_t Ovq::state_bytes(int64_t tokens) const {
  constexpr int64_t kCacheBytes = 2, kStateBytes = 4, kCountBytes = 4;  // bf16, fp32, int32
  const OvqRule rule = evaluation_rule();
  const int64_t pending = tokens % rule.chunk, centroids = rule.size(tokens - pending);
  const int64_t rows = key_channels() + value_channels();
  const int64_t tails =
      std::max<int64_t>(0, taps_ - 1) * (query_channels() + key_channels()) + (v_shift_ != nullptr ? rows : 0);
  return centroids * (rows * kStateBytes + shape_.kv_heads * kCountBytes) + (pending * rows + tails) * kCacheBytes;
}

std::unique_ptr<Layer> OvqConfig::make(const BuildContext& c) const { return std::make_unique<Ovq>(c, *this); }

}  // namespace

std::unique_ptr<LayerConfig> make_ovq_config() { return std::make_unique<OvqConfig>(); }

}  // namespace hebb
