#include "kernels/cuda/common/key_lists.h"

// Steps of product keys and gradients through them. Sums over the readers of a key run over its entries, which a radix sort brings
// together: one block a key and 32 channels, in eight pieces of the list. 6 E D FLOPs a codebook and token; bound: L2, a row of q for
// every entry, and the keys once.
namespace hebb::HEBB_DEVICE {
namespace {

constexpr int kPieces = kEachThreads / 32;
constexpr float kUsageEps = 1e-8f;

/// q [., H, 2, D], keys [H, 2, n, D]. A book is token * heads * 2 + head * 2 + codebook, an entry book * k + j.
template <class T>
struct Keys {
  const T* q;
  const float* keys;
  int64_t heads, n, half, k;
  float eps;
  bool is_idw;
  FastChunk chunk;

  __device__ int64_t books() const { return heads * 2; }
  /// Book of row `row` over books of the chunk's tokens.
  __device__ int64_t book(int64_t row) const { return EntryOf(chunk, row, books()).entry; }
  __device__ int64_t key_row(int64_t book, int64_t i) const { return Split(book, books()).remainder * n + i; }
};

template <class T, class Args>
Keys<T> keys_of(const Args& a) {
  return {a.q.template as<T>(), a.keys.template as<float>(), a.lookup.slots.size(1), a.keys.size(2), a.keys.size(3),
          a.lookup.slots.size(2), static_cast<float>(a.score.eps), a.score.idw, a.chunk};
}

template <class T>
KeySorter sorter_of(Stream& stream, const Keys<T>& in, const int32_t* index, const int32_t* targets) {
  return KeySorter(stream, in.chunk, index, targets, in.heads * 2 * in.k, in.k, in.n);
}

/// to = base + scale sum over the entries of a key of gamma (q - key) or gamma q, plus beta along.
struct KeySums {
  float* to;
  const float *base, *gamma, *beta, *along;  // beta null: none
  float scale;
};

// Grid: rows of keys, groups of 32 channels.
template <class T>
__global__ void __launch_bounds__(kEachThreads) key_sums_kernel(KeySums a, Keys<T> in, KeyLists lists) {
  HEBB_SHARED(float[kPieces][32], sums);
  HEBB_SHARED(float[kPieces], along);
  const int lane = static_cast<int>(threadIdx.x % 32), piece = static_cast<int>(threadIdx.x / 32);
  const int64_t row = blockIdx.x, c = static_cast<int64_t>(blockIdx.y) * 32 + lane;
  const int64_t begin = lists.begin(row), end = lists.begin(row + 1), share = (end - begin + kPieces - 1) / kPieces;
  const int64_t first = begin + piece * share, last = first + share < end ? first + share : end;
  const float key = c < in.half && in.is_idw ? in.keys[row * in.half + c] : 0.0f;
  float sum = 0, weight = 0;
  for (int64_t i = first; i < last; ++i) {
    const int64_t g = lists.entry(i);
    sum += c < in.half ? a.gamma[g] * (to_float(in.q[Split(g, in.k).quotient * in.half + c]) - key) : 0.0f;
    weight += a.beta != nullptr ? a.beta[g] : 0.0f;
  }
  sums[piece][lane] = sum;
  if (lane == 0) {
    along[piece] = weight;
  }
  __syncthreads();
  if (piece == 0 && c < in.half) {
    float total = 0, weights = 0;
    HEBB_UNROLL
    for (int p = 0; p < kPieces; ++p) {
      total += sums[p][lane];
      weights += along[p];
    }
    const int64_t at = row * in.half + c;
    a.to[at] = a.base[at] + a.scale * (total + (a.beta != nullptr ? weights * a.along[at] : 0.0f));
  }
}

template <class T>
void add_to_keys(Stream& stream, KeySorter& sorter, const Keys<T>& in, const KeySums& sums) {
  sorter.each([&](const KeyLists& lists, bool is_first) {
    KeySums a = sums;
    a.base = is_first ? sums.base : sums.to;
    HEBB_LAUNCH(key_sums_kernel<T>, dim3(blocks_for(in.heads * 2 * in.n, 1), blocks_for(in.half, 32)), kEachThreads, 0, stream, a, in,
                lists);
  });
}

/// to [2, n] = scale sum of value(entry) over the entries of each sub-key in all heads. Row: codebook and sub-key.
template <class Value>
struct SumBySubkey {
  float* to;
  Value value;
  KeyLists lists;
  int64_t heads, n;
  float scale;
  bool is_first;

