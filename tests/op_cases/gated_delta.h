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

/// The args of a kernel with its inputs.
template <class Args> Args delta_args(const Delta& d, const DeltaInputs& in) {
  Args args{};
  args.q = in.q;
  args.k = in.k;
  args.v = in.v;
  args.g = in.g;
  args.beta = in.beta;
  args.initial_state = in.initial;
  args.doc_start = in.doc_start;
  args.scale = d.scale;
  args.additive = d.additive;
  return args;
}

inline hebb::GatedDeltaForward delta_forward(Machine& m, const Delta& d, const DeltaInputs& in) {
  auto args = delta_args<hebb::GatedDeltaForward>(d, in);
  args.o = d.additive ? m.float_output(d.values()) : m.output(d.values());
  if (!d.additive && !m.is_bf16()) { args.prediction = m.output(d.values()); }
  if (d.carried) { args.state = m.float_sum(d.states()); }
  args.grid = chunk_grid(m, d.doc_start, d.length, d.chunk);
  return args;
}

inline hebb::GatedDeltaSteps delta_steps(Machine& m, const Delta& d, const DeltaInputs& in) {
  auto args = delta_args<hebb::GatedDeltaSteps>(d, in);
  args.o = d.additive ? m.float_output(d.values()) : m.output(d.values());
  args.prediction = m.output(d.values());
  args.state = m.float_sum(d.states());
  return args;
}

inline hebb::GatedDeltaBackward delta_backward(Machine& m, const Delta& d, const DeltaInputs& in) {
  auto args = delta_args<hebb::GatedDeltaBackward>(d, in);
  args.d_q = m.output(d.keys());
  args.d_k = m.output(d.keys());
  args.d_v = m.output(d.values());
  args.d_g = m.float_output(d.gates());
  args.d_beta = m.float_output(d.gates());
  if (d.initial) { args.d_initial_state = m.float_sum(d.start()); }
  args.d_o = d.additive ? m.parameter(d.values()) : m.input(d.values());
  args.grid = chunk_grid(m, d.doc_start, d.length, d.chunk);
  return args;
}

}  // namespace hebb_test
