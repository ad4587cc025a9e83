#include "layers/mesanet/op.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "kernels/short_conv/short_conv.h"
#include "layers/ops/chunk_grid.h"
#include "layers/ops/host_values.h"
#include "layers/ops/recurrence_input.h"

namespace hebb {
namespace {

struct MesanetNode final : Node {
  MesanetInputs in;
  MesanetOptions config;
  Var o;
  Tensor x, doc_start;
  ChunkGrid grid;
  RecurrenceInput q, k, v;
  int64_t batch, length;

  Shape gates() const { return {batch, length, config.heads}; }
  Tensor gate(const Tensor& t) const { return t.defined() ? t.view(gates()) : t; }

  void backward(Tape& tape) override {
    const GradSlot d_a = tape.grad_slot(in.a), d_b = tape.grad_slot(in.b);
    const PreparedInput pq = prepare_input(tape, q, doc_start, {}, {}), pk = prepare_input(tape, k, doc_start, {}, {});
    const DType dtype = tape.dtype(in.q.x);
    const Buffer d_q = tape.scratch(q.shape, dtype, "mesa gradient"),
                 d_k = tape.scratch(k.shape, dtype, "mesa gradient"),
                 d_v = tape.scratch(v.shape, dtype, "mesa gradient");
    run(tape.workspace(), MesanetBackward{.d_q = d_q,
                                          .d_k = d_k,
                                          .d_v = d_v,
                                          .d_a = gate(d_a.tensor),
                                          .d_b = gate(d_b.tensor),
                                          .d_lambda_raw = tape.grad_slot(in.lambda_raw).tensor,
                                          .d_o = tape.grad(o).view(v.shape),
                                          .x = x,
                                          .q = pq.values,
                                          .k = pk.values,
                                          .v = tape.value(in.v).view(v.shape),
                                          .a = gate(tape.value(in.a)),
                                          .b = gate(tape.value(in.b)),
                                          .lambda_raw = tape.value(in.lambda_raw),
                                          .doc_start = doc_start,
                                          .grid = grid,
                                          .rule = config.rule,
                                          .accumulate_a = d_a.accumulate,
                                          .accumulate_b = d_b.accumulate});
    finish_input(tape, q, doc_start, pq, d_q);
    finish_input(tape, k, doc_start, pk, d_k);
    finish_input(tape, v, doc_start, {}, d_v);
  }
};

void report_residuals(Pass& pass, const Tensor& residual, const std::string& name) {
  const std::vector<double> values = host_values(pass.stream(), residual);
  auto& statistics = (*pass.statistics)[name];
  statistics["residual_mean"] = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  statistics["residual_max"] = *std::max_element(values.begin(), values.end());
}

/// One token of a carried row by the recurrence itself.
void run_step(Tape& tape, const MesanetNode& node, const MesanetForward& a) {
  MesanetRule rule = a.rule;
  rule.steps = node.config.decode_steps;
  run(tape.workspace(), MesanetSteps{.o = a.o,
                                     .keys = a.keys,
                                     .values = a.values,
                                     .q = a.q,
                                     .k = a.k,
                                     .v = a.v,
                                     .a = a.a,
                                     .b = a.b,
                                     .lambda_raw = a.lambda_raw,
                                     .doc_start = a.doc_start,
                                     .rule = rule});
}

void run_chunks(Pass& pass, MesanetNode& node, MesanetForward a, const std::string& name) {
  Tape& tape = pass.tape;
  node.grid = a.grid = chunk_grid(tape, pass.rows, node.config.chunk);
  Buffer residual;
  if (pass.statistics != nullptr && !tape.recomputing()) {
    residual = tape.scratch(node.gates(), sum_dtype(a.o.dtype), "mesa residuals");
    a.residual = residual;
  }
  run(tape.workspace(), a);
  if (a.residual.defined() && !pass.stream().counting()) { report_residuals(pass, residual, name); }
}

}  // namespace

MesanetState::MesanetState(Arena& arena, int64_t rows, const MesanetOptions& config, DType dtype)
    : keys(arena, {rows, config.heads, config.key_dim, config.key_dim}, sum_dtype(dtype), "mesa state"),
      values(arena, {rows, config.heads, config.key_dim, config.value_dim}, sum_dtype(dtype), "mesa state") {
  if (config.conv_size > 0) {
    q = std::make_unique<ShortConvState>(arena, rows, config.conv_size, config.key_channels(), dtype);
    k = std::make_unique<ShortConvState>(arena, rows, config.conv_size, config.key_channels(), dtype);
  }
}

Var mesa(Pass& pass, const MesanetInputs& in, const MesanetOptions& config, MesanetState* state,
         const std::string& name) {
  Tape& tape = pass.tape;
  HEBB_ASSERT(!(state != nullptr && tape.recording()));
  MesanetNode node;
  node.in = in;
  node.config = config;
  node.batch = pass.batch();
  node.length = pass.length();
  node.doc_start = pass.rows.doc_start();
  const Shape keys{node.batch, node.length, config.heads, config.key_dim};
  const Shape values{node.batch, node.length, config.heads, config.value_dim};
  node.q = {in.q, keys, config.silu, config.l2_norm};
  node.k = {in.k, keys, config.silu, config.l2_norm};
  node.v = {{in.v, {}, {}}, values, false, false};
  const DType dtype = tape.dtype(in.q.x);
  node.o = tape.output({pass.tokens(), config.value_channels()}, dtype, "mesa output");
  if (tape.recording()) { node.x = tape.saved(keys, sum_dtype(dtype), "mesa solutions"); }
  {
    const PreparedInput q = prepare_input(tape, node.q, node.doc_start, carried(state, &MesanetState::q), {});
    const PreparedInput k = prepare_input(tape, node.k, node.doc_start, carried(state, &MesanetState::k), {});
    MesanetForward args{};
    args.o = tape.value(node.o).view(values);
    args.x = node.x;
    args.keys = state != nullptr ? state->keys.tensor() : Tensor{};
    args.values = state != nullptr ? state->values.tensor() : Tensor{};
    args.q = q.values;
    args.k = k.values;
    args.v = tape.value(in.v).view(values);
    args.a = tape.value(in.a).view(node.gates());
    args.b = tape.value(in.b).view(node.gates());
    args.lambda_raw = tape.value(in.lambda_raw);
    args.doc_start = node.doc_start;
    args.rule = config.rule;
    if (state != nullptr && pass.length() == 1) {
      run_step(tape, node, args);
    } else {
      run_chunks(pass, node, args, name);
    }
  }
  if (state != nullptr && config.conv_size > 0) {
    run(tape.stream(), ShortConvShift{state->q->previous, tape.value(in.q.x).view(node.q.flat())});
    run(tape.stream(), ShortConvShift{state->k->previous, tape.value(in.k.x).view(node.k.flat())});
  }
  return tape.record(std::move(node), &MesanetNode::o);
}

}  // namespace hebb