  __device__ void operator()(int64_t row, int lane) const {
    float sum = 0;
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t key = h * 2 * n + row, end = lists.begin(key + 1);
      for (int64_t i = lists.begin(key) + lane; i < end; i += 32) {
        sum += value(lists.entry(i));
      }
    }
    sum = scale * warp_sum(sum);
    if (lane == 0) {
      to[row] = is_first ? sum : to[row] + sum;
    }
  }
};

template <class T, class Value>
void sum_by_subkey(const char* name, Stream& stream, KeySorter& sorter, const Keys<T>& in, float* to, const Value& value, float scale) {
  sorter.each([&](const KeyLists& lists, bool is_first) {
    each_warp(name, stream, 2 * in.n, SumBySubkey<Value>{to, value, lists, in.heads, in.n, scale, is_first});
  });
}

struct Probability {
  const float* probs;
  __device__ float operator()(int64_t g) const { return probs[g]; }
};

/// c_i of spec 40, section 5.
__device__ __forceinline__ float pull(float m) { return logf(m + kUsageEps) + m / (m + kUsageEps); }

/// b of an entry from its score: 2 / (eps + |u|^2), and 1 for dot products.
__device__ __forceinline__ float slope(float score, bool is_idw) { return is_idw ? 2.0f * expf(score) : 1.0f; }

/// gamma of the entropy step. Row: book of the chunk.
template <class T>
struct EntropyWeights {
  float* gamma;
  const float *usage, *probs, *scores;
  const int32_t *entries, *targets;  // targets null: all tokens count
  Keys<T> in;
  float count;  // tokens and heads

  __device__ void operator()(int64_t row, int lane) const {
    const int64_t book = in.book(row), first = book * in.k;
    const float* const m = usage + book % 2 * in.n;
    float mu = 0;
    for (int64_t g = first + lane; g < first + in.k; g += 32) {
      mu += probs[g] * pull(m[entries[g]]);
    }
    mu = warp_sum(mu);
    const bool counts = targets == nullptr || targets[Split(book, in.books()).quotient] >= 0;
    for (int64_t g = first + lane; g < first + in.k; g += 32) {
      gamma[g] = counts ? probs[g] * (pull(m[entries[g]]) - mu) / count * slope(scores[g], in.is_idw) : 0.0f;
    }
  }
};

/// Gradient of the prediction error by an entry's weight. Row: entry of a token of the chunk.
template <class T>
struct ErrorByWeight {
  float* d_weights;
  const float* values;
  const T *v, *vh, *w;
  const int32_t *slots, *targets;
  FastChunk chunk;
  int64_t entries, width;
  float scale;

  __device__ void operator()(int64_t row, int lane) const {
    const auto [token, g] = EntryOf(chunk, row, entries);
    const int64_t target = targets[token];
    if (target < 0) {
      return;
    }
    const float* const value = values + slots[g] * width;
    float sum = 0;
    for (int64_t c = lane; c < width; c += 32) {
      sum += value[c] * (to_float(v[target * width + c]) - to_float(vh[token * width + c]));
    }
    sum = warp_sum(sum);
    if (lane == 0) {
      d_weights[g] = -scale * (w != nullptr ? to_float(w[token]) : 1.0f) * sum;
    }
  }
};

/// From d_weights to the scores, at the first of the slots that share a sub-key; -1 at the others and for tokens without a pair (targets
/// null: all tokens). Row: head of a token of the chunk.
template <class T>
struct ToEntries {
  int32_t* index;
  float* sigma;
  const float *weights, *d_weights;
  const int32_t *slots, *targets;
  Keys<T> in;

