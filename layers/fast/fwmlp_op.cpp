#include "layers/fast/fwmlp_op.h"

#include <algorithm>
#include <utility>

#include "layers/fast/pairs.h"

namespace hebb {

FwmlpLog::FwmlpLog(Arena& arena, const FwmlpOptions& o, const FastChunk& row, int64_t chunk, DType dtype, bool keep) {
  for (int64_t first = row.first; first < row.first + row.count; first += chunk) {
    chunks.push_back({row.batch, row.length, first, std::min(chunk, row.first + row.count - first)});
  }
  const auto count = static_cast<int64_t>(chunks.size());
  states = Buffer(arena, {keep ? count + 1 : 2, o.sizes.total()}, dtype, "fast weights of chunks");
  gradients = Buffer(arena, {keep && o.clip > 0 ? count : 1, o.sizes.total()}, dtype, "fast gradients");
  targets = Buffer(arena, {row.batch * row.length}, DType::i32, "memory targets");
}

Tensor FwmlpLog::weights(int64_t c) const {
  const int64_t total = states.tensor().size(1);
  return states.tensor().slice(c % states.tensor().size(0) * total, {total});
}

Tensor FwmlpLog::gradient(int64_t c) const {
  const int64_t total = gradients.tensor().size(1);
  return gradients.tensor().slice(c % gradients.tensor().size(0) * total, {total});
}

namespace {

/// What reading one chunk of at most `rows` tokens leaves for the kernels behind it.
struct Activations {
  Activations(Arena& arena, const FwmlpSizes& s, int64_t rows, DType dtype)
      : q(arena, {rows, s.key_dim}, dtype, "chunk queries"),
        act(arena, {rows, 2 * s.hidden}, dtype, "fast activations"),
        hid(arena, {rows, s.hidden}, dtype, "fast activations") {}
  FwmlpActivations tensors() const { return {q, act, hid}; }
  Buffer q, act, hid;
};

/// Copies the six parameters to one flat tensor, or back.
void pack(Stream& stream, const FwmlpParams& params, const Tensor& flat, bool back) {
  int64_t at = 0;
  for (const Param* p : params) {
    const Tensor part = flat.slice(at, p->value.shape);
    back ? copy(stream, p->value, part) : copy(stream, part, p->value);
    at += p->value.numel();
  }
}

struct FwmlpNode final : Node {
  FwmlpOptions o;
  std::shared_ptr<FwmlpLog> log;
  Var q, v, vh;
  bool frozen = false;

