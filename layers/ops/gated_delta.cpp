#include "layers/ops/gated_delta.h"

#include <cmath>

#include "kernels/channel_skip/channel_skip.h"
#include "kernels/gated_delta/gated_delta.h"
#include "kernels/short_conv/short_conv.h"
#include "layers/ops/chunk_grid.h"
#include "layers/ops/delta_gates.h"
#include "layers/ops/recurrence_input.h"

namespace hebb {
namespace {

/// Up to this many tokens of a carried row go step by step: a chunk of 4 costs about as much (heads of 64 x 64 to
/// 256 x 384, AVX-512), a longer one less.
constexpr int64_t kMaxSteps = 4;

struct GatedDeltaNode final : Node {
  DeltaInputs in;
  DeltaConfig config;
  Var o;
  Tensor doc_start;
  ChunkGrid grid;
  RecurrenceInput q, k, v;
  int64_t batch, length;

  DeltaGates gates() const {
    return {.a = in.a,
            .b = in.b,
            .a_log = in.a_log,
            .dt_bias = in.dt_bias,
            .beta_scale = config.beta_scale,
            .dt_low = config.dt_low,
            .dt_high = config.dt_high};
  }
  /// Memory for the gates, or for their gradients.
  Buffer gate_memory(Tape& tape, const char* what) const {
    return tape.scratch({batch, length, config.value_heads}, sum_dtype(tape.dtype(in.a)), what);
  }
  double scale() const { return config.additive ? 1.0 : 1.0 / std::sqrt(static_cast<double>(config.key_dim)); }

  void backward(Tape& tape) override {
    HEBB_ASSERT(tape.has_grad(o));
    const PreparedInput pq = prepare_input(tape, q, doc_start, {}, {}), pk = prepare_input(tape, k, doc_start, {}, {}),
                        pv = prepare_input(tape, v, doc_start, {}, {});
    const Buffer g = gate_memory(tape, "delta rule decay"), beta = gate_memory(tape, "delta rule strength");
    gates().forward(tape, g, beta);
    const DType dtype = tape.dtype(in.q.x);
    const Buffer d_q = tape.scratch(q.shape, dtype, "delta rule gradient"),
                 d_k = tape.scratch(k.shape, dtype, "delta rule gradient"),
                 d_v = tape.scratch(v.shape, dtype, "delta rule gradient");
    const Buffer d_g = gate_memory(tape, "delta rule gradient"), d_beta = gate_memory(tape, "delta rule gradient");
    run(tape.workspace(), GatedDeltaBackward{.d_q = d_q,
                                             .d_k = d_k,
                                             .d_v = d_v,
                                             .d_g = d_g,
                                             .d_beta = d_beta,
                                             .d_initial_state = tape.grad_slot(in.initial_state).tensor,
                                             .d_o = tape.grad(o).view(v.shape),
                                             .q = pq.values,
                                             .k = pk.values,
                                             .v = pv.values,
                                             .g = g,
                                             .beta = beta,
                                             .initial_state = tape.value_or_none(in.initial_state),
                                             .doc_start = doc_start,
                                             .grid = grid,
                                             .scale = scale(),
                                             .additive = config.additive});
    if (in.skip) { backward_skip(tape, pv.values, d_v); }
    finish_input(tape, q, doc_start, pq, d_q);
    finish_input(tape, k, doc_start, pk, d_k);
    finish_input(tape, v, doc_start, pv, d_v);
    gates().backward(tape, g, beta, d_g, d_beta);
  }

