#include <vector>

#include "kernels/fwpkm/keys.h"
#include "kernels/fwpkm/scratch.h"

namespace hebb {
namespace {

/// Lists of the readers of each key, on a GPU.
Tensor plan_lists(Workspace& workspace, const FastChunks& chunks, int64_t lists, const Shape& entries, int64_t n) {
  if (!workspace.on_gpu()) { return {}; }
  return workspace.tensor({lists * fwpkm_key_lists(chunks, entries[1], n, entries[3])}, DType::i32, "readers of keys");
}

}  // namespace

FwpkmEntropyStepScratch plan(Workspace& workspace, const FwpkmEntropyStep& args) {
  const Shape& entries = args.lookup.entries.shape;
  return {.gamma = workspace.tensor(entries, sum_dtype(args.q.dtype), "key step weights"),
          .lists = plan_lists(workspace, {args.chunk, args.chunk.count}, 1, entries, args.keys.size(2))};
}
HEBB_KERNEL_PLANNED(FwpkmEntropyStep)

FwpkmMemoryStepScratch plan(Workspace& workspace, const FwpkmMemoryStep& args) {
  const Shape& entries = args.lookup.entries.shape;
  const DType dtype = sum_dtype(args.q.dtype);
  return {.index = workspace.tensor(entries, DType::i32, "key step entries"),
          .gamma = workspace.tensor(entries, dtype, "key step weights"),
          .d_weights = workspace.tensor(args.lookup.slots.shape, dtype, "slot weight gradients"),
          .lists = plan_lists(workspace, {args.chunk, args.chunk.count}, 1, entries, args.keys.size(2))};
}
HEBB_KERNEL_PLANNED(FwpkmMemoryStep)

FwpkmKeysBackwardScratch plan(Workspace& workspace, const FwpkmKeysBackward& args) {
  const Shape &entries = args.lookup.entries.shape, &keys = args.keys.shape;
  const DType dtype = sum_dtype(args.q.dtype);
  FwpkmKeysBackwardScratch scratch;
  scratch.index = workspace.tensor(entries, DType::i32, "key step entries");
  scratch.sigma = workspace.tensor(entries, dtype, "score gradients");

  if (args.through) {
    scratch.gamma = workspace.tensor(entries, dtype, "key step weights");
    scratch.beta = workspace.tensor(entries, dtype, "key step weights");
    scratch.d_keys = workspace.tensor({2, keys[1], 2, keys[3], keys[4]}, dtype, "key gradients");
    scratch.mean = workspace.tensor({2, keys[3]}, dtype, "key gradients");
    scratch.lists = plan_lists(workspace, args.chunks, 2, entries, keys[3]);
  }
  return scratch;
}
HEBB_KERNEL_PLANNED(FwpkmKeysBackward)

namespace cpu {
namespace {

template <class S> void copy_keys(const Tensor& to, const Tensor& from) {
  std::copy_n(from.as<S>(), from.numel(), to.as<S>());
}

/// usage[c, i] = mean over counted tokens and heads of probs.
template <class S> void count_usage(const FwpkmEntropyStep& a, const FwpkmSizes& s) {
  parallel_each(2, 1, [&](int64_t c) {
    static thread_local std::vector<double> sums;
    sums.assign(static_cast<size_t>(s.n), 0.0);
    for (int64_t r = 0; r < a.chunk.tokens(); ++r) {
      const int64_t t = a.chunk.token(r);
      for (int64_t h = 0; h < s.heads && counts(a.pairs, t); ++h) {
        const int64_t at = ((t * s.heads + h) * 2 + c) * s.k;
        for (int64_t j = at; j < at + s.k; ++j) {
          sums[static_cast<size_t>(a.lookup.entries.as<int32_t>()[j])] +=
              static_cast<double>(a.lookup.probs.as<S>()[j]);
        }
      }
    }
    for (int64_t i = 0; i < s.n; ++i) {
      a.usage.as<S>()[c * s.n + i] =
          static_cast<S>(sums[static_cast<size_t>(i)] / (a.count * static_cast<double>(s.heads)));
    }
  });
}

/// c_i of docs/layers/fwpkm.md, Gradient through updates.
template <class S> S pull(S m) { return std::log(m + S(1e-8)) + m / (m + S(1e-8)); }

/// b of an entry from its score: 2 / (eps + |u|^2), and 1 for dot products.
template <class S> S slope(S score, const FwpkmScore& kind) { return kind.idw ? S(2) * std::exp(score) : S(1); }

/// sigma -> sigma b in place, with b from the differences; d_q (may be null) += or = what flows to the query.
template <class S>
void scores_backward(int64_t token, const FwpkmSizes& s, const FwpkmScore& score, const int32_t* index, S* sigma,
                     const S* q, const S* keys, S* d_q) {
  for (int64_t b = 0; b < s.heads * 2; ++b) {
    const int64_t half_query = token * s.heads * 2 + b;
    const S* query = q + half_query * s.half;
    for (int64_t j = half_query * s.k; j < (half_query + 1) * s.k; ++j) {
      if (index[j] < 0) { continue; }
      const S* key = keys + (b * s.n + index[j]) * s.half;
      if (score.idw) { sigma[j] *= S(2) / (S(score.eps) + squared_distance(s.half, query, key)); }
      S* to = d_q + b * s.half;
      const S g = sigma[j];
      for (int64_t i = 0; d_q != nullptr && i < s.half; ++i) {
        to[i] += score.idw ? -g * (query[i] - key[i]) : g * key[i];
      }
    }
  }
}

/// Through softmax and scores of one chunk: index, sigma and d_q.
template <class S>
void lookup_backward(const FwpkmKeysBackward& a, const FwpkmKeysBackwardScratch& scratch, const FwpkmSizes& s,
                     const FastChunk& chunk, const S* keys) {
  const int64_t e = s.entries(), width = s.heads * 2 * s.half;
  int32_t* index = scratch.index.as<int32_t>();
  S* sigma = scratch.sigma.as<S>();
  each_token(chunk, [&](int64_t t) {
    softmax_to_entries(a.lookup.weights.as<S>() + t * e, a.d_weights.as<S>() + t * e,
                       a.lookup.slots.as<int32_t>() + t * e, s, index + t * 2 * e, sigma + t * 2 * e);
    S* d_q = a.d_q.as<S>() + t * width;
    if (!a.accumulate) { std::fill(d_q, d_q + width, S(0)); }
    scores_backward<S>(t, s, a.score, index, sigma, a.q.as<S>(), keys, d_q);
  });
}

/// One chunk's part of the way through the entropy steps.
template <class S> struct EntropyBackward {
  const FwpkmKeysBackward& a;
  const FwpkmKeysBackwardScratch& scratch;
  FwpkmSizes s;
  FastChunk chunk;
  const S *keys, *usages, *d_next;  // of the chunk; d_next: of the keys that its step made
  S count;

  const int32_t* entries(int64_t half_query) const { return a.lookup.entries.as<int32_t>() + half_query * s.k; }
  const S* probs(int64_t half_query) const { return a.lookup.probs.as<S>() + half_query * s.k; }
  S* curve(int64_t half_query) const { return scratch.gamma.as<S>() + half_query * s.k; }  // A of the page, later 2 dd
  S* beta(int64_t half_query) const { return scratch.beta.as<S>() + half_query * s.k; }    // z, later alpha b
  const S* usage(int64_t half_query) const { return usages + half_query % 2 * s.n; }

  /// z = <u, Y> and A = b z of one token.
  void project(int64_t t) const {
    for (int64_t b = 0; b < s.heads * 2; ++b) {
      const int64_t half_query = t * s.heads * 2 + b;
      const S* q = a.q.as<S>() + half_query * s.half;
      for (int64_t j = 0; j < s.k; ++j) {
        const int64_t row = (b * s.n + entries(half_query)[j]) * s.half;
        const S *key = keys + row, *next = d_next + row;
        const S z = static_cast<S>(-a.rate) *
                    lane_sum<S>(s.half, [&](int64_t i) { return (a.score.idw ? q[i] - key[i] : q[i]) * next[i]; });
        beta(half_query)[j] = z;
        curve(half_query)[j] = z * slope(a.lookup.scores.as<S>()[half_query * s.k + j], a.score);
      }
    }
  }
  S nu(int64_t half_query) const {
    S sum = 0;
    for (int64_t j = 0; j < s.k; ++j) { sum -= curve(half_query)[j] * probs(half_query)[j] / count; }
    return sum;
  }
  /// cbar of codebook c, summed in the order of the tokens.
  void sum_mean(int64_t c) const {
    S* mean = scratch.mean.as<S>() + c * s.n;
    std::fill(mean, mean + s.n, S(0));
    for (int64_t r = 0; r < chunk.tokens(); ++r) {
      for (int64_t h = 0; h < s.heads; ++h) {
        const int64_t half_query = (chunk.token(r) * s.heads + h) * 2 + c;
        const S each = nu(half_query);
        for (int64_t j = 0; j < s.k; ++j) {
          mean[entries(half_query)[j]] += probs(half_query)[j] * (curve(half_query)[j] / count + each);
        }
      }
    }
  }
  /// The rest of one token: d_q, and the coefficients of u and Y in d_keys.
  void finish(int64_t t) const {
    for (int64_t b = 0; b < s.heads * 2; ++b) {
      const int64_t half_query = t * s.heads * 2 + b;
      const S *m = usage(half_query), *mean = scratch.mean.as<S>() + b % 2 * s.n, each = nu(half_query);
      S mu = 0, along = 0;
      for (int64_t j = 0; j < s.k; ++j) { mu += probs(half_query)[j] * pull(m[entries(half_query)[j]]); }
      const auto pi = [&](int64_t j) {
        const S used = m[entries(half_query)[j]] + S(1e-8), c = pull(m[entries(half_query)[j]]);
        return curve(half_query)[j] * (c - mu) / count + each * c +
               mean[entries(half_query)[j]] * (S(1) / used + S(1e-8) / (used * used)) / count;
      };
      for (int64_t j = 0; j < s.k; ++j) { along += probs(half_query)[j] * pi(j); }
      for (int64_t j = 0; j < s.k; ++j) {
        const S p = probs(half_query)[j], z = beta(half_query)[j],
                slope_j = slope(a.lookup.scores.as<S>()[half_query * s.k + j], a.score);
        const S alpha = p * (pull(m[entries(half_query)[j]]) - mu) / count, through_scores = p * (pi(j) - along);
        add_query(half_query, b, entries(half_query)[j], alpha, through_scores, z, slope_j, curve(half_query)[j],
                  beta(half_query)[j]);
      }
    }
  }
  void add_query(int64_t half_query, int64_t b, int64_t entry, S alpha, S through_scores, S z, S slope_j, S& gamma,
                 S& beta_out) const {
    const int64_t row = (b * s.n + entry) * s.half;
    const S *q = a.q.as<S>() + half_query * s.half, *key = keys + row, *next = d_next + row;
    S* d_q = a.d_q.as<S>() + half_query * s.half;
    const S along_next = alpha * slope_j * static_cast<S>(-a.rate);
    if (a.score.idw) {
      const S along_u = S(2) * (-alpha * z * slope_j * slope_j / S(2) - through_scores * slope_j / S(2));
      for (int64_t i = 0; i < s.half; ++i) { d_q[i] += along_next * next[i] + along_u * (q[i] - key[i]); }
      gamma = -along_u;
      beta_out = -along_next;
    } else {
      for (int64_t i = 0; i < s.half; ++i) { d_q[i] += along_next * next[i] + through_scores * key[i]; }
      gamma = through_scores;
      beta_out = S(0);
    }
  }
};

}  // namespace

void run(Stream&, const FwpkmEntropyStep& a, const FwpkmEntropyStepScratch& scratch) {
  dispatch_real(a.q.dtype, [&]<class S>(S) {
    S* all_gamma = scratch.gamma.as<S>();
    const FwpkmSizes s = fwpkm_sizes(a.lookup.slots, a.keys);
    count_usage<S>(a, s);
    const S* usage = a.usage.as<S>();
    const S m_count = static_cast<S>(a.count) * S(s.heads);
    each_token(a.chunk, [&](int64_t t) {
      for (int64_t half_query = t * s.heads * 2; half_query < (t + 1) * s.heads * 2; ++half_query) {
        const int32_t* entries = a.lookup.entries.as<int32_t>() + half_query * s.k;
        const S *probs = a.lookup.probs.as<S>() + half_query * s.k,
                *scores = a.lookup.scores.as<S>() + half_query * s.k;
        const S* m = usage + half_query % 2 * s.n;
        S* gamma = all_gamma + half_query * s.k;
        S mu = 0;
        for (int64_t j = 0; j < s.k; ++j) {
          gamma[j] = pull(m[entries[j]]);
          mu += probs[j] * gamma[j];
        }
        for (int64_t j = 0; j < s.k; ++j) {
          gamma[j] = counts(a.pairs, t) ? probs[j] * (gamma[j] - mu) / m_count * slope(scores[j], a.score) : S(0);
        }
      }
    });
    copy_keys<S>(a.next, a.keys);
    add_to_keys<S>(a.next.as<S>(), a.lookup.entries.as<int32_t>(), all_gamma, nullptr, nullptr, static_cast<S>(-a.rate),
                   a.q.as<S>(), a.keys.as<S>(), a.score.idw, s, a.chunk);
    write_key_norms<S>(a.next_norms, a.next);
  });
}

void run(Stream&, const FwpkmMemoryStep& a, const FwpkmMemoryStepScratch& scratch) {
  dispatch_real(a.q.dtype, [&]<class S>(S) {
    const FwpkmSizes s = fwpkm_sizes(a.lookup.slots, a.keys);
    const int64_t dv = a.values.size(1), e = s.entries();
    const int32_t* targets = a.pairs.targets.as<int32_t>();
    int32_t* index = scratch.index.as<int32_t>();
    S* gamma = scratch.gamma.as<S>();
    each_token(a.chunk, [&](int64_t t) {
      if (targets[t] < 0) {
        std::fill_n(index + t * 2 * e, 2 * e, -1);
        return;
      }
      const S w = a.pairs.w.defined() ? a.pairs.w.as<S>()[t] : S(1);
      const S scale = -w / (static_cast<S>(a.count) * S(dv));
      const S *v = a.pairs.v.as<S>() + targets[t] * dv, *vh = a.vh.as<S>() + t * dv;
      S* d_weights = scratch.d_weights.as<S>() + t * e;
      for (int64_t j = 0; j < e; ++j) {
        const S* row = a.values.as<S>() + a.lookup.slots.as<int32_t>()[t * e + j] * dv;
        d_weights[j] = scale * lane_sum<S>(dv, [&](int64_t i) { return row[i] * (v[i] - vh[i]); });
      }
      softmax_to_entries(a.lookup.weights.as<S>() + t * e, d_weights, a.lookup.slots.as<int32_t>() + t * e, s,
                         index + t * 2 * e, gamma + t * 2 * e);
      scores_backward<S>(t, s, a.score, index, gamma, a.q.as<S>(), a.keys.as<S>(), nullptr);
    });
    copy_keys<S>(a.next, a.keys);
    add_to_keys<S>(a.next.as<S>(), index, gamma, nullptr, nullptr, static_cast<S>(-a.rate), a.q.as<S>(), a.keys.as<S>(),
                   a.score.idw, s, a.chunk);
    write_key_norms<S>(a.next_norms, a.next);
  });
}

void run(Stream&, const FwpkmKeysBackward& a, const FwpkmKeysBackwardScratch& scratch) {
  dispatch_real(a.q.dtype, [&]<class S>(S) {
    const FwpkmSizes s{a.lookup.slots.size(1), a.keys.size(3), a.keys.size(4), a.lookup.slots.size(2)};
    const int64_t all = s.heads * 2 * s.n * s.half, step = a.keys.size(0) > 1 ? all : 0, last = a.chunks.count() - 1;
    S *d_keys = scratch.d_keys.as<S>(), *d_next = a.through ? d_keys + all : nullptr;
    if (a.through) { std::fill(d_keys, d_keys + all, S(0)); }
    for (int64_t c = last; c >= 0; --c) {
      const FastChunk chunk = a.chunks.at(c);
      const S* keys = a.keys.as<S>() + c * step;
      lookup_backward(a, scratch, s, chunk, keys);
      if (!a.through) { continue; }
      std::swap(d_keys, d_next);
      if (c > 0) {
        std::copy_n(d_next, all, d_keys);
        add_to_keys<S>(d_keys, scratch.index.as<int32_t>(), scratch.sigma.as<S>(), nullptr, nullptr, S(1), a.q.as<S>(),
                       keys, a.score.idw, s, chunk);
      }
      if (c < last) {
        const EntropyBackward<S> e{
            a, scratch, s, chunk, keys, a.usage.as<S>() + c * 2 * s.n, d_next, S(chunk.tokens()) * S(s.heads)};
        each_token(chunk, [&](int64_t t) { e.project(t); });
        parallel_each(2, 1, [&](int64_t codebook) { e.sum_mean(codebook); });
        each_token(chunk, [&](int64_t t) { e.finish(t); });
      }
      if (c < last && c > 0) {
        add_to_keys<S>(d_keys, a.lookup.entries.as<int32_t>(), scratch.gamma.as<S>(), scratch.beta.as<S>(), d_next,
                       S(1), a.q.as<S>(), keys, a.score.idw, s, chunk);
      }
    }
  });
}

}  // namespace cpu
}  // namespace hebb
