// lact: window attention and a fast-weight SwiGLU per sequence that is trained while it is read, in large chunks.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "layers/attention_cache.h"
#include "layers/decay_init.h"
#include "layers/lact/heads.h"
#include "layers/lact/op.h"
#include "layers/model_config.h"
#include "layers/ops/convert.h"
#include "layers/ops/linear.h"
#include "layers/ops/norm.h"
#include "layers/ops/rope.h"
#include "layers/ops/short_conv.h"
#include "layers/rope_config.h"
#include "layers/size_field.h"

namespace hebb {
namespace {

constexpr double kFastNormEps = 1e-5;  // not norm_eps

struct LactConfig final : LayerConfig {
  int64_t num_heads = 0, num_fast_heads = 4, window = 2048, chunk_size = 512, rank = 32;
  std::optional<int64_t> fast_dim;
  RopeConfig rope;
  bool fast_rope = true, silu_v = false, momentum = true, muon = false, output_scale = true;
  double fast_init_gain = 0.5, base_lr = 1e-3;

  void fields(Fields& f) override;
  void check(const Fields& f, const std::string& key, const ModelConfig& model) const override;
  std::unique_ptr<Layer> make(const BuildContext& c) const override;
};

void LactConfig::fields(Fields& f) {
  required_size(f, "num_heads", num_heads, scaling::heads_of_width(scaling::kLeastChannels),
                "Attention heads; divides hidden_size, the quotient even.");
  size_field(f, "num_fast_heads", num_fast_heads, scaling::heads_of_width(8),
             "Heads F of the fast weights; divides hidden_size.");
  size_field(f, "fast_dim", fast_dim, scaling::channels(8),
             "Hidden size h of a fast head; default: hidden_size / num_fast_heads.");
  f.field("window", window)
      .min(0)
      .help("A token attends to itself and the window - 1 tokens before it; 0: all.")
      .unit("tokens")
      .scales(scaling::window);
  size_field(f, "chunk_size", chunk_size, scaling::window, "Tokens C between two updates of the fast weights.")
      .unit("tokens");
  if (!f.reading() || f.written("rope")) {  // an absent object would miss its theta
    f.object("rope", rope).help("Rotary positions of all channels of a head; default: theta 10000.");
  }
  f.field("fast_rope", fast_rope).help("Rotary positions also on the fast queries and keys.");
  f.field("silu_v", silu_v).help("SiLU also on the fast values.");
  f.field("rank", rank)
      .min(0)
      .help("Rank of the initial W0 and W2 beside half the identity; 0 = full matrices.")
      .scales(scaling::rank);
  f.field("fast_init_gain", fast_init_gain)
      .above(0)
      .help("Scale of the factors' initial values.")
      .only_with(rank > 0, "a rank");
  f.field("base_lr", base_lr).above(0).help("Fast learning rate where its projection is 0.");
  f.field("momentum", momentum).help("Momentum on the fast gradients.");
  f.field("muon", muon).help("Orthogonalised updates (Newton-Schulz).");
  f.field("output_scale", output_scale).help("Learned scale of every fast head's output.");
}

void LactConfig::check(const Fields& f, const std::string& key, const ModelConfig& model) const {
  const int64_t d = model.hidden_size;
  const std::string size = fmt::format(" hidden_size ({:d})", d);
  if (d % num_heads != 0 || d / num_heads % 2 != 0) {
    f.fail(key + ".num_heads", std::to_string(num_heads), "a divisor of" + size + " with an even quotient");
  }
  if (d % num_fast_heads != 0) {
    f.fail(key + ".num_fast_heads", std::to_string(num_fast_heads), "a divisor of" + size);
  }
  if (rope.dims && *rope.dims != d / num_heads) {
    f.fail(key + ".rope.dims", std::to_string(*rope.dims),
           fmt::format("hidden_size / num_heads ({:d})", d / num_heads));
  }
  if (rope.endpoint && d / num_heads < 4) { f.fail(key + ".rope.endpoint", "true", "false with heads of 2 channels"); }
}

struct State final : AttentionCache {
  LactState fast;
  State(AttentionCache c, LactState f) : AttentionCache(std::move(c)), fast(std::move(f)) {}
  void take_row(Stream& stream, int64_t row, const LayerState& from, int64_t from_row, int64_t tokens) override {
    AttentionCache::take_row(stream, row, from, from_row, tokens);
    copy_rows(stream, fast.by_row(), row, static_cast<const State&>(from).fast.by_row(), from_row);
  }
};

/// y = Wo (attention + silu(Ws x) * rms(fast reading)). Parameters: docs/layers/lact.md.
class Lact final : public Layer {
 public:
  Lact(const BuildContext& c, const LactConfig& config);

