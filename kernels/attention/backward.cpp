#include "core/parallel.h"
#include "kernels/attention/scratch.h"
#include "kernels/attention/tile.h"

namespace hebb {

AttentionBackwardScratch plan(Workspace& workspace, const AttentionBackward& args) {
  const Cores cores = attention_cores(args.q, args.v, args.scale,
                                      {args.q, args.k, args.v, args.o, args.d_o, args.d_q, args.d_k, args.d_v});
  const bool on_tensor_cores = takes_tensor_cores(workspace.stream(), "attention", cores);
  const int64_t count = attention_statistics(args.q.shape, on_tensor_cores);
  return {.statistics = count > 0 ? workspace.tensor({count}, DType::f32, "attention statistics") : Tensor{},
          .on_tensor_cores = on_tensor_cores};
}
HEBB_KERNEL_PLANNED(AttentionBackward)

namespace cpu {
namespace {

using namespace attention;

/// Gradients of one kv head; pointers may be null. Those of keys are at the first key's row.
template <class S> struct HeadGradients {
  HeadRows<S> d_q;
  S *d_k, *d_v, *d_bias;
  HeadRows<const S> d_o, o, lse;
  bool accumulate_q, has_other_keys;
};

/// Scratch of a tile of rows; widths are head sizes in whole vectors.
template <class S> struct BackwardTile {
  int width, value_width;
  S *queries, *queries_t, *d_o, *d_o_t;  // rows of the tile, as they are and transposed
  S *weights, *d_scores;                 // [key][row]
  S *keys, *values, *d_q;
  S *lse, *delta;

  explicit BackwardTile(const Head<S>& h)
      : width(round_up(static_cast<int>(h.d), Vec<S>::width)),
        value_width(round_up(static_cast<int>(h.dv), Vec<S>::width)) {
    thread_local TileMemory<S> memory;
    memory.begin(kTileRows * (2 * width + h.d + value_width + h.dv + 2) +
                 kTileKeys * (width + value_width + 2 * kTileRows));
    queries = memory.take(kTileRows * width);
    queries_t = memory.take(kTileRows * h.d);
    d_o = memory.take(kTileRows * value_width);
    d_o_t = memory.take(kTileRows * h.dv);
    weights = memory.take(kTileKeys * kTileRows);
    d_scores = memory.take(kTileKeys * kTileRows);
    keys = memory.take(kTileKeys * width);
    values = memory.take(kTileKeys * value_width);
    d_q = memory.take(kTileRows * width);
    lse = memory.take(kTileRows);
    delta = memory.take(kTileRows);
  }
};

/// What backward_rows computes: all of it at once, or only one side where threads share a head.
enum class Wanted { all, rows, keys };

template <class S>
void load_tile(const Head<S>& h, const HeadGradients<S>& g, const Intervals& intervals, int64_t row,
               BackwardTile<S>& t) {
  load_rows<S>(h.q, row, intervals, h.d, t.width, h.scale * kLogBase<S>, t.queries, t.queries_t);
  load_rows<S>(g.d_o, row, intervals, h.dv, t.value_width, S(1), t.d_o, t.d_o_t);
  std::fill(t.lse, t.lse + kTileRows, S(0));
  std::fill(t.delta, t.delta + kTileRows, S(0));
  for (int r = 0; r < intervals.rows; ++r) {
    const S lse = *g.lse.row(row + r);
    t.lse[r] = lse == -std::numeric_limits<S>::infinity() ? S(0) : lse * kLogBase<S>;  // all its weights are 0
    if (intervals.hi[r] - intervals.lo[r] == 1 && !g.has_other_keys) {
      // The weight of a lone key is 1 whatever its score: a gradient of exactly 0, not the difference of two sums.
      for (int64_t c = 0; c < h.dv; ++c) { t.d_o_t[c * kTileRows + r] = S(0); }
    } else {
      t.delta[r] = dot_row(h.dv, t.d_o + r * t.value_width, g.o.row(row + r));
    }
  }
}

/// Scores and d_o . v of a panel become weights p and d_scores = p (d_o . v - delta).
template <class S>
void weigh_panel(const Meeting<S>& m, const BackwardTile<S>& t, Range keys, int column, int vectors) {
  using V = Vec<S>;
  const Range open = m.common_keys(column, vectors * V::width);
  for (int c = column; c < column + vectors * V::width; c += V::width) {
    const V lse = load(t.lse + c), delta = load(t.delta + c);
    for (int j = keys.begin; j < keys.end; ++j) {
      S *weight = t.weights + j * kTileRows + c, *d_score = t.d_scores + j * kTileRows + c;
      const V p = power(load(weight) - lse);
      store(weight, p);
      store(d_score, p * (load(d_score) - delta));
    }
    // What is hidden may come from memory that nobody wrote: 0 times that is not 0.
    for (int j = keys.begin; j < keys.end; ++j) {
      if (j >= open.begin && j < open.end) {
        j = open.end - 1;
        continue;
      }
      S* d_score = t.d_scores + j * kTileRows + c;
      store(d_score, select(load(t.weights + j * kTileRows + c) == V(S(0)), V(S(0)), load(d_score)));
    }
  }
}

/// to[j][.] += factor sum_r scores[j][r] rows[r][.] for the keys of a meeting; `to` is the first of
/// them in a [keys, K, channels] tensor, rows [row][width].
template <class S>
void add_to_keys(const Meeting<S>& m, const S* scores, const S* rows, int width, int64_t channels, S factor, S* to,
                 int64_t to_stride) {
  const Range seen = m.keys();
  const int w = Vec<S>::width;
  each_panel<S>(width, [&](int column, int vectors) {
    const int lanes = static_cast<int>(std::min<int64_t>(w, channels - column - (vectors - 1) * w));
    for (int j = seen.begin / kBlock * kBlock; j < seen.end; j += kBlock) {
      const int n = std::min(kBlock, m.count - j);
      const Range r = m.rows_of(j, n);
      if (!r.empty()) {
        gemm::find_kernel<S, false>(n, vectors)(r.end - r.begin, {scores + j * kTileRows + r.begin, kTileRows, 1},
                                                {rows + r.begin * width + column, width},
                                                {to + j * to_stride + column, to_stride, factor, true, lanes});
      }
    }
  });
}

template <class S> void add_to_bias(const Meeting<S>& m, const S* d_scores, S* to, int64_t to_stride) {
  const Range seen = m.keys();
  for (int j = seen.begin; j < seen.end; ++j) {
    const Range r = m.rows_of(j, 1);
    S total = S(0);
    for (int i = r.begin; i < r.end; ++i) { total += d_scores[j * kTileRows + i]; }
    to[j * to_stride] += total;
  }
}

template <class S>
void meet(const Head<S>& h, const HeadGradients<S>& g, const Meeting<S>& m, Wanted wanted, const BackwardTile<S>& t) {
  const Range seen = m.keys();
  const int n = seen.end - seen.begin;
  gemm::pack_rows<S>(n, static_cast<int>(h.d), h.k + (m.base + seen.begin) * h.k_stride, h.k_stride,
                     t.keys + seen.begin * t.width, t.width);
  const StridedRows<S> values = rows_of_blocks(h, m, h.v, h.v_stride, static_cast<int>(h.dv), t.values, t.value_width);
  each_score_panel<S>(m, [&](Range blocks, int column, int vectors) {
    score_panel<S>(blocks, column, vectors, h.d, t.keys, t.width, t.queries_t, t.weights);
    bias_and_mask(m, blocks, column, vectors, h.bias, h.bias_stride, t.weights);
    score_panel<S>(blocks, column, vectors, h.dv, values.data, values.stride, t.d_o_t, t.d_scores);
    weigh_panel(m, t, blocks, column, vectors);
  });
  if (wanted != Wanted::rows) {
    if (g.d_v != nullptr) {
      add_to_keys(m, t.weights, t.d_o, t.value_width, h.dv, S(1), g.d_v + m.base * h.v_stride, h.v_stride);
    }
    if (g.d_k != nullptr) {
      add_to_keys(m, t.d_scores, t.queries, t.width, h.d, h.scale, g.d_k + m.base * h.k_stride, h.k_stride);
    }
    if (g.d_bias != nullptr) { add_to_bias(m, t.d_scores, g.d_bias + m.base * h.bias_stride, h.bias_stride); }
  }
  if (wanted != Wanted::keys && g.d_q.data != nullptr) { add_to_rows(m, t.d_scores, t.keys, t.width, t.d_q); }
}

/// A tile of rows against the keys [first, last), whole tiles of keys.
template <class S>
void backward_rows(const Head<S>& h, const HeadGradients<S>& g, int64_t row, int64_t first, int64_t last,
                   Wanted wanted) {
  const Intervals intervals = load_intervals(h, row);
  first = std::max(first, intervals.first_key() / kTileKeys * kTileKeys);
  last = std::min(last, intervals.last_key());
  const bool writes_rows = wanted != Wanted::keys && g.d_q.data != nullptr;
  if (first >= last && !writes_rows) { return; }
  BackwardTile<S> t(h);
  load_tile(h, g, intervals, row, t);
  std::fill(t.d_q, t.d_q + kTileRows * t.width, S(0));
  for (int64_t base = first; base < last; base += kTileKeys) {
    const Meeting<S> m(intervals, base, static_cast<int>(std::min<int64_t>(kTileKeys, h.keys - base)));
    if (!m.keys().empty()) { meet(h, g, m, wanted, t); }
  }
  if (!writes_rows) { return; }
  const Vec<S> scale(h.scale);
  for (int r = 0; r < intervals.rows; ++r) {
    S* to = g.d_q.row(row + r);
    vector_loop<S>(
        h.d, [&](int64_t i, auto lanes) { put(to + i, load(t.d_q + r * t.width + i) * scale, lanes, g.accumulate_q); });
  }
}

template <class S> struct AttentionBackwardTask {
  const AttentionBackward& a;
  Heads<S> heads;
  int64_t tiles, keys;

  explicit AttentionBackwardTask(const AttentionBackward& args)
      : a(args), heads(args), tiles((heads.rows + kTileRows - 1) / kTileRows), keys(args.k.size(1)) {}

  HeadGradients<S> gradients(int64_t space, int64_t head) const {
    const int64_t d = a.q.size(3), dv = a.v.size(3);
    return {heads.rows_of(a.d_q.as<S>(), d, space, head),
            heads.keys_of(a.d_k.as<S>(), d, space, head),
            heads.keys_of(a.d_v.as<S>(), dv, space, head),
            heads.keys_of(a.d_bias.as<S>(), 1, space, head),
            heads.template rows_of<const S>(a.d_o.as<S>(), dv, space, head),
            heads.template rows_of<const S>(a.o.as<S>(), dv, space, head),
            heads.template rows_of<const S>(a.lse.as<S>(), 1, space, head),
            a.accumulate_q,
            a.has_other_keys};
  }

  /// Gradients of keys are added tile by tile: they start from 0 unless they accumulate.
  void clear_keys(const Head<S>& h, const HeadGradients<S>& g, int64_t first, int64_t last) const {
    for (int64_t j = first; j < last; ++j) {
      if (g.d_k != nullptr && !a.accumulate_k) { std::fill_n(g.d_k + j * h.k_stride, h.d, S(0)); }
      if (g.d_v != nullptr && !a.accumulate_v) { std::fill_n(g.d_v + j * h.v_stride, h.dv, S(0)); }
      if (g.d_bias != nullptr && !a.accumulate_bias) { g.d_bias[j * h.bias_stride] = S(0); }
    }
  }

  /// All rows of a head against the keys [first, last).
  void run_keys(int64_t pair, int64_t first, int64_t last, Wanted wanted) const {
    const int64_t space = pair / heads.kv_heads, head = pair % heads.kv_heads;
    const Head<S> h = heads.at(space, head);
    const HeadGradients<S> g = gradients(space, head);
    clear_keys(h, g, first, last);
    for (int64_t tile = 0; tile < tiles; ++tile) { backward_rows(h, g, tile * kTileRows, first, last, wanted); }
  }

  // Where threads share a head: once by ranges of keys, once by tiles of rows. Both add the same
  // products in the same order as a whole head does, so that the choice, which depends on the number
  // of threads, does not change a bit.
  static constexpr int64_t kRange = 4 * kTileKeys;
  int64_t ranges() const { return (keys + kRange - 1) / kRange; }

  void run_tile(int64_t item) const {
    const int64_t pair = item / tiles, space = pair / heads.kv_heads, head = pair % heads.kv_heads;
    backward_rows(heads.at(space, head), gradients(space, head), item % tiles * kTileRows, 0, keys, Wanted::rows);
  }

  void run() const {
    const int64_t pairs = heads.spaces * heads.kv_heads, workers = threads();
    // In products of a head: 5 as a whole; 4 and 3 in two parts, spread over all threads.
    const bool whole = (pairs + workers - 1) / workers * 5 * workers <= 7 * pairs || tiles == 1;
    if (whole) {
      parallel_each(pairs, 1, [&](int64_t i) { run_keys(i, 0, keys, Wanted::all); });
    } else {
      parallel_each(pairs * ranges(), 1, [&](int64_t i) {
        const int64_t first = i % ranges() * kRange;
        run_keys(i / ranges(), first, std::min(keys, first + kRange), Wanted::keys);
      });
      parallel_each(pairs * tiles, 1, [&](int64_t i) { run_tile(i); });
    }
  }
};

}  // namespace

void run(Stream&, const AttentionBackward& args, const AttentionBackwardScratch&) {
  dispatch_real(args.q.dtype, [&]<class S>(S) { AttentionBackwardTask<S>(args).run(); });
}

}  // namespace cpu
}  // namespace hebb
