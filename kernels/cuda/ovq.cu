#include <string>

#include "core/random.h"
#include "kernels/cuda/common/attention_mma.h"
#include "kernels/cuda/common/block.h"
#include "kernels/cuda/common/ovq_fold.h"
#include "kernels/cuda/common/row_compare.h"

// The own chunks of all tokens first, by the attention kernels; then step by step: read the dictionary (common/row_attention.h), compare the
// chunk's keys with it (common/row_compare.h), choose their centroids, fold them in. Six launches a step of L tokens, of the readout's
// blocks, B K n / 64, B K and B K L warps or blocks. FLOPs a token: 2 H (D + Dv)(n + L / 2) + 2 K D n. In bf16 q, k and v are bf16, sums,
// means and counts fp32, and centroids are read as bf16 copies that folding writes; with the usual head sizes products are on tensor cores.
// Bound: in fp32 multiply-adds for long chunks and many rows, in bf16 and else the latency of the launches, which follow each other.
namespace hebb::HEBB_DEVICE {
namespace {

using namespace ovq;
using rows::Best, rows::Score;

/// Copies tokens of this pass to their places in the pending chunk. Item: unit and place.
struct Stage {
  Layout n;
  Elements from, pending;
  int64_t width, step;
  bool at_end;  // the chunk that the row leaves unfinished; else the one that the step folds in

