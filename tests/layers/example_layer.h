#pragma once
// The two layers of docs/adding-a-layer.md, whose code blocks are parts of this file (example_layer_test.cpp): gated
// linear attention of existing operations, and s_t = decay s_{t-1} + Wv x_t in every channel, y = Wo s, with a kernel
// and an operation of its own. Each part would be a file of its own.
#include <algorithm>
#include <vector>

#include "core/parallel.h"
#include "layers/collectors.h"
#include "layers/decay_init.h"
#include "layers/delta_mixer.h"
#include "layers/model_config.h"
#include "layers/ops/host_values.h"
#include "layers/ops/linear.h"
#include "layers/ops/sigmoid_gate.h"

namespace hebb {

// layers/gla.cpp
struct GlaConfig final : LayerConfig {
  int64_t num_heads = 4, head_dim = 16;

  void fields(Fields& f) override {
    f.field("num_heads", num_heads).min(1).help("Heads, each with a state.");
    f.field("head_dim", head_dim).min(1).help("Channels of a head's queries, keys and values.");
  }
  std::unique_ptr<Layer> make(const BuildContext& c) const override;
  StatisticsCollectors statistics(const StatisticsOptions&) const override { return collector_list(state_norms()); }
};

/// Per head: S_t = alpha_t S_{t-1} + dt_t k_t v_t^T, o_t = q_t S_t; y = Wo (o * sigmoid(Wg x)).
class Gla final : public DeltaMixer {
 public:
  Gla(const BuildContext& c, int64_t heads, int64_t head_dim)
      : DeltaMixer(
            c,
            {.key_heads = heads, .value_heads = heads, .key_dim = head_dim, .value_dim = head_dim, .additive = true}),
        q_(c, "q", heads * head_dim),
        k_(c, "k", heads * head_dim),
        v_(c, "v", heads * head_dim),
        heads_(heads) {
    const Init normal = c.model.projection_init();
    a_proj_ = &c.declare("a_proj.weight", {heads, d_}, normal);
    g_proj_ = &c.declare("g_proj.weight", {heads, d_}, normal);
    a_log_ = &c.declare("A_log", {heads}, a_log_init(0.0, 16.0));
    dt_bias_ = &c.declare("dt_bias", {heads}, dt_bias_init(0.001, 0.1));
    o_proj_ = &c.declare("o_proj.weight", {d_, heads * head_dim}, c.model.output_init());
  }

  Var forward(Pass& pass, Var x, LayerState* state) override {
    DeltaInputs in = project(pass, x, q_, k_, v_);
    in.a = linear(pass.tape, x, pass.param(*a_proj_), {}, sum_dtype(pass.tape.dtype(x)));  // [N, H]
    const Var o = read(pass, in, state);                                                   // [N, H head_dim]
    const Var gate = linear(pass.tape, x, pass.param(*g_proj_));                           // [N, H]
    return linear(pass.tape, sigmoid_gate(pass.tape, o, gate, heads_), pass.param(*o_proj_));
  }
  double flops_per_token(int64_t) const override {
    const int64_t channels = delta_.value_channels(), core = 4 * delta_.chunk + 4 * delta_.key_dim;
    return static_cast<double>(2 * d_ * (4 * channels + 2 * heads_) + core * channels);
  }

