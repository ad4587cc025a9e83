#include "kernels/common/cuda/block.cuh"
#include "kernels/dictionary/own_tokens.cuh"
#include "kernels/dictionary/slot_compare.cuh"
#include "kernels/kvm/slots.cuh"

// The windows of all tokens first, by the attention kernels; then step by step: memory keys of the chunk that leaves
// the window, scores against the slots (dictionary/slot_compare.cuh), founders, new slots, scores against those, joins:
// seven launches a step of C tokens, of B K C warps, B K m / 64 and one with B K blocks. Reading
// (dictionary/slot_attention.cuh) waits for nothing else: on tensor cores a group of 17 steps is read together behind
// its last one, slots that changed in between as they were kept; else each step reads, as it must where all slots
// change. FLOPs a token: 2 H (D + Dv)(m + (W - 1/2) C) + 2 K D m. In bf16 q, k, v and what is read of the slots are
// bf16, sums, norms and gates fp32; with the usual head sizes products are on tensor cores. Bound: in fp32
// multiply-adds for long chunks and many slots, in bf16 and else the latency of the launches, which follow each other.
namespace hebb::HEBB_DEVICE {
namespace {

using namespace kvm;
using slots::Best, slots::Score, slots::score_of;

struct Choose {
  ReadLayout n;
  const Score* partial;
  Score* scores;    // [B, K, C]: against the slots before the step
  int32_t* founds;  // [B, K, C]
  int32_t* codes;   // [B, K, C]
  int64_t tiles, step, sinks;
};

/// The tokens that found slots: those least like any slot (docs/layers/kvm.md, Append). Ranks are counted: C^2
/// comparisons.
__global__ void __launch_bounds__(kBlockThreads) kvm_founders_kernel(Choose a) {
  const int64_t unit = blockIdx.x, chunk = a.n.chunk, first = unit * chunk;
  const Step step = a.n.at(unit / a.n.kv_heads, a.step);
  if (step.fold == kNone) {
    return;  // the whole block
  }
  const bool all = step.after - step.before == chunk;
  Score* const scores = a.scores + first;
  if (!all) {
    block_each(chunk, [&](int64_t i) {
      scores[i] = score_of(a.partial + unit * a.tiles * chunk + i, chunk, step.before, a.sinks);
    });
  }
  block_each(chunk, [&](int64_t i) {
    int64_t rank = 0;
    for (int64_t j = 0; !all && j < chunk; ++j) {
      rank += scores[j].largest < scores[i].largest || (scores[j].largest == scores[i].largest && j < i) ? 1 : 0;
    }
    a.founds[first + i] = rank < step.after - step.before ? 1 : 0;
  });
  block_each(chunk, [&](int64_t i) {
    int64_t slot = step.before;
    for (int64_t j = 0; j < i; ++j) { slot += a.founds[first + j]; }
    a.codes[first + i] = a.founds[first + i] != 0 ? static_cast<int32_t>(2 * slot + 1) : -1;
  });
}

/// The slots that the other tokens join: new slots take part, old ones win ties. Item: a unit's token of
/// the chunk.
struct ChooseTargets {
  Choose of;
  int32_t* out;  // [B, K, T], or null
  int64_t window;

  __device__ void operator()(int64_t unit, int64_t i) const {
    const ReadLayout& n = of.n;
    const Step step = n.at(unit / n.kv_heads, of.step);
    if (step.fold == kNone) { return; }
    int32_t& code = of.codes[unit * n.chunk + i];
    if (code < 0) {
      Best best = of.scores[unit * n.chunk + i].best;
      const Score fresh =
          score_of(of.partial + unit * of.tiles * n.chunk + i, n.chunk, step.after - step.before, of.sinks);
      if (step.after > step.before && fresh.best.score > best.score) { best = fresh.best; }
      code = 2 * best.slot;
    }
    if (out != nullptr) { out[unit * n.length + step.fold - window * n.chunk + i] = code; }
  }
};

/// The newest tokens of the last document to the ring, of which place p mod size holds position p. Item: unit and age.
struct Store {
  ReadLayout n;
  Elements from, ring;  // from [B, T, K, width], or null: ones
  int64_t size, width, ages;
  bool gates;

