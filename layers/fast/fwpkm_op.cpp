#include "layers/fast/fwpkm_op.h"

#include <algorithm>
#include <cmath>

#include "layers/fast/pairs.h"
#include "layers/ops/host_values.h"
#include "layers/ops/slot_statistics.h"

namespace hebb {

FwpkmLog::FwpkmLog(Arena& arena, const FwpkmOptions& o, int64_t batch, int64_t length, int64_t chunk, DType dtype,
                   Keep keep_values, bool keep_keys)
    : slot_count_(o.subkeys * o.subkeys),
      value_dim_(o.value_dim),
      entries_per_token_(o.heads * o.top_k),
      keep_values_(keep_values),
      chunks_{{batch, length, 0, length}, std::min(chunk, length)},
      most_(fwpkm_capacity(largest_chunk() * entries_per_token_, slot_count_)) {
  for (int64_t c = 0; c < count(); ++c) {
    total_ += fwpkm_capacity(chunks_.at(c).tokens() * entries_per_token_, slot_count_);
  }
  const int64_t n = batch * length, h = o.heads, k = o.top_k;
  key_copies_ = o.key_update == KeyUpdate::none ? 1 : keep_keys ? count() + 1 : 2;
  entries_ = Buffer(arena, {n, h, 2, k}, DType::i32, "memory entries");
  scores_ = Buffer(arena, {n, h, 2, k}, dtype, "memory scores");
  probs_ = Buffer(arena, {n, h, 2, k}, dtype, "memory entry weights");
  slots_ = Buffer(arena, {n, h, k}, DType::i32, "memory slots");
  weights_ = Buffer(arena, {n, h, k}, dtype, "memory weights");
  targets_ = Buffer(arena, {n}, DType::i32, "memory targets");
  unique_ = Buffer(arena, {total_}, DType::i32, "touched slots");
  starts_ = Buffer(arena, {total_ + count()}, DType::i32, "readers of slots");
  readers_ = Buffer(arena, {n * h * k}, DType::i32, "readers of slots");
  local_ = Buffer(arena, {n * h * k}, DType::i32, "readers of slots");
  counts_ = Buffer(arena, {count()}, DType::i32, "touched slots");
  values_ = Buffer(arena,
                   {keep_values == Keep::all      ? total_
                    : keep_values == Keep::latest ? most_
                                                  : 0,
                    value_dim_},
                   dtype, "touched slots");
  keys_ = Buffer(arena, {key_copies_, h, 2, o.subkeys, o.half_dim}, dtype, "keys of chunks");
  usage_ = Buffer(arena, {count(), 2, o.subkeys}, dtype, "use of keys");
}

FastChunks FwpkmLog::first_chunks(int64_t count) const {
  FastChunks some = chunks_;
  some.all.count = std::min(chunks_.all.count, count * chunks_.size);
  return some;
}

Tensor FwpkmLog::values_before(int64_t c) const {
  const int64_t first = keep_values_ == Keep::all ? c * most_ * value_dim_ : 0;
  return values_.tensor().slice(first, {readers(c).slots.size(0), value_dim_});
}

Tensor FwpkmLog::keys(int64_t c) const {
  const Shape& s = keys_.tensor().shape;
  return keys_.tensor().slice(c % key_copies_ * (s.numel() / key_copies_), {s[1], s[2], s[3], s[4]});
}

Tensor FwpkmLog::usage(int64_t c) const {
  const int64_t n = usage_.tensor().size(2);
  return usage_.tensor().slice(c * 2 * n, {2, n});
}

namespace {

/// The kernels of a chunk hand these on to each other. The norms of keys go on to the next chunk.
struct StepBuffers {
  StepBuffers(Arena& arena, const FwpkmOptions& o, const FwpkmLog& log, DType dtype)
      : key_norms(arena, {o.heads, 2, o.subkeys}, dtype, "key norms"),
        error(arena, {log.largest_chunk(), o.value_dim}, dtype, "prediction errors") {}
  Buffer key_norms, error;
};

/// Sums that metrics ask for, over the chunks of one row.
struct Measures {
  Buffer sums;  // [2] f64
  double key_step = 0;
};

void measure_keys(Stream& stream, Measures& m, const FwpkmLog& log, int64_t c, const FwpkmOptions& o) {
  if (o.key_update != KeyUpdate::none) {
    const std::vector<double> before = host_values(stream, log.keys(c)), after = host_values(stream, log.keys(c + 1));
    for (size_t i = 0; i < before.size(); ++i) { m.key_step += (after[i] - before[i]) * (after[i] - before[i]); }
  }
}

/// A_0 + A_1 of docs/layers/fwpkm.md, Update of keys, mean over the chunks, whatever moves the keys.
double negative_entropy(Stream& stream, const FwpkmLog& log, const FwpkmOptions& o) {
  const std::vector<int32_t> entries = host_integers(stream, log.lookup().entries);  // [N, H, 2, k]
  const std::vector<double> probs = host_values(stream, log.lookup().probs);
  const auto per_token = static_cast<size_t>(o.heads * 2 * o.top_k), k = static_cast<size_t>(o.top_k);
  const auto n = static_cast<size_t>(o.subkeys);
  double sum = 0;
  for (int64_t c = 0; c < log.count(); ++c) {
    const FastChunk chunk = log.chunks().at(c);
    const double share = 1.0 / static_cast<double>(chunk.tokens() * o.heads);
    std::vector<double> usage(2 * n);
    for (int64_t r = 0; r < chunk.tokens(); ++r) {
      const size_t first = static_cast<size_t>(chunk.token(r)) * per_token;
      for (size_t i = first; i < first + per_token; ++i) {
        usage[i / k % 2 * n + static_cast<size_t>(entries[i])] += share * probs[i];
      }
    }
    for (const double m : usage) { sum += m * std::log(m + 1e-8); }
  }
  return sum / static_cast<double>(log.count());
}

/// What a row of chunks, or one update, reads and writes.
struct Updates {
  Stream& stream;
  Arena& arena;
  const FwpkmOptions& o;
  const FwpkmLog& log;
  const StepBuffers& buffers;
  Tensor q, vh, values;
  FwpkmPairs pairs;
  bool keep_entries = false, keep_slots = false;

