#include <algorithm>
#include <vector>

#include "kernels/fwpkm/keys.h"
#include "kernels/fwpkm/scratch.h"
#include "kernels/gemm/gemm_cpu.h"
#include "kernels/product_key/select.h"

namespace hebb {

FwpkmIndexReadersScratch plan(Workspace& workspace, const FwpkmIndexReaders& args) {
  constexpr int64_t kGpuNumbers = 3, kMore = 1024;
  const int64_t entries = args.chunks.all.tokens() * (args.slots.numel() / args.slots.size(0));
  return {.sorted = workspace.tensor({workspace.on_gpu() ? kGpuNumbers * entries + kMore : entries}, DType::i64,
                                     "sorted readers")};
}
HEBB_KERNEL_PLANNED(FwpkmIndexReaders)

namespace cpu {
namespace {

/// Working memory of one thread's lookups.
template <class S> struct LookupWork {
  std::vector<S> scores, exact[2];
  std::vector<int32_t> order[2], slots;
  ProductKeyWork<S> select;
};

/// The k best sub-keys of one codebook, best first, with exact scores. rank [n]: what candidates are
/// chosen by.
template <class S>
void choose_entries(const S* rank, const S* q, const S* keys, const FwpkmSizes& s, const FwpkmScore& score, bool keep,
                    LookupWork<S>& work, int32_t* entries, S* scores) {
  if (!keep) {
    top_k(rank, s.n, s.k, work.select.index[0], work.select.score[0]);
    std::copy(work.select.index[0].begin(), work.select.index[0].end(), entries);
  }
  std::vector<std::pair<S, int32_t>>& found = work.select.best;
  found.clear();
  for (int64_t j = 0; j < s.k; ++j) {
    found.push_back({-fwpkm_score(s.half, q, keys + entries[j] * s.half, score), entries[j]});
  }
  if (!keep) { std::sort(found.begin(), found.end()); }
  for (int64_t j = 0; j < s.k; ++j) {
    scores[j] = -found[static_cast<size_t>(j)].first;
    entries[j] = found[static_cast<size_t>(j)].second;
  }
}

/// The k best slots over the chosen entries of both codebooks. The lists go in by ascending sub-key, so
/// that equal sums are taken in the order of their slots.
template <class S>
void choose_slots(const int32_t* entries, const S* scores, const FwpkmSizes& s, LookupWork<S>& work, int32_t* slots,
                  S* sums) {
  for (int64_t c = 0; c < 2; ++c) {
    std::vector<int32_t>& order = work.order[c];
    order.resize(static_cast<size_t>(s.k));
    for (size_t j = 0; j < order.size(); ++j) { order[j] = static_cast<int32_t>(j); }
    std::sort(order.begin(), order.end(),
              [&](int32_t a, int32_t b) { return entries[c * s.k + a] < entries[c * s.k + b]; });
    work.exact[c].clear();
    for (const int32_t j : order) { work.exact[c].push_back(scores[c * s.k + j]); }
  }
  work.slots.resize(static_cast<size_t>(s.k));
  select_product_keys(work.exact[0].data(), work.exact[1].data(), s.k, s.k, work.select, work.slots.data(), sums);
  for (int64_t j = 0; j < s.k; ++j) {
    const int64_t pair = work.slots[static_cast<size_t>(j)];
    const int64_t i0 = entries[work.order[0][static_cast<size_t>(pair / s.k)]];
    slots[j] = static_cast<int32_t>(i0 * s.n + entries[s.k + work.order[1][static_cast<size_t>(pair % s.k)]]);
  }
}

template <class S> struct Lookup {
  const FwpkmLookupKeys& a;
  FwpkmSizes s;

  /// One token and head from the ranks of both codebooks.
  void choose(int64_t token, int64_t h, const S* rank_0, const S* rank_1, LookupWork<S>& work) const {
    const int64_t half_query = (token * s.heads + h) * 2;
    const S *q = a.q.as<S>() + half_query * s.half, *keys = a.keys.as<S>() + h * 2 * s.n * s.half;
    int32_t* entries = a.out.entries.as<int32_t>() + half_query * s.k;
    S* scores = a.out.scores.as<S>() + half_query * s.k;
    choose_entries(rank_0, q, keys, s, a.score, a.keep_entries, work, entries, scores);
    choose_entries(rank_1, q + s.half, keys + s.n * s.half, s, a.score, a.keep_entries, work, entries + s.k,
                   scores + s.k);
    const int32_t* slots = a.out.slots.as<int32_t>() + half_query / 2 * s.k;
    for (int64_t j = 0; a.keep_slots && j < s.k; ++j) {
      a.out.weights.as<S>()[half_query / 2 * s.k + j] =
          fwpkm_score(s.half, q, keys + slots[j] / s.n * s.half, a.score) +
          fwpkm_score(s.half, q + s.half, keys + (s.n + slots[j] % s.n) * s.half, a.score);
    }
    for (int64_t c = 0; c < 2; ++c) { softmax(s.k, scores + c * s.k, a.out.probs.as<S>() + (half_query + c) * s.k); }
  }

  void tokens(int64_t first, int64_t rows, LookupWork<S>& work) const {
    work.scores.resize(static_cast<size_t>(2 * rows * s.n));
    for (int64_t h = 0; h < s.heads; ++h) {
      for (int64_t c = 0; c < 2 && !a.keep_entries; ++c) {
        const int64_t codebook = h * 2 + c;
        S* rank = work.scores.data() + c * rows * s.n;
        gemm_serial<S>(false, true, rows, s.n, s.half, S(a.score.idw ? 2 : 1),
                       a.q.as<S>() + (first * s.heads * 2 + codebook) * s.half, s.heads * 2 * s.half,
                       a.keys.as<S>() + codebook * s.n * s.half, s.half, false, rank, s.n);
        const S* norms = a.key_norms.as<S>() + codebook * s.n;
        for (int64_t i = 0; a.score.idw && i < rows * s.n; ++i) { rank[i] -= norms[i % s.n]; }
      }
      for (int64_t r = 0; r < rows; ++r) {
        choose(first + r, h, work.scores.data() + r * s.n, work.scores.data() + (rows + r) * s.n, work);
      }
    }
  }
};

/// error of a token with a pair: w (v_target - vh).
template <class S> void token_error(const FwpkmReadValues& a, int64_t t) {
  const int64_t dv = a.values.size(1), target = a.pairs.targets.as<int32_t>()[t];
  const S w = a.pairs.w.defined() ? a.pairs.w.as<S>()[t] : S(1);
  const S *v = a.pairs.v.as<S>() + target * dv, *vh = a.vh.as<S>() + t * dv;
  S* error = a.error.as<S>() + a.chunk.local(t) * dv;
  for (int64_t i = 0; target >= 0 && i < dv; ++i) { error[i] = w * (v[i] - vh[i]); }
}

/// The reader lists of one chunk.
void index_readers(const FwpkmIndexReaders& a, const FwpkmReaders& out, const FastChunk& chunk, int64_t e,
                   int64_t* sorted) {
  int64_t count = 0;
  for (int64_t r = 0; r < chunk.tokens(); ++r) {
    const int64_t t = chunk.token(r);
    for (int64_t g = t * e; counts(a.pairs, t) && g < (t + 1) * e; ++g) {
      sorted[count++] = static_cast<int64_t>(a.slots.as<int32_t>()[g]) << 32 | g;
    }
  }
  std::sort(sorted, sorted + count);
  int32_t *slots = out.slots.as<int32_t>(), *starts = out.starts.as<int32_t>(), unique = 0;
  for (int64_t i = 0; i < count; ++i) {
    const auto slot = static_cast<int32_t>(sorted[i] >> 32), g = static_cast<int32_t>(sorted[i] & 0xFFFFFFFF);
    if (i == 0 || slots[unique - 1] != slot) {
      slots[unique] = slot;
      starts[unique++] = static_cast<int32_t>(i);
    }
    out.readers.as<int32_t>()[i] = g;
    out.local.as<int32_t>()[g] = unique - 1;
  }
  starts[unique] = static_cast<int32_t>(count);
  out.count.as<int32_t>()[0] = unique;
}

}  // namespace

void run(Stream&, const FwpkmLookupKeys& a) {
  dispatch_real(a.q.dtype, [&]<class S>(S) {
    const Lookup<S> l{a, fwpkm_sizes(a.out.slots, a.keys)};
    const FwpkmSizes& s = l.s;
    if (!a.keep_norms) { write_key_norms<S>(a.key_norms, a.keys); }
    // Tiles of one sequence whose two score blocks stay in the L2 cache.
    const int64_t tile = std::clamp<int64_t>(32768 / s.n, 1, 64), tiles = (a.chunk.count + tile - 1) / tile;
    parallel_each(a.chunk.batch * tiles, 1, [&](int64_t i) {
      static thread_local LookupWork<S> work;
      const int64_t at = i % tiles * tile;
      l.tokens(i / tiles * a.chunk.length + a.chunk.first + at, std::min(tile, a.chunk.count - at), work);
    });
  });
}

void run(Stream&, const FwpkmSelectSlots& a) {
  dispatch_real(a.out.weights.dtype, [&]<class S>(S) {
    const FwpkmSizes s{a.out.slots.size(1), a.subkeys, 0, a.out.slots.size(2)};
    const int64_t e = s.entries();
    each_token(a.chunk, [&](int64_t t) {
      static thread_local LookupWork<S> work;
      S* const weights = a.out.weights.as<S>() + t * e;
      for (int64_t h = 0; h < s.heads && !a.keep_slots; ++h) {
        const int64_t entry = (t * s.heads + h) * 2 * s.k;
        choose_slots(a.out.entries.as<int32_t>() + entry, a.out.scores.as<S>() + entry, s, work,
                     a.out.slots.as<int32_t>() + entry / 2, weights + h * s.k);
      }
      softmax(e, weights, weights);
    });
  });
}

void run(Stream&, const FwpkmIndexReaders& a, const FwpkmIndexReadersScratch& scratch) {
  const int64_t e = a.slots.numel() / a.slots.size(0);
  for (int64_t c = 0; c < a.chunks.count(); ++c) {
    index_readers(a, readers_of(a.out, a.chunks, c, e, a.table), a.chunks.at(c), e, scratch.sorted.as<int64_t>());
  }
}

void run(Stream&, const FwpkmReadValues& a) {
  dispatch_real(a.values.dtype, [&]<class S>(S) {
    const int64_t dv = a.values.size(1), e = a.lookup.weights.numel() / a.lookup.weights.size(0);
    each_token(a.chunk, [&](int64_t t) {
      S* vh = a.vh.as<S>() + t * dv;
      std::fill(vh, vh + dv, S(0));
      for (int64_t g = t * e; g < (t + 1) * e; ++g) {
        const S w = a.lookup.weights.as<S>()[g];
        const S* row = a.values.as<S>() + a.lookup.slots.as<int32_t>()[g] * dv;
        for (int64_t i = 0; i < dv; ++i) { vh[i] += w * row[i]; }
      }
      if (a.error.defined()) { token_error<S>(a, t); }
    });
  });
}

void run(Stream&, const FwpkmRestoreValues& a) {
  dispatch_real(a.values.dtype, [&]<class S>(S) {
    const int64_t dv = a.values.size(1);
    parallel_each(a.readers.count.as<int32_t>()[0], 16, [&](int64_t u) {
      std::copy_n(a.before.as<S>() + u * dv, dv, a.values.as<S>() + a.readers.slots.as<int32_t>()[u] * dv);
    });
  });
}

void run(Stream&, const FwpkmWriteValues& a) {
  dispatch_real(a.values.dtype, [&]<class S>(S) {
    const int64_t dv = a.values.size(1), e = a.lookup.weights.numel() / a.lookup.weights.size(0);
    const int32_t* targets = a.pairs.targets.as<int32_t>();
    const int32_t *starts = a.readers.starts.as<int32_t>(), *readers = a.readers.readers.as<int32_t>();
    parallel_each(a.readers.count.as<int32_t>()[0], 4, [&](int64_t u) {
      S* row = a.values.as<S>() + a.readers.slots.as<int32_t>()[u] * dv;
      if (a.before.defined()) { std::copy_n(row, dv, a.before.as<S>() + u * dv); }
      const S step = S(a.step) / S(starts[u + 1] - starts[u]);
      for (int64_t i = starts[u]; i < starts[u + 1]; ++i) {
        const int64_t t = readers[i] / e;
        if (targets[t] < 0) { continue; }
        const S weight = step * a.lookup.weights.as<S>()[readers[i]];
        const S* error = a.error.as<S>() + a.chunk.local(t) * dv;
        for (int64_t c = 0; c < dv; ++c) { row[c] += weight * error[c]; }
      }
    });
  });
}

void run(Stream&, const FwpkmMeasureStep& a) {
  dispatch_real(a.values.dtype, [&]<class S>(S) {
    const int64_t dv = a.values.size(1);
    double loss = 0, step = 0;
    for (int64_t r = 0; r < a.chunk.tokens(); ++r) {
      const int64_t t = a.chunk.token(r), target = a.pairs.targets.as<int32_t>()[t];
      if (target >= 0) {
        const double w = a.pairs.w.defined() ? static_cast<double>(a.pairs.w.as<S>()[t]) : 1.0;
        loss +=
            0.5 * w * static_cast<double>(squared_distance(dv, a.pairs.v.as<S>() + target * dv, a.vh.as<S>() + t * dv));
      }
    }
    for (int64_t u = 0; u < a.readers.count.as<int32_t>()[0]; ++u) {
      step += static_cast<double>(
          squared_distance(dv, a.before.as<S>() + u * dv, a.values.as<S>() + a.readers.slots.as<int32_t>()[u] * dv));
    }
    a.sums.as<double>()[0] += loss;
    a.sums.as<double>()[1] += step;
  });
}

}  // namespace cpu
}  // namespace hebb