  __device__ void operator()(int64_t row, int lane) const {
    const auto [token, head] = EntryOf(in.chunk, row, in.heads);
    const int64_t entries = in.heads * in.k, first = head * in.k;
    const bool counts = targets == nullptr || targets[token] >= 0;
    float mean = 0;
    for (int64_t g = token * entries + lane; counts && g < (token + 1) * entries; g += 32) {
      mean += weights[g] * d_weights[g];
    }
    mean = warp_sum(mean);
    for (int64_t item = lane; item < 2 * in.k; item += 32) {
      const int64_t codebook = item < in.k ? 0 : 1, j = item - codebook * in.k;
      const auto key_of = [&](int64_t i) {
        const Split slot(slots[first + i], in.n);
        return codebook == 0 ? slot.quotient : slot.remainder;
      };
      const int64_t own = key_of(j);
      bool is_first = counts;
      for (int64_t i = 0; i < j && is_first; ++i) {
        is_first = key_of(i) != own;
      }
      float sum = 0;
      for (int64_t i = j; i < in.k && is_first; ++i) {
        sum += key_of(i) == own ? weights[first + i] * (d_weights[first + i] - mean) : 0.0f;
      }
      index[(head * 2 + codebook) * in.k + j] = is_first ? static_cast<int32_t>(own) : -1;
      sigma[(head * 2 + codebook) * in.k + j] = sum;
    }
  }
};

/// sigma -> sigma b, b = 2 / (eps + |q - key|^2) from the differences. Row: entry of a book of the chunk.
template <class T>
struct ScaleScores {
  float* sigma;
  const int32_t* index;
  Keys<T> in;

  __device__ void operator()(int64_t row, int lane) const {
    const Split place(row, in.k);
    const int64_t book = in.book(place.quotient), g = book * in.k + place.remainder;
    if (index[g] < 0) {
      return;
    }
    const float* const key = in.keys + in.key_row(book, index[g]) * in.half;
    float sum = 0;
    for (int64_t c = lane; c < in.half; c += 32) {
      const float difference = to_float(in.q[book * in.half + c]) - key[c];
      sum += difference * difference;
    }
    sum = warp_sum(sum);
    if (lane == 0) {
      sigma[g] *= 2.0f / (in.eps + sum);
    }
  }
};

/// d_q through the scores. Row: book of the chunk.
template <class T>
struct QueryGradient {
  T* d_q;
  const int32_t* index;
  const float* sigma;
  Keys<T> in;
  bool accumulate;

  __device__ void operator()(int64_t row, int64_t c) const {
    const int64_t book = in.book(row);
    const float query = to_float(in.q[book * in.half + c]);
    float sum = 0;
    for (int64_t g = book * in.k; g < (book + 1) * in.k; ++g) {
      if (index[g] >= 0) {
        const float key = in.keys[in.key_row(book, index[g]) * in.half + c];
        sum += in.is_idw ? -sigma[g] * (query - key) : sigma[g] * key;
      }
    }
    write(d_q[book * in.half + c], sum, accumulate);
  }
};

/// z = -rate <u, d_next> and A = b z. Row: entry of a book of the chunk.
template <class T>
struct Project {
  float *z, *curve;
  const float *d_next, *scores;
  const int32_t* entries;
  Keys<T> in;
  float rate;

