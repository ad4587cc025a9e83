#include <utility>

#include "kernels/fwpkm/keys.cuh"
#include "kernels/fwpkm/scratch.h"

// Gradients through product keys. What the keys' gradients do not enter is made for all chunks at once: scores, their
// part of the queries' gradients, and the lists of each key's readers. Then chunk after chunk, from the last one, as
// d_keys of a chunk is d_next of the one before, in four launches: z needs d_next, the mean of a sub-key z of all its
// readers, coefficients the means of k sub-keys, d_keys the coefficients of all readers. 3 x 6 E D FLOPs a codebook and
// token; bound: L2, k rows of keys and of d_next for each half query, twice, and a row of q for every entry, twice.
namespace hebb::HEBB_DEVICE {
namespace {

/// d_q through the scores. Row: half query of the chunks.
template <class T> struct QueryGradient {
  T* d_q;
  const int32_t* index;
  const float* sigma;
  Keys<T> in;
  bool accumulate;

  __device__ void operator()(int64_t row, int64_t c) const {
    const int64_t half_query = in.half_query(row);
    const float query = to_float(in.q[half_query * in.half + c]), *const keys = in.keys_of(half_query);
    float sum = 0;
    for (int64_t g = half_query * in.k; g < (half_query + 1) * in.k; ++g) {
      if (index[g] >= 0) {
        const float key = keys[index[g] * in.half + c];
        sum += in.is_idw ? -sigma[g] * (query - key) : sigma[g] * key;
      }
    }
    write(d_q[half_query * in.half + c], sum, accumulate);
  }
};

/// z = -rate <u, d_next> and A = b z. Row: entry of a half query of the chunk.
template <class T> struct Project {
  float *z, *curve;
  const float *d_next, *scores;
  const int32_t* entries;
  Keys<T> in;
  float rate;

  __device__ void operator()(int64_t row, int lane) const {
    const Split place(row, in.k);
    const int64_t half_query = in.half_query(place.quotient), g = half_query * in.k + place.remainder,
                  at = (in.first_key(half_query) + entries[g]) * in.half;
    float sum = 0;
    for (int64_t c = lane; c < in.half; c += 32) {
      const float query = to_float(in.q[half_query * in.half + c]);
      sum += (in.is_idw ? query - in.keys[at + c] : query) * d_next[at + c];
    }
    sum = -rate * warp_sum(sum);
    if (lane == 0) {
      z[g] = sum;
      curve[g] = sum * slope(scores[g], in.is_idw);
    }
  }
};

/// What the mean of a sub-key is the sum of.
struct MeanTerm {
  const float *curve, *probs;
  int64_t k;
  float count;

