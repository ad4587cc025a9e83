// swiglu: y = down(silu(gate x) * up x).
// relu2: y = down(relu(up(shifted x))^2) with an optional token shift.
#include <cmath>

#include "layers/model_config.h"
#include "layers/ops/activation.h"
#include "layers/ops/linear.h"
#include "layers/ops/token_shift.h"
#include "layers/size_field.h"

namespace hebb {
namespace {

class Swiglu final : public Layer {
 public:
  Swiglu(const BuildContext& c, int64_t n) : d_(c.model.hidden_size), n_(n) {
    const Init normal = init::normal(c.model.init_std);
    gate_ = &c.declare("gate_proj.weight", {n_, d_}, normal);
    up_ = &c.declare("up_proj.weight", {n_, d_}, normal);
    down_ = &c.declare("down_proj.weight", {d_, n_}, normal);
  }

  Var forward(Pass& pass, Var x, LayerState*) override {
    const Var gate = linear(pass.tape, x, pass.param(*gate_));  // [N, n]
    const Var up = linear(pass.tape, x, pass.param(*up_));
    return swiglu_linear(pass.tape, gate, up, pass.param(*down_));
  }

  std::unique_ptr<LayerState> make_state(Arena&, int64_t, DType) const override { return nullptr; }
  double flops_per_token(int64_t) const override { return 6.0 * static_cast<double>(d_ * n_); }

 private:
  int64_t d_, n_;
  Param *gate_, *up_, *down_;
};

struct SwigluConfig final : LayerConfig {
  int64_t intermediate_size = 0;

  void fields(Fields& f) override {
    required_size(f, "intermediate_size", intermediate_size, scaling::channels(), "Width n between the projections.");
  }
  std::unique_ptr<Layer> make(const BuildContext& c) const override {
    return std::make_unique<Swiglu>(c, intermediate_size);
  }
};

struct Relu2Config final : LayerConfig {
  int64_t intermediate_size = 0;
  bool token_shift = false;

  void fields(Fields& f) override {
    required_size(f, "intermediate_size", intermediate_size, scaling::channels(), "Width n between the projections.");
    f.field("token_shift", token_shift).help("Mix each token's input with the previous token's.");
  }
  std::unique_ptr<Layer> make(const BuildContext& c) const override;
};

class Relu2 final : public Layer {
 public:
  Relu2(const BuildContext& c, const Relu2Config& config) : d_(c.model.hidden_size), n_(config.intermediate_size) {
    if (config.token_shift) {
      // rho falls from 1 at the first block (docs/layers/ffn.md, Relu2).
      const double rho = 1.0 - static_cast<double>(c.block) / static_cast<double>(c.model.num_layers);
      shift_ = &c.declare("shift", {d_}, token_shift_init(std::pow(rho, 4.0)));
    }
    // Initial values of docs/layers/ffn.md, Relu2.
    up_ = &c.declare("up_proj.weight", {n_, d_}, init::orthogonal(n_, d_, 1.0));
    down_ = &c.declare("down_proj.weight", {d_, n_}, init::constant(0));
  }

  Var forward(Pass& pass, Var x, LayerState* state) override {
    if (shift_ != nullptr) {
      x = token_shift(pass, x, pass.param(*shift_), true, static_cast<TokenShiftState*>(state));
    }
    const Var up = linear(pass.tape, x, pass.param(*up_));
    return linear(pass.tape, relu2(pass.tape, up), pass.param(*down_));
  }

  std::unique_ptr<LayerState> make_state(Arena& arena, int64_t rows, DType dtype) const override {
    return shift_ != nullptr ? std::make_unique<TokenShiftState>(arena, rows, d_, dtype) : nullptr;
  }
  double flops_per_token(int64_t) const override { return 4.0 * static_cast<double>(d_ * n_); }
  int64_t state_bytes(int64_t) const override { return shift_ != nullptr ? 2 * d_ : 0; }

 private:
  int64_t d_, n_;
  Param* shift_ = nullptr;
  Param *up_, *down_;
};

std::unique_ptr<Layer> Relu2Config::make(const BuildContext& c) const { return std::make_unique<Relu2>(c, *this); }

}  // namespace

std::unique_ptr<LayerConfig> make_swiglu_config() { return std::make_unique<SwigluConfig>(); }
std::unique_ptr<LayerConfig> make_relu2_config() { return std::make_unique<Relu2Config>(); }

}  // namespace hebb
