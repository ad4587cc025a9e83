#include "core/parallel.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/few_queries.h"
#include "kernels/attention/tile.h"

namespace hebb {
namespace cpu {
namespace {

using namespace attention;

template <class S> struct Output { HeadRows<S> o, lse; };

/// Scratch of a tile of rows; widths are head sizes in whole vectors.
template <class S> struct ForwardTile {
  S *rows, *queries, *scores, *keys, *values, *out;
  S *top, *sum, *shrink;  // running maximum and sum of each row, factor of what was summed before

  ForwardTile(int64_t d, int width, int value_width) {
    thread_local TileMemory<S> memory;
    memory.begin(kTileRows * (width + d + value_width + 3) + kTileKeys * (width + value_width + kTileRows));
    rows = memory.take(kTileRows * width);
    queries = memory.take(d * kTileRows);
    scores = memory.take(kTileKeys * kTileRows);
    keys = memory.take(kTileKeys * width);
    values = memory.take(kTileKeys * value_width);
    out = memory.take(kTileRows * value_width);
    top = memory.take(kTileRows);
    sum = memory.take(kTileRows);
    shrink = memory.take(kTileRows);
  }
};

/// Turns a panel of scores into unnormalised probabilities, with the running maximum and sum of each
/// row. Returns whether an earlier maximum was replaced.
template <class S> bool soften_panel(const ForwardTile<S>& t, Range keys, int column, int vectors) {
  using V = Vec<S>;
  bool replaced = false;
  for (int c = column; c < column + vectors * V::width; c += V::width) {
    S* s = t.scores + c;
    const V before = load(t.top + c);
    V even = before, odd = before;
    for (int j = keys.begin; j < keys.end; j += 2) {  // whole blocks: an even number
      even = max(even, load(s + j * kTileRows));
      odd = max(odd, load(s + (j + 1) * kTileRows));
    }
    const V top = max(even, odd);
    V sum(S(0));
    for (int j = keys.begin; j < keys.end; ++j) {
      const V p = power(load(s + j * kTileRows) - top);
      store(s + j * kTileRows, p);
      sum += p;
    }
    const V shrink = power(before - top);
    store(t.shrink + c, shrink);
    store(t.sum + c, fma(load(t.sum + c), shrink, sum));
    store(t.top + c, top);
    replaced = replaced || max_lane(V(S(1)) - shrink) > S(0);
  }
  return replaced;
}

template <class S> void shrink_rows(const ForwardTile<S>& t, int rows, int value_width) {
  for (int r = 0; r < rows; ++r) {
    const Vec<S> f(t.shrink[r]);
    for (int c = 0; c < value_width; c += Vec<S>::width) {
      store(t.out + r * value_width + c, load(t.out + r * value_width + c) * f);
    }
  }
}

/// Adds the keys [base, base + count) to a tile of rows.
template <class S>
void meet(const Head<S>& h, const ForwardTile<S>& t, const Meeting<S>& m, int width, int value_width) {
  const Range seen = m.keys();
  const StridedRows<S> keys = rows_of_blocks(h, m, h.k, h.k_stride, static_cast<int>(h.d), t.keys, width);
  bool replaced = false;
  std::fill(t.shrink, t.shrink + m.columns, S(1));
  each_panel<S>(m.columns, [&](int column, int vectors) {
    const Range blocks = m.blocks_of(column, vectors * Vec<S>::width);
    if (blocks.empty()) { return; }
    score_panel(blocks, column, vectors, h.d, keys.data, keys.stride, t.queries, t.scores);
    bias_and_mask(m, blocks, column, vectors, h.bias, h.bias_stride, t.scores);
    replaced = soften_panel(t, blocks, column, vectors) || replaced;
  });
  if (replaced) { shrink_rows(t, m.rows, value_width); }
  gemm::pack_rows<S>(seen.end - seen.begin, static_cast<int>(h.dv), h.v + (m.base + seen.begin) * h.v_stride,
                     h.v_stride, t.values + seen.begin * value_width, value_width);
  add_to_rows(m, t.scores, t.values, value_width, t.out);
}

template <class S> void forward_rows(const Head<S>& h, const Output<S>& output, int64_t row) {
  constexpr int w = Vec<S>::width;
  const Intervals intervals = load_intervals(h, row);
  const int width = round_up(static_cast<int>(h.d), w), value_width = round_up(static_cast<int>(h.dv), w);
  const ForwardTile<S> t(h.d, width, value_width);
  load_rows<S>(h.q, row, intervals, h.d, width, h.scale * kLogBase<S>, t.rows, t.queries);
  std::fill(t.top, t.top + kTileRows, std::numeric_limits<S>::lowest());
  std::fill(t.sum, t.sum + kTileRows, S(0));
  std::fill(t.out, t.out + kTileRows * value_width, S(0));
  for (int64_t base = intervals.first_key() / kTileKeys * kTileKeys; base < intervals.last_key(); base += kTileKeys) {
    const Meeting<S> m(intervals, base, static_cast<int>(std::min<int64_t>(kTileKeys, h.keys - base)));
    if (!m.keys().empty()) { meet(h, t, m, width, value_width); }
  }
  for (int r = 0; r < intervals.rows; ++r) {
    const bool empty = t.sum[r] == S(0);  // no key, or only keys with a bias of -inf
    const Vec<S> f(empty ? S(0) : S(1) / t.sum[r]);
    S* o = output.o.row(row + r);
    vector_loop<S>(h.dv, [&](int64_t i, auto lanes) { store(o + i, load(t.out + r * value_width + i) * f, lanes); });
    if (output.lse.data != nullptr) {
      *output.lse.row(row + r) =
          empty ? -std::numeric_limits<S>::infinity() : t.top[r] / kLogBase<S> + std::log(t.sum[r]);
    }
  }
}

template <class S> void forward(const AttentionForward& a, const AttentionForwardScratch& scratch) {
  const Heads<S> heads(a.q, a.k, a.v, a.lo, a.hi, a.bias, a.scale);
  const auto output = [&](int64_t space, int64_t head) {
    return Output<S>{heads.rows_of(a.o.as<S>(), a.o.size(3), space, head),
                     heads.rows_of(a.lse.as<S>(), 1, space, head)};
  };
  if (heads.rows <= kFewRowsOnCpu) {
    forward_few(a, scratch, heads);
    return;
  }
  const int64_t tiles = (heads.rows + kTileRows - 1) / kTileRows;
  parallel_each(heads.spaces * heads.kv_heads * tiles, 1, [&](int64_t i) {
    const int64_t space = i / tiles / heads.kv_heads, head = i / tiles % heads.kv_heads;
    forward_rows(heads.at(space, head), output(space, head), i % tiles * kTileRows);
  });
}

}  // namespace

void run(Stream&, const AttentionForward& args, const AttentionForwardScratch& scratch) {
  dispatch_real(args.q.dtype, [&]<class S>(S) { forward<S>(args, scratch); });
}

}  // namespace cpu
}  // namespace hebb