  int64_t slots() const { return o.subkeys * o.subkeys; }
  Workspace workspace() const { return {stream, arena}; }
  void look_up(int64_t c) const {
    run(stream, FwpkmLookupKeys{.out = log.lookup(),
                                .key_norms = buffers.key_norms,
                                .q = q,
                                .keys = log.keys(c),
                                .chunk = log.chunks().at(c),
                                .score = o.score,
                                .keep_norms = c > 0,
                                .keep_entries = keep_entries,
                                .keep_slots = keep_slots});
  }
  void select(const FastChunk& chunk) const {
    run(stream, FwpkmSelectSlots{.out = log.lookup(), .chunk = chunk, .subkeys = o.subkeys, .keep_slots = keep_slots});
  }
  void index(const FwpkmReaders& readers, const FastChunks& chunks) const {
    run(workspace(),
        FwpkmIndexReaders{
            .out = readers, .slots = log.lookup().slots, .chunks = chunks, .pairs = pairs, .table = slots()});
  }
  void read(int64_t c, bool update) const {
    run(stream, FwpkmReadValues{.vh = vh,
                                .error = update ? buffers.error.tensor() : Tensor{},
                                .lookup = log.lookup(),
                                .values = values,
                                .chunk = log.chunks().at(c),
                                .pairs = pairs});
  }
  /// Makes log.keys(c + 1) of log.keys(c). `counted` tokens are in the chunk's statistics; it has `pair_count` pairs.
  void step_keys(int64_t c, int64_t counted, int64_t pair_count) const {
    const FastChunk chunk = log.chunks().at(c);
    if (o.key_update == KeyUpdate::entropy) {
      run(workspace(), FwpkmEntropyStep{.next = log.keys(c + 1),
                                        .next_norms = buffers.key_norms,
                                        .usage = log.usage(c),
                                        .keys = log.keys(c),
                                        .q = q,
                                        .lookup = log.lookup(),
                                        .chunk = chunk,
                                        .pairs = pairs,
                                        .score = o.score,
                                        .rate = o.key_rate,
                                        .count = static_cast<double>(counted)});
    } else if (o.key_update == KeyUpdate::memory && pair_count > 0) {
      run(workspace(), FwpkmMemoryStep{.next = log.keys(c + 1),
                                       .next_norms = buffers.key_norms,
                                       .keys = log.keys(c),
                                       .q = q,
                                       .values = values,
                                       .vh = vh,
                                       .lookup = log.lookup(),
                                       .chunk = chunk,
                                       .pairs = pairs,
                                       .score = o.score,
                                       .rate = o.key_rate,
                                       .count = static_cast<double>(pair_count)});
    } else if (o.key_update == KeyUpdate::memory) {
      copy(stream, log.keys(c + 1), log.keys(c));
    }
  }
  void write(int64_t c, bool keep) const {
    run(stream, FwpkmWriteValues{.values = values,
                                 .before = keep ? log.values_before(c) : Tensor{},
                                 .error = buffers.error,
                                 .lookup = log.lookup(),
                                 .readers = log.readers(c),
                                 .chunk = log.chunks().at(c),
                                 .pairs = pairs,
                                 .step = o.value_step});
  }
};

void restore_values(Stream& stream, const FwpkmLog& log, const Tensor& values, int64_t updates) {
  for (int64_t c = updates - 1; c >= 0; --c) {
    run(stream, FwpkmRestoreValues{values, log.values_before(c), log.readers(c)});
  }
}

struct FwpkmNode final : Node {
  FwpkmOptions o;
  std::shared_ptr<FwpkmLog> log;
  Tensor values;  // of the frozen table
  Var q, v, w, vh;
  bool frozen = false;

