// attention: softmax attention, full, windowed or block-windowed.
#include <algorithm>

#include "layers/attention_cache.h"
#include "layers/model_config.h"
#include "layers/ops/linear.h"
#include "layers/ops/sigmoid_gate.h"
#include "layers/qkv/qkv.h"
#include "layers/size_field.h"

namespace hebb {
namespace {

constexpr int64_t kPositions = int64_t{1} << 31;  // of a document at most: they are i32

struct BlockWindow {
  int64_t size = 0, blocks = 0;
};

void fields(Fields& f, BlockWindow& w) {
  required_size(f, "size", w.size, scaling::window, "Tokens of a block.").unit("tokens");
  f.field("blocks", w.blocks).required().min(1).help("Blocks seen: a token's own and those before it.");
}

struct AttentionConfig final : LayerConfig, ValueResidualMember {
  QkvConfig qkv;
  int64_t window = 0;
  std::optional<BlockWindow> block_window;
  std::string gate = "none";

  void fields(Fields& f) override {
    qkv.fields(f, {"none", "rms", "l2", "layer"});
    f.field("window", window)
        .min(0)
        .help("A token sees itself and the window - 1 tokens before it; 0: all.")
        .unit("tokens")
        .scales(scaling::window);
    f.object("block_window", block_window)
        .help("A token sees its own block and the blocks before it; not with window.");
    f.field("gate", gate).one_of({"none", "head", "element"}).help("Sigmoid gate on the heads' outputs.");
    if (f.reading()) { f.require(window == 0 || !block_window, "window", "0 together with block_window"); }
  }
  void check(const Fields& f, const std::string& key, const ModelConfig& model) const override {
    check_group(f, key, model);
  }
  std::unique_ptr<Layer> make(const BuildContext& c) const override;

  const ValueResidualConfig& value_residual() const override { return qkv.value_residual; }
  int64_t value_channels() const override { return qkv.kv_heads() * qkv.value_dim(); }
  KeyRange range() const {
    if (!block_window) { return {window, 0, 0}; }
    const int64_t all = kPositions / block_window->size + 1;  // blocks that hold any document
    return {0, block_window->size, std::min(block_window->blocks, all)};
  }
};

struct AttentionState final : AttentionCache {
  QkvState qkv;
  AttentionState(AttentionCache c, QkvState q) : AttentionCache(std::move(c)), qkv(std::move(q)) {}
  void take_row(Stream& stream, int64_t row, const LayerState& from, int64_t from_row, int64_t tokens) override {
    AttentionCache::take_row(stream, row, from, from_row, tokens);
    copy_rows(stream, qkv.by_row(), row, static_cast<const AttentionState&>(from).qkv.by_row(), from_row);
  }
};

class Attention final : public Layer {
 public:
  Attention(const BuildContext& c, const AttentionConfig& config)
      : config_(config.qkv),
        range_(config.range()),
        d_(c.model.hidden_size),
        qkv_(c, config.qkv, c.model.projection_init()) {
    const int64_t values = config_.num_heads * config_.value_dim();
    o_proj_ = &c.declare("o_proj.weight", {d_, values}, c.model.output_init());
    if (config.gate != "none") {
      gate_proj_ = &c.declare("gate_proj.weight", {config.gate == "head" ? config_.num_heads : values, d_},
                              c.model.projection_init());
    }
  }

  Var forward(Pass& pass, Var x, LayerState* state) override {
    Tape& tape = pass.tape;
    auto* s = static_cast<AttentionState*>(state);
    const Qkv::Heads h = qkv_.forward(pass, x, s != nullptr ? &s->qkv : nullptr);
    Var o =
        s != nullptr ? s->attend(pass, h.q, h.k, h.v, config_.num_heads, qkv_.scale()) : attend(pass, h);  // [N, H Dv]
    if (gate_proj_ != nullptr) {
      o = sigmoid_gate(tape, o, linear(tape, x, pass.param(*gate_proj_)), config_.num_heads);
    }
    return linear(tape, o, pass.param(*o_proj_));
  }

  std::unique_ptr<LayerState> make_state(Arena& arena, int64_t rows, DType dtype) const override {
    return std::make_unique<AttentionState>(
        AttentionCache(arena, rows, config_.kv_heads(), config_.head_dim, config_.value_dim(), dtype, range_),
        qkv_.make_state(arena, rows, dtype));
  }

  double flops_per_token(int64_t length) const override {
    const int64_t values = config_.num_heads * config_.value_dim();
    const int64_t gates = gate_proj_ != nullptr ? gate_proj_->spec.shape[0] : 0;
    const double core = 2.0 * static_cast<double>(config_.num_heads * (config_.head_dim + config_.value_dim()));
    return qkv_.flops_per_token() + 2.0 * static_cast<double>(d_ * (values + gates)) +
           core * mean_visible(range_, length);
  }

  int64_t state_bytes(int64_t tokens) const override {
    constexpr int64_t kCacheBytes = 2;  // bf16 (docs/evaluations/cost.md, State)
    const int64_t kept = range_.full() ? tokens : std::min(tokens, range_.size());
    return (config_.kv_heads() * (config_.head_dim + config_.value_dim()) * kept + qkv_.carried()) * kCacheBytes;
  }

 private:
  Var attend(Pass& pass, const Qkv::Heads& h) const {
    KeyRange range = range_;
    if (pass.training && range.full()) { range.window = pass.attention.random_window; }
    const int64_t batch = pass.batch(), length = pass.length();
    const AttentionShape shape{.batch = batch,
                               .length = length,
                               .spaces = batch,
                               .keys = length,
                               .heads = config_.num_heads,
                               .kv_heads = config_.kv_heads(),
                               .head_dim = config_.head_dim,
                               .value_head_dim = config_.value_dim()};
    return attention(pass.tape, h.q, h.k, h.v, shape, visible_keys(pass, range), qkv_.scale());
  }

  QkvConfig config_;
  KeyRange range_;
  int64_t d_;
  Qkv qkv_;
  Param *o_proj_, *gate_proj_ = nullptr;
};

std::unique_ptr<Layer> AttentionConfig::make(const BuildContext& c) const {
  return std::make_unique<Attention>(c, *this);
}

}  // namespace

std::unique_ptr<LayerConfig> make_attention_config() { return std::make_unique<AttentionConfig>(); }

}  // namespace hebb
