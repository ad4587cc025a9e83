#include "layers/ovq/op.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <optional>

#include "layers/ops/grad_target.h"
#include "layers/ops/host_values.h"

namespace hebb {
namespace {

/// Most centroids that a document of these rows reaches (at least 1: no empty tensors).
int64_t room_of(const Rows& rows, const OvqRule& rule) {
  int64_t room = 1;
  for (const DocumentSpan& span : rows.spans()) {
    room = std::max(room, rule.size(span.length / rule.chunk * rule.chunk));
  }
  return room;
}

/// The rule for rows without a state, which never fill a chunk longer than they are: scratch is of a chunk's size, and
/// a chunk_size may mean "all tokens".
OvqRule fit_chunk(OvqRule rule, int64_t length) {
  constexpr int64_t kStep = 128;
  rule.chunk = std::min(rule.chunk, (length / kStep + 1) * kStep);
  return rule;
}

/// Checks the ids of one chunk: every new centroid has a key, and none is past the end.
void check_chunk(const int64_t* ids, int64_t count, int64_t before, int64_t size, const std::string& name) {
  std::vector<bool> founded(static_cast<size_t>(size - before));
  for (int64_t j = 0; j < count; ++j) {
    if (ids[j] < 0 || ids[j] >= size) {
      throw DataError(name, "forced centroid", std::to_string(ids[j]), fmt::format("0 to {:d}", size - 1));
    }
    if (ids[j] >= before) { founded[static_cast<size_t>(ids[j] - before)] = true; }
  }
  for (int64_t r = before; r < size; ++r) {
    if (!founded[static_cast<size_t>(r - before)]) {
      throw DataError(name, "forced centroids", fmt::format("no key for the new centroid {:d}", r), "one at least");
    }
  }
}

/// Forced ids [B, K, T] to the device; tokens that no full chunk holds get -1. Returns whether there are any.
bool take_forced(Pass& pass, const Tensor& ids, const OvqRule& rule, const std::string& name) {
  const std::vector<int64_t>* forced = forced_decisions(pass, name, ids.numel());
  if (forced == nullptr) { return false; }
  std::vector<int32_t> narrow(forced->size(), -1);
  for (const DocumentSpan& span : pass.rows.spans()) {
    for (int64_t head = 0; head < ids.size(1); ++head) {
      const int64_t first = (span.row * ids.size(1) + head) * pass.length() + span.start;
      for (int64_t at = 0; at + rule.chunk <= span.length; at += rule.chunk) {
        const int64_t* chunk = forced->data() + first + at;
        check_chunk(chunk, rule.chunk, rule.size(at), rule.size(at + rule.chunk), name);
        std::copy_n(chunk, rule.chunk, narrow.begin() + first + at);
      }
    }
  }
  copy_to_device(pass.stream(), ids, narrow.data());
  return true;
}

}  // namespace

OvqState::OvqState(Arena& arena, int64_t rows, const HeadSizes& shape, int64_t room, int64_t chunk, DType dtype)
    : keys(arena, {rows, shape.kv_heads, room, shape.key_dim}, sum_dtype(dtype), "centroid keys"),
      values(arena, {rows, shape.kv_heads, room, shape.value_dim}, sum_dtype(dtype), "centroid values"),
      log_counts(arena, {rows, shape.kv_heads, room}, sum_dtype(dtype), "log counts"),
      counts(arena, {rows, shape.kv_heads, room}, DType::i32, "counts"),
      pending_k(arena, {rows, shape.kv_heads, chunk, shape.key_dim}, dtype, "pending keys"),
      pending_v(arena, {rows, shape.kv_heads, chunk, shape.value_dim}, dtype, "pending values") {
  if (dtype == DType::bf16) {
    key_copies = Buffer(arena, keys.tensor().shape, dtype, "copies of centroids");
    value_copies = Buffer(arena, values.tensor().shape, dtype, "copies of centroids");
  }
}

Var ovq_attention(Pass& pass, Var q, Var k, Var v, const HeadSizes& shape, const OvqRule& given, OvqState* state,
                  const std::string& name) {
  Tape& tape = pass.tape;
  const int64_t batch = pass.batch(), length = pass.length();
  const DType dtype = tape.dtype(q);
  const OvqRule rule = state == nullptr ? fit_chunk(given, length) : given;
  const int64_t room = room_of(pass.rows, rule);
  const Tensor doc_start = pass.rows.doc_start();
  const Shape q_shape{batch, length, shape.heads, shape.key_dim}, k_shape{batch, length, shape.kv_heads, shape.key_dim},
      v_shape{batch, length, shape.kv_heads, shape.value_dim}, o_shape{batch, length, shape.heads, shape.value_dim};
  const Var o = tape.output({batch * length, shape.heads * shape.value_dim}, dtype, "readout");
  const bool inspects = state == nullptr;
  Tensor lse, ids;
  if (inspects) {
    lse = tape.saved({batch, length, shape.heads}, sum_dtype(dtype), "log-sum-exp");
    ids = tape.saved({batch, shape.kv_heads, length}, DType::i32, "assignments");
  }
  const bool forced = inspects && take_forced(pass, ids, rule, name + ".assign");
  std::optional<OvqState> fresh;
  if (state == nullptr) { state = &fresh.emplace(tape.arena(), batch, shape, room, rule.chunk, dtype); }
  HEBB_ASSERT(fresh || state->keys.tensor().size(2) >= std::min(rule.max_centroids, kLongestDocument));
  run(tape.workspace(), OvqForward{.o = tape.value(o).view(o_shape),
                                   .lse = lse,
                                   .ids = ids,
                                   .dictionary = state->dictionary(),
                                   .pending_k = state->pending_k,
                                   .pending_v = state->pending_v,
                                   .q = tape.value(q).view(q_shape),
                                   .k = tape.value(k).view(k_shape),
                                   .v = tape.value(v).view(v_shape),
                                   .doc_start = doc_start,
                                   .rule = rule,
                                   .forced = forced});
  if (inspects) { record(pass, name + ".assign", ids); }
  return tape.record(o, [=](Tape& tape) {
    const GradTarget d_q(tape, q), d_k(tape, k), d_v(tape, v);
    run(tape.workspace(), OvqBackward{.d_q = d_q.view(q_shape),
                                      .d_k = d_k.view(k_shape),
                                      .d_v = d_v.view(v_shape),
                                      .d_o = tape.grad(o).view(o_shape),
                                      .o = tape.value(o).view(o_shape),
                                      .lse = lse,
                                      .ids = ids,
                                      .q = tape.value(q).view(q_shape),
                                      .k = tape.value(k).view(k_shape),
                                      .v = tape.value(v).view(v_shape),
                                      .doc_start = doc_start,
                                      .rule = rule,
                                      .room = room,
                                      .accumulate_q = d_q.accumulate(),
                                      .accumulate_k = d_k.accumulate(),
                                      .accumulate_v = d_v.accumulate()});
  });
}

}  // namespace hebb