  void backward(Tape& tape) override {
    Stream& stream = tape.stream();
    Arena& arena = tape.arena();
    const FwmlpSizes& s = o.sizes;
    const DType dtype = sum_dtype(tape.dtype(vh));
    const auto count = static_cast<int64_t>(log->chunks.size());
    const bool through = o.through && !frozen && count > 1;
    const Activations kept(arena, s, log->chunks.front().tokens(), dtype);
    Buffer d_weights(arena, {through ? s.total() : 0}, dtype, "fast weight gradients"),
        d_next(arena, {through ? s.total() : 0}, dtype, "fast weight gradients");
    const GradSlot d_q = tape.grad_slot(q), d_v = through ? tape.grad_slot(v) : GradSlot{};
    if (d_v && !d_v.accumulate) { fill_zero(stream, d_v.tensor); }
    const Buffer again(arena, tape.shape(vh), tape.dtype(vh),
                       "memory reading");  // the forward pass is repeated chunk by chunk
    for (int64_t c = count - 1; c >= 0; --c) {
      const FastChunk& chunk = log->chunks[static_cast<size_t>(c)];
      const int64_t pairs = log->pairs[static_cast<size_t>(c)];
      run(tape.workspace(), FwmlpRead{.vh = again,
                                      .kept = kept.tensors(),
                                      .weights = log->weights(c),
                                      .tokens_q = tape.value(q),
                                      .sizes = s,
                                      .chunk = chunk});
      const bool second = through && c + 1 < count && pairs > 0;
      // A chunk without pairs hands the gradient of its fast weights on as it is.
      run(tape.workspace(), FwmlpBackward{.d_q = d_q.tensor,
                                          .d_v = d_v.tensor,
                                          .d_weights = through && c > 0 ? d_weights.tensor() : Tensor{},
                                          .d_vh = tape.grad(vh),
                                          .d_next = second ? d_next.tensor() : Tensor{},
                                          .gradient = log->gradient(c),
                                          .weights = log->weights(c),
                                          .vh = tape.value(vh),
                                          .kept = kept.tensors(),
                                          .pairs = {tape.value(v), log->targets, o.mean, pairs, o.lookahead},
                                          .sizes = s,
                                          .chunk = chunk,
                                          .rate = o.rate,
                                          .clip = o.clip,
                                          .accumulate = d_q.accumulate});
      if (through && c > 0 && c + 1 < count && pairs == 0) { add_to(stream, d_weights, d_next); }
      std::swap(d_weights, d_next);
    }
  }
};

/// Chunks of one row, each read and then, for the first `updates` of them, learned.
void run_chunks(Stream& stream, Arena& arena, const FwmlpOptions& o, const FwmlpLog& log, const Tensor& q,
                const Tensor& v, const Tensor& vh, int64_t updates) {
  const Activations kept(arena, o.sizes, log.chunks.front().tokens(), sum_dtype(q.dtype));
  for (size_t i = 0; i < log.chunks.size(); ++i) {
    const auto c = static_cast<int64_t>(i);
    run({stream, arena}, FwmlpRead{.vh = vh,
                                   .kept = kept.tensors(),
                                   .weights = log.weights(c),
                                   .tokens_q = q,
                                   .sizes = o.sizes,
                                   .chunk = log.chunks[i]});
    if (c < updates && log.pairs[i] > 0) {
      run({stream, arena}, FwmlpStep{.next = log.weights(c + 1),
                                     .gradient = log.gradient(c),
                                     .weights = log.weights(c),
                                     .vh = vh,
                                     .kept = kept.tensors(),
                                     .pairs = {v, log.targets, o.mean, log.pairs[i], o.lookahead},
                                     .sizes = o.sizes,
                                     .chunk = log.chunks[i],
                                     .rate = o.rate,
                                     .clip = o.clip});
    } else if (c < updates) {
      copy(stream, log.weights(c + 1), log.weights(c));
    }
  }
}

}  // namespace

Var fwmlp_row(Pass& pass, Var q, Var v, const FwmlpParams& params, const FwmlpOptions& o,
              std::shared_ptr<FwmlpLog>& undo) {
  Tape& tape = pass.tape;
  Stream& stream = pass.stream();
  const DType dtype = tape.dtype(q);
  const int64_t length = pass.length();
  const bool frozen = pass.fast.freeze, publish = (pass.training || pass.fast.keep) && !frozen,
             again = publish && tape.will_run_again();
  const int64_t chunk = frozen ? length : std::min(length, pass.fast.chunk_or(o.chunk));
  FwmlpNode node;
  node.log = std::make_shared<FwmlpLog>(tape.arena(), o, FastChunk{pass.batch(), length, 0, length}, chunk,
                                        sum_dtype(dtype), tape.recording() || again);
  FwmlpLog& log = *node.log;
  const std::vector<int32_t> targets = row_targets(pass.rows, chunk, o.lookahead);
  copy_to_device(stream, log.targets, targets.data());
  for (const FastChunk& c : log.chunks) { log.pairs.push_back(pairs_of(targets, c)); }
  if (tape.recomputing() && undo != nullptr) {
    copy(stream, log.weights(0), undo->weights(0));
  } else {
    pack(stream, params, log.weights(0), false);
  }
  undo.reset();
  node.o = o;
  node.q = q;
  node.v = v;
  node.vh = tape.output({pass.tokens(), o.sizes.value_dim}, dtype, "memory reading");
  node.frozen = frozen;
  const auto count = static_cast<int64_t>(log.chunks.size()), updates = frozen ? 0 : publish ? count : count - 1;
  run_chunks(stream, tape.arena(), o, log, tape.value(q), tape.value(v), tape.value(node.vh), updates);
  if (publish) { pack(stream, params, log.weights(updates), true); }
  if (again) { undo = node.log; }
  return tape.record(std::move(node), &FwmlpNode::vh);
}

void fwmlp_read(Stream& stream, Arena& arena, const FwmlpOptions& o, const Tensor& q, const FastChunk& chunk,
                const FwmlpParams& params, const Tensor& vh) {
  FwmlpLog log(arena, o, chunk, chunk.count, sum_dtype(q.dtype), false);
  pack(stream, params, log.weights(0), false);
  run_chunks(stream, arena, o, log, q, {}, vh, 0);
}

void fwmlp_update(Stream& stream, Arena& arena, const FwmlpOptions& o, const Tensor& q, const Tensor& v,
                  const std::vector<int32_t>& targets, const FastChunk& chunk, const FwmlpParams& params) {
  FwmlpLog log(arena, o, chunk, chunk.count, sum_dtype(q.dtype), false);
  log.pairs = {pairs_of(targets, chunk)};
  copy_to_device(stream, log.targets, targets.data());
  pack(stream, params, log.weights(0), false);
  const Buffer vh(arena, {chunk.batch * chunk.length, o.sizes.value_dim}, q.dtype, "memory reading");
  run_chunks(stream, arena, o, log, q, v, vh, 1);
  pack(stream, params, log.weights(1), true);
}

}  // namespace hebb
