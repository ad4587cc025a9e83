#include "layers/sdm/op.h"

#include <fmt/core.h>

#include "kernels/sparse_delta/sparse_delta.h"
#include "layers/ops/delta_gates.h"
#include "layers/ops/host_values.h"
#include "layers/sdm/op_statistics.h"

namespace hebb {
namespace {

/// Tensors that forward and backward both compute from the inputs and the selected slots.
struct Prepared {
  Workspace workspace;                                 // theirs
  Tensor write_weights, read_weights, decay, g, beta;  // [N,H,W] [N,H,R] [N,H(,W)] [N,H] [N,H]
  SparseDeltaUses uses;                                // undefined where every sequence is carried
};

struct SparseDeltaNode final : Node {
  SparseDeltaVars in;
  SparseDeltaConfig config;
  Var y;
  Tensor write_slots, read_slots, error, sequences;
  int64_t tokens = 0, batch = 0;
  bool has_private = false;       // sequences without a carried state
  DType place_type = DType::f32;  // of these

  SlotWeights weigh(Tape& tape, const Tensor& weights, const SlotAddress& address, const Tensor& slots,
                    Var scores) const {
    return {weights, slots, tape.value(scores).view({tokens, config.heads, 2, config.subkeys}), address.activation,
            address.scale};
  }
  Prepared prepare(Tape& tape, bool is_backward) const;
  SparseDeltaInputs inputs(Tape& tape, const Prepared& p) const {
    return {.write_weights = p.write_weights,
            .read_weights = p.read_weights,
            .decay = p.decay,
            .beta = p.beta,
            .v = tape.value(in.v).view({tokens, config.heads, config.value_dim}),
            .memory = memory(tape),
            .write_slots = write_slots,
            .read_slots = read_slots,
            .sequences = sequences,
            .uses = p.uses,
            .batch = batch,
            .slots = config.slots(),
            .place_type = place_type};
  }
  void backward(Tape& tape) override;