  __device__ void operator()(int64_t item, int64_t c) const {
    const int64_t unit = item / n.chunk, place = item % n.chunk, row = unit / n.kv_heads, head = unit % n.kv_heads;
    int64_t chunk = n.at(row, at_end ? 0 : step).fold;
    if (at_end) {
      const int64_t begin = n.doc_start[row * n.length + n.length - 1];
      chunk = n.length - 1 - (n.length - 1 - begin) % n.chunk;
      if (chunk + n.chunk == n.length) {
        return;  // folded in
      }
    }
    const int64_t t = chunk + place;
    if (chunk != kNone && t >= 0 && t < n.length) {
      pending.set(item * width + c, from[((row * n.length + t) * n.kv_heads + head) * width + c]);
    }
  }
};

/// Place of the key that founds an empty dictionary.
__host__ __device__ __forceinline__ int64_t first_founder(bool second_founds, int64_t chunk) { return second_founds && chunk > 1 ? 1 : 0; }

/// First words of the streams "ovq/{layer}/{kv head}": a key a head.
struct StreamKey {
  uint32_t words[2];
};

struct StoreKey {
  StreamKey* to;
  StreamKey key;
  __device__ void operator()(int64_t, int64_t) const { *to = key; }
};

/// First u64 of stream `key` at `index`: Philox4x32-10 (spec 82, section 1).
__device__ __forceinline__ uint64_t first_draw(StreamKey key, uint64_t index) {
  uint32_t c[4] = {0, 0, static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c[0], p1 = uint64_t{0xCD9E8D57} * c[2];
    const uint32_t next[4] = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ key.words[0], static_cast<uint32_t>(p1),
                              static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ key.words[1], static_cast<uint32_t>(p0)};
    HEBB_UNROLL
    for (int i = 0; i < 4; ++i) {
      c[i] = next[i];
    }
    key.words[0] += 0x9E3779B9;
    key.words[1] += 0xBB67AE85;
  }
  return c[0] | static_cast<uint64_t>(c[1]) << 32;
}

struct Choose {
  Layout n;
  const Score* partial;
  const StreamKey* keys;  // of the heads; null: the least similar keys found
  float* best;            // [B, K, L]
  uint64_t* draws;        // [B, K, L]
  int32_t *ids, *founds;  // [B, K, L]
  int32_t* out;           // [B, K, T], or null
  int64_t tiles, step;
  bool second_founds;
};

/// ids of a chunk's keys (spec 60, sections 4.2 and 4.3), by one block. Ranks are counted: L^2 comparisons.
__global__ void __launch_bounds__(kBlockThreads) ovq_choose_kernel(Choose a) {
  const int64_t unit = blockIdx.x, row = unit / a.n.kv_heads, chunk = a.n.chunk;
  const Step step = a.n.at(row, a.step);
  if (step.fold == kNone) {
    return;  // the whole block
  }
  const bool empty = step.before == 0;
  const int64_t founder = empty ? first_founder(a.second_founds, chunk) : -1, first_new = empty ? 1 : step.before;
  float* const best = a.best + unit * chunk;
  uint64_t* const draws = a.draws + unit * chunk;
  int32_t *const ids = a.ids + unit * chunk, *const founds = a.founds + unit * chunk;
  const int64_t position = step.fold - a.n.doc_start[row * a.n.length + (step.fold < 0 ? 0 : step.fold)];
  block_each(chunk, [&](int64_t j) {
    const Best of_key = rows::score_of(a.partial + unit * a.tiles * chunk + j, chunk, first_new, 0).best;
    best[j] = of_key.score;
    ids[j] = of_key.score == -INFINITY ? 0 : of_key.row;
    if (a.keys != nullptr) {
      draws[j] = first_draw(a.keys[unit % a.n.kv_heads], static_cast<uint64_t>(position + j));
    }
  });
  block_each(chunk, [&](int64_t j) {
    int64_t rank = 0;
    for (int64_t i = 0; i < chunk; ++i) {
      const bool is_before = a.keys != nullptr ? draws[i] < draws[j] || (draws[i] == draws[j] && i < j)
                                               : best[i] < best[j] || (best[i] == best[j] && i < j);
      rank += is_before && i != founder ? 1 : 0;
    }
    founds[j] = j != founder && rank < step.after - first_new ? 1 : 0;
  });
  block_each(chunk, [&](int64_t j) {
    if (founds[j] != 0) {
      int64_t id = first_new;
      for (int64_t i = 0; i < j; ++i) {
        id += founds[i];
      }
      ids[j] = static_cast<int32_t>(id);
    }
    if (a.out != nullptr) {
      a.out[unit * a.n.length + step.fold + j] = ids[j];
    }
  });
}

struct Parts {
  int32_t *lo, *hi;
  float* own_lse;
  Step* steps;
  Score* partial;
  float* best;
  uint64_t* draws;
  int32_t *ids, *founds;
  StreamKey* keys;
  float* parts;  // of the readout
};

Parts parts_of(const OvqForward& a, int64_t count, int64_t tiles) {
  WorkParts work(a.work);
  const int64_t tokens = a.q.size(0) * a.q.size(1), keys = a.k.size(0) * a.k.size(2) * a.rule.chunk;
  return {.lo = work.take<int32_t>(tokens), .hi = work.take<int32_t>(tokens), .own_lse = work.take<float>(tokens * a.q.size(2)),
          .steps = work.take<Step>(a.q.size(0) * count), .partial = work.take<Score>(keys * tiles), .best = work.take<float>(keys),
          .draws = work.take<uint64_t>(keys), .ids = work.take<int32_t>(keys), .founds = work.take<int32_t>(keys),
          .keys = work.take<StreamKey>(a.k.size(2)),
          .parts = work.take<float>(dictionary_parts_work(a.q.shape, a.v.shape, a.rule.chunk, a.dictionary.keys.size(2), a.q.dtype))};
}

void store_stream_keys(Stream& stream, const OvqRule& rule, StreamKey* keys, int64_t heads) {
  for (int64_t head = 0; head < heads; ++head) {
    const uint64_t key = stream_key(0, "ovq/" + std::to_string(rule.layer) + "/" + std::to_string(head));
    each_element("ovq_stream_key", stream, 1, 1,
                 StoreKey{keys + head, {{static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)}}});
  }
}

/// The tokens of each query's own chunk that this pass holds.
void attend_own(Stream& stream, const OvqForward& a, const Tensor& lo, const Tensor& hi, const Tensor& lse) {
  HEBB_DEVICE::run(stream, VisibleKeys{lo, hi, a.doc_start, Sight{.window = 0, .block = a.rule.chunk, .blocks = 1}, 0});
  HEBB_DEVICE::run(stream, AttentionForward{a.o, lse, {}, a.q, a.k, a.v, lo, hi, {}, 1.0});
  if (a.lse.defined()) {
    each_element("ovq_lse", stream, 1, lse.numel(), rows::CopyFloats{a.lse.as<float>(), lse.as<float>()});
  }
}

