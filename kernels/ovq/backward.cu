#include "kernels/dictionary/own_tokens.cuh"
#include "kernels/dictionary/undo.cuh"
#include "kernels/ovq/scratch.h"

// Own chunks first, by the attention kernels with the log-sum-exp of everything read. Then the chunks are folded in
// again, what each changed slot was before kept: a warp has a slot and a group of 17 steps, three launches. Then back,
// group by group. On tensor cores three launches and the gradients' two (dictionary/slot_attention.cuh): those of
// queries read the slots as they were, of all steps at once; for those of slots a block scans the steps with 64
// of its own: it takes the chunk out, handing its slots' gradients to the tokens, then adds the gradients of the
// readout. On the plain cores three launches a step: a slice of channels has no slots of its own. FLOPs: 3.5 times the
// readout. Bound: fp32 multiply-adds for long chunks and many slots, in bf16 tensor cores; for short chunks latency.
namespace hebb::HEBB_DEVICE {
namespace {

using namespace ovq;

/// The keys that are the first of the group's chunks to enter their slots, to the table. A warp has one key.
struct Mark {
  ReadLayout n;
  Kept kept;
  const int32_t* ids;  // [B, K, T]
  slots::Steps steps;
  int64_t room;

  __device__ void operator()(int64_t item, int lane) const {
    const int64_t number = item / n.chunk, place = item % n.chunk, unit = steps.unit(number),
                  step_number = steps.step(number);
    const Step step = n.at(unit / n.kv_heads, step_number);
    if (step.fold == kNone) { return; }
    const int32_t* const of = ids + unit * n.length + step.fold;
    if (!slots::is_among(of, place, of[place], lane) && lane == 0) {
      *kept.entry(unit, step_number, room, of[place]) =
          static_cast<int32_t>(kept.version(step_number, step, n.chunk, place));
    }
  }
};

/// Folds the chunks of a group in again. A warp has one slot of one unit, whose updates alone depend on each other.
struct Replay {
  Fold fold;
  const int32_t* ids;  // [B, K, T]
  slots::Steps steps;

  __device__ void operator()(int64_t item, int lane) const {
    const int64_t unit = item / fold.dictionary.room;
    for (int64_t step = steps.first; step < steps.first + steps.count; ++step) {
      const int32_t version = *fold.kept.entry(unit, step, fold.dictionary.room, item % fold.dictionary.room);
      if (version >= 0) {
        const int64_t first = fold.n.at(unit / fold.n.kv_heads, step).fold;
        fold.of_slot(unit, step, version - first, ids + unit * fold.n.length + first, lane);
        __syncwarp();  // the slot's count is read by all lanes
      }
    }
  }
};

/// Takes a step's chunk out. A warp has one key of the chunk; the first of a slot does the slot.
struct UndoStep {
  Undo undo;
  int64_t step;