 private:
  void backward_skip(Tape& tape, const Tensor& x, const Tensor& d_x) const {
    run(tape.workspace(), ChannelSkipBackward{.d_x = d_x.view(v.matrix()),
                                              .d_scale = tape.grad_slot(in.skip).tensor,
                                              .d_y = tape.grad(o),
                                              .x = x.view(v.matrix()),
                                              .scale = tape.value(in.skip)});
  }
};

}  // namespace

DeltaState::DeltaState(Arena& arena, int64_t rows, const DeltaConfig& config, DType dtype)
    : memory(arena, {rows, config.value_heads, config.key_dim, config.value_dim}, sum_dtype(dtype),
             "delta rule state") {
  if (config.conv_size > 0) {
    q = std::make_unique<ShortConvState>(arena, rows, config.conv_size, config.key_channels(), dtype);
    k = std::make_unique<ShortConvState>(arena, rows, config.conv_size, config.key_channels(), dtype);
    v = std::make_unique<ShortConvState>(arena, rows, config.conv_size, config.value_channels(), dtype);
  }
}

Var gated_delta(Pass& pass, const DeltaInputs& in, const DeltaConfig& config, DeltaState* state,
                const DeltaProbe& probe) {
  Tape& tape = pass.tape;
  HEBB_ASSERT(!(state != nullptr && tape.recording()));
  HEBB_ASSERT(config.additive ? !in.b && !probe.prediction.defined() : static_cast<bool>(in.b));
  GatedDeltaNode node;
  node.in = in;
  node.config = config;
  node.batch = pass.batch();
  node.length = pass.length();
  node.doc_start = pass.rows.doc_start();
  const Shape keys{node.batch, node.length, config.key_heads, config.key_dim};
  const Shape values{node.batch, node.length, config.value_heads, config.value_dim},
      out{pass.tokens(), config.value_channels()};
  node.q = {in.q, keys, config.silu, config.l2_norm};
  node.k = {in.k, keys, config.silu, config.l2_norm};
  node.v = {in.v, values, config.silu, false};
  const DType dtype = tape.dtype(in.q.x);
  node.o = tape.output(out, config.additive ? sum_dtype(dtype) : dtype, "delta rule output");
  {
    const PreparedInput q = prepare_input(tape, node.q, node.doc_start, carried(state, &DeltaState::q), {});
    const PreparedInput k = prepare_input(tape, node.k, node.doc_start, carried(state, &DeltaState::k), {});
    const PreparedInput v = prepare_input(tape, node.v, node.doc_start, carried(state, &DeltaState::v), probe.value);
    const Buffer g = node.gate_memory(tape, "delta rule decay"), beta = node.gate_memory(tape, "delta rule strength");
    node.gates().forward(tape, g, beta);
    const Tensor o = tape.value(node.o).view(values),
                 prediction = probe.prediction.defined() ? probe.prediction.view(values) : Tensor{};
    const Tensor memory = state != nullptr ? state->memory.tensor() : Tensor{},
                 initial = tape.value_or_none(in.initial_state);
    if (state != nullptr && pass.length() <= kMaxSteps) {
      run(tape.stream(), GatedDeltaSteps{.o = o,
                                         .prediction = prediction,
                                         .state = memory,
                                         .q = q.values,
                                         .k = k.values,
                                         .v = v.values,
                                         .g = g,
                                         .beta = beta,
                                         .initial_state = initial,
                                         .doc_start = node.doc_start,
                                         .scale = node.scale(),
                                         .additive = config.additive});
    } else {
      node.grid = chunk_grid(tape, pass.rows, config.chunk);
      run(tape.workspace(), GatedDeltaForward{.o = o,
                                              .prediction = prediction,
                                              .state = memory,
                                              .q = q.values,
                                              .k = k.values,
                                              .v = v.values,
                                              .g = g,
                                              .beta = beta,
                                              .initial_state = initial,
                                              .doc_start = node.doc_start,
                                              .grid = node.grid,
                                              .scale = node.scale(),
                                              .additive = config.additive});
    }
    if (in.skip) {
      run(tape.stream(), ChannelSkipForward{tape.value(node.o), v.values.view(node.v.matrix()), tape.value(in.skip)});
    }
  }
  if (state != nullptr && config.conv_size > 0) {
    run(tape.stream(), ShortConvShift{state->q->previous, tape.value(in.q.x).view(node.q.flat())});
    run(tape.stream(), ShortConvShift{state->k->previous, tape.value(in.k.x).view(node.k.flat())});
    run(tape.stream(), ShortConvShift{state->v->previous, tape.value(in.v.x).view(node.v.flat())});
  }
  return tape.record(std::move(node), &GatedDeltaNode::o);
}

}  // namespace hebb