template <class T>
void forward(Stream& stream, const OvqForward& a) {
  const int64_t batch = a.q.size(0), length = a.q.size(1), units = batch * a.k.size(2), chunk = a.rule.chunk;
  const int64_t count = rows::steps_of(length, chunk), room = a.dictionary.keys.size(2), tiles = (room + rows::kTile - 1) / rows::kTile;
  const Parts p = parts_of(a, count, tiles);
  const Shape tokens{batch, length};
  attend_own(stream, a, {p.lo, DType::i32, tokens}, {p.hi, DType::i32, tokens}, {p.own_lse, DType::f32, {batch, length, a.q.size(2)}});
  each_warp("ovq_steps", stream, batch * count, MakeSteps{p.steps, a.doc_start.as<int32_t>(), a.rule, length, count});
  const Layout n = rows::layout_of(a, p.steps, count);
  if (a.ids.defined() && !a.forced) {
    rows::fill(stream, a.ids.as<int32_t>(), a.ids.numel(), -1);
  }
  if (a.rule.random && !a.forced) {
    store_stream_keys(stream, a.rule, p.keys, a.k.size(2));
  }
  const auto *const pending_k = a.pending_k.as<T>(), *const pending_v = a.pending_v.as<T>();
  const auto stage = [&](int64_t step, bool at_end) {
    each_element("ovq_stage", stream, units * chunk, n.d, Stage{n, Elements(a.k), Elements(a.pending_k), n.d, step, at_end});
    each_element("ovq_stage", stream, units * chunk, n.dv, Stage{n, Elements(a.v), Elements(a.pending_v), n.dv, step, at_end});
  };
  const rows::Rows<T> dictionary = rows_of<T>(a.dictionary);
  const bool on_tensor_cores = attention_mma::takes(a.q, a.v, 1.0, a.q.data, a.o.data, pending_k, pending_v, dictionary.keys, dictionary.values);
  rows::Read<T> read{.n = n, .rows = dictionary, .ring = {pending_k, pending_v, chunk, 1}, .q = a.q.as<T>(), .o = a.o.as<T>(),
                     .lse = a.lse.as<float>(), .own_lse = p.own_lse, .row_temp = nullptr, .ring_temp = nullptr, .scale = 1.0f, .step = 0,
                     .parts = rows::parts_of(n, batch, room, p.parts, on_tensor_cores), .on_tensor_cores = on_tensor_cores};
  for (int64_t step = 0; step < count; ++step) {
    read.step = step;
    rows::read_rows(stream, batch, read);
    stage(step, false);
    if (!a.forced) {
      rows::compare_rows(stream, batch,
                         rows::Compare<T>{n, pending_k, dictionary.keys, p.partial, room, step, 0, first_founder(a.rule.second_founds, chunk),
                                          rows::Against::old_rows_or_founder}, on_tensor_cores);
      HEBB_LAUNCH(ovq_choose_kernel, blocks_for(units, 1), kBlockThreads, 0, stream,
                  Choose{n, p.partial, a.rule.random ? p.keys : nullptr, p.best, p.draws, p.ids, p.founds, a.ids.as<int32_t>(), tiles, step,
                         a.rule.second_founds});
    }
    const ChunkIds ids = a.forced ? ChunkIds{a.ids.as<int32_t>(), true} : ChunkIds{p.ids, false};
    each_warp("ovq_fold", stream, units * chunk,
              Fold{{n, a.rule, Book(a.dictionary), ids, {}, step}, {Elements(a.pending_k), n.d, true}, {Elements(a.pending_v), n.dv, true}});
  }
  stage(0, true);
}

}  // namespace

void run(Stream& stream, const OvqForward& a) {
  if (a.q.numel() > 0) {
    dispatch_float(a.q.dtype, [&](auto zero) { forward<decltype(zero)>(stream, a); });
  }
}

}  // namespace hebb::HEBB_DEVICE