  void backward(Tape& tape) override {
    Stream& stream = tape.stream();
    const bool through = !frozen && o.through != GradThroughUpdate::none;
    const GradSlot d_q = tape.grad_slot(q);
    const GradSlot d_v = through ? tape.grad_slot(v) : GradSlot{}, d_w = through && w ? tape.grad_slot(w) : GradSlot{};
    for (const GradSlot& d : {d_v, d_w}) {
      if (d && !d.accumulate) { fill_zero(stream, d.tensor); }
    }
    const Buffer d_weights(tape.arena(), {tape.shape(vh)[0], o.heads, o.top_k}, sum_dtype(tape.dtype(vh)),
                           "slot weight gradients");
    values_backward(tape, d_weights, d_v.tensor, d_w.tensor, through);
    keys_backward(tape, d_weights, d_q,
                  through && o.through == GradThroughUpdate::full && o.key_update == KeyUpdate::entropy);
  }

  void values_backward(Tape& tape, const Tensor& d_weights, const Tensor& d_v, const Tensor& d_w, bool through) const {
    const FwpkmPairs pairs{tape.value(v), tape.value_or_none(w), log->targets()};
    run(tape.workspace(), FwpkmValuesBackward{.d_weights = d_weights,
                                              .d_v = d_v,
                                              .d_w = d_w,
                                              .d_out = tape.grad(vh),
                                              .vh = tape.value(vh),
                                              .before = frozen ? Tensor{} : log->values_before(),
                                              .values = values,
                                              .lookup = log->lookup(),
                                              .readers = log->readers(),
                                              .chunks = log->chunks(),
                                              .pairs = pairs,
                                              .step = o.value_step,
                                              .through = through});
  }

  void keys_backward(Tape& tape, const Tensor& d_weights, const GradSlot& d_q, bool through) const {
    run(tape.workspace(), FwpkmKeysBackward{.d_q = d_q.tensor,
                                            .d_weights = d_weights,
                                            .usage = log->usage(),
                                            .keys = log->all_keys(),
                                            .q = tape.value(q).view({tape.shape(q)[0], o.heads, 2, o.half_dim}),
                                            .lookup = log->lookup(),
                                            .chunks = log->chunks(),
                                            .score = o.score,
                                            .rate = o.key_rate,
                                            .through = through,
                                            .accumulate = d_q.accumulate});
  }
};

/// One pass over a row of chunks.
struct RowPass {
  Pass& pass;
  const FwpkmOptions& o;
  FwpkmLog& log;
  Param &keys, &values;
  Tensor q, v, w, vh;
  std::string name;

