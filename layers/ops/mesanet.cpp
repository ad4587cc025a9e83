#include "layers/ops/mesanet.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "core/parallel.h"
#include "kernels/short_conv/short_conv.h"
#include "layers/ops/chunk_grid.h"
#include "layers/ops/recurrence_input.h"

namespace hebb {
namespace {

struct MesaNode final : Node {
  MesaInputs in;
  MesaConfig config;
  Var o;
  Tensor x, doc_start;
  ChunkGrid grid;
  RecurrenceInput q, k, v;
  int64_t batch, length;

  Shape gates() const { return {batch, length, config.heads}; }
  /// Slots of scratch: no more than threads, nor than (row, head) pairs. On a GPU chunks go side by side, a few on each
  /// multiprocessor.
  int64_t slots(const Stream& stream) const {
    constexpr int64_t kChunks = 512;
    const int64_t heads = batch * config.heads;
    if (!stream.on_gpu()) { return std::min<int64_t>(threads(), heads); }
    return std::max(heads, std::min(kChunks, grid.chunks.defined() ? grid.chunks.size(0) * config.heads : 0));
  }
  /// R and S at chunk starts, [grid.states, H, dk, dk or dv].
  Buffer starts(Tape& tape, int64_t columns, DType dtype) const {
    return tape.scratch({grid.states, config.heads, config.key_dim, columns}, dtype, "mesa states");
  }

  void backward(Tape& tape) override {
    const PreparedInput pq = prepare_input(tape, q, doc_start, {}, {}), pk = prepare_input(tape, k, doc_start, {}, {});
    const DType dtype = tape.dtype(in.q);
    const Buffer d_q = tape.scratch(q.shape, dtype, "mesa gradient"),
                 d_k = tape.scratch(k.shape, dtype, "mesa gradient"),
                 d_v = tape.scratch(v.shape, dtype, "mesa gradient");
    MesaBackward args{};
    args.d_q = d_q;
    args.d_k = d_k;
    args.d_v = d_v;
    args.q = pq.values;
    args.k = pk.values;
    run_core(tape, args);
    finish_input(tape, q, doc_start, pq, d_q);
    finish_input(tape, k, doc_start, pk, d_k);
    finish_input(tape, v, doc_start, {}, d_v);
  }