  __device__ void operator()(int64_t row, int lane) const {
    const Split place(row, in.k);
    const int64_t book = in.book(place.quotient), g = book * in.k + place.remainder, at = in.key_row(book, entries[g]) * in.half;
    float sum = 0;
    for (int64_t c = lane; c < in.half; c += 32) {
      const float query = to_float(in.q[book * in.half + c]);
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

  __device__ float nu(int64_t book) const {
    float sum = 0;
    for (int64_t g = book * k; g < (book + 1) * k; ++g) {
      sum -= curve[g] * probs[g] / count;
    }
    return sum;
  }
  __device__ float operator()(int64_t g) const { return probs[g] * (curve[g] / count + nu(Split(g, k).quotient)); }
};

/// The coefficients of u and d_next in d_keys: z becomes beta, A gamma. Row: book of the chunk.
template <class T>
struct EntropyCoefficients {
  float *z, *curve;
  const float *usage, *mean, *probs, *scores;
  const int32_t* entries;
  Keys<T> in;
  float rate, count;

  __device__ void operator()(int64_t row, int lane) const {
    const int64_t book = in.book(row), first = book * in.k, last = first + in.k;
    const float *const m = usage + book % 2 * in.n, *const means = mean + book % 2 * in.n;
    float mu = 0, nu = 0, along = 0;
    for (int64_t g = first + lane; g < last; g += 32) {
      mu += probs[g] * pull(m[entries[g]]);
      nu -= curve[g] * probs[g] / count;
    }
    mu = warp_sum(mu);
    nu = warp_sum(nu);
    const auto pi = [&](int64_t g) {
      const float used = m[entries[g]] + kUsageEps, c = pull(m[entries[g]]);
      return curve[g] * (c - mu) / count + nu * c + means[entries[g]] * (1.0f / used + kUsageEps / (used * used)) / count;
    };
    for (int64_t g = first + lane; g < last; g += 32) {
      along += probs[g] * pi(g);
    }
    along = warp_sum(along);
    for (int64_t g = first + lane; g < last; g += 32) {
      const float b = slope(scores[g], in.is_idw), alpha = probs[g] * (pull(m[entries[g]]) - mu) / count;
      const float through = probs[g] * (pi(g) - along);
      curve[g] = in.is_idw ? alpha * z[g] * b * b + through * b : through;
      z[g] = alpha * b * rate;
    }
  }
};

/// d_q += what flows through the entropy step. Row: book of the chunk.
template <class T>
struct EntropyQueries {
  T* d_q;
  const float *gamma, *beta, *d_next;
  const int32_t* entries;
  Keys<T> in;

  __device__ void operator()(int64_t row, int64_t c) const {
    const int64_t book = in.book(row);
    const float query = to_float(in.q[book * in.half + c]);
    float sum = 0;
    for (int64_t g = book * in.k; g < (book + 1) * in.k; ++g) {
      const int64_t at = in.key_row(book, entries[g]) * in.half + c;
      sum -= beta[g] * d_next[at];
      sum += in.is_idw ? -gamma[g] * (query - in.keys[at]) : gamma[g] * in.keys[at];
    }
    write(d_q[book * in.half + c], sum, true);
  }
};

template <class T>
void entropy_step(Stream& stream, const FastEntropyStep& a) {
  const Keys<T> in = keys_of<T>(a);
  const int32_t *const entries = a.lookup.entries.as<int32_t>(),
                *const targets = a.pairs.pairs_only ? a.pairs.targets.as<int32_t>() : nullptr;
  float *const usage = a.usage.as<float>(), *const gamma = a.gamma.as<float>(), *const probs = a.lookup.probs.as<float>();
  const auto count = static_cast<float>(a.count * static_cast<double>(in.heads));
  KeySorter sorter = sorter_of(stream, in, entries, targets);
  sum_by_subkey("fast_usage", stream, sorter, in, usage, Probability{probs}, 1.0f / count);
  each_warp("fast_entropy_weights", stream, a.chunk.tokens() * in.heads * 2,
            EntropyWeights<T>{gamma, usage, probs, a.lookup.scores.as<float>(), entries, targets, in, count});
  add_to_keys(stream, sorter, in, {a.next.as<float>(), in.keys, gamma, nullptr, nullptr, static_cast<float>(-a.rate)});
}

template <class T>
void memory_step(Stream& stream, const FastMemoryStep& a) {
  const Keys<T> in = keys_of<T>(a);
  const int64_t entries = in.heads * in.k, rows = a.chunk.tokens(), width = a.values.size(1);
  const int32_t *const slots = a.lookup.slots.as<int32_t>(), *const targets = a.pairs.targets.as<int32_t>();
  float *const gamma = a.gamma.as<float>(), *const d_weights = a.d_weights.as<float>();
  int32_t* const index = a.index.as<int32_t>();
  each_warp("fast_error_by_weight", stream, rows * entries,
            ErrorByWeight<T>{d_weights, a.values.as<float>(), a.pairs.v.as<T>(), a.vh.as<T>(), a.pairs.w.as<T>(), slots, targets, a.chunk,
                             entries, width, static_cast<float>(1.0 / (a.count * static_cast<double>(width)))});
  each_warp("fast_to_entries", stream, rows * in.heads,
            ToEntries<T>{index, gamma, a.lookup.weights.as<float>(), d_weights, slots, targets, in});
  if (in.is_idw) {
    each_warp("fast_scale_scores", stream, rows * entries * 2, ScaleScores<T>{gamma, index, in});
  }
  KeySorter sorter = sorter_of(stream, in, index, nullptr);
  add_to_keys(stream, sorter, in, {a.next.as<float>(), in.keys, gamma, nullptr, nullptr, static_cast<float>(-a.rate)});
}

template <class T>
void lookup_backward(Stream& stream, const FastLookupBackward& a) {
  const Keys<T> in = keys_of<T>(a);
  const int64_t rows = a.chunk.tokens();
  float* const gamma = a.gamma.as<float>();
  int32_t* const index = a.index.as<int32_t>();
  each_warp("fast_to_entries", stream, rows * in.heads,
            ToEntries<T>{index, gamma, a.lookup.weights.as<float>(), a.d_weights.as<float>(), a.lookup.slots.as<int32_t>(), nullptr, in});
  if (in.is_idw) {
    each_warp("fast_scale_scores", stream, rows * in.heads * in.k * 2, ScaleScores<T>{gamma, index, in});
  }
  each_element("fast_d_q", stream, rows * in.heads * 2, in.half, QueryGradient<T>{a.d_q.as<T>(), index, gamma, in, a.accumulate});
  if (a.d_keys.defined()) {
    float* const d_keys = a.d_keys.as<float>();
    KeySorter sorter = sorter_of(stream, in, index, nullptr);
    add_to_keys(stream, sorter, in, {d_keys, d_keys, gamma, nullptr, nullptr, 1.0f});
  }
}

template <class T>
void entropy_backward(Stream& stream, const FastEntropyBackward& a) {
  const Keys<T> in = keys_of<T>(a);
  const int64_t books = a.chunk.tokens() * in.heads * 2;
  const int32_t* const entries = a.lookup.entries.as<int32_t>();
  const float *const probs = a.lookup.probs.as<float>(), *const scores = a.lookup.scores.as<float>(), *const d_next = a.d_next.as<float>();
  float *const mean = a.mean.as<float>(), *const gamma = a.gamma.as<float>(), *const beta = a.beta.as<float>();
  const auto rate = static_cast<float>(a.rate), count = static_cast<float>(a.chunk.tokens() * in.heads);
  each_warp("fast_project", stream, books * in.k, Project<T>{beta, gamma, d_next, scores, entries, in, rate});
  KeySorter sorter = sorter_of(stream, in, entries, nullptr);
  sum_by_subkey("fast_mean", stream, sorter, in, mean, MeanTerm{gamma, probs, in.k, count}, 1.0f);
  each_warp("fast_coefficients", stream, books,
            EntropyCoefficients<T>{beta, gamma, a.usage.as<float>(), mean, probs, scores, entries, in, rate, count});
  each_element("fast_entropy_d_q", stream, books, in.half, EntropyQueries<T>{a.d_q.as<T>(), gamma, beta, d_next, entries, in});
  if (a.d_keys.defined()) {
    float* const d_keys = a.d_keys.as<float>();
    add_to_keys(stream, sorter, in, {d_keys, d_keys, gamma, in.is_idw ? beta : nullptr, d_next, 1.0f});
  }
}

}  // namespace

void run(Stream& stream, const FastEntropyStep& a) {
  dispatch_float(a.q.dtype, [&](auto zero) { entropy_step<decltype(zero)>(stream, a); });
}

void run(Stream& stream, const FastMemoryStep& a) {
  dispatch_float(a.q.dtype, [&](auto zero) { memory_step<decltype(zero)>(stream, a); });
}

void run(Stream& stream, const FastLookupBackward& a) {
  dispatch_float(a.q.dtype, [&](auto zero) { lookup_backward<decltype(zero)>(stream, a); });
}

void run(Stream& stream, const FastEntropyBackward& a) {
  dispatch_float(a.q.dtype, [&](auto zero) { entropy_backward<decltype(zero)>(stream, a); });
}

}  // namespace hebb::HEBB_DEVICE
