#include <string>

#include "core/random.h"
#include "kernels/common/cuda/block.cuh"
#include "kernels/dictionary/fold.cuh"
#include "kernels/dictionary/own_tokens.cuh"
#include "kernels/dictionary/slot_compare.cuh"
#include "kernels/ovq/scratch.h"

// The own chunks of all tokens first, by the attention kernels; then step by step, two launches: compare the chunk's
// keys with the dictionary (dictionary/slot_compare.cuh), then choose their centroids and fold them in. Reading the
// dictionary (dictionary/slot_attention.cuh) waits for nothing else: on tensor cores a group of 17 steps is read
// together behind its last one, slots that changed in between as they were kept (three launches more); on the plain
// cores, which multiply-adds bind, and where there is one step, each step reads before it folds in. Blocks of a step: B
// K n / 64 and 8 B K. FLOPs a token: 2 H (D + Dv)(n + L / 2) + 2 K D n. In bf16 q, k and v are bf16, sums, means and
// counts fp32, and centroids are read as bf16 copies that folding writes; with the usual head sizes products are on
// tensor cores. Bound: in fp32 multiply-adds for long chunks and many slots, in bf16 tensor cores, L2 and the latency
// of 2 launches a step.
namespace hebb::HEBB_DEVICE {
namespace {

using namespace ovq;
using slots::Best, slots::Score;

/// Copies keys and values of this pass to their places in the pending chunk. Item: unit and place; channel of key, then
/// of value.
struct Stage {
  ReadLayout n;
  ChunkItems keys, values;
  bool at_end;  // the chunk that the row leaves unfinished; else one of an earlier pass that is folded in

