// ham: a gated delta rule, and attention to the tokens that a router selects.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "kernels/norm/norm.h"
#include "kernels/short_conv/short_conv.h"
#include "layers/collectors.h"
#include "layers/convolved_projection.h"
#include "layers/decay_init.h"
#include "layers/ham/cache.h"
#include "layers/ham/config.h"
#include "layers/ham/router.h"
#include "layers/ham/statistics.h"
#include "layers/ham/thresholds.h"
#include "layers/model_config.h"
#include "layers/ops/convert.h"
#include "layers/ops/grad_target.h"
#include "layers/ops/head_norm.h"
#include "layers/ops/host_values.h"
#include "layers/ops/linear.h"
#include "layers/ops/norm.h"
#include "layers/ops/rope.h"
#include "layers/ops/sigmoid_gate.h"

namespace hebb {
namespace {

/// y = Wo (gate(rms(o of the delta rule)) + gate(rms(o of the attention))). Parameters: docs/layers/ham.md.
class Ham final : public Layer, public Overridable {
 public:
  Ham(const BuildContext& c, const HamConfig& config);

  Var forward(Pass& pass, Var x, LayerState* state) override;
  std::unique_ptr<LayerState> make_state(Arena& arena, int64_t rows, DType dtype) const override;
  void inspect_state(Stream& stream, const LayerState& state, int64_t, Inspector& to) const override {
    to.records[name_ + ".state"] = record_of(stream, static_cast<const HamState&>(state).delta.memory);
  }
  double flops_per_token(int64_t length) const override;
  int64_t state_bytes(int64_t tokens) const override;
  void override_selection(const HamOverride& change) override { override_ = change; }
  void begin_step(Stream& stream, int64_t) override { thresholds_->begin_step(index_, stream); }
  void after_step(Stream& stream, int64_t step, const Tensor& applies) override {
    thresholds_->update(index_, stream, step, applies);
  }

 private:
  using NormPlace = HamConfig::NormPlace;
  struct Lane {  // of q, k or v in one path
    Param *norm = nullptr, *conv = nullptr;
  };
  struct Path {
    Lane q, k, v;
    HamHeads heads;
    Param *o_norm = nullptr, *gate = nullptr;
    bool silu() const { return heads.activation == "silu"; }
  };
  struct Projections {
    Var q, k, v;
  };
  struct Reading {  // of the recurrent path
    Var o, decay, score;
  };

  Path declare_path(const BuildContext& c, const std::string& name, const HamHeads& heads) const;
  void declare_recurrence(const BuildContext& c);
  void declare_router(const BuildContext& c);

  Var project(Pass& pass, Var x, Param* weight) const { return linear(pass.tape, x, pass.param(*weight)); }
  /// Projects in fp32 where x is bf16. The recurrence, its gates and the router take the result.
  Var project_wide(Pass& pass, Var x, Param* weight) const {
    return linear(pass.tape, x, pass.param(*weight), {}, sum_dtype(pass.tape.dtype(x)));
  }
  Var normed(Pass& pass, Var x, const Lane& lane) const;
  std::unique_ptr<ShortConvState> previous(Pass& pass, const Buffer& tail, const Lane& lane) const;
  Var convolved(Pass& pass, Var x, const Lane& lane, bool silu, const Buffer* tail) const;
  Var lane_input(Pass& pass, Var x, const Lane& lane, bool silu, const Buffer* tail) const;
  DeltaInputs delta_inputs(Pass& pass, Var x, const Projections& raw, HamState* s) const;
  Reading recur(Pass& pass, Var x, const Projections& raw, HamState* s);
  Var route(Pass& pass, Var x, const DeltaProbe& probe);
  HamDecision decision() const;
  bool wants_score(const Pass& pass) const;
  bool is_forced(const Pass& pass) const {
    return pass.inspector != nullptr && pass.inspector->force(name_ + ".mask") != nullptr;
  }
  Var attend(Pass& pass, const Projections& raw, DType dtype, Var factor, const HamSelection& selection,
             HamState* s) const;
  Var gated(Pass& pass, Var o, Var z, Var gate, const Path& path, DType dtype) const;
  std::vector<Var> unused(Pass& pass, Var score) const;
  void shift(Pass& pass, const Projections& raw, HamState& s) const;
  void note(Pass& pass, const HamReadings& readings, const HamSelection& selection);
  double selected_tokens(int64_t tokens) const;

