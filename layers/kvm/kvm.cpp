// kvm: Key-Value Means, softmax attention over a window and a state of summed keys and values.
#include <algorithm>
#include <cmath>

#include "core/choice.h"
#include "layers/collectors.h"
#include "layers/kvm/op.h"
#include "layers/model_config.h"
#include "layers/ops/linear.h"
#include "layers/qkv/qkv.h"
#include "layers/size_field.h"

namespace hebb {
namespace {

struct KvmConfig final : LayerConfig, ValueResidualMember {
  QkvConfig qkv;
  int64_t chunk_size = 0, window_chunks = 2, sinks = 1;
  KvmBudget state;
  std::string merge_gate = "both";
  KvmValueNorm value_norm = KvmValueNorm::radius;
  bool gate_appends = false, temperatures = true;

  KvmConfig() {
    qkv.qk_norm = "layer";
    qkv.rope_is_partial = true;
  }
  void fields(Fields& f) override;
  void check(const Fields& f, const std::string& key, const ModelConfig& model) const override {
    check_group(f, key, model);
  }
  std::unique_ptr<Layer> make(const BuildContext& c) const override;
  StatisticsCollectors statistics(const StatisticsOptions&) const override {
    return collector_list(slot_tokens("row", "row_tokens"));
  }

  const ValueResidualConfig& value_residual() const override { return qkv.value_residual; }
  int64_t value_channels() const override { return qkv.kv_heads() * qkv.value_dim(); }
  KvmRule rule(double eps, double scale) const;
};

void KvmConfig::fields(Fields& f) {
  qkv.fields(f, {"layer", "rms", "none"});
  required_size(f, "chunk_size", chunk_size, scaling::window, "Tokens C that enter the state together.").unit("tokens");
  f.field("window_chunks", window_chunks).min(1).help("Chunks W of the window, the query's own included.");
  f.field("sinks", sinks).min(0).help("First rows of the state that no token joins.");
  f.object("state", state).help("How many rows the state has.");
  f.field("merge_gate", merge_gate)
      .one_of({"both", "keys", "values", "none"})
      .help("What of a token that joins a row the gate 1 + ELU(.) scales.");
  f.field("gate_appends", gate_appends).help("The gate, if any, scales tokens that found rows too.");
  f.field("temperatures", temperatures).help("Learned factors of the logits of window and state, per query head.");
  choice(f, "value_norm", value_norm,
         {{"radius", KvmValueNorm::radius}, {"mean", KvmValueNorm::mean}, {"updates", KvmValueNorm::updates}})
      .help("Length of a row's value: its first token's, or the sum over its tokens or over its updates.");
  if (!f.reading()) { return; }
  const std::string chunk = std::to_string(chunk_size);
  f.require(sinks < chunk_size, "sinks", "an integer below chunk_size (" + chunk + ")");
  if (state.rows && *state.rows < chunk_size) {
    f.fail("state.rows", std::to_string(*state.rows), "an integer >= chunk_size (" + chunk + ")");
  }
  if (state.max_rows > 0 && state.max_rows < chunk_size) {
    f.fail("state.max_rows", std::to_string(state.max_rows), "0 or an integer >= chunk_size (" + chunk + ")");
  }
}

KvmRule KvmConfig::rule(double eps, double scale) const {
  KvmRule r;
  r.chunk = chunk_size;
  r.window = window_chunks;
  r.sinks = sinks;
  r.rotary = qkv.rope ? qkv.rope->spec().dims : 0;
  r.gate_keys = merge_gate == "both" || merge_gate == "keys";
  r.gate_values = merge_gate == "both" || merge_gate == "values";
  r.gate_appends = gate_appends;
  r.value_norm = value_norm;
  r.eps = eps;
  r.scale = scale;
  return r;
}

/// Initial values of the paper's matrices.
Init matrix_init(const BuildContext& c) {
  const double bound = 1.0 / std::sqrt(static_cast<double>(c.model.hidden_size));
  return init::uniform(-bound, bound);
}

struct State final : LayerState {
  KvmState core;
  QkvState qkv;
  int64_t chunk;
  State(KvmState c, QkvState q, int64_t tokens) : core(std::move(c)), qkv(std::move(q)), chunk(tokens) {}
  /// Tables and counts of slots are those of the chunk.
  std::optional<int64_t> launches(const NextToken& next) const override { return next.position / chunk; }
  bool rows_move() const override { return true; }
  void take_row(Stream& stream, int64_t row, const LayerState& from, int64_t from_row, int64_t) override {
    const auto& other = static_cast<const State&>(from);
    core.take_row(stream, row, other.core, from_row);
    copy_rows(stream, qkv.by_row(), row, other.qkv.by_row(), from_row);
  }
};

/// y = Wo o, o the softmax reading of state rows and window. Parameters: docs/layers/kvm.md.
class Kvm final : public Layer {
 public:
  Kvm(const BuildContext& c, const KvmConfig& config)
      : d_(c.model.hidden_size),
        shape_(config.qkv.sizes()),
        budget_(config.state),
        name_(c.name),
        qkv_(c, config.qkv, matrix_init(c)),
        rule_(config.rule(c.model.norm_eps, qkv_.scale())) {
    o_proj_ = &c.declare("o_proj.weight", {d_, shape_.heads * shape_.value_dim}, init::constant(0));
    norm_weight_ = &c.declare("mem_norm.weight", {shape_.key_dim}, init::constant(1));
    norm_bias_ = &c.declare("mem_norm.bias", {shape_.key_dim}, init::constant(0));
    if (rule_.gate_keys || rule_.gate_values) {
      merge_gate_ = &c.declare("merge_gate.weight", {shape_.kv_heads, d_}, matrix_init(c));
    }
    if (config.temperatures) {
      window_temp_ = &c.declare("window_temp", {shape_.heads}, init::constant(1));
      state_temp_ = &c.declare("state_temp", {shape_.heads}, init::constant(1));
    }
  }

