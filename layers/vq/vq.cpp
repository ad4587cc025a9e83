// vq: attention to keys quantized by a trained codebook.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "core/choice.h"
#include "layers/model_config.h"
#include "layers/ops/attention.h"
#include "layers/ops/convert.h"
#include "layers/ops/head_norm.h"
#include "layers/ops/host_values.h"
#include "layers/ops/linear.h"
#include "layers/ops/scaled_l2_norm.h"
#include "layers/vq/op.h"

namespace hebb {
namespace {

/// Documents longer than this many codebooks are read in the linear form where nothing is differentiated
/// (docs/layers/vq.md, Linear form).
constexpr int64_t kLinearFrom = 4;

struct VqConfig final : LayerConfig {
  HeadsConfig heads;
  int64_t codebook_size = 0, quantize_after = 0, chunk_size = 128;
  VqMode quantizer = VqMode::sf_diveq;
  double idle_bonus = 0.0025;

  void fields(Fields& f) override;
  std::unique_ptr<Layer> make(const BuildContext& c) const override;
};

void VqConfig::fields(Fields& f) {
  heads.fields(f);
  f.field("codebook_size", codebook_size).required().min(2).help("Codewords of a kv head.").scales(scaling::length());
  choice(f, "quantizer", quantizer, {{"sf_diveq", VqMode::sf_diveq}, {"diveq", VqMode::diveq}})
      .help("Training-time quantizer: dithered points between neighbouring codewords, or the codewords.");
  f.field("idle_bonus", idle_bonus)
      .min(0)
      .help("Added to the similarity of a codeword in training per step that it was not used; 0 = off.");
  f.field("quantize_after", quantize_after)
      .min(0)
      .help("First steps of training with keys as they are; then the codebook starts from the keys.")
      .unit("steps")
      .scales(scaling::steps);
  f.field("chunk_size", chunk_size).min(1).help("Chunks of the linear form; speed only.").unit("tokens");
}

/// Rows of unit norm.
Init unit_rows(int64_t width) {
  return [width](Rng& rng, float* values, int64_t count) {
    init::normal(1.0)(rng, values, count);
    for (float* row = values; row < values + count; row += width) {
      double squares = 0;
      for (int64_t x = 0; x < width; ++x) { squares += static_cast<double>(row[x]) * static_cast<double>(row[x]); }
      const double scale = 1.0 / std::sqrt(std::max(squares, 1e-30));
      for (int64_t x = 0; x < width; ++x) { row[x] = static_cast<float>(static_cast<double>(row[x]) * scale); }
    }
  };
}

/// y = Wo o, o attention to quantized keys. Parameters: docs/layers/vq.md.
class Vq final : public Layer {
 public:
  Vq(const BuildContext& c, const VqConfig& config);

  Var forward(Pass& pass, Var x, LayerState* state) override;
  std::unique_ptr<LayerState> make_state(Arena& arena, int64_t rows, DType dtype) const override {
    return std::make_unique<VqState>(arena, rows, shape_, sum_dtype(dtype));
  }
  double flops_per_token(int64_t length) const override;
  int64_t state_bytes(int64_t) const override {
    constexpr int64_t kCountBytes = 4, kMeanBytes = 4;
    return shape_.kv_heads * shape_.codewords * (kCountBytes + kMeanBytes * shape_.value_dim);
  }
  void begin_step(Stream& stream, int64_t step) override;
  void after_step(Stream& stream, int64_t step, const Tensor& applies) override;
  std::string needs_host() const override {
    return training_mode_ == VqMode::sf_diveq ? "(vq) draws the dither of each step on the host"
           : quantize_after_ > 0              ? "(vq) begins to quantize after some steps"
                                              : "";
  }

 private:
  Var attend(Pass& pass, Var q, Var k, Var v, DType dtype) const;
  Var quantize(Pass& pass, Var k, Var codes);
  bool reads_linear(const Pass& pass) const;
  void start_codebook(Pass& pass, const Tensor& k);
  void draw_dither(uint64_t seed, int64_t step);
  void report_idle(Pass& pass) const;