  __device__ void operator()(int64_t item, int64_t c) const {
    const int64_t unit = item / n.chunk, place = item % n.chunk, row = unit / n.kv_heads;
    int64_t chunk = n.at(row, 0).fold;
    if (at_end) {
      const int64_t begin = n.doc_start[row * n.length + n.length - 1];
      chunk = n.length - 1 - (n.length - 1 - begin) % n.chunk;
      if (chunk + n.chunk == n.length) {
        return;  // folded in
      }
    } else if (chunk >= 0 || chunk == kNone) {
      return;
    }
    const int64_t t = chunk + place;
    if (t >= 0 && t < n.length) {
      const ChunkItems& of = c < n.d ? keys : values;
      const int64_t channel = c < n.d ? c : c - n.d;
      of.pending.set(item * of.width + channel,
                     of.tokens[((row * n.length + t) * n.kv_heads + unit % n.kv_heads) * of.width + channel]);
    }
  }
};

/// Place of the key that founds an empty dictionary.
__host__ __device__ __forceinline__ int64_t first_founder(bool second_founds, int64_t chunk) {
  return second_founds && chunk > 1 ? 1 : 0;
}

/// First words of the streams "ovq/{layer}/{kv head}": a key a head.
struct StreamKey {
  uint32_t words[2];
};

struct StoreKey {
  StreamKey* to;
  StreamKey key;
  __device__ void operator()(int64_t, int64_t) const { *to = key; }
};

/// First u64 of stream `key` at `index`: Philox4x32-10 (docs/random-streams.md).
__device__ __forceinline__ uint64_t first_draw(StreamKey key, uint64_t index) {
  uint32_t c[4] = {0, 0, static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c[0], p1 = uint64_t{0xCD9E8D57} * c[2];
    const uint32_t next[4] = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ key.words[0], static_cast<uint32_t>(p1),
                              static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ key.words[1], static_cast<uint32_t>(p0)};
    HEBB_UNROLL
    for (int i = 0; i < 4; ++i) { c[i] = next[i]; }
    key.words[0] += 0x9E3779B9;
    key.words[1] += 0xBB67AE85;
  }
  return c[0] | static_cast<uint64_t>(c[1]) << 32;
}

/// A number that has the order of scores; of -0 and 0 the same.
__device__ __forceinline__ uint32_t order_of(float score) {
  const uint32_t bits = __float_as_uint(score + 0.0f);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

struct Choose {
  ReadLayout n;
  const Score* partial;
  const StreamKey* keys;  // of the heads; null: the least similar keys found
  uint64_t* order;        // [B, K, folders, L]: the first of it found
  int32_t* ids;           // [B, K, folders, L]
  uint32_t* founds;       // [B, K, folders, L / 32]: bits
  int32_t* out;           // [B, K, T], or null
  int64_t tiles, step, folders;
  bool second_founds;

  __device__ int64_t words() const { return (n.chunk + 31) / 32; }

  /// ids of a chunk's keys (docs/layers/ovq.md, Selection), by one block. Ranks are counted: L^2 comparisons.
  __device__ const int32_t* choose(int64_t block) const {
    const int64_t unit = block / folders, row = unit / n.kv_heads, chunk = n.chunk;
    const Step at = n.at(row, step);
    const int64_t founder = at.before == 0 ? first_founder(second_founds, chunk) : -1,
                  first_new = at.before == 0 ? 1 : at.before;
    const int64_t position = at.fold - n.doc_start[row * n.length + (at.fold < 0 ? 0 : at.fold)];
    uint64_t* const ranked = order + block * chunk;
    int32_t* const of_keys = ids + block * chunk;
    uint32_t* const bits = founds + block * words();
    block_each(chunk, [&](int64_t j) {
      const Best best = slots::score_of(partial + unit * tiles * chunk + j, chunk, first_new, 0).best;
      of_keys[j] = best.score == -INFINITY ? 0 : best.slot;
      const uint64_t place = keys != nullptr
                                 ? first_draw(keys[unit % n.kv_heads], static_cast<uint64_t>(position + j))
                                 : static_cast<uint64_t>(order_of(best.score)) << 32 | static_cast<uint64_t>(j);
      ranked[j] = j == founder ? ~uint64_t{0} : place;
    });
    block_warps(words(), [&](int64_t word, int lane) {
      const int64_t j = word * 32 + lane;
      int64_t rank = chunk;
      if (j < chunk && j != founder) {
        const uint64_t own = ranked[j];
        rank = 0;
        for (int64_t i = 0; i < chunk; ++i) { rank += ranked[i] < own || (ranked[i] == own && i < j) ? 1 : 0; }
      }
      const unsigned founding = __ballot_sync(kAllLanes, rank < at.after - first_new);
      if (lane == 0) { bits[word] = founding; }
    });
    block_each(chunk, [&](int64_t j) {
      if ((bits[j / 32] >> (j % 32) & 1) != 0) {
        int64_t id = first_new + __popc(bits[j / 32] & ((1u << (j % 32)) - 1));
        for (int64_t word = 0; word < j / 32; ++word) { id += __popc(bits[word]); }
        of_keys[j] = static_cast<int32_t>(id);
      }
      if (out != nullptr && block % folders == 0) { out[unit * n.length + at.fold + j] = of_keys[j]; }
    });
    return of_keys;
  }
};

/// Grid: units x folders. Each block chooses for all keys, which costs less than a launch, and folds every `folders`-th
/// eight in.
__global__ void __launch_bounds__(kBlockThreads, 2) ovq_fold_kernel(Choose a, Fold fold) {
  const int64_t unit = blockIdx.x / a.folders, warps = kBlockThreads / 32;
  if (a.n.at(unit / a.n.kv_heads, a.step).fold == kNone) {
    return;  // the whole block
  }
  const int32_t* const ids = a.choose(blockIdx.x);
  for (int64_t first = blockIdx.x % a.folders * warps + threadIdx.x / 32; first < a.n.chunk;
       first += a.folders * warps) {
    fold.of_key(unit, a.step, first, ids, static_cast<int>(threadIdx.x % 32));
  }
}

/// Folds a step's chunk in with given ids. A warp has one key.
struct FoldGiven {
  Fold fold;
  const int32_t* ids;  // [B, K, T]
  int64_t step;

  __device__ void operator()(int64_t item, int lane) const {
    const int64_t unit = item / fold.rule.chunk, begin = fold.n.at(unit / fold.n.kv_heads, step).fold;
    if (begin != kNone) { fold.of_key(unit, step, item % fold.rule.chunk, ids + unit * fold.n.length + begin, lane); }
  }
};

/// Where steps are read together.
Kept kept_of(const OvqForwardScratch& scratch) {
  if (!scratch.table.defined()) { return {}; }
  return {.table = scratch.table.as<int32_t>(),
          .key_copies = scratch.key_copies.as<bf16>(),
          .value_copies = scratch.value_copies.as<bf16>(),
          .log_counts = scratch.log_counts.as<float>(),
          .versions = scratch.log_counts.size(2),
          .group = scratch.table.size(2)};
}

void store_stream_keys(Stream& stream, const OvqRule& rule, StreamKey* keys, int64_t heads) {
  for (int64_t head = 0; head < heads; ++head) {
    const uint64_t key = stream_key(0, "ovq/" + std::to_string(rule.layer) + "/" + std::to_string(head));
    each_element("ovq_stream_key", stream, 1, 1,
                 StoreKey{keys + head, {{static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)}}});
  }
}

/// One pass; `choose` and the comparison lack their step.
template <class T> struct Pass {
  const OvqForward& a;
  int64_t units;
  Fold fold;
  Choose choose;
  slots::Compare<T> comparison;
  bool on_tensor_cores;

  void fold_in(Stream& stream, int64_t step) {
    if (a.forced) {
      each_warp("ovq_fold", stream, units * a.rule.chunk, FoldGiven{fold, a.ids.as<int32_t>(), step});
      return;
    }
    comparison.step = choose.step = step;
    slots::compare_slots(stream, a.q.size(0), comparison, on_tensor_cores);
    HEBB_LAUNCH(ovq_fold_kernel, blocks_for(units * choose.folders, 1), kBlockThreads, 0, stream, choose, fold);
  }
};

/// Steps of a group one after the other, then what all of them read; a group of one step reads first.
template <class T>
void run_group(Stream& stream, Pass<T>& pass, slots::SlotRead<T>& read, const Kept& kept, slots::Steps steps) {
  const int64_t room = pass.fold.dictionary.room;
  read.steps = steps;
  if (kept.table == nullptr) {
    slots::read_slots(stream, pass.a.q.size(0), read);
    pass.fold_in(stream, steps.first);
    return;
  }
  slots::fill(stream, kept.table, pass.units * kept.group * room, -1);
  for (int64_t step = steps.first; step < steps.first + steps.count; ++step) { pass.fold_in(stream, step); }
  each_element("ovq_resolve", stream, pass.units, room,
               slots::ResolveVersions{kept.table, kept.group, steps.count, room, false});
  slots::read_slots(stream, pass.a.q.size(0), read);
}

template <class T> void forward(Stream& stream, const OvqForward& a, const OvqForwardScratch& scratch) {
  const int64_t batch = a.q.size(0), length = a.q.size(1), units = batch * a.k.size(2), chunk = a.rule.chunk;
  const int64_t count = scratch.steps.size(1), room = a.dictionary.keys.size(2);
  const auto *const pending_k = a.pending_k.as<T>(), *const pending_v = a.pending_v.as<T>();
  const slots::Slots<T> dictionary = slots_of<T>(a.dictionary);
  const bool on_tensor_cores = scratch.on_tensor_cores;
  const Kept kept = kept_of(scratch);
  const int64_t group = kept.table != nullptr ? kept.group : 1;
  auto* const own_lse = scratch.own_lse.as<float>();
  slots::attend_own(stream, a, slots::OwnTokens(stream, a, 1, scratch.lo.as<int32_t>(), scratch.hi.as<int32_t>()), a.q,
                    1.0, own_lse, on_tensor_cores);
  auto* const steps = slots::items_of<Step>(scratch.steps);
  each_warp("ovq_steps", stream, batch * count, MakeSteps{steps, a.doc_start.as<int32_t>(), a.rule, length, count});
  const ReadLayout n = slots::layout_of(a, a.rule.chunk, steps, count);
  if (a.ids.defined() && !a.forced) { slots::fill(stream, a.ids.as<int32_t>(), a.ids.numel(), -1); }
  auto* const stream_keys = slots::items_of<StreamKey>(scratch.stream_keys);
  if (a.rule.random && !a.forced) { store_stream_keys(stream, a.rule, stream_keys, a.k.size(2)); }
  const ChunkItems keys{Elements(a.k), Elements(a.pending_k), n.d}, values{Elements(a.v), Elements(a.pending_v), n.dv};
  each_element("ovq_stage", stream, units * chunk, n.d + n.dv, Stage{n, keys, values, false});
  slots::SlotRead<T> read{.n = n,
                          .slots = dictionary,
                          .ring = {pending_k, pending_v, chunk, 1},
                          .q = a.q.as<T>(),
                          .o = a.o.as<T>(),
                          .lse = a.lse.as<float>(),
                          .own_lse = own_lse,
                          .scale = 1.0f,
                          .parts = slots::parts_of(n, batch, group, scratch.parts),
                          .on_tensor_cores = on_tensor_cores,
                          .old = kept.slots()};
  auto* const partial = slots::items_of<Score>(scratch.partial);
  Pass<T> pass{a,
               units,
               {{n, a.rule, Dictionary(a.dictionary), kept}, keys, values},
               Choose{n, partial, a.rule.random ? stream_keys : nullptr, slots::items_of<uint64_t>(scratch.order),
                      scratch.ids.as<int32_t>(), slots::items_of<uint32_t>(scratch.founds), a.ids.as<int32_t>(),
                      scratch.partial.size(2), 0, ovq_folders(chunk), a.rule.second_founds},
               slots::Compare<T>{n, pending_k, dictionary.keys, a.k.as<T>(), partial, room, 0, 0,
                                 first_founder(a.rule.second_founds, chunk), slots::Against::old_slots_or_founder},
               on_tensor_cores};
  for (int64_t first = 0; first < count; first += group) {
    run_group(stream, pass, read, kept, {first, std::min(group, count - first)});
  }
  each_element("ovq_stage", stream, units * chunk, n.d + n.dv, Stage{n, keys, values, true});
}

}  // namespace

void run(Stream& stream, const OvqForward& a, const OvqForwardScratch& scratch) {
  if (a.q.numel() > 0) {
    dispatch_float(a.q.dtype, [&]<class S>(S) { forward<S>(stream, a, scratch); });
  }
}

}  // namespace hebb::HEBB_DEVICE