  Var forward(Pass& pass, Var x, LayerState* state) override {
    auto* s = static_cast<State*>(state);
    const Qkv::Heads h = qkv_.forward(pass, x, s != nullptr ? &s->qkv : nullptr);
    KvmVars in{.q = h.q,
               .k = h.k,
               .v = h.v,
               .gate = {},
               .norm_weight = pass.param(*norm_weight_),
               .norm_bias = pass.param(*norm_bias_),
               .window_temp = pass.param(window_temp_),
               .state_temp = pass.param(state_temp_)};
    if (merge_gate_ != nullptr) {
      in.gate = linear(pass.tape, x, pass.param(*merge_gate_), {}, sum_dtype(pass.tape.dtype(x)));  // [N, K]
    }
    const Var o = kvm_attention(pass, in, shape_, rule_, budget_, s != nullptr ? &s->core : nullptr, name_);
    return linear(pass.tape, o, pass.param(*o_proj_));
  }

  std::unique_ptr<LayerState> make_state(Arena& arena, int64_t rows, DType dtype) const override {
    return std::make_unique<State>(KvmState(arena, rows, shape_, rule_.chunk, rule_, dtype),
                                   qkv_.make_state(arena, rows, dtype), rule_.chunk);
  }

  void inspect_state(Stream&, const LayerState& state, int64_t tokens, Inspector& to) const override {
    const std::vector<int32_t>& sizes = static_cast<const State&>(state).core.sizes;
    to.records[name_ + ".slots_in_use"] = {
        {1}, {tokens > 0 ? sizes[static_cast<size_t>((tokens - 1) / rule_.chunk)] : 0}, {}};
  }

  double flops_per_token(int64_t length) const override;
  int64_t state_bytes(int64_t tokens) const override;

 private:
  int64_t d_;
  HeadSizes shape_;
  KvmBudget budget_;
  std::string name_;
  Qkv qkv_;
  KvmRule rule_;
  Param *o_proj_, *norm_weight_, *norm_bias_, *merge_gate_ = nullptr, *window_temp_ = nullptr, *state_temp_ = nullptr;
};

double Kvm::flops_per_token(int64_t length) const {
  const int64_t chunk = rule_.chunk;
  std::vector<int32_t> sizes;
  extend_sizes(budget_, chunk, rule_.window, (length - 1) / chunk + 1, sizes);
  double pairs = 0, routed = 0;  // query-key pairs of a query head; token-row scores of a kv head
  for (int64_t c = 0; c < static_cast<int64_t>(sizes.size()); ++c) {
    const double count = static_cast<double>(std::min(chunk, length - c * chunk));
    const double earlier = static_cast<double>(std::min(c, rule_.window - 1) * chunk + sizes[static_cast<size_t>(c)]);
    pairs += count * (earlier + (count + 1) / 2);
    if (c > rule_.window) { routed += static_cast<double>(chunk * sizes[static_cast<size_t>(c - 1)]); }
  }
  const double tokens = static_cast<double>(length), heads = static_cast<double>(shape_.heads);
  const double kv_heads = static_cast<double>(shape_.kv_heads), width = static_cast<double>(shape_.key_dim);
  const double values = heads * static_cast<double>(shape_.value_dim), d = static_cast<double>(d_);
  return qkv_.flops_per_token() + 2 * d * values + (merge_gate_ != nullptr ? 2 * d * kv_heads : 0.0) +
         2 * (heads * width + values) * pairs / tokens + 2 * width * kv_heads * routed / tokens;
}

int64_t Kvm::state_bytes(int64_t tokens) const {
  constexpr int64_t kCacheBytes = 2, kSumBytes = 4;  // bf16, fp32
  if (tokens == 0) { return 0; }
  std::vector<int32_t> sizes;
  extend_sizes(budget_, rule_.chunk, rule_.window, (tokens - 1) / rule_.chunk + 1, sizes);
  const int64_t rows = sizes.back(), window = std::min(tokens, rule_.window * rule_.chunk);
  const int64_t width = shape_.key_dim + shape_.value_dim;
  const int64_t gate = merge_gate_ != nullptr ? kSumBytes : 0;
  return shape_.kv_heads *
             (rows * (width * (kSumBytes + kCacheBytes) + kSumBytes) + window * (width * kCacheBytes + gate)) +
         qkv_.carried() * kCacheBytes;
}

std::unique_ptr<Layer> KvmConfig::make(const BuildContext& c) const { return std::make_unique<Kvm>(c, *this); }

}  // namespace

std::unique_ptr<LayerConfig> make_kvm_config() { return std::make_unique<KvmConfig>(); }

}  // namespace hebb