  int64_t d_, block_, quantize_after_, chunk_;
  VqShape shape_;
  VqMode training_mode_;
  double idle_bonus_;
  std::string name_;
  Param *q_proj_, *k_proj_, *v_proj_, *o_proj_, *beta_, *codebook_, *idle_;
  const Tensor& used_;             // [K, N] i32: codewords that a key of the step's batch took
  bool is_start_pending_ = false;  // the next training pass starts the codebook from its keys
  std::vector<double> dither_;     // [K, N-1] of the step below
  std::pair<uint64_t, int64_t> dither_step_{0, -1};
};

Vq::Vq(const BuildContext& c, const VqConfig& config)
    : d_(c.model.hidden_size),
      block_(c.block),
      quantize_after_(config.quantize_after),
      chunk_(config.chunk_size),
      shape_{config.heads.sizes(), config.codebook_size},
      training_mode_(config.quantizer),
      idle_bonus_(config.idle_bonus),
      name_(c.name),
      used_(c.params.declare_scratch(name_ + ".used", {shape_.kv_heads, shape_.codewords}, DType::i32, Combine::any)) {
  const Init normal = init::normal(c.model.init_std);
  const int64_t keys = shape_.kv_heads * shape_.key_dim, values = shape_.kv_heads * shape_.value_dim;
  q_proj_ = &c.declare("q_proj.weight", {shape_.heads * shape_.key_dim, d_}, normal);
  k_proj_ = &c.declare("k_proj.weight", {keys, d_}, normal);
  v_proj_ = &c.declare("v_proj.weight", {values, d_}, normal);
  o_proj_ = &c.declare("o_proj.weight", {d_, shape_.heads * shape_.value_dim}, normal);
  beta_ = &c.declare("beta", {shape_.heads}, init::constant(std::sqrt(static_cast<double>(shape_.key_dim))));
  // Decays like every tensor of two or more dimensions, although only its direction matters.
  codebook_ = &c.declare("codebook", {shape_.kv_heads, shape_.codewords, shape_.key_dim}, unit_rows(shape_.key_dim));
  idle_ = &c.declare("idle", {shape_.kv_heads, shape_.codewords}, init::constant(0), ParamKind::buffer);
}

Var Vq::forward(Pass& pass, Var x, LayerState* state) {
  Tape& tape = pass.tape;
  const DType dtype = sum_dtype(tape.dtype(x));              // norms, selection and means are in fp32 whatever x is
  Var q = linear(tape, x, pass.param(*q_proj_), {}, dtype);  // [N, H D]
  Var k = linear(tape, x, pass.param(*k_proj_), {}, dtype);  // [N, K D]
  Var v = linear(tape, x, pass.param(*v_proj_), {}, dtype);  // [N, K Dv]
  q = scaled_l2_norm(tape, q, shape_.key_dim, pass.param(*beta_));
  k = l2_norm(tape, k, shape_.key_dim);
  Var o;
  if (pass.training && pass.step < quantize_after_) {
    HEBB_ASSERT(state == nullptr);
    vq_report_unquantized(pass, shape_, name_);
    o = attend(pass, q, k, v, tape.dtype(x));
  } else {
    if (pass.training && is_start_pending_) { start_codebook(pass, tape.value(k)); }
    const Var codes = l2_norm(tape, pass.param(*codebook_), shape_.key_dim);  // [K, N, D]
    if (state != nullptr || reads_linear(pass)) {
      const Tensor ids = vq_nearest(pass, k, codes, shape_, state == nullptr, name_);
      o = vq_read(pass, q, v, tape.value(codes), ids, shape_, chunk_, static_cast<VqState*>(state));
    } else {
      o = attend(pass, q, quantize(pass, k, codes), v, tape.dtype(x));
    }
  }
  return linear(tape, convert(tape, o, tape.dtype(x)), pass.param(*o_proj_));
}

/// dtype: of what the attention multiplies.
Var Vq::attend(Pass& pass, Var q, Var k, Var v, DType dtype) const {
  const AttentionShape shape{.batch = pass.batch(),
                             .length = pass.length(),
                             .spaces = pass.batch(),
                             .keys = pass.length(),
                             .heads = shape_.heads,
                             .kv_heads = shape_.kv_heads,
                             .head_dim = shape_.key_dim,
                             .value_head_dim = shape_.value_dim};
  const auto to = [&](Var x) { return convert(pass.tape, x, dtype); };
  return attention(pass.tape, to(q), to(k), to(v), shape, visible_keys(pass, {}), 1.0);
}

Var Vq::quantize(Pass& pass, Var k, Var codes) {
  VqQuantizer quantizer{VqMode::nearest, idle_->value, idle_bonus_, &dither_};
  if (pass.training) {
    quantizer.mode = training_mode_;
    if (training_mode_ == VqMode::sf_diveq) { draw_dither(pass.seed, pass.step); }
  }
  const VqKeys keys = vq_keys(pass, k, codes, shape_, quantizer, name_);
  if (pass.training && !pass.tape.recomputing() && !pass.stream().counting()) {
    run(pass.stream(), VqMark{used_, keys.ids, training_mode_ == VqMode::sf_diveq});
    if (pass.statistics != nullptr) { report_idle(pass); }
  }
  return keys.keys;
}

bool Vq::reads_linear(const Pass& pass) const {
  int64_t longest = 0;
  for (const DocumentSpan& span : pass.rows.spans()) { longest = std::max(longest, span.length); }
  return !pass.training && !pass.tape.recording() && longest > kLinearFrom * shape_.codewords;
}

/// Codewords from means of consecutive keys of the first rank (docs/layers/vq.md, Start of the codebook), with fresh
/// moments; too few keys change nothing.
void Vq::start_codebook(Pass& pass, const Tensor& k) {
  is_start_pending_ = false;
  const int64_t hop = pass.tokens() / shape_.codewords;
  if (hop == 0) { return; }
  if (pass.ranks == nullptr || pass.ranks->rank() == 0) {
    run(pass.stream(), VqStart{codebook_->value, k.view({pass.tokens(), shape_.kv_heads, shape_.key_dim}), hop});
  }
  if (pass.ranks != nullptr) { pass.ranks->from_first(pass.stream(), codebook_->value); }
  codebook_->reset_moments(pass.stream());
}

void Vq::draw_dither(uint64_t seed, int64_t step) {
  if (dither_step_ == std::pair(seed, step)) { return; }
  dither_step_ = {seed, step};
  dither_.resize(static_cast<size_t>(shape_.kv_heads * (shape_.codewords - 1)));
  Rng rng(seed, fmt::format("vq/{:d}", block_), static_cast<uint64_t>(step));
  std::generate(dither_.begin(), dither_.end(), [&] { return rng.uniform(); });
}

/// Idle counters before the step: how many codewords were not used in the last step, and the longest disuse.
void Vq::report_idle(Pass& pass) const {
  const std::vector<int32_t> idle = host_integers(pass.stream(), idle_->value);
  auto& statistics = (*pass.statistics)[name_];
  const auto unused = std::count_if(idle.begin(), idle.end(), [](int32_t steps) { return steps > 0; });
  statistics["idle_share"] = static_cast<double>(unused) / static_cast<double>(idle.size());
  statistics["idle_max"] = static_cast<double>(*std::max_element(idle.begin(), idle.end()));
}

void Vq::begin_step(Stream& stream, int64_t step) {
  fill_zero(stream, used_);
  is_start_pending_ = quantize_after_ > 0 && step == quantize_after_;
}

void Vq::after_step(Stream& stream, int64_t step, const Tensor& applies) {
  if (step >= quantize_after_) { run(stream, VqIdle{idle_->value, used_, applies}); }
}

double Vq::flops_per_token(int64_t length) const {
  const double t = static_cast<double>(length), n = static_cast<double>(shape_.codewords);
  const double read = t <= n ? (t - 1) / 2 : n - n * (n + 1) / (2 * t);  // mean of min(N, position)
  const double d = static_cast<double>(d_), heads = static_cast<double>(shape_.heads);
  const double width = static_cast<double>(shape_.key_dim + shape_.value_dim);
  const double keys = static_cast<double>(shape_.kv_heads);
  return 2 * d * (heads + keys) * width + 2 * keys * static_cast<double>(shape_.key_dim) * n +
         2 * heads * width * (read + static_cast<double>(chunk_) / 2);
}

std::unique_ptr<Layer> VqConfig::make(const BuildContext& c) const { return std::make_unique<Vq>(c, *this); }

}  // namespace

std::unique_ptr<LayerConfig> make_vq_config() { return std::make_unique<VqConfig>(); }

}  // namespace hebb