  /// Reads all chunks and makes `updates` updates.
  void run_chunks(int64_t updates, bool keep, Measures* measures) {
    Stream& stream = pass.stream();
    const StepBuffers buffers(pass.tape.arena(), o, log, sum_dtype(q.dtype));
    const FwpkmLookup lookup = log.lookup();
    const bool keep_entries = take_forced(pass, lookup.entries, name + ".entries", "forced decision", o.subkeys);
    const bool keep_slots = take_forced(pass, lookup.slots, name + ".slots", "forced decision", o.subkeys * o.subkeys);
    const std::vector<int32_t> targets = row_targets(pass.rows, log.chunks().size, o.lookahead);
    copy_to_device(stream, log.targets(), targets.data());
    copy(stream, log.keys(0), keys.value);
    const Updates u{.stream = stream,
                    .arena = pass.tape.arena(),
                    .o = o,
                    .log = log,
                    .buffers = buffers,
                    .q = q,
                    .vh = vh,
                    .values = values.value,
                    .pairs = {v, w, log.targets()},
                    .keep_entries = keep_entries,
                    .keep_slots = keep_slots};
    const auto step_keys = [&](int64_t c) {
      const FastChunk chunk = log.chunks().at(c);
      u.step_keys(c, chunk.tokens(), pairs_of(targets, chunk));
      if (measures != nullptr && !stream.counting()) { measure_keys(stream, *measures, log, c, o); }
    };
    const bool keys_first = o.key_update != KeyUpdate::memory;
    if (keys_first) { find_all_slots(u, step_keys, updates); }
    for (int64_t c = 0; c < log.count(); ++c) {
      if (!keys_first) {
        u.look_up(c);
        u.select(log.chunks().at(c));
      }
      u.read(c, c < updates);
      if (c < updates && !keys_first) {
        u.index(log.readers(c), {log.chunks().at(c), log.chunks().size});
        step_keys(c);
      }
      if (c < updates) {
        u.write(c, keep || measures != nullptr);
        measure_values(u, c, measures);
      }
    }
    const std::vector<int64_t> shape{pass.batch(), pass.length(), o.heads, o.top_k};
    record(pass, name + ".entries", lookup.entries, {shape[0], shape[1], shape[2], 2, shape[3]});
    record(pass, name + ".slots", lookup.slots, shape);
    if (measures != nullptr && !stream.counting()) {
      publish(*measures, std::count_if(targets.begin(), targets.end(), [](int32_t t) { return t >= 0; }));
    }
  }

  /// Keys, slots and their readers of all chunks, before any value is read: keys' steps do not look at readings.
  template <class Step> void find_all_slots(const Updates& u, const Step& step_keys, int64_t updates) const {
    for (int64_t c = 0; c < log.count(); ++c) {
      u.look_up(c);
      if (c < updates) { step_keys(c); }
    }
    u.select(log.chunks().all);
    if (updates > 0) { u.index(log.readers(), log.first_chunks(updates)); }
  }

  void measure_values(const Updates& u, int64_t c, const Measures* measures) const {
    if (measures != nullptr && !pass.stream().counting()) {
      run(pass.stream(), FwpkmMeasureStep{.sums = measures->sums,
                                          .values = values.value,
                                          .before = log.values_before(c),
                                          .vh = vh,
                                          .readers = log.readers(c),
                                          .chunk = log.chunks().at(c),
                                          .pairs = u.pairs});
    }
  }

