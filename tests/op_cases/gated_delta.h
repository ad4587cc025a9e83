#pragma once
#include "kernels/gated_delta/scratch.h"
#include "tests/op_cases/chunk_grids.h"

namespace hebb_test {

/// Sizes and options of the gated delta rule. Two rows; documents by first tokens (negative: the row continues).
struct Delta {
  int64_t length, heads, value_heads, dk, dv, chunk;
  std::vector<int64_t> doc_start;
  bool initial = false, carried = false, additive = false;
  double scale = 0.4, strength = 1;  // of beta
  bool predicts = true;

  hebb::Shape keys() const { return {2, length, heads, dk}; }
  hebb::Shape values() const { return {2, length, value_heads, dv}; }
  hebb::Shape gates() const { return {2, length, value_heads}; }
  hebb::Shape states() const { return {2, value_heads, dk, dv}; }
  hebb::Shape start() const { return {value_heads, dk, dv}; }
};

struct DeltaInputs {
  hebb::Tensor q, k, v, g, beta, initial, doc_start;

  DeltaInputs(Machine& m, const Delta& d)
      : q(m.input(d.keys())),
        k(m.input(d.keys(), 1.5 / std::sqrt(static_cast<double>(d.dk)))),
        v(m.input(d.values())),
        g(m.values(d.gates(), decays(d.gates(), 0, -0.2))),
        beta(m.parameter(d.gates(), d.strength)),
        initial(d.initial ? m.parameter(d.start()) : hebb::Tensor{}),
        doc_start(m.integers({2, d.length}, d.doc_start)) {}
};

inline hebb::GatedDeltaForward delta_forward(Machine& m, const Delta& d, const DeltaInputs& in) {
  return {.o = m.output(d.values()),
          .prediction = d.predicts && !d.additive && !m.is_bf16() ? m.output(d.values()) : hebb::Tensor{},
          .state = d.carried ? m.float_sum(d.states()) : hebb::Tensor{},
          .q = in.q,
          .k = in.k,
          .v = in.v,
          .g = in.g,
          .beta = in.beta,
          .initial_state = in.initial,
          .doc_start = in.doc_start,
          .grid = chunk_grid(m, d.doc_start, d.length, d.chunk),
          .scale = d.scale,
          .additive = d.additive};
}

inline hebb::GatedDeltaSteps delta_steps(Machine& m, const Delta& d, const DeltaInputs& in) {
  return {.o = m.output(d.values()),
          .prediction = m.output(d.values()),
          .state = m.float_sum(d.states()),
          .q = in.q,
          .k = in.k,
          .v = in.v,
          .g = in.g,
          .beta = in.beta,
          .initial_state = in.initial,
          .doc_start = in.doc_start,
          .scale = d.scale,
          .additive = d.additive};
}

inline hebb::GatedDeltaBackward delta_backward(Machine& m, const Delta& d, const DeltaInputs& in) {
  return {.d_q = m.output(d.keys()),
          .d_k = m.output(d.keys()),
          .d_v = m.output(d.values()),
          .d_g = m.float_output(d.gates()),
          .d_beta = m.float_output(d.gates()),
          .d_initial_state = d.initial ? m.float_sum(d.start()) : hebb::Tensor{},
          .d_o = m.input(d.values()),
          .q = in.q,
          .k = in.k,
          .v = in.v,
          .g = in.g,
          .beta = in.beta,
          .initial_state = in.initial,
          .doc_start = in.doc_start,
          .grid = chunk_grid(m, d.doc_start, d.length, d.chunk),
          .scale = d.scale,
          .additive = d.additive};
}

}  // namespace hebb_test