 private:
  ConvolvedProjection q_, k_, v_;
  int64_t heads_;
  Param *a_proj_, *g_proj_, *o_proj_;
};

inline std::unique_ptr<Layer> GlaConfig::make(const BuildContext& c) const {
  return std::make_unique<Gla>(c, num_heads, head_dim);
}

// kernels/fade/fade.h
/// s = decay s + x from token to token of a document, s = 0 before its first; reverse: from its last to its first. s, x
/// [B, T, C]; doc_start [B, T] i32. state [B, C], forward only: in, for rows that continue; out, after the last token;
/// undefined: nothing is carried. accumulate: s +=. Bound: memory, 2 passes.
struct Fade {
  Tensor s, state, x, doc_start;
  double decay;
  bool reverse, accumulate;
};
HEBB_KERNEL_CPU(Fade)

// kernels/fade/fade.cpp
namespace cpu {

template <class S> void fade_row(const Fade& a, int64_t row) {
  const int64_t length = a.x.size(1), channels = a.x.size(2);
  const int32_t* const starts = a.doc_start.as<int32_t>() + row * length;
  S* const carried = a.state.defined() ? a.state.as<S>() + row * channels : nullptr;
  std::vector<S> sum(static_cast<size_t>(channels));
  if (carried != nullptr && starts[0] < 0) { std::copy_n(carried, channels, sum.begin()); }
  for (int64_t step = 0; step < length; ++step) {
    const int64_t t = a.reverse ? length - 1 - step : step, before = a.reverse ? t + 1 : t - 1;
    const S keep = step > 0 && starts[before] != starts[t] ? S(0) : static_cast<S>(a.decay);
    const S* const x = a.x.as<S>() + (row * length + t) * channels;
    S* const s = a.s.as<S>() + (row * length + t) * channels;
    for (int64_t c = 0; c < channels; ++c) {
      S& total = sum[static_cast<size_t>(c)];
      total = keep * total + x[c];
      s[c] = a.accumulate ? s[c] + total : total;
    }
  }
  if (carried != nullptr) { std::copy_n(sum.begin(), channels, carried); }
}

inline void run(Stream&, const Fade& args) {
  dispatch_real(args.x.dtype,
                [&]<class S>(S) { parallel_each(args.x.size(0), 1, [&](int64_t row) { fade_row<S>(args, row); }); });
}

}  // namespace cpu

// layers/ops/fade.cpp
/// x [B T, C]; returns s [B T, C]. Advances `state` [B, C] when given.
inline Var fade(Pass& pass, Var x, double decay, const Tensor& state) {
  Tape& tape = pass.tape;
  const Tensor doc_start = pass.rows.doc_start();
  const Shape shape{pass.batch(), pass.length(), tape.shape(x)[1]};
  const Var s = tape.output(tape.shape(x), tape.dtype(x), "fade");
  run(tape.stream(), Fade{.s = tape.value(s).view(shape),
                          .state = state,
                          .x = tape.value(x).view(shape),
                          .doc_start = doc_start,
                          .decay = decay,
                          .reverse = false,
                          .accumulate = false});
  return tape.record(s, [=](Tape& tape) {
    if (const GradSlot d_x = tape.grad_slot(x)) {
      run(tape.stream(), Fade{.s = d_x.tensor.view(shape),
                              .state = {},
                              .x = tape.grad(s).view(shape),
                              .doc_start = doc_start,
                              .decay = decay,
                              .reverse = true,
                              .accumulate = d_x.accumulate});
    }
  });
}

// layers/fade.cpp
struct FadeConfig final : LayerConfig {
  int64_t width = 16;
  double decay = 0.9;

  void fields(Fields& f) override {
    f.field("width", width).min(1).help("Channels that are summed.");
    f.field("decay", decay).above(0).help("What a token keeps of the sum before it.");
    f.require(decay < 1, "decay", "a number < 1");
  }
  std::unique_ptr<Layer> make(const BuildContext& c) const override;
  StatisticsCollectors statistics(const StatisticsOptions&) const override { return collector_list(state_norms()); }
};

class FadeLayer final : public Layer {
 public:
  FadeLayer(const BuildContext& c, const FadeConfig& config)
      : name_(c.name), d_(c.model.hidden_size), width_(config.width), decay_(config.decay) {
    v_proj_ = &c.declare("v_proj.weight", {width_, d_}, c.model.projection_init());
    o_proj_ = &c.declare("o_proj.weight", {d_, width_}, c.model.output_init());
  }

  Var forward(Pass& pass, Var x, LayerState* state) override {
    const Tensor sums = state != nullptr ? static_cast<State*>(state)->sums.tensor() : Tensor{};
    const Var s = fade(pass, linear(pass.tape, x, pass.param(*v_proj_)), decay_, sums);  // [B T, width]
    return linear(pass.tape, s, pass.param(*o_proj_));
  }
  std::unique_ptr<LayerState> make_state(Arena& arena, int64_t rows, DType dtype) const override {
    return std::make_unique<State>(arena, rows, width_, dtype);
  }
  void inspect_state(Stream& stream, const LayerState& state, int64_t, Inspector& to) const override {
    const Tensor sums = static_cast<const State&>(state).sums.tensor();  // [B, width]
    to.records[name_ + ".state"] = record_of(stream, sums.view({sums.size(0), 1, width_}));
  }
  double flops_per_token(int64_t) const override { return static_cast<double>(4 * d_ * width_ + 2 * width_); }
  int64_t state_bytes(int64_t) const override { return 4 * width_; }

 private:
  struct State final : LayerState {
    Buffer sums;
    State(Arena& arena, int64_t rows, int64_t width, DType dtype)
        : sums(arena, {rows, width}, sum_dtype(dtype), "fade state") {}
  };
  std::string name_;
  int64_t d_, width_;
  double decay_;
  Param *v_proj_, *o_proj_;
};

inline std::unique_ptr<Layer> FadeConfig::make(const BuildContext& c) const {
  return std::make_unique<FadeLayer>(c, *this);
}

}  // namespace hebb