  __device__ void operator()(int64_t item, int64_t c) const {
    const int64_t unit = item / ages, row = unit / n.kv_heads, t = n.length - 1 - item % ages;
    const int64_t begin = n.doc_start[(row + 1) * n.length - 1];
    if (t < begin) { return; }
    const int64_t line = (row * n.length + t) * n.kv_heads + unit % n.kv_heads;
    const float value = !from.exist() ? 1.0f : from[line * width + c];
    ring.set((unit * size + (t - begin) % size) * width + c, gates && from.exist() ? one_plus_elu(value) : value);
  }
};

/// The tokens of each query's window that this pass holds.
void attend_window(Stream& stream, const KvmForward& a, const KvmForwardScratch& scratch) {
  const Tensor q = a.window_temp.defined() ? scratch.heated : a.q;
  if (a.window_temp.defined()) {
    each_element(
        "kvm_heat", stream, q.numel() / q.size(3), q.size(3),
        HeatQueries{Elements(q), Elements(a.q), a.window_temp.as<float>(), q.size(3), static_cast<int>(q.size(2))});
  }
  const slots::OwnTokens own(stream, a, a.rule.window, scratch.lo.as<int32_t>(), scratch.hi.as<int32_t>());
  slots::attend_own(stream, a, own, q, a.rule.scale, scratch.own_lse.as<float>(), scratch.on_tensor_cores);
}

/// One update: from the chunk that leaves the window to the slots.
template <class T>
void fold(Stream& stream, const KvmForward& a, const Update& update, const KvmForwardScratch& scratch,
          slots::Compare<T> comparison) {
  const int64_t batch = a.k.size(0), units = batch * a.k.size(2), items = units * a.rule.chunk, step = update.step;
  each_warp("kvm_memory_keys", stream, items, MemoryKeys{update});
  const Choose choose{.n = update.n,
                      .partial = comparison.partial,
                      .scores = slots::items_of<Score>(scratch.scores),
                      .founds = scratch.founds.as<int32_t>(),
                      .codes = scratch.codes.as<int32_t>(),
                      .tiles = comparison.tiles(),
                      .step = step,
                      .sinks = a.rule.sinks};
  comparison.step = step;
  if (!a.forced) {
    slots::compare_slots(stream, batch, comparison, scratch.on_tensor_cores);
    HEBB_LAUNCH(kvm_founders_kernel, blocks_for(units, 1), kBlockThreads, 0, stream, choose);
  }
  each_warp("kvm_found", stream, items, Found{update});
  if (!a.forced) {
    comparison.against = slots::Against::new_slots;
    slots::compare_slots(stream, batch, comparison, scratch.on_tensor_cores);
    each_element("kvm_targets", stream, units, a.rule.chunk,
                 ChooseTargets{choose, a.routes.as<int32_t>(), a.rule.window});
  }
  each_warp("kvm_merge", stream, items, Merge{update});
  if (a.rule.value_norm == KvmValueNorm::updates) {
    each_warp("kvm_read_values", stream, units * update.dictionary.room,
              ReadValues{update.n, a.rule, update.dictionary, step});
  }
}

template <class T> void forward(Stream& stream, const KvmForward& a, const KvmForwardScratch& scratch) {
  const int64_t batch = a.q.size(0), length = a.q.size(1), units = batch * a.k.size(2),
                ring = a.rule.chunk * a.rule.window;
  const int64_t count = scratch.steps.size(1), room = a.slots.keys.size(2);
  const auto *const ring_k = a.window.k.as<T>(), *const ring_v = a.window.v.as<T>(),
                    *const key_hats = a.slots.key_hats.as<T>(), *const value_hats = a.slots.value_hats.as<T>();
  const bool on_tensor_cores = scratch.on_tensor_cores;
  const int64_t most = kvm_group(length, a.rule, on_tensor_cores);
  const OldHats old = most == 1 ? OldHats{}
                                : OldHats{scratch.old_table.as<int32_t>(), scratch.old_keys.as<bf16>(),
                                          scratch.old_values.as<bf16>(), scratch.old_keys.size(2), most};
  auto* const steps = slots::items_of<Step>(scratch.steps);
  attend_window(stream, a, scratch);
  make_steps(stream, a, steps, count);
  const ReadLayout n = slots::layout_of(a, a.rule.chunk, steps, count);
  if (a.routes.defined() && !a.forced) { slots::fill(stream, a.routes.as<int32_t>(), a.routes.numel(), -1); }
  const Codes codes = a.forced ? Codes{a.routes.as<int32_t>(), true} : Codes{scratch.codes.as<int32_t>(), false};
  Update update{n,
                a.rule,
                Dictionary(a.slots),
                {a.norm_weight.as<float>(), a.norm_bias.as<float>(), n.d, static_cast<float>(a.rule.eps)},
                {Elements(a.k), Elements(a.v), a.gate.as<float>(), Elements(a.window.k), Elements(a.window.v),
                 a.window.gates.as<float>(), ring},
                codes,
                {},
                scratch.memory_keys.as<float>(),
                scratch.key_copies.as<bf16>(),
                scratch.gates.as<float>(),
                0,
                old};
  slots::SlotRead<T> read{.n = n,
                          .slots = {key_hats, value_hats, nullptr, room},
                          .ring = {ring_k, ring_v, ring, a.rule.window},
                          .q = a.q.as<T>(),
                          .o = a.o.as<T>(),
                          .lse = a.lse.as<float>(),
                          .own_lse = scratch.own_lse.as<float>(),
                          .slot_temp = a.state_temp.as<float>(),
                          .ring_temp = a.window_temp.as<float>(),
                          .scale = static_cast<float>(a.rule.scale),
                          .parts = slots::parts_of(n, batch, most, scratch.parts),
                          .on_tensor_cores = on_tensor_cores,
                          .old = old.slots()};
  const T* items;
  if constexpr (std::is_same_v<T, bf16>) {
    items = scratch.key_copies.as<bf16>();
  } else {
    items = scratch.memory_keys.as<float>();
  }
  const slots::Compare<T> comparison{n,    items, key_hats,     nullptr, slots::items_of<Score>(scratch.partial),
                                     room, 0,     a.rule.sinks, 0,       slots::Against::old_slots};
  for (read.steps = {0, most}; read.steps.first < count; read.steps.first += most) {
    read.steps.count = std::min(most, count - read.steps.first);
    if (most > 1) { slots::fill(stream, old.table, units * most * room, -1); }
    for (update.step = read.steps.first; update.step < read.steps.first + read.steps.count; ++update.step) {
      fold(stream, a, update, scratch, comparison);
    }
    if (most > 1) {
      each_element("kvm_resolve", stream, units, room,
                   slots::ResolveVersions{old.table, most, read.steps.count, room, true});
    }
    slots::read_slots(stream, batch, read);
  }
  const int64_t ages = length < ring ? length : ring;
  each_element("kvm_store", stream, units * ages, n.d,
               Store{n, Elements(a.k), Elements(a.window.k), ring, n.d, ages, false});
  each_element("kvm_store", stream, units * ages, n.dv,
               Store{n, Elements(a.v), Elements(a.window.v), ring, n.dv, ages, false});
  each_element("kvm_store", stream, units * ages, 1,
               Store{n, Elements(a.gate), Elements(a.window.gates), ring, 1, ages, true});
}

}  // namespace

void run(Stream& stream, const KvmForward& a, const KvmForwardScratch& scratch) {
  if (a.q.numel() > 0) {
    dispatch_float(a.q.dtype, [&]<class S>(S) { forward<S>(stream, a, scratch); });
  }
}

}  // namespace hebb::HEBB_DEVICE
