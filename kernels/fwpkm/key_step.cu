#include <bit>

#include "kernels/fwpkm/keys.cuh"
#include "kernels/fwpkm/scratch.h"

// Steps of product keys. An entropy step is two launches: lists of the readers of each key, with the use of each
// sub-key, and behind it, as each weight needs the use of k sub-keys, the weights of the readers with the sums over
// them. One block a key: eight warps weigh and sum a piece of its list each, 32 channels a load. Every weight is made
// once, from k entries of its token. 6 E D FLOPs a codebook and token; bound: L2, a row of q for every entry, and the
// keys once.
namespace hebb::HEBB_DEVICE {
namespace {

/// Of one chunk.
template <class T, class Args> Keys<T> keys_of(const Args& a) {
  return {a.q.template as<T>(),
          a.keys.template as<float>(),
          a.lookup.slots.size(1),
          a.keys.size(2),
          a.keys.size(3),
          a.lookup.slots.size(2),
          0,
          static_cast<float>(a.score.eps),
          a.score.idw,
          {a.chunk, a.chunk.count}};
}

/// gamma of the entropy step for a piece of a key's list, by one warp: `width` lanes an entry, a power of two.
struct EntropyWeights {
  float* gamma;
  const float *usage, *probs, *scores;
  const int32_t* entries;
  float count;  // tokens and heads
  int width;

  template <class T>
  __device__ void operator()(const KeyLists& lists, const KeyPiece& own, const Keys<T>& in, int64_t row,
                             int lane) const {
    const float* const m = usage + Split(row, in.n).quotient % 2 * in.n;
    for (int64_t i = own.first; i < own.last; i += 32 / width) {
      const int64_t at = i + lane / width;
      const bool exists = at < own.last;
      const int64_t g = lists.entry(exists ? at : own.first), first = Split(g, in.k).quotient * in.k;
      float mu = 0;
      for (int64_t j = lane % width; j < in.k; j += width) { mu += probs[first + j] * pull(m[entries[first + j]]); }
      for (int bits = width / 2; bits > 0; bits /= 2) { mu += __shfl_xor_sync(kAllLanes, mu, bits); }
      if (exists && lane % width == 0) {
        gamma[g] = probs[g] * (pull(m[entries[g]]) - mu) / count * slope(scores[g], in.is_idw);
      }
    }
    __syncwarp();
  }
};

/// Gradient of the prediction error by an entry's weight. Row: entry of a token of the chunk.
template <class T> struct ErrorByWeight {
  float* d_weights;
  const float* values;
  const T *v, *vh, *w;
  const int32_t *slots, *targets;
  FastChunk chunk;
  int64_t entries, width;
  float scale;

  __device__ void operator()(int64_t row, int lane) const {
    const EntryOf entry(chunk, row, entries);
    const int64_t token = entry.token, g = entry.entry;  // clang 14 captures no structured binding
    const int64_t target = targets[token];
    if (target < 0) { return; }
    const float* const value = values + slots[g] * width;
    const float sum = warp_sum_of(width, lane, [&](int64_t c) {
      return value[c] * (to_float(v[target * width + c]) - to_float(vh[token * width + c]));
    });
    if (lane == 0) { d_weights[g] = -scale * (w != nullptr ? to_float(w[token]) : 1.0f) * sum; }
  }
};

/// Moves the keys against the gradient, the sum of gamma (q - key) or gamma q over the lists' readers.
template <class T, class Args, class Before>
void move_keys(Stream& stream, const Args& a, const Keys<T>& in, const KeyLists& lists, const float* gamma,
               const Before& before) {
  add_to_keys(stream,
              {a.next.template as<float>(),
               a.next_norms.template as<float>(),
               in.keys,
               nullptr,
               static_cast<float>(-a.rate),
               1,
               {{lists, gamma, nullptr}, {}}},
              in, before);
}

template <class T>
void entropy_step(Stream& stream, const FwpkmEntropyStep& a, const FwpkmEntropyStepScratch& scratch) {
  const Keys<T> in = keys_of<T>(a);
  const int32_t *const entries = a.lookup.entries.as<int32_t>(), *const targets = a.pairs.pairs_only
                                                                                      ? a.pairs.targets.as<int32_t>()
                                                                                      : nullptr;
  float *const usage = a.usage.as<float>(), *const gamma = scratch.gamma.as<float>(),
               *const probs = a.lookup.probs.as<float>();
  const auto count = static_cast<float>(a.count * static_cast<double>(in.heads));
  const KeyIndex index{entries, targets, scratch.lists.as<int32_t>(), in.chunks, in.heads, in.n, in.k};
  make_key_lists(stream, index, {usage, probs, 1.0f / count});
  const int width = static_cast<int>(std::bit_ceil(static_cast<uint64_t>(in.k < 32 ? in.k : 32)));
  move_keys(stream, a, in, index.of_chunk(0), gamma,
            EntropyWeights{gamma, usage, probs, a.lookup.scores.as<float>(), entries, count, width});
}

template <class T> void memory_step(Stream& stream, const FwpkmMemoryStep& a, const FwpkmMemoryStepScratch& scratch) {
  const Keys<T> in = keys_of<T>(a);
  const int64_t entries = in.heads * in.k, rows = a.chunk.tokens(), width = a.values.size(1);
  const int32_t *const slots = a.lookup.slots.as<int32_t>(), *const targets = a.pairs.targets.as<int32_t>();
  float *const gamma = scratch.gamma.as<float>(), *const d_weights = scratch.d_weights.as<float>();
  int32_t* const index = scratch.index.as<int32_t>();
  each_warp("fwpkm_error_by_weight", stream, rows * entries,
            ErrorByWeight<T>{d_weights, a.values.as<float>(), a.pairs.v.as<T>(), a.vh.as<T>(), a.pairs.w.as<T>(), slots,
                             targets, a.chunk, entries, width,
                             static_cast<float>(1.0 / (a.count * static_cast<double>(width)))});
  each_warp("fwpkm_to_entries", stream, rows * in.heads,
            ToEntries<T>{index, gamma, a.lookup.weights.as<float>(), d_weights, slots, targets, in});
  if (in.is_idw) { each_warp("fwpkm_scale_scores", stream, rows * entries * 2, ScaleScores<T>{gamma, index, in}); }
  const KeyIndex lists{index, nullptr, scratch.lists.as<int32_t>(), in.chunks, in.heads, in.n, in.k};
  make_key_lists(stream, lists, {});
  move_keys(stream, a, in, lists.of_chunk(0), gamma, NothingBefore{});
}

}  // namespace

void run(Stream& stream, const FwpkmEntropyStep& a, const FwpkmEntropyStepScratch& scratch) {
  dispatch_float(a.q.dtype, [&]<class S>(S) { entropy_step<S>(stream, a, scratch); });
}

void run(Stream& stream, const FwpkmMemoryStep& a, const FwpkmMemoryStepScratch& scratch) {
  dispatch_float(a.q.dtype, [&]<class S>(S) { memory_step<S>(stream, a, scratch); });
}

}  // namespace hebb::HEBB_DEVICE