 private:
  /// As sequences begin: where they are kept in bf16, the rounded copy costs half the bytes to read.
  Tensor memory(Tape& tape) const {
    const Tensor m = !in.memory ? Tensor{} : place_type == DType::bf16 ? tape.matrix(in.memory) : tape.value(in.memory);
    HEBB_ASSERT(!m.defined() || m.dtype == place_type);
    return m;
  }
  void backward_weights(Tape& tape, Var scores, const SlotAddress& address, const Tensor& d_weights,
                        const Tensor& weights, const Tensor& slots) const;
  DeltaGates gates() const { return {.a = in.a, .b = in.b, .a_log = in.a_log, .dt_bias = in.dt_bias}; }
};

Prepared SparseDeltaNode::prepare(Tape& tape, bool is_backward) const {
  const DType dtype = sum_dtype(tape.dtype(in.v));
  const Shape heads{tokens, config.heads};
  Prepared p{.workspace = tape.workspace(),
             .write_weights = {},
             .read_weights = {},
             .decay = {},
             .g = {},
             .beta = {},
             .uses = {}};
  p.write_weights = p.workspace.tensor(write_slots.shape, dtype, "slot weights");
  p.read_weights = p.workspace.tensor(read_slots.shape, dtype, "slot weights");
  p.g = p.workspace.tensor(heads, dtype, "sparse delta decay");
  p.beta = p.workspace.tensor(heads, dtype, "sparse delta strength");
  p.decay = p.workspace.tensor(config.key_weighted_decay ? write_slots.shape : heads, dtype, "sparse delta decay");
  run(tape.stream(), weigh(tape, p.write_weights, config.write, write_slots, in.k));
  run(tape.stream(), weigh(tape, p.read_weights, config.read, read_slots, in.q));
  gates().forward(tape, p.g, p.beta);
  run(tape.stream(), SparseDeltaDecay{p.decay, p.g, config.key_weighted_decay ? p.write_weights : Tensor{}});
  if (has_private) {
    p.uses = sparse_delta_uses(p.workspace, write_slots, read_slots, sequences, batch, is_backward);
    run(tape.workspace(), SparseDeltaIndex{.uses = p.uses,
                                           .write_slots = write_slots,
                                           .read_slots = read_slots,
                                           .sequences = sequences,
                                           .batch = batch,
                                           .slots = config.slots()});
  }
  return p;
}

void SparseDeltaNode::backward(Tape& tape) {
  HEBB_ASSERT(tape.has_grad(y));
  const DType dtype = sum_dtype(tape.dtype(in.v));
  const Shape heads{tokens, config.heads}, values{tokens, config.heads, config.value_dim};
  const Prepared p = prepare(tape, true);
  const Buffer d_writes = tape.scratch(write_slots.shape, dtype, "slot weight gradients");
  const Buffer d_reads = tape.scratch(read_slots.shape, dtype, "slot weight gradients");
  const Buffer d_g = tape.scratch(heads, dtype, "gate gradients"),
               d_beta = tape.scratch(heads, dtype, "gate gradients");
  {
    Workspace workspace = tape.workspace();
    const SparseDeltaInputs inputs_of_both = inputs(tape, p);
    const SparseDeltaProducts products = sparse_delta_products(workspace, inputs_of_both);
    const GradSlot d_v = tape.grad_slot(in.v);
    run(tape.workspace(), SparseDeltaBackward{.d_v = d_v.view(values),
                                              .d_memory = tape.grad_slot(in.memory).tensor,
                                              .products = products,
                                              .d_y = tape.grad(y).view(values),
                                              .error = error,
                                              .in = inputs_of_both,
                                              .accumulate = d_v.accumulate});
    run(tape.workspace(), SparseDeltaScan{.d_write_weights = d_writes,
                                          .d_read_weights = d_reads,
                                          .d_g = d_g,
                                          .d_beta = d_beta,
                                          .products = products,
                                          .g = p.g,
                                          .in = inputs_of_both});
  }
  backward_weights(tape, in.k, config.write, d_writes, p.write_weights, write_slots);
  backward_weights(tape, in.q, config.read, d_reads, p.read_weights, read_slots);
  gates().backward(tape, p.g, p.beta, d_g, d_beta);
}

void SparseDeltaNode::backward_weights(Tape& tape, Var scores, const SlotAddress& address, const Tensor& d_weights,
                                       const Tensor& weights, const Tensor& slots) const {
  if (const GradSlot d = tape.grad_slot(scores)) {
    const Shape shape{tokens, config.heads, 2, config.subkeys};
    run(tape.stream(), SlotWeightsBackward{.d_scores = d.tensor.view(shape),
                                           .d_weights = d_weights,
                                           .weights = weights,
                                           .slots = slots,
                                           .scores = tape.value(scores).view(shape),
                                           .activation = address.activation,
                                           .scale = address.scale,
                                           .accumulate = d.accumulate});
  }
}

Tensor upload(Pass& pass, const std::vector<SparseDeltaSequence>& list) {
  const Tensor sequences = pass.tape.saved({static_cast<int64_t>(list.size()), 4}, DType::i32, "sequences");
  copy_to_device(pass.stream(), sequences, list.data());
  return sequences;
}

/// The sequences of the rows on the device. Where M is carried, the returned ones must run after the others
/// and after reset_state: the last documents of rows, if they begin in this pass.
Tensor upload_sequences(Pass& pass, SparseDeltaNode& node, bool has_state) {
  std::vector<SparseDeltaSequence> list, restarted;
  for (const DocumentSpan& s : pass.rows.spans()) {
    const bool continues = s.offset > 0, is_last = s.start + s.length == pass.length();
    const bool carried = has_state && (continues || is_last);
    (carried && !continues ? restarted : list)
        .push_back({static_cast<int32_t>(s.row * pass.length() + s.start), static_cast<int32_t>(s.length),
                    static_cast<int32_t>(s.row), carried ? 1 : 0});
    node.has_private = node.has_private || !carried;
  }
  node.sequences = upload(pass, list);
  return upload(pass, restarted);
}

/// M of a row returns to `memory` if its last document begins in this pass.
void reset_state(Pass& pass, const Tensor& state, const Tensor& memory) {
  const int64_t size = state.numel() / state.size(0);
  for (const DocumentSpan& s : pass.rows.spans()) {
    if (s.offset == 0 && s.start + s.length == pass.length()) {
      const Tensor row = state.slice(s.row * size, {size});
      memory.defined() ? copy(pass.stream(), row, memory) : fill_zero(pass.stream(), row);
    }
  }
}

/// Forced slots [B, T, H, k] to the device; returns whether there are any.
bool take_forced(Pass& pass, const Tensor& slots, const std::string& name, int64_t limit) {
  const std::vector<int64_t>* forced = forced_decisions(pass, name, slots.numel());
  if (forced == nullptr) { return false; }
  std::vector<int32_t> narrow;
  int64_t lowest = 0;
  for (const int64_t v : *forced) {
    lowest = narrow.size() % static_cast<size_t>(slots.size(2)) == 0 ? 0 : lowest;
    if (v < lowest || v >= limit) {
      throw DataError(name, "forced slot", std::to_string(v),
                      fmt::format("{:d} to {:d}, ascending in a head", lowest, limit - 1));
    }
    narrow.push_back(static_cast<int32_t>(v));
    lowest = v + 1;
  }
  copy_to_device(pass.stream(), slots, narrow.data());
  return true;
}

/// Slots [N, H, count] by the scores, or as forced; recorded.
Tensor choose(Pass& pass, Var scores, const SparseDeltaConfig& config, const SlotAddress& address,
              const std::string& name) {
  Tape& tape = pass.tape;
  const Tensor slots = tape.saved({pass.tokens(), config.heads, address.count}, DType::i32, "slots");
  if (!take_forced(pass, slots, name, config.slots())) {
    run(tape.stream(), SlotSelect{slots, tape.value(scores).view({pass.tokens(), config.heads, 2, config.subkeys})});
  }
  record(pass, name, slots, {pass.batch(), pass.length(), config.heads, address.count});
  return slots;
}

}  // namespace

Var sparse_delta(Pass& pass, const SparseDeltaVars& in, const SparseDeltaConfig& config, SparseDeltaState* state,
                 const std::string& name, DType place_type) {
  Tape& tape = pass.tape;
  HEBB_ASSERT(!(state != nullptr && tape.recording()));
  SparseDeltaNode node;
  node.in = in;
  node.config = config;
  node.tokens = pass.tokens();
  node.batch = pass.batch();
  node.place_type = place_type;
  const DType dtype = tape.dtype(in.v);
  const Shape values{node.tokens, config.heads, config.value_dim};
  node.y = tape.output({node.tokens, config.heads * config.value_dim}, dtype, "sparse delta reading");
  node.write_slots = choose(pass, in.k, config, config.write, name + ".write_slots");
  node.read_slots = choose(pass, in.q, config, config.read, name + ".read_slots");
  if (tape.recording()) { node.error = tape.saved(values, sum_dtype(dtype), "sparse delta errors"); }
  const Tensor restarted = upload_sequences(pass, node, state != nullptr);
  const Tensor carried = state != nullptr ? state->memory.tensor() : Tensor{};
  {
    const Prepared p = node.prepare(tape, false);
    const auto run_sequences = [&](const Tensor& sequences, const SparseDeltaUses& uses) {
      SparseDeltaInputs inputs = node.inputs(tape, p);
      inputs.sequences = sequences;
      inputs.uses = uses;
      if (sequences.size(0) > 0) {
        run(tape.workspace(),
            SparseDeltaForward{
                .y = tape.value(node.y).view(values), .error = node.error, .state = carried, .in = inputs});
      }
    };
    run_sequences(node.sequences, p.uses);
    if (state != nullptr) { reset_state(pass, carried, tape.value_or_none(in.memory)); }
    run_sequences(restarted, {});  // all carried
    if (pass.records() && !tape.stream().counting()) {
      for (const auto& [side, weights] :
           {std::pair{".write_weights", &p.write_weights}, std::pair{".read_weights", &p.read_weights}}) {
        const Tensor& w = *weights;
        pass.inspector->records[name + side] =
            record_of(pass.stream(), w, {pass.batch(), pass.length(), w.size(1), w.size(2)});
      }
    }
    if (pass.measures()) {
      sparse_delta_statistics(tape.stream(), (*pass.statistics)[name], config.slots(),
                              {node.write_slots, p.write_weights}, {node.read_slots, p.read_weights}, p.g, p.beta);
    }
  }
  return tape.record(std::move(node), &SparseDeltaNode::y);
}

}  // namespace hebb