  void publish(const Measures& m, int64_t pairs) {
    auto& s = (*pass.statistics)[name];
    double sums[2];
    copy_to_host(pass.stream(), sums, m.sums);
    s["memory_loss"] = pairs > 0 ? sums[0] / static_cast<double>(pairs) : 0.0;
    s["value_step"] = std::sqrt(sums[1]);
    s["key_step"] = std::sqrt(m.key_step);
    s["negative_entropy"] = negative_entropy(pass.stream(), log, o);
    count_slots(pass.stream(), log.lookup().slots, static_cast<double>(o.subkeys * o.subkeys), s);
  }
};

}  // namespace

Var fwpkm_row(Pass& pass, Var q, Var v, Var w, Param& keys, Param& values, const FwpkmOptions& o,
              const std::string& name, std::shared_ptr<FwpkmLog>& undo) {
  Tape& tape = pass.tape;
  Stream& stream = pass.stream();
  const DType dtype = tape.dtype(q);
  if (tape.recomputing() && undo != nullptr) {
    restore_values(stream, *undo, values.value, undo->count());
    copy(stream, keys.value, undo->keys(0));
  }
  undo.reset();
  const bool frozen = pass.fast.freeze, publish = (pass.training || pass.fast.keep) && !frozen;
  const bool backward = tape.recording(), again = publish && tape.will_run_again();
  const bool measured = pass.statistics != nullptr && !tape.recomputing() && !frozen;
  const int64_t length = pass.length(), chunk = frozen ? length : pass.fast.chunk_or(o.chunk);
  // The last update of a row that is only read would be undone before anybody reads it.
  const int64_t chunks = (length + chunk - 1) / chunk, updates = frozen                            ? 0
                                                                 : publish || measured || backward ? chunks
                                                                                                   : chunks - 1;
  const bool keep = updates > 0 && (backward || again || !publish);
  const auto keep_values = keep ? FwpkmLog::Keep::all : measured ? FwpkmLog::Keep::latest : FwpkmLog::Keep::none;
  FwpkmNode node;
  node.o = o;
  node.log = std::make_shared<FwpkmLog>(tape.arena(), o, pass.batch(), length, chunk, sum_dtype(dtype), keep_values,
                                        backward || again);
  node.values = values.value;
  node.q = q;
  node.v = v;
  node.w = w;
  node.vh = tape.output({pass.tokens(), o.value_dim}, dtype, "memory reading");
  node.frozen = frozen;
  Measures measures;
  if (measured) {
    measures.sums = Buffer(tape.arena(), {2}, DType::f64, "memory statistics");
    fill_zero(stream, measures.sums);
  }
  FwpkmLog& log = *node.log;
  RowPass{.pass = pass,
          .o = o,
          .log = log,
          .keys = keys,
          .values = values,
          .q = tape.value(q).view({pass.tokens(), o.heads, 2, o.half_dim}),
          .v = tape.value(v),
          .w = tape.value_or_none(w),
          .vh = tape.value(node.vh),
          .name = name}
      .run_chunks(updates, keep, measured ? &measures : nullptr);
  if (publish) {
    copy(stream, keys.value, log.keys(updates));
  } else {
    restore_values(stream, log, values.value, updates);
  }
  if (again) { undo = node.log; }
  return tape.record(std::move(node), &FwpkmNode::vh);
}

void fwpkm_read(Stream& stream, Arena& arena, const FwpkmOptions& o, const Tensor& q, const FastChunk& chunk,
                const Param& keys, const Param& values, const Tensor& vh) {
  const Tensor q4 = q.view({chunk.batch * chunk.length, o.heads, 2, o.half_dim});
  const FwpkmLog log(arena, o, chunk.batch, chunk.length, chunk.length, sum_dtype(q.dtype), FwpkmLog::Keep::none,
                     false);
  const Buffer key_norms(arena, {o.heads, 2, o.subkeys}, sum_dtype(q.dtype), "key norms");
  run(stream, FwpkmLookupKeys{.out = log.lookup(),
                              .key_norms = key_norms,
                              .q = q4,
                              .keys = keys.value,
                              .chunk = chunk,
                              .score = o.score,
                              .keep_norms = false,
                              .keep_entries = false,
                              .keep_slots = false});
  run(stream, FwpkmSelectSlots{.out = log.lookup(), .chunk = chunk, .subkeys = o.subkeys, .keep_slots = false});
  run(stream, FwpkmReadValues{
                  .vh = vh, .error = {}, .lookup = log.lookup(), .values = values.value, .chunk = chunk, .pairs = {}});
}

void fwpkm_update(Stream& stream, Arena& arena, const FwpkmOptions& o, const Tensor& q, const Tensor& v,
                  const Tensor& w, const std::vector<int32_t>& targets, const FastChunk& chunk, Param& keys,
                  Param& values) {
  const int64_t tokens = chunk.batch * chunk.length, pairs = pairs_of(targets, chunk);
  if (pairs == 0) { return; }
  const Tensor q4 = q.view({tokens, o.heads, 2, o.half_dim});
  const FwpkmLog log(arena, o, chunk.batch, chunk.length, chunk.length, sum_dtype(q.dtype), FwpkmLog::Keep::none,
                     false);
  const StepBuffers buffers(arena, o, log, sum_dtype(q.dtype));
  const Buffer vh(arena, {tokens, o.value_dim}, q.dtype, "memory reading");
  copy_to_device(stream, log.targets(), targets.data());
  copy(stream, log.keys(0), keys.value);
  const Updates u{.stream = stream,
                  .arena = arena,
                  .o = o,
                  .log = log,
                  .buffers = buffers,
                  .q = q4,
                  .vh = vh,
                  .values = values.value,
                  .pairs = {v, w, log.targets(), true}};
  u.look_up(0);
  u.select(log.chunks().all);
  u.index(log.readers(), log.chunks());
  u.read(0, true);
  u.step_keys(0, pairs, pairs);
  u.write(0, false);
  copy(stream, keys.value, log.keys(1));
}

}  // namespace hebb