  Var forward(Pass& pass, Var x, LayerState* state) override;
  std::unique_ptr<LayerState> make_state(Arena& arena, int64_t rows, DType dtype) const override;
  double flops_per_token(int64_t length) const override;
  int64_t state_bytes(int64_t tokens) const override;

 private:
  void declare_weights(const BuildContext& c, const LactConfig& config);
  DType memory_dtype(DType dtype) const;
  Var attend(Pass& pass, Var q, Var k, Var v, State* state) const;
  Var read(Pass& pass, Var x, Var q, Var k, Var v, State* state) const;

  int64_t d_, heads_;
  KeyRange range_;
  RopeSpec rope_;
  bool fast_rope_, silu_v_;
  LactShape shape_;
  LactRule rule_;
  Param *q_proj_, *k_proj_, *v_proj_, *o_proj_, *qk_scale_, *qk_offset_, *fast_norm_;
  Param *w1_, *w0_[2] = {}, *w2_[2] = {};                             // low rank: left and right; full: the first
  Param *lr_proj_[2], *scale_proj_[2] = {}, *momentum_proj_[2] = {};  // weight, bias
};

Lact::Lact(const BuildContext& c, const LactConfig& config)
    : d_(c.model.hidden_size),
      heads_(config.num_heads),
      range_{config.window, 0, 0},
      rope_(config.rope.spec()),
      fast_rope_(config.fast_rope),
      silu_v_(config.silu_v),
      shape_{config.num_fast_heads, d_ / config.num_fast_heads, config.fast_dim.value_or(d_ / config.num_fast_heads)},
      rule_{config.chunk_size, config.momentum, config.muon, inverse_softplus(config.base_lr)} {
  constexpr double kStd = 0.02;  // the page's, whatever init_std is
  rope_.dims = d_ / heads_;
  const Init normal = init::normal(kStd);
  q_proj_ = &c.declare("q_proj.weight", {d_, d_}, normal);
  k_proj_ = &c.declare("k_proj.weight", {d_, d_}, normal);
  v_proj_ = &c.declare("v_proj.weight", {d_, d_}, normal);
  o_proj_ = &c.declare("o_proj.weight", {d_, d_}, normal);
  declare_weights(c, config);
  const auto declare = [&](Param** pair, const std::string& name, int64_t outputs) {
    pair[0] = &c.declare(name + ".weight", {outputs, d_}, normal);
    pair[1] = &c.declare(name + ".bias", {outputs}, init::constant(0));
  };
  declare(lr_proj_, "lr_proj", 3 * shape_.heads);
  qk_scale_ = &c.declare("qk_scale", {d_, 2}, init::constant(1)).read_in_fp32();
  qk_offset_ = &c.declare("qk_offset", {d_, 2}, init::constant(0)).read_in_fp32();
  if (config.output_scale) { declare(scale_proj_, "scale_proj", shape_.heads); }
  if (config.momentum) { declare(momentum_proj_, "momentum_proj", shape_.heads); }
  fast_norm_ = &c.declare("fast_norm.weight", {shape_.dim}, init::constant(1));
}

void Lact::declare_weights(const BuildContext& c, const LactConfig& config) {
  const int64_t f = shape_.heads, d = shape_.dim, h = shape_.fast, rank = config.rank;
  const auto scaled = [](double gain, int64_t fan) { return init::normal(gain / std::sqrt(static_cast<double>(fan))); };
  for (auto [w, name] : {std::pair{w0_, "w0"}, std::pair{w2_, "w2"}}) {
    if (rank > 0) {
      w[0] = &c.declare(std::string(name) + "_left", {f, h, rank}, scaled(config.fast_init_gain, rank));
      w[1] = &c.declare(std::string(name) + "_right", {f, rank, d}, scaled(config.fast_init_gain, d));
    } else {
      w[0] = &c.declare(name, {f, h, d}, scaled(1, d));
    }
  }
  w1_ = &c.declare("w1", {f, d, h}, scaled(1, h));
}

Var Lact::attend(Pass& pass, Var q, Var k, Var v, State* state) const {
  const int64_t head_dim = d_ / heads_;
  const double scale = 1.0 / std::sqrt(static_cast<double>(head_dim));
  q = rope(pass, q, heads_, rope_);
  k = rope(pass, k, heads_, rope_);
  if (state != nullptr) { return state->attend(pass, q, k, v, heads_, scale); }
  // The random window of training is for `attention` layers only (docs/training.md).
  const int64_t batch = pass.batch(), length = pass.length(), head = d_ / heads_;
  return attention(pass.tape, q, k, v, {batch, length, batch, length, heads_, heads_, head, head},
                   visible_keys(pass, range_), scale);
}

/// What fast weights are kept and moved in: fp32 in bf16 runs. In fp32 runs with Muon fp64: Newton-Schulz enlarges
/// small singular values up to 493-fold, and with them the rounding of the sums that it orthogonalises.
DType Lact::memory_dtype(DType dtype) const {
  return rule_.muon && dtype == DType::f32 ? DType::f64 : sum_dtype(dtype);
}

/// What the fast weights say, normed. [N, d]
Var Lact::read(Pass& pass, Var x, Var q, Var k, Var v, State* state) const {
  Tape& tape = pass.tape;
  const DType dtype = sum_dtype(tape.dtype(x));  // fast weights and what moves them are in fp32 whatever x is
  const auto project = [&](Param* const* pair) {
    return linear(tape, x, pass.param(*pair[0]), pass.param(*pair[1]), dtype);
  };
  const auto initial = [&](Param* const* w) {
    return w[1] != nullptr ? lact_initial(tape, pass.param(*w[0]), pass.param(*w[1])) : pass.param(*w[0]);
  };
  const Var scale = pass.param(*qk_scale_), offset = pass.param(*qk_offset_);
  LactInputs in;
  in.q = lact_keys(tape, convert(tape, q, dtype), scale, offset, 0, shape_.dim);
  in.k = lact_keys(tape, convert(tape, k, dtype), scale, offset, 1, shape_.dim);
  in.v = convert(tape, silu_v_ ? short_conv(pass, v, {}, {}, true, nullptr) : v, dtype);
  if (fast_rope_) {
    in.q = rope(pass, in.q, heads_, rope_);
    in.k = rope(pass, in.k, heads_, rope_);
  }
  in.rates = project(lr_proj_);                                             // [N, 3 F]
  in.mix = momentum_proj_[0] != nullptr ? project(momentum_proj_) : Var{};  // [N, F]
  in.w0 = initial(w0_);
  in.w1 = pass.param(*w1_);
  in.w2 = initial(w2_);
  LactRule rule = rule_;
  rule.tf32 = tape.dtype(x) == DType::bf16;
  const DType inside = memory_dtype(tape.dtype(x));
  for (Var* v : {&in.q, &in.k, &in.v, &in.rates, &in.mix, &in.w0, &in.w1, &in.w2}) {
    if (*v) { *v = convert(tape, *v, inside); }
  }
  const Var y = convert(tape, lact_memory(pass, in, shape_, rule, state != nullptr ? &state->fast : nullptr), dtype);
  return convert(tape, norm(tape, y, pass.param(*fast_norm_), {}, kFastNormEps, NormKind::rms), tape.dtype(x));
}

Var Lact::forward(Pass& pass, Var x, LayerState* state) {
  Tape& tape = pass.tape;
  auto* s = static_cast<State*>(state);
  const Var q = linear(tape, x, pass.param(*q_proj_)), k = linear(tape, x, pass.param(*k_proj_)),
            v = linear(tape, x, pass.param(*v_proj_));  // [N, d]
  const Var attended = attend(pass, q, k, v, s), fast = read(pass, x, q, k, v, s);
  const Var mixed =
      scale_proj_[0] != nullptr
          ? lact_mix(tape, attended, fast, linear(tape, x, pass.param(*scale_proj_[0]), pass.param(*scale_proj_[1])))
          : residual_add(tape, attended, fast, 1.0);
  return linear(tape, mixed, pass.param(*o_proj_));
}

std::unique_ptr<LayerState> Lact::make_state(Arena& arena, int64_t rows, DType dtype) const {
  return std::make_unique<State>(AttentionCache(arena, rows, heads_, d_ / heads_, d_ / heads_, dtype, range_),
                                 LactState(arena, rows, shape_, memory_dtype(dtype)));
}

double Lact::flops_per_token(int64_t length) const {
  const int64_t updates = (length - 1) / rule_.chunk;
  const double moved = static_cast<double>(updates * rule_.chunk) / static_cast<double>(length);
  const double d = static_cast<double>(d_), f = static_cast<double>(shape_.heads);
  const double matrix = static_cast<double>(shape_.dim * shape_.fast);
  const double small = static_cast<double>(std::min(shape_.dim, shape_.fast));
  const double muon =
      rule_.muon ? 30 * matrix * small * f * static_cast<double>(updates) / static_cast<double>(length) : 0;
  return 8 * d * d + 4 * d * mean_visible(range_, length) + (6 + 12 * moved) * matrix * f + muon;
}

int64_t Lact::state_bytes(int64_t tokens) const {
  constexpr int64_t kCacheBytes = 2, kStateBytes = 4;  // bf16, fp32
  const int64_t kept = range_.full() ? tokens : std::min(tokens, range_.size());
  return 2 * kept * d_ * kCacheBytes + shape_.heads * (3 * shape_.weights() + 1) * kStateBytes;
}

std::unique_ptr<Layer> LactConfig::make(const BuildContext& c) const { return std::make_unique<Lact>(c, *this); }

}  // namespace

std::unique_ptr<LayerConfig> make_lact_config() { return std::make_unique<LactConfig>(); }

}  // namespace hebb