 private:
  void run_core(Tape& tape, MesaBackward args) const {
    const DType dtype = sum_dtype(tape.dtype(in.q));
    const Buffer keys = starts(tape, config.key_dim, dtype), values = starts(tape, config.value_dim, dtype),
                 sums = tape.scratch({batch, config.heads, config.key_dim}, dtype, "mesa ridge sums"),
                 scratch = tape.scratch(
                     {slots(tape.stream()), mesa_backward_scratch(grid.longest, config.key_dim, config.value_dim)},
                     dtype, "mesa scratch");
    Buffer solutions, d_keys, d_values;
    if (tape.stream().on_gpu()) {
      args.solutions = solutions = tape.scratch(q.shape, dtype, "mesa second solutions");
      args.d_key_starts = d_keys = starts(tape, config.key_dim, dtype);
      args.d_value_starts = d_values = starts(tape, config.value_dim, dtype);
    }
    const GradSlot d_a = tape.grad_slot(in.a), d_b = tape.grad_slot(in.b);
    const auto gate = [&](const Tensor& t) { return t.defined() ? t.view(gates()) : t; };
    args.d_a = gate(d_a.tensor);
    args.d_b = gate(d_b.tensor);
    args.accumulate_a = d_a.accumulate;
    args.accumulate_b = d_b.accumulate;
    args.d_lambda_raw = tape.grad_slot(in.lambda_raw).tensor;
    args.key_starts = keys;
    args.value_starts = values;
    args.lambda_sums = sums;
    args.scratch = scratch;
    args.d_o = tape.grad(o).view(v.shape);
    args.x = x;
    args.v = tape.value(in.v).view(v.shape);
    args.a = gate(tape.value(in.a));
    args.b = gate(tape.value(in.b));
    args.lambda_raw = tape.value(in.lambda_raw);
    args.doc_start = doc_start;
    args.grid = grid;
    args.rule = config.rule;
    run(tape.stream(), args);
  }
};

/// A convolution's earlier inputs; undefined where nothing is carried.
Tensor carried(const MesaState* state, std::unique_ptr<ShortConvState> MesaState::*input) {
  return state != nullptr && state->*input ? (state->*input)->previous.tensor() : Tensor{};
}

void report_residuals(Pass& pass, const Tensor& residual, const std::string& name) {
  std::vector<double> values(static_cast<size_t>(residual.numel()));
  dispatch_real(residual.dtype, [&](auto zero) {
    std::vector<decltype(zero)> raw(values.size());
    copy_to_host(pass.stream(), raw.data(), residual);
    std::copy(raw.begin(), raw.end(), values.begin());
  });
  auto& statistics = (*pass.statistics)[name];
  statistics["residual_mean"] = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  statistics["residual_max"] = *std::max_element(values.begin(), values.end());
}

/// One token of a carried row by the recurrence itself.
void run_step(Tape& tape, const MesaNode& node, const MesaForward& a) {
  MesaRule rule = a.rule;
  rule.steps = node.config.decode_steps;
  const Buffer scratch =
      tape.scratch({node.slots(tape.stream()), mesa_steps_scratch(node.config.key_dim, node.config.value_dim)},
                   sum_dtype(a.o.dtype), "mesa scratch");
  run(tape.stream(), MesaSteps{.o = a.o,
                               .keys = a.keys,
                               .values = a.values,
                               .scratch = scratch,
                               .q = a.q,
                               .k = a.k,
                               .v = a.v,
                               .a = a.a,
                               .b = a.b,
                               .lambda_raw = a.lambda_raw,
                               .doc_start = a.doc_start,
                               .rule = rule});
}

void run_chunks(Pass& pass, MesaNode& node, MesaForward a, const std::string& name) {
  Tape& tape = pass.tape;
  node.grid = a.grid = chunk_grid(tape, pass.rows, node.config.chunk);
  const DType dtype = sum_dtype(a.o.dtype);
  const Buffer scratch = tape.scratch(
      {node.slots(tape.stream()), mesa_forward_scratch(a.grid.longest, node.config.key_dim, node.config.value_dim)},
      dtype, "mesa scratch");
  a.scratch = scratch;
  Buffer keys, values;
  if (tape.stream().on_gpu()) {
    a.key_starts = keys = node.starts(tape, node.config.key_dim, dtype);
    a.value_starts = values = node.starts(tape, node.config.value_dim, dtype);
  }
  Buffer residual;
  if (pass.statistics != nullptr && !tape.recomputing()) {
    residual = tape.scratch(node.gates(), dtype, "mesa residuals");
    a.residual = residual;
  }
  run(tape.stream(), a);
  if (a.residual.defined() && !pass.stream().counting()) { report_residuals(pass, residual, name); }
}

}  // namespace

MesaState::MesaState(Arena& arena, int64_t rows, const MesaConfig& config, DType dtype)
    : keys(arena, {rows, config.heads, config.key_dim, config.key_dim}, sum_dtype(dtype), "mesa state"),
      values(arena, {rows, config.heads, config.key_dim, config.value_dim}, sum_dtype(dtype), "mesa state") {
  if (config.conv_size > 0) {
    q = std::make_unique<ShortConvState>(arena, rows, config.conv_size, config.key_channels(), dtype);
    k = std::make_unique<ShortConvState>(arena, rows, config.conv_size, config.key_channels(), dtype);
  }
}

Var mesa(Pass& pass, const MesaInputs& in, const MesaConfig& config, MesaState* state, const std::string& name) {
  Tape& tape = pass.tape;
  HEBB_ASSERT(!(state != nullptr && tape.recording()));
  MesaNode node;
  node.in = in;
  node.config = config;
  node.batch = pass.batch();
  node.length = pass.length();
  node.doc_start = pass.rows.doc_start();
  const Shape keys{node.batch, node.length, config.heads, config.key_dim};
  const Shape values{node.batch, node.length, config.heads, config.value_dim};
  node.q = {in.q, in.q_conv, in.q_bias, keys, config.silu, config.l2_norm};
  node.k = {in.k, in.k_conv, in.k_bias, keys, config.silu, config.l2_norm};
  node.v = {in.v, {}, {}, values, false, false};
  const DType dtype = tape.dtype(in.q);
  node.o = tape.output({pass.tokens(), config.value_channels()}, dtype, "mesa output");
  if (tape.recording()) { node.x = tape.saved(keys, sum_dtype(dtype), "mesa solutions"); }
  {
    const PreparedInput q = prepare_input(tape, node.q, node.doc_start, carried(state, &MesaState::q), {});
    const PreparedInput k = prepare_input(tape, node.k, node.doc_start, carried(state, &MesaState::k), {});
    MesaForward args{};
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
    run(tape.stream(), ShortConvShift{state->q->previous, tape.value(in.q).view(node.q.flat())});
    run(tape.stream(), ShortConvShift{state->k->previous, tape.value(in.k).view(node.k.flat())});
  }
  const Var o = node.o;
  tape.record(std::move(node));
  return o;
}

}  // namespace hebb
