#include "layers/kvm/op.h"

#include <algorithm>

#include "layers/kvm/routes.h"
#include "layers/ops/grad_target.h"

namespace hebb {
namespace {

struct KvmNode final : Node {
  KvmVars in;
  Var o;
  Tensor lse, routes, sizes, doc_start;
  Shape q_shape, k_shape, v_shape, o_shape;
  KvmRule rule;
  int64_t room;
  bool reads_state, reaches_gate;  // some query saw a state; the gate of some token entered one

  void backward(Tape& tape) override;
};

void KvmNode::backward(Tape& tape) {
  const GradTarget d_q(tape, in.q), d_k(tape, in.k), d_v(tape, in.v);
  const GradSlot d_gate = reaches_gate ? tape.grad_slot(in.gate) : GradSlot{};
  const auto parameter = [&](Var v, bool reached) {
    const GradSlot s = v && reached ? tape.grad_slot(v) : GradSlot{};
    HEBB_ASSERT(!s || s.accumulate);  // leaves
    return s.tensor;
  };
  run(tape.workspace(), KvmBackward{.d_q = d_q.view(q_shape),
                                    .d_k = d_k.view(k_shape),
                                    .d_v = d_v.view(v_shape),
                                    .d_gate = d_gate.tensor,
                                    .d_norm_weight = parameter(in.norm_weight, reads_state),
                                    .d_norm_bias = parameter(in.norm_bias, reads_state),
                                    .d_window_temp = parameter(in.window_temp, true),
                                    .d_state_temp = parameter(in.state_temp, reads_state),
                                    .d_o = tape.grad(o).view(o_shape),
                                    .o = tape.value(o).view(o_shape),
                                    .lse = lse,
                                    .routes = routes,
                                    .q = tape.value(in.q).view(q_shape),
                                    .k = tape.value(in.k).view(k_shape),
                                    .v = tape.value(in.v).view(v_shape),
                                    .gate = tape.value_or_none(in.gate),
                                    .norm_weight = tape.value(in.norm_weight),
                                    .norm_bias = tape.value(in.norm_bias),
                                    .window_temp = tape.value_or_none(in.window_temp),
                                    .state_temp = tape.value_or_none(in.state_temp),
                                    .doc_start = doc_start,
                                    .sizes = sizes,
                                    .rule = rule,
                                    .room = room,
                                    .accumulate_q = d_q.accumulate(),
                                    .accumulate_k = d_k.accumulate(),
                                    .accumulate_v = d_v.accumulate(),
                                    .accumulate_gate = d_gate.accumulate});
}

/// Chunks that the longest document of these rows has begun.
int64_t chunks_of(const Rows& rows, int64_t chunk) {
  int64_t chunks = 1;
  for (const DocumentSpan& span : rows.spans()) {
    chunks = std::max(chunks, (span.offset + span.length - 1) / chunk + 1);
  }
  return chunks;
}

/// Whether the gate of some token scales what a row takes in.
bool gate_enters(const KvmRule& rule, const std::vector<int32_t>& sizes) {
  for (size_t c = static_cast<size_t>(rule.window) + 1; c < sizes.size(); ++c) {
    const int64_t fresh = sizes[c] - sizes[c - 1];
    if (fresh < rule.chunk || rule.gate_appends) { return true; }
  }
  return false;
}

/// Grows a [B, K, R, ...] buffer to `room` slots.
void grow(Stream& stream, Arena& arena, Buffer& buffer, int64_t room, const char* name) {
  const Tensor& from = buffer.tensor();
  Shape shape = from.shape;
  const int64_t units = shape[0] * shape[1], old = from.numel() / units, fresh = old / shape[2] * room;
  shape.dims[2] = room;
  Buffer to(arena, shape, from.dtype, name);
  for (int64_t unit = 0; unit < units; ++unit) {
    copy(stream, to.tensor().slice(unit * fresh, {old}), from.slice(unit * old, {old}));
  }
  buffer = std::move(to);
}

/// A node with its inputs and sizes; `sizes` is extended to the chunks of these rows.
KvmNode make_node(Pass& pass, const KvmVars& in, const HeadSizes& shape, const KvmRule& rule, const KvmBudget& budget,
                  std::vector<int32_t>& sizes) {
  Tape& tape = pass.tape;
  const int64_t batch = pass.batch(), length = pass.length(), chunks = chunks_of(pass.rows, rule.chunk);
  KvmNode node;
  node.in = in;
  node.rule = rule;
  node.doc_start = pass.rows.doc_start();
  node.q_shape = {batch, length, shape.heads, shape.key_dim};
  node.k_shape = {batch, length, shape.kv_heads, shape.key_dim};
  node.v_shape = {batch, length, shape.kv_heads, shape.value_dim};
  node.o_shape = {batch, length, shape.heads, shape.value_dim};
  node.o = tape.output({batch * length, shape.heads * shape.value_dim}, tape.dtype(in.q), "readout");
  extend_sizes(budget, rule.chunk, rule.window, chunks, sizes);
  node.room = std::max<int64_t>(1, sizes[static_cast<size_t>(chunks - 1)]);
  node.reads_state = chunks > rule.window;
  node.reaches_gate = in.gate && gate_enters(rule, sizes);
  node.sizes = tape.saved({chunks}, DType::i32, "slots by chunk");
  copy_to_device(tape.stream(), node.sizes, sizes.data());
  return node;
}

void run_forward(Tape& tape, const KvmNode& node, const KvmState& state, bool forced) {
  const KvmVars& in = node.in;
  run(tape.workspace(), KvmForward{.o = tape.value(node.o).view(node.o_shape),
                                   .lse = node.lse,
                                   .routes = node.routes,
                                   .slots = state.slots(),
                                   .window = state.window(),
                                   .q = tape.value(in.q).view(node.q_shape),
                                   .k = tape.value(in.k).view(node.k_shape),
                                   .v = tape.value(in.v).view(node.v_shape),
                                   .gate = tape.value_or_none(in.gate),
                                   .norm_weight = tape.value(in.norm_weight),
                                   .norm_bias = tape.value(in.norm_bias),
                                   .window_temp = tape.value_or_none(in.window_temp),
                                   .state_temp = tape.value_or_none(in.state_temp),
                                   .doc_start = node.doc_start,
                                   .sizes = node.sizes,
                                   .rule = node.rule,
                                   .forced = forced});
}

}  // namespace

KvmState::KvmState(Arena& memory, int64_t batch, const HeadSizes& shape, int64_t room, const KvmRule& rule, DType dtype)
    : arena(memory),
      keys(arena, {batch, shape.kv_heads, room, shape.key_dim}, sum_dtype(dtype), "state slots"),
      values(arena, {batch, shape.kv_heads, room, shape.value_dim}, sum_dtype(dtype), "state slots"),
      radii(arena, {batch, shape.kv_heads, room}, sum_dtype(dtype), "state slots"),
      counts(arena, {batch, shape.kv_heads, room}, DType::i32, "state slots"),
      key_hats(arena, {batch, shape.kv_heads, room, shape.key_dim}, dtype, "state slots"),
      value_hats(arena, {batch, shape.kv_heads, room, shape.value_dim}, dtype, "state slots"),
      window_k(arena, {batch, shape.kv_heads, rule.window * rule.chunk, shape.key_dim}, dtype, "window"),
      window_v(arena, {batch, shape.kv_heads, rule.window * rule.chunk, shape.value_dim}, dtype, "window"),
      window_gates(arena, {batch, shape.kv_heads, rule.window * rule.chunk}, sum_dtype(dtype), "window") {}

void KvmState::reserve(Stream& stream, int64_t slots) {
  if (slots <= room()) { return; }
  const int64_t more = std::max(slots, room() + room() / 2);
  for (Buffer* buffer : {&keys, &values, &radii, &counts, &key_hats, &value_hats}) {
    grow(stream, arena, *buffer, more, "state slots");
  }
}

void KvmState::take_row(Stream& stream, int64_t row, const KvmState& from, int64_t from_row) {
  reserve(stream, from.room());
  copy_rows(stream, {window_k, window_v, window_gates}, row, {from.window_k, from.window_v, from.window_gates},
            from_row);
  const Buffer KvmState::*const parts[] = {&KvmState::keys,   &KvmState::values,   &KvmState::radii,
                                           &KvmState::counts, &KvmState::key_hats, &KvmState::value_hats};
  for (const auto part : parts) {
    const Tensor to = this->*part, old = from.*part;
    const int64_t heads = to.size(1), width = old.numel() / (old.size(0) * heads * from.room());
    for (int64_t head = 0; head < heads; ++head) {
      copy(stream, to.slice((row * heads + head) * room() * width, {from.room() * width}),
           old.slice((from_row * heads + head) * from.room() * width, {from.room() * width}));
    }
  }
}

Var kvm_attention(Pass& pass, const KvmVars& in, const HeadSizes& shape, const KvmRule& rule, const KvmBudget& budget,
                  KvmState* state, const std::string& name) {
  Tape& tape = pass.tape;
  const DType dtype = tape.dtype(in.q);
  std::vector<int32_t> fresh_sizes;
  std::vector<int32_t>& sizes = state != nullptr ? state->sizes : fresh_sizes;
  KvmNode node = make_node(pass, in, shape, rule, budget, sizes);
  const Var o = node.o;
  if (state != nullptr) {
    state->reserve(tape.stream(), node.room);
    run_forward(tape, node, *state, false);
    tape.record(std::move(node));
    return o;
  }
  node.lse = tape.saved({pass.batch(), pass.length(), shape.heads}, sum_dtype(dtype), "log-sum-exp");
  node.routes = tape.saved({pass.batch(), shape.kv_heads, pass.length()}, DType::i32, "routes");
  const bool forced = pass.inspector != nullptr && upload_forced_routes(pass, node.routes, rule, sizes, name);
  run_forward(tape, node, KvmState(tape.arena(), pass.batch(), shape, node.room, rule, dtype), forced);
  if (!tape.recomputing() && !tape.stream().counting()) {
    if (pass.inspector != nullptr && pass.inspector->recording) { report_routes(pass, node.routes, name); }
    if (pass.statistics != nullptr) {
      kvm_statistics(pass, node.routes, tape.value_or_none(in.gate), rule, sizes, name);
    }
  }
  tape.record(std::move(node));
  return o;
}

}  // namespace hebb