  __device__ void operator()(int64_t item, int lane) const {
    const int64_t unit = item / undo.rule.chunk, place = item % undo.rule.chunk,
                  first = undo.n.at(unit / undo.n.kv_heads, step).fold;
    const int32_t* const of = undo.ids + unit * undo.n.length + first;
    if (first != kNone && !slots::is_among(of, place, of[place], lane)) { undo(unit, step, place, lane); }
  }
};

Kept kept_of(const OvqBackwardScratch& scratch, int64_t d) {
  auto* const old = scratch.versions.as<float>();
  return {.table = scratch.table.as<int32_t>(),
          .keys = old,
          .values = old + scratch.counts.numel() * d,
          .inverse_norms = scratch.inverse_norms.as<float>(),
          .counts = scratch.counts.as<int32_t>(),
          .key_copies = scratch.key_copies.as<bf16>(),
          .value_copies = scratch.value_copies.as<bf16>(),
          .log_counts = scratch.log_counts.as<float>(),
          .versions = scratch.counts.size(2),
          .group = scratch.table.size(2),
          .by_token = true};
}

/// Marks which slots the group's steps change.
void mark(Stream& stream, const Mark& m, int64_t units) {
  slots::fill(stream, m.kept.table, units * m.kept.group * m.room, -1);
  each_warp("ovq_mark", stream, units * m.steps.count * m.n.chunk, m);
}

template <class T> void backward(Stream& stream, const OvqBackward& a, const OvqBackwardScratch& scratch) {
  const int64_t batch = a.q.size(0), length = a.q.size(1), units = batch * a.k.size(2), chunk = a.rule.chunk;
  const int64_t count = scratch.steps.size(1);
  const Kept kept = kept_of(scratch, a.q.size(3));
  slots::attend_own_backward(
      stream, a, slots::OwnTokens(stream, a, 1, scratch.lo.as<int32_t>(), scratch.hi.as<int32_t>()), a.d_q, a.q, 1.0,
      a.accumulate_q, {.statistics = scratch.statistics, .on_tensor_cores = scratch.on_tensor_cores});
  auto* const steps = slots::items_of<Step>(scratch.steps);
  each_warp("ovq_steps", stream, batch * count, MakeSteps{steps, a.doc_start.as<int32_t>(), a.rule, length, count});
  auto *const d_keys = scratch.d_dictionary.keys.as<float>(), *const d_values = scratch.d_dictionary.values.as<float>();
  slots::fill(stream, d_keys, scratch.d_dictionary.keys.numel(), 0.0f);
  slots::fill(stream, d_values, scratch.d_dictionary.values.numel(), 0.0f);
  const ReadLayout n = slots::layout_of(a, a.rule.chunk, steps, count);
  const SlotChanges changes{n, a.rule, Dictionary(scratch.dictionary), kept};
  auto* const ids = a.ids.as<int32_t>();
  const int64_t group = kept.group, room = changes.dictionary.room;
  for (slots::Steps group_steps{0, group}; group_steps.first < count; group_steps.first += group) {
    group_steps.count = std::min(group, count - group_steps.first);
    mark(stream, {n, kept, ids, group_steps, room}, units);
    each_warp("ovq_replay", stream, units * room,
              Replay{{changes, {Elements(a.k), {}, n.d}, {Elements(a.v), {}, n.dv}}, ids, group_steps});
  }
  const slots::Slots<T> dictionary = slots_of<T>(scratch.dictionary);
  const bool on_tensor_cores = scratch.on_tensor_cores;
  slots::SlotReadBackward<T> read{.n = n,
                                  .slots = dictionary,
                                  .q = a.q.as<T>(),
                                  .d_o = a.d_o.as<T>(),
                                  .o = a.o.as<T>(),
                                  .lse = a.lse.as<float>(),
                                  .d_q = a.d_q.as<T>(),
                                  .d_keys = d_keys,
                                  .d_values = d_values,
                                  .queries = a.lse.numel(),
                                  .scale = 1.0f};
  const Undo undo{changes, ids, d_keys, d_values, Elements(a.d_k), Elements(a.d_v)};
  if constexpr (std::is_same_v<T, bf16>) {
    if (on_tensor_cores) {
      read.statistics = scratch.statistics.as<float>();
      read.parts = slots::parts_of(n, batch, group, scratch.parts);
      read.old = kept.slots();
      for (int64_t first = (count - 1) / group * group; first >= 0; first -= group) {
        read.steps = {first, std::min(group, count - first)};
        mark(stream, {n, kept, ids, read.steps, room}, units);
        each_element("ovq_resolve", stream, units, room,
                     slots::ResolveVersions{kept.table, kept.group, read.steps.count, room, false});
        slots::read_slots_backward_mma(stream, batch, read, undo);
      }
      return;
    }
  }
  HEBB_ASSERT(!on_tensor_cores);
  for (int64_t step = count - 1; step >= 0; --step) {
    each_warp("ovq_undo", stream, units * chunk, UndoStep{undo, step});
    read.steps.first = step;
    slots::read_slots_backward(stream, batch, read);
  }
}

}  // namespace

void run(Stream& stream, const OvqBackward& a, const OvqBackwardScratch& scratch) {
  if (a.q.numel() > 0) {
    dispatch_float(a.q.dtype, [&]<class S>(S) { backward<S>(stream, a, scratch); });
  }
}

}  // namespace hebb::HEBB_DEVICE