  HamConfig config_;
  int64_t d_;
  double eps_;
  std::string name_;
  NormPlace place_;
  DeltaConfig delta_;
  HeadGate gate_;
  std::shared_ptr<HamThresholds> thresholds_;
  size_t index_ = 0;
  HamOverride override_;
  Path rnn_, kv_;
  Param *q_proj_, *k_proj_, *v_proj_, *o_proj_;
  Param *a_proj_, *b_proj_, *a_log_, *dt_bias_, *g_proj_ = nullptr;
  std::vector<Param*> router_;
  Param *eda_logit_ = nullptr, *threshold_ = nullptr;
};

DeltaConfig delta_config(const HamConfig& config) {
  const bool inside =
      config.qkv_norm != HamConfig::NormPlace::post_conv;  // convolutions and activation are part of the node
  DeltaConfig d;
  d.key_heads = d.value_heads = config.rnn.num_heads;
  d.key_dim = config.rnn.key_head_dim;
  d.value_dim = config.rnn.value_head_dim;
  d.conv_size = inside ? config.conv_size : 0;
  d.silu = inside && config.rnn.activation == "silu";
  d.beta_scale = config.rnn.allow_neg_eigval ? 2.0 : 1.0;
  d.chunk = config.chunk_size;
  return d;
}

Ham::Ham(const BuildContext& c, const HamConfig& config)
    : config_(config),
      d_(c.model.hidden_size),
      eps_(c.model.norm_eps),
      name_(c.name),
      place_(config.qkv_norm),
      delta_(delta_config(config)),
      gate_(config.rnn.output_gate),
      thresholds_(HamThresholds::of(c)) {
  const Init normal = init::normal(c.model.init_std);
  const int64_t keys = config_.rnn.key_channels(), values = config_.rnn.value_channels();
  q_proj_ = &c.declare("q_proj.weight", {keys, d_}, normal);
  k_proj_ = &c.declare("k_proj.weight", {keys, d_}, normal);
  v_proj_ = &c.declare("v_proj.weight", {values, d_}, normal);
  rnn_ = declare_path(c, "rnn", config_.rnn);
  declare_recurrence(c);
  kv_ = declare_path(c, "kv", config_.kv);
  o_proj_ = &c.declare("o_proj.weight", {d_, values}, normal);
  declare_router(c);
  const HamThresholdConfig& t = config_.threshold;
  if (t.present()) {
    threshold_ = &c.declare("threshold", {1}, init::constant(std::log(t.tau / (config_.router.range() - t.tau))),
                            ParamKind::state);
  }
  index_ = thresholds_->add(t, t.mode == "learned" ? threshold_ : nullptr);
}

Ham::Path Ham::declare_path(const BuildContext& c, const std::string& name, const HamHeads& heads) const {
  Path path;
  path.heads = heads;
  const auto ones = [&](const std::string& weight, int64_t channels) {
    return &c.declare(name + weight, {channels}, init::constant(1.0));
  };
  const auto matrix = [&](const std::string& weight, int64_t rows, int64_t columns) {
    return &c.declare(name + weight, {rows, columns}, init::normal(c.model.init_std));
  };
  const auto declare_lane = [&](Lane& lane, const std::string& letter, int64_t channels) {
    if (place_ != NormPlace::none) { lane.norm = ones("." + letter + "_norm.weight", channels); }
    if (config_.conv_size > 0) {
      lane.conv = &matrix("." + letter + "_conv.weight", channels, config_.conv_size)->read_in_fp32();
    }
  };
  declare_lane(path.q, "q", heads.key_channels());
  declare_lane(path.k, "k", heads.key_channels());
  declare_lane(path.v, "v", heads.value_channels());
  path.o_norm = ones(".o_norm.weight", heads.value_head_dim);
  if (config_.gates != "none") {
    path.gate = matrix(".gate_proj.weight", config_.gates == "head" ? heads.num_heads : 1, d_);
  }
  return path;
}

void Ham::declare_recurrence(const BuildContext& c) {
  const Init normal = init::normal(c.model.init_std);
  const int64_t heads = delta_.value_heads;
  a_proj_ = &c.declare("rnn.a_proj.weight", {heads, d_}, normal);
  b_proj_ = &c.declare("rnn.b_proj.weight", {heads, d_}, normal);
  a_log_ = &c.declare("rnn.A_log", {heads}, a_log_init(0.0, 16.0));
  dt_bias_ = &c.declare("rnn.dt_bias", {heads},
                        config_.rnn.dt_bias_init == "ones" ? init::constant(1.0) : dt_bias_init(0.001, 0.1));
  if (gate_ != HeadGate::none) { g_proj_ = &c.declare("rnn.g_proj.weight", {delta_.value_channels(), d_}, normal); }
}

void Ham::declare_router(const BuildContext& c) {
  const HamRouterConfig& r = config_.router;
  if (!r.learned()) { return; }
  int64_t in = r.type == "vector" ? 2 * delta_.value_dim + d_ : d_;
  for (int64_t j = 0; j < r.depth; ++j) {
    const int64_t out = j + 1 < r.depth ? r.hidden : r.heads;
    router_.push_back(&c.declare(fmt::format("router.layers.{:d}.weight", j), {out, in}, init::normal(c.model.init_std))
                           .read_in_fp32());
    in = out;
  }
  if (r.eda) { eda_logit_ = &c.declare("router.eda_logit", {1}, init::constant(0.0)); }
}

Var Ham::normed(Pass& pass, Var x, const Lane& lane) const {
  return lane.norm != nullptr ? norm(pass.tape, x, pass.param(*lane.norm), {}, eps_, NormKind::rms) : x;
}

/// What a lane's convolution saw before the pass: the raw projections, normed where norms come first.
std::unique_ptr<ShortConvState> Ham::previous(Pass& pass, const Buffer& tail, const Lane& lane) const {
  const Tensor raw = tail.tensor();
  auto state =
      std::make_unique<ShortConvState>(pass.tape.arena(), raw.size(0), raw.size(1) + 1, raw.size(2), raw.dtype);
  if (place_ != NormPlace::pre_conv) {
    copy(pass.stream(), state->previous, raw);
    return state;
  }
  const Shape rows{raw.size(0) * raw.size(1), raw.size(2)};
  const Buffer rstd = pass.tape.scratch({rows[0]}, raw.dtype, "norm statistics");
  NormForward args{};
  args.y = state->previous.tensor().view(rows);
  args.rstd = rstd;
  args.h = raw.view(rows);
  args.weight = lane.norm->value;
  args.rho = 1.0;
  args.eps = eps_;
  args.kind = NormKind::rms;
  run(pass.stream(), args);
  return state;
}

Var Ham::convolved(Pass& pass, Var x, const Lane& lane, bool silu, const Buffer* tail) const {
  if (lane.conv == nullptr) { return silu ? short_conv(pass, x, {}, {}, true, nullptr) : x; }
  const auto before = tail != nullptr ? previous(pass, *tail, lane) : nullptr;
  return short_conv(pass, x, pass.param(*lane.conv), {}, silu, before.get());
}

/// Makes q, k or v of a path from a raw projection. `tail` holds the inputs that were carried.
Var Ham::lane_input(Pass& pass, Var x, const Lane& lane, bool silu, const Buffer* tail) const {
  return place_ == NormPlace::post_conv ? normed(pass, convolved(pass, x, lane, silu, tail), lane)
                                        : convolved(pass, normed(pass, x, lane), lane, silu, tail);
}

DeltaInputs Ham::delta_inputs(Pass& pass, Var x, const Projections& raw, HamState* s) const {
  DeltaInputs in;
  const bool inside = place_ != NormPlace::post_conv;
  const auto enter = [&](Var v, const Lane& lane, Buffer* tail,
                         std::unique_ptr<ShortConvState>* conv) -> ConvolvedVars {
    if (!inside) { return {lane_input(pass, v, lane, rnn_.silu(), tail), {}, {}}; }
    if (lane.conv != nullptr && tail != nullptr) { *conv = previous(pass, *tail, lane); }
    return {normed(pass, v, lane), pass.param(lane.conv), {}};
  };
  in.q = enter(raw.q, rnn_.q, s != nullptr ? &s->q_tail : nullptr, s != nullptr ? &s->delta.q : nullptr);
  in.k = enter(raw.k, rnn_.k, s != nullptr ? &s->k_tail : nullptr, s != nullptr ? &s->delta.k : nullptr);
  in.v = enter(raw.v, rnn_.v, s != nullptr ? &s->v_tail : nullptr, s != nullptr ? &s->delta.v : nullptr);
  in.a = project_wide(pass, x, a_proj_);  // [N, Hr]
  in.b = project_wide(pass, x, b_proj_);  // [N, Hr]
  in.a_log = pass.param(*a_log_);
  in.dt_bias = pass.param(*dt_bias_);
  return in;
}

HamDecision Ham::decision() const {
  HamDecision d;
  const std::string mode = override_.mode.value_or(config_.threshold.mode);
  d.selecting = override_.tau    ? Selecting::threshold
                : mode == "all"  ? Selecting::all
                : mode == "none" ? Selecting::none
                                 : Selecting::threshold;
  d.range = config_.router.range();
  if (override_.tau) {
    d.tau = *override_.tau;
  } else if (d.selecting == Selecting::threshold) {
    d.threshold = threshold_->value;
  }
  return d;
}

bool Ham::wants_score(const Pass& pass) const {
  const bool looks = (pass.inspector != nullptr && pass.inspector->recording) || pass.statistics != nullptr;
  return config_.router.learned() || decision().selecting == Selecting::threshold || looks;
}

/// Returns the score [N] of every token. With EDA a learned router hands it to the next layer.
Var Ham::route(Pass& pass, Var x, const DeltaProbe& probe) {
  Tape& tape = pass.tape;
  const bool takes_max = config_.aggregate == "max";
  const int64_t heads = delta_.value_heads;
  if (!config_.router.learned()) { return prediction_score(tape, probe.prediction, probe.value, heads, takes_max); }
  const Var wide = convert(tape, x, sum_dtype(tape.dtype(x)));  // the router's weights are the masters, too
  Var h = config_.router.type == "vector" ? router_input(tape, probe.prediction, probe.value, wide, heads) : wide;
  for (size_t j = 0; j < router_.size(); ++j) { h = project(pass, j > 0 ? gelu(tape, h) : h, router_[j]); }
  const bool averages = eda_logit_ != nullptr && pass.shared.eda_score;
  const Var score = router_score(tape, h, pass.tokens(), averages ? pass.shared.eda_score : Var{},
                                 averages ? pass.param(*eda_logit_) : Var{}, takes_max);
  if (eda_logit_ != nullptr) { pass.shared.eda_score = score; }
  return score;
}

Ham::Reading Ham::recur(Pass& pass, Var x, const Projections& raw, HamState* s) {
  Tape& tape = pass.tape;
  const DeltaInputs in = delta_inputs(pass, x, raw, s);
  const bool probes = wants_score(pass) && config_.router.type != "input";
  const Shape shape{pass.tokens(), delta_.value_channels()};
  const DType dtype = sum_dtype(tape.dtype(x));
  const Buffer value = probes ? tape.scratch(shape, dtype, "values of the router") : Buffer(),
               prediction = probes ? tape.scratch(shape, dtype, "predictions of the router") : Buffer();
  const DeltaProbe probe{value, prediction};
  Reading r;
  r.decay = in.a;
  r.o = gated_delta(pass, in, delta_, s != nullptr ? &s->delta : nullptr, probe);  // [N, dV]
  if (s != nullptr) {
    for (auto* conv : {&s->delta.q, &s->delta.k, &s->delta.v}) { conv->reset(); }
  }
  if (wants_score(pass)) { r.score = route(pass, x, probe); }
  return r;
}

/// Attends to the selected tokens. The result [N, dV] has the given type.
Var Ham::attend(Pass& pass, const Projections& raw, DType dtype, Var factor, const HamSelection& selection,
                HamState* s) const {
  const HamHeads& h = kv_.heads;
  Var q = lane_input(pass, raw.q, kv_.q, kv_.silu(), s != nullptr ? &s->q_tail : nullptr);
  Var k = lane_input(pass, raw.k, kv_.k, kv_.silu(), s != nullptr ? &s->k_tail : nullptr);
  Var v = lane_input(pass, raw.v, kv_.v, kv_.silu(), s != nullptr ? &s->v_tail : nullptr);
  if (config_.kv.rope) {
    q = rope(pass, q, h.num_heads, config_.kv.rope->spec());
    k = rope(pass, k, h.num_heads, config_.kv.rope->spec());
  }
  for (Var* rounded : {&q, &k, &v}) { *rounded = convert(pass.tape, *rounded, dtype); }
  const double scale = 1.0 / std::sqrt(static_cast<double>(h.key_head_dim));
  if (s != nullptr) { return s->cache.attend(pass, q, k, v, factor, selection, scale); }
  const AttentionShape shape{.batch = pass.batch(),
                             .length = pass.length(),
                             .spaces = 1,
                             .keys = pass.tokens(),
                             .heads = h.num_heads,
                             .kv_heads = h.num_heads,
                             .head_dim = h.key_head_dim,
                             .value_head_dim = h.value_head_dim};
  return attention(pass.tape, q, pack_tokens(pass, k, selection, {}), pack_tokens(pass, v, selection, factor), shape,
                   selection.visible(), scale);
}

/// Norms o and multiplies it with its gates. The result has the given type, as z and gate have; o may be fp32.
Var Ham::gated(Pass& pass, Var o, Var z, Var gate, const Path& path, DType dtype) const {
  const Var y = gated_norm(pass.tape, o,
                           {.z = z,
                            .weight = pass.param(*path.o_norm),
                            .head_dim = path.heads.value_head_dim,
                            .eps = eps_,
                            .gate = z ? gate_ : HeadGate::none,
                            .dtype = dtype});
  return gate ? sigmoid_gate(pass.tape, y, gate, config_.gates == "head" ? path.heads.num_heads : 1) : y;
}

/// What the attention would have used: it enters a sum over no tokens.
std::vector<Var> Ham::unused(Pass& pass, Var score) const {
  std::vector<Var> values;
  for (Param* p : {kv_.q.norm, kv_.q.conv, kv_.k.norm, kv_.k.conv, kv_.v.norm, kv_.v.conv, kv_.o_norm, kv_.gate}) {
    values.push_back(pass.param(p));
  }
  if (config_.router.learned()) { values.push_back(score); }
  return values;
}

void Ham::shift(Pass& pass, const Projections& raw, HamState& s) const {
  if (config_.conv_size == 0) { return; }
  const auto append = [&](const Buffer& tail, Var x) {
    const Shape shape{pass.batch(), pass.length(), tail.tensor().size(2)};
    run(pass.stream(), ShortConvShift{tail, pass.tape.value(x).view(shape)});
  };
  append(s.q_tail, raw.q);
  append(s.k_tail, raw.k);
  append(s.v_tail, raw.v);
}

Var Ham::forward(Pass& pass, Var x, LayerState* state) {
  Tape& tape = pass.tape;
  auto* s = static_cast<HamState*>(state);
  const Projections raw{project_wide(pass, x, q_proj_), project_wide(pass, x, k_proj_), project_wide(pass, x, v_proj_)};
  const Reading reading = recur(pass, x, raw, s);
  HamReadings readings;
  readings.score = reading.score;
  readings.decay = reading.decay;
  const HamDecision how = decision();
  const Buffer held = s != nullptr ? s->cache.held(pass) : Buffer();
  const HamSelection selection = select_tokens(pass, reading.score, how, held, name_);
  if (rnn_.gate != nullptr) { readings.rnn_gate = project(pass, x, rnn_.gate); }
  const Var z = g_proj_ != nullptr ? project(pass, x, g_proj_) : Var{};
  Var y = gated(pass, reading.o, z, readings.rnn_gate, rnn_, tape.dtype(x));  // [N, dV]
  if (how.selecting == Selecting::none && !is_forced(pass)) {
    reach(tape, unused(pass, reading.score));
  } else {
    if (kv_.gate != nullptr) { readings.kv_gate = project(pass, x, kv_.gate); }
    const Var factor = config_.router.learned() ? reading.score : Var{};
    const Var o = attend(pass, raw, tape.dtype(x), factor, selection, s);
    y = residual_add(tape, y, gated(pass, o, {}, readings.kv_gate, kv_, tape.dtype(x)), 1.0);
  }
  if (s != nullptr) { shift(pass, raw, *s); }
  note(pass, readings, selection);
  return project(pass, y, o_proj_);
}

/// Counts for the thresholds, and statistics where they are wanted.
void Ham::note(Pass& pass, const HamReadings& readings, const HamSelection& selection) {
  if (pass.tape.recomputing() || pass.stream().counting()) { return; }
  if (pass.training) { thresholds_->count(index_, pass.stream(), selection.selected, pass.tokens()); }
  if (pass.statistics == nullptr) { return; }
  HamReadings r = readings;
  r.selected = selection.host_selected(pass.stream());
  const HamDecision how = decision();
  if (how.threshold.defined()) {
    r.tau = how.range / (1.0 + std::exp(-host_values(pass.stream(), how.threshold)[0]));
  } else if (how.selecting == Selecting::threshold) {
    r.tau = how.tau;
  }
  r.a_log = a_log_->value;
  r.dt_bias = dt_bias_->value;
  std::map<std::string, double>& own = (*pass.statistics)[name_];
  own = ham_statistics(pass, r);
  (*pass.statistics)["ham"]["kv_fraction"] += own["kv_fraction"] / static_cast<double>(thresholds_->layers());
}

std::unique_ptr<LayerState> Ham::make_state(Arena& arena, int64_t rows, DType dtype) const {
  DeltaConfig delta = delta_;
  delta.conv_size = 0;
  const HamHeads& h = kv_.heads;
  auto s = std::make_unique<HamState>(DeltaState(arena, rows, delta, sum_dtype(dtype)),
                                      HamCache(arena, rows, h.num_heads, h.key_head_dim, h.value_head_dim, dtype));
  if (config_.conv_size > 0) {
    const auto tail = [&](int64_t channels) {
      return Buffer(arena, {rows, config_.conv_size - 1, channels}, sum_dtype(dtype), "projections before");
    };
    s->q_tail = tail(h.key_channels());
    s->k_tail = tail(h.key_channels());
    s->v_tail = tail(h.value_channels());
  }
  return s;
}

/// How many of so many tokens the list holds, as far as the configuration says. A learned threshold meets its target.
/// A constant one is counted as if it were learned.
double Ham::selected_tokens(int64_t tokens) const {
  const HamThresholdConfig& t = config_.threshold;
  return static_cast<double>(tokens) * (t.mode == "all" ? 1.0 : t.mode == "none" ? 0.0 : t.target);
}

/// Counts matrix products, convolutions, the chunked recurrence with its predictions, scores, and pairs of the
/// attention.
double Ham::flops_per_token(int64_t length) const {
  const auto real = [](int64_t n) { return static_cast<double>(n); };
  const double d = real(d_), keys = real(delta_.key_channels()), values = real(delta_.value_channels());
  const double heads = real(delta_.value_heads), c = real(delta_.chunk), lanes = 2 * keys + values;
  double weights = d * (lanes + 2 * heads + (g_proj_ != nullptr ? 2 : 1) * values);
  weights += rnn_.gate != nullptr ? real(rnn_.gate->spec.shape.numel() + kv_.gate->spec.shape.numel()) : 0;
  for (const Param* p : router_) {
    weights += (config_.router.type == "vector" ? heads : 1) * real(p->spec.shape.numel());
  }
  const bool predicts = config_.router.learned() ? config_.router.type == "vector" : config_.threshold.present();
  const double convolutions = config_.conv_size > 0 ? 2 * (2 * real(config_.conv_size) + 3) * lanes : 0;
  const double recurrence = heads * (1 + 3.5 * c + c * c / 2) + 6 * c * keys + 4 * c * values +
                            6 * keys * real(delta_.value_dim) + (predicts ? (c + 6) * values : 0);
  return 2 * weights + convolutions + recurrence + 2 * (keys + values) * selected_tokens(length + 1) / 2;
}

int64_t Ham::state_bytes(int64_t tokens) const {
  constexpr int64_t kStateBytes = 4, kCacheBytes = 2;  // fp32, bf16
  const int64_t keys = delta_.key_channels(), values = delta_.value_channels();
  const int64_t tail = std::max<int64_t>(0, config_.conv_size - 1) * (2 * keys + values);
  const auto list = static_cast<int64_t>(std::llround(selected_tokens(tokens)));
  return kStateBytes * keys * delta_.value_dim + kCacheBytes * (tail + list * (keys + values));
}

}  // namespace

std::unique_ptr<Layer> HamConfig::make(const BuildContext& c) const { return std::make_unique<Ham>(c, *this); }

StatisticsCollectors HamConfig::statistics(const StatisticsOptions& options) const {
  return collector_list(ham_selection(options), state_norms());
}

std::unique_ptr<LayerConfig> make_ham_config() { return std::make_unique<HamConfig>(); }

}  // namespace hebb
