// pkm: product key memory in the place of a feed-forward layer.
#include <cmath>

#include "layers/collectors.h"
#include "layers/heads_config.h"
#include "layers/model_config.h"
#include "layers/ops/activation.h"
#include "layers/ops/linear.h"
#include "layers/ops/norm.h"
#include "layers/pkm/op.h"

namespace hebb {
namespace {

struct PkmConfig final : LayerConfig {
  ProductKeyConfig table;
  int64_t value_dim = 512;
  bool query_norm = true, glu = true;

  void fields(Fields& f) override {
    table.fields(f, value_dim);
    f.field("query_norm", query_norm).help("RMSNorm on the query.");
    f.field("glu", glu).help("Gate the reading with silu of a projection of the input.");
  }
  std::unique_ptr<Layer> make(const BuildContext& c) const override;
  StatisticsCollectors statistics(const StatisticsOptions& options) const override {
    return collector_list(slot_windows(options));
  }
};

/// y = o_proj(r * silu(gate_proj(x))), r = the reading of product_key_read.
class Pkm final : public Layer {
 public:
  Pkm(const BuildContext& c, const PkmConfig& config) : config_(config), d_(c.model.hidden_size), name_(c.name) {
    const int64_t width = config_.table.width(), n = config_.table.num_subkeys, dv = config_.value_dim;
    const double xavier = std::sqrt(6.0 / static_cast<double>(d_ + width)),
                 narrow = std::pow(static_cast<double>(d_), -0.5);
    const double key_bound = std::pow(static_cast<double>(config_.table.key_dim), -0.5);
    q_weight_ = &c.declare("q_proj.weight", {width, d_}, init::uniform(-xavier, xavier));
    q_bias_ = &c.declare("q_proj.bias", {width}, init::constant(0));
    if (config_.query_norm) { q_norm_ = &c.declare("q_norm.weight", {width}, init::constant(1)); }
    keys_ = &c.declare("keys", {config_.table.num_heads, 2, n, config_.table.key_dim / 2},
                       init::uniform(-key_bound, key_bound))
                 .read_in_fp32();
    values_ = &c.declare("values", {n * n, dv}, init::normal(std::pow(static_cast<double>(dv), -0.5)));
    keys_->spec.memory_table = values_->spec.memory_table = true;
    if (config_.glu) {
      gate_weight_ = &c.declare("gate_proj.weight", {dv, d_}, init::normal(narrow));
      gate_bias_ = &c.declare("gate_proj.bias", {dv}, init::constant(0));
    }
    o_weight_ = &c.declare("o_proj.weight", {d_, dv}, init::normal(narrow));
    o_bias_ = &c.declare("o_proj.bias", {d_}, init::constant(0));
  }

  Var forward(Pass& pass, Var x, LayerState*) override {
    Tape& tape = pass.tape;
    Var q = linear(tape, x, pass.param(*q_weight_), pass.param(*q_bias_));  // [N, H 2 D]
    if (q_norm_ != nullptr) { q = norm(tape, q, pass.param(*q_norm_), {}, 1e-6, NormKind::rms); }
    Var r = product_key_read(
        pass, q, pass.param(*keys_), pass.param(*values_),
        {config_.table.num_heads, config_.table.num_subkeys, config_.table.key_dim / 2, config_.table.top_k},
        name_);  // [N, dv]
    if (gate_weight_ != nullptr) {
      r = swiglu(tape, linear(tape, x, pass.param(*gate_weight_), pass.param(*gate_bias_)), r);
    }
    return linear(tape, r, pass.param(*o_weight_), pass.param(*o_bias_));
  }

  std::unique_ptr<LayerState> make_state(Arena&, int64_t, DType) const override { return nullptr; }
  int64_t idle_parameters() const override { return config_.table.idle_slots() * config_.value_dim; }
  double flops_per_token(int64_t) const override {
    const double d = static_cast<double>(d_), h = static_cast<double>(config_.table.num_heads),
                 dk = static_cast<double>(config_.table.key_dim), dv = static_cast<double>(config_.value_dim),
                 n = static_cast<double>(config_.table.num_subkeys), k = static_cast<double>(config_.table.top_k);
    return 2 * d * h * dk + 2 * h * n * dk + 2 * h * k * dv + (config_.glu ? 4 : 2) * d * dv;
  }

 private:
  PkmConfig config_;
  int64_t d_;
  std::string name_;
  Param *q_weight_, *q_bias_, *q_norm_ = nullptr, *keys_, *values_, *gate_weight_ = nullptr, *gate_bias_ = nullptr,
                              *o_weight_, *o_bias_;
};

std::unique_ptr<Layer> PkmConfig::make(const BuildContext& c) const { return std::make_unique<Pkm>(c, *this); }

}  // namespace

std::unique_ptr<LayerConfig> make_pkm_config() { return std::make_unique<PkmConfig>(); }

}  // namespace hebb