  __device__ float nu(int64_t half_query) const {
    float sum = 0;
    for (int64_t g = half_query * k; g < (half_query + 1) * k; ++g) { sum -= curve[g] * probs[g] / count; }
    return sum;
  }
  __device__ float operator()(int64_t g) const { return probs[g] * (curve[g] / count + nu(Split(g, k).quotient)); }
};

/// to [2, n] = sum of value(entry) over the entries of each sub-key in all heads. Row: codebook and sub-key.
template <class Value> struct SumBySubkey {
  float* to;
  Value value;
  KeyLists lists;
  int64_t heads, n;

  __device__ void operator()(int64_t row, int lane) const {
    float sum = 0;
    for (int64_t h = 0; h < heads; ++h) {
      const int32_t* const starts = lists.start(h * 2 * n + row);
      for (int64_t i = starts[0] + lane; i < starts[1]; i += 32) { sum += value(lists.entry(i)); }
    }
    sum = warp_sum(sum);
    if (lane == 0) { to[row] = sum; }
  }
};

/// The coefficients of u and d_next in d_keys: z becomes beta, A gamma; and what flows to the query. Row: half query of
/// the chunk.
template <class T> struct EntropyCoefficients {
  T* d_q;
  float *z, *curve;
  const float *usage, *mean, *probs, *scores, *d_next;
  const int32_t* entries;
  Keys<T> in;
  float rate, count;

  __device__ void operator()(int64_t row, int lane) const {
    const int64_t half_query = in.half_query(row), first = half_query * in.k, last = first + in.k;
    const float *const m = usage + half_query % 2 * in.n, *const means = mean + half_query % 2 * in.n;
    float mu = 0, nu = 0, along = 0;
    for (int64_t g = first + lane; g < last; g += 32) {
      mu += probs[g] * pull(m[entries[g]]);
      nu -= curve[g] * probs[g] / count;
    }
    mu = warp_sum(mu);
    nu = warp_sum(nu);
    const auto pi = [&](int64_t g) {
      const float used = m[entries[g]] + kUsageEps, c = pull(m[entries[g]]);
      return curve[g] * (c - mu) / count + nu * c +
             means[entries[g]] * (1.0f / used + kUsageEps / (used * used)) / count;
    };
    for (int64_t g = first + lane; g < last; g += 32) { along += probs[g] * pi(g); }
    along = warp_sum(along);
    for (int64_t g = first + lane; g < last; g += 32) {
      const float b = slope(scores[g], in.is_idw), alpha = probs[g] * (pull(m[entries[g]]) - mu) / count;
      const float through = probs[g] * (pi(g) - along);
      curve[g] = in.is_idw ? alpha * z[g] * b * b + through * b : through;
      z[g] = alpha * b * rate;
    }
    __syncwarp();
    add_to_query(half_query, lane);
  }
  __device__ __forceinline__ void add_to_query(int64_t half_query, int64_t lane) const {
    const int64_t first = in.first_key(half_query);
    for (int64_t c = lane; c < in.half; c += 32) {
      const float query = to_float(in.q[half_query * in.half + c]);
      float sum = 0;
      for (int64_t g = half_query * in.k; g < (half_query + 1) * in.k; ++g) {
        const int64_t at = (first + entries[g]) * in.half + c;
        sum -= z[g] * d_next[at];
        sum += in.is_idw ? -curve[g] * (query - in.keys[at]) : curve[g] * in.keys[at];
      }
      write(d_q[half_query * in.half + c], sum, true);
    }
  }
};

/// Through the entropy step of a chunk: gamma, beta, and its part of d_q. d_next: of the keys that the step made.
template <class T>
void entropy_backward(Stream& stream, const FwpkmKeysBackward& a, const FwpkmKeysBackwardScratch& scratch,
                      const Keys<T>& in, const KeyLists& lists, int64_t c, const float* d_next) {
  const int64_t rows = in.chunks.all.tokens(), half_queries = rows * in.heads * 2;
  const int32_t* const entries = a.lookup.entries.as<int32_t>();
  const float *const probs = a.lookup.probs.as<float>(), *const scores = a.lookup.scores.as<float>();
  float *const mean = scratch.mean.as<float>(), *const gamma = scratch.gamma.as<float>(),
               *const beta = scratch.beta.as<float>();
  const auto rate = static_cast<float>(a.rate), count = static_cast<float>(rows * in.heads);
  each_warp("fwpkm_project", stream, half_queries * in.k, Project<T>{beta, gamma, d_next, scores, entries, in, rate});
  each_warp("fwpkm_mean", stream, 2 * in.n,
            SumBySubkey<MeanTerm>{mean, {gamma, probs, in.k, count}, lists, in.heads, in.n});
  each_warp("fwpkm_coefficients", stream, half_queries,
            EntropyCoefficients<T>{a.d_q.as<T>(), beta, gamma, a.usage.as<float>() + c * 2 * in.n, mean, probs, scores,
                                   d_next, entries, in, rate, count});
}

/// The gradients of the keys, chunk after chunk.
template <class T>
void chunks_backward(Stream& stream, const FwpkmKeysBackward& a, const FwpkmKeysBackwardScratch& scratch,
                     const Keys<T>& all) {
  const int64_t size = all.heads * 2 * all.n * all.half, last = a.chunks.count() - 1;
  KeyIndex read{scratch.index.as<int32_t>(), nullptr, scratch.lists.as<int32_t>(), a.chunks, all.heads, all.n, all.k},
      found = read;
  found.index = a.lookup.entries.as<int32_t>();
  found.lists += scratch.lists.numel() / 2;
  make_key_lists(stream, read, {});
  make_key_lists(stream, found, {});
  float *const sigma = scratch.sigma.as<float>(), *const beta = all.is_idw ? scratch.beta.as<float>() : nullptr;
  float *d_keys = scratch.d_keys.as<float>(), *d_next = d_keys + size;
  for (int64_t c = last; c >= 0; --c) {
    std::swap(d_keys, d_next);
    Keys<T> in = all;
    in.keys += c * all.copy;
    in.copy = 0;
    in.chunks = {a.chunks.at(c), a.chunks.size};
    if (c < last) { entropy_backward(stream, a, scratch, in, found.of_chunk(c), c, d_next); }
    if (c > 0) {
      add_to_keys(stream,
                  {d_keys,
                   nullptr,
                   c < last ? d_next : nullptr,
                   d_next,
                   1.0f,
                   c < last ? 2 : 1,
                   {{read.of_chunk(c), sigma, nullptr}, {found.of_chunk(c), scratch.gamma.as<float>(), beta}}},
                  in, NothingBefore{});
    }
  }
}

template <class T>
void keys_backward(Stream& stream, const FwpkmKeysBackward& a, const FwpkmKeysBackwardScratch& scratch) {
  const int64_t heads = a.lookup.slots.size(1), k = a.lookup.slots.size(2), n = a.keys.size(3), half = a.keys.size(4);
  const Keys<T> in{a.q.as<T>(),
                   a.keys.as<float>(),
                   heads,
                   n,
                   half,
                   k,
                   a.keys.size(0) > 1 ? heads * 2 * n * half : 0,
                   static_cast<float>(a.score.eps),
                   a.score.idw,
                   a.chunks};
  const int64_t rows = a.chunks.all.tokens();
  float* const sigma = scratch.sigma.as<float>();
  int32_t* const index = scratch.index.as<int32_t>();
  each_warp("fwpkm_to_entries", stream, rows * heads,
            ToEntries<T>{index, sigma, a.lookup.weights.as<float>(), a.d_weights.as<float>(),
                         a.lookup.slots.as<int32_t>(), nullptr, in});
  if (in.is_idw) { each_warp("fwpkm_scale_scores", stream, rows * heads * k * 2, ScaleScores<T>{sigma, index, in}); }
  each_element("fwpkm_d_q", stream, rows * heads * 2, half,
               QueryGradient<T>{a.d_q.as<T>(), index, sigma, in, a.accumulate});
  if (a.through) { chunks_backward(stream, a, scratch, in); }
}

}  // namespace

void run(Stream& stream, const FwpkmKeysBackward& a, const FwpkmKeysBackwardScratch& scratch) {
  dispatch_float(a.q.dtype, [&]<class S>(S) { keys_backward<S>(stream, a, scratch); });
}

}  // namespace hebb::HEBB_DEVICE
