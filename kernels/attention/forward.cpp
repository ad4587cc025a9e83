#include <fmt/core.h>

#include <algorithm>

#include "core/parallel.h"
#include "kernels/attention/scratch.h"
#include "kernels/attention/tile.h"

namespace hebb {
namespace {

int64_t key_blocks(int64_t keys) { return (keys + kFewKeys - 1) / kFewKeys; }

std::string heads_of(int64_t d, int64_t dv) {
  return fmt::format("heads of {:d} and {:d} channels (tensor cores take multiples of 16 up to 128)", d, dv);
}

}  // namespace

Cores attention_cores(const Tensor& q, const Tensor& v, double scale, const std::vector<Tensor>& tensors) {
  if (q.dtype != DType::bf16) { return {}; }
  const int64_t d = q.size(3), dv = v.size(3), needed = attention_shared_bytes(std::max(d, dv));
  if (!attention_on_tensor_cores(q.dtype, q.shape, v.shape)) { return {false, heads_of(d, dv)}; }
  if (needed > block_shared_bytes()) {
    return {false, fmt::format("heads of {:d} channels: {}", std::max(d, dv), shared_memory_obstacle(needed))};
  }
  if (scale <= 0) { return {false, "scores with a scale that is not positive"}; }
  if (!all_aligned(tensors)) { return {false, kAddressObstacle}; }
  return {true, ""};
}

AttentionForwardScratch plan(Workspace& workspace, const AttentionForward& args) {
  const Shape &q = args.q.shape, &k = args.k.shape;
  const bool on_tensor_cores = takes_tensor_cores(
      workspace.stream(), "attention", attention_cores(args.q, args.v, args.scale, {args.q, args.k, args.v, args.o}));
  const int64_t all_rows = q[0] * q[1] * q[2], rows = all_rows / (k[0] * k[2]), blocks = key_blocks(k[1]);
  const bool is_gpu = workspace.stream().on_gpu();
  const bool is_few = rows <= (is_gpu ? kFewRowsOnGpu : kFewRowsOnCpu) && (!is_gpu || q[3] <= kFewChannelsOnGpu);
  if (!is_few || blocks <= 1) { return {.partial = {}, .on_tensor_cores = on_tensor_cores}; }
  return {
      .partial = workspace.tensor({all_rows, blocks, args.v.size(3) + 2}, sum_dtype(args.q.dtype), "attention parts"),
      .on_tensor_cores = on_tensor_cores};
}
HEBB_KERNEL_PLANNED(AttentionForward)

namespace cpu {
namespace {

using namespace attention;

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
  each_score_panel<S>(m, [&](Range blocks, int column, int vectors) {
    score_panel(blocks, column, vectors, h.d, keys.data, keys.stride, t.queries, t.scores);
    bias_and_mask(m, blocks, column, vectors, h.bias, h.bias_stride, t.scores);
    replaced = soften_panel(t, blocks, column, vectors) || replaced;
  });
  if (replaced) { shrink_rows(t, m.rows, value_width); }
  gemm::pack_rows<S>(seen.end - seen.begin, static_cast<int>(h.dv), h.v + (m.base + seen.begin) * h.v_stride,
                     h.v_stride, t.values + seen.begin * value_width, value_width);
  add_to_rows(m, t.scores, t.values, value_width, t.out);
}

template <class S> void forward_rows(const Head<S>& h, const HeadRows<S>& all_o, const HeadRows<S>& lse, int64_t row) {
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
    S* o = all_o.row(row + r);
    vector_loop<S>(h.dv, [&](int64_t i, auto lanes) { store(o + i, load(t.out + r * value_width + i) * f, lanes); });
    if (lse.data != nullptr) {
      *lse.row(row + r) = empty ? -std::numeric_limits<S>::infinity() : t.top[r] / kLogBase<S> + std::log(t.sum[r]);
    }
  }
}

/// Maximum and sum of a row's weights in some keys, and the weighted values.
template <class S> struct KeyBlockSums { S *top, *sum, *out; };

template <class S> S dot_product(int64_t n, const S* a, const S* b) {
  Vec<S> sums[2] = {Vec<S>(S(0)), Vec<S>(S(0))};
  int turn = 0;
  vector_loop<S>(n, [&](int64_t i, auto lanes) {
    sums[turn] = fma(load(a + i, lanes), load(b + i, lanes), sums[turn]);
    turn ^= 1;
  });
  return sum(sums[0] + sums[1]);
}

/// One row over keys [begin, end), at most kFewKeys.
template <class S> void attend(const Head<S>& h, int64_t row, int64_t begin, int64_t end, const KeyBlockSums<S>& part) {
  S scores[kFewKeys];
  S top = std::numeric_limits<S>::lowest();
  const int64_t count = std::max<int64_t>(0, end - begin);
  for (int64_t j = 0; j < count; ++j) {
    S s = dot_product(h.d, h.q.row(row), h.k + (begin + j) * h.k_stride) * (h.scale * kLogBase<S>);
    if (h.bias != nullptr) { s += h.bias[(begin + j) * h.bias_stride] * kLogBase<S>; }
    scores[j] = s;
    top = s > top ? s : top;
  }
  S total = S(0);
  vector_loop<S>(
      count, [&](int64_t j, auto lanes) { store(scores + j, power(load(scores + j, lanes) - Vec<S>(top)), lanes); });
  for (int64_t j = 0; j < count; ++j) { total += scores[j]; }
  std::fill(part.out, part.out + h.dv, S(0));
  for (int64_t j = 0; j < count; ++j) {
    const Vec<S> p(scores[j]);
    const S* v = h.v + (begin + j) * h.v_stride;
    vector_loop<S>(h.dv, [&](int64_t i, auto lanes) {
      store(part.out + i, fma(p, load(v + i, lanes), load(part.out + i, lanes)), lanes);
    });
  }
  *part.top = top;
  *part.sum = total;
}

/// Divides by the sum and writes the log-sum-exp.
template <class S> void finish(int64_t dv, S top, S sum, S* o, S* lse) {
  const S f = sum == S(0) ? S(0) : S(1) / sum;
  for (int64_t i = 0; i < dv; ++i) { o[i] *= f; }
  if (lse != nullptr) { *lse = sum == S(0) ? -std::numeric_limits<S>::infinity() : top / kLogBase<S> + std::log(sum); }
}

/// Each row by itself, in blocks of kFewKeys keys that threads share. Bound: reading k and v once a row.
template <class S>
void forward_few(const AttentionForward& a, const AttentionForwardScratch& scratch, const Heads<S>& heads) {
  const int64_t dv = a.o.size(3), blocks = key_blocks(a.k.size(1)), rows = heads.rows;
  const int64_t all_rows = heads.spaces * heads.kv_heads * rows;
  S* partial = scratch.partial.as<S>();
  HEBB_ASSERT(blocks <= 1 || scratch.partial.numel() >= all_rows * blocks * (dv + 2));
  struct QueryRow {
    int64_t row;
    Head<S> head;
    S *o, *lse;
  };
  const auto query_row = [&](int64_t i) {
    const int64_t row = i % rows, space = i / rows / heads.kv_heads, head = i / rows % heads.kv_heads;
    const HeadRows<S> lse = heads.rows_of(a.lse.as<S>(), 1, space, head);
    return QueryRow{row, heads.at(space, head), heads.rows_of(a.o.as<S>(), dv, space, head).row(row),
                    lse.data != nullptr ? lse.row(row) : nullptr};
  };
  parallel_each(all_rows * std::max<int64_t>(blocks, 1), 1, [&](int64_t i) {
    const int64_t block = blocks > 1 ? i % blocks : 0;
    const QueryRow at = query_row(blocks > 1 ? i / blocks : i);
    const int64_t token = at.row / at.head.group;
    const int64_t begin = std::max<int64_t>(at.head.lo[token], block * kFewKeys);
    const int64_t end = std::min<int64_t>(at.head.hi[token], (block + 1) * kFewKeys);
    if (blocks > 1) {
      S* p = partial + i * (dv + 2);
      attend(at.head, at.row, begin, end, KeyBlockSums<S>{p, p + 1, p + 2});
    } else {
      S top, sum;
      attend(at.head, at.row, begin, end, KeyBlockSums<S>{&top, &sum, at.o});
      finish(dv, top, sum, at.o, at.lse);
    }
  });
  for (int64_t i = 0; blocks > 1 && i < all_rows; ++i) {
    const QueryRow at = query_row(i);
    const S* parts = partial + i * blocks * (dv + 2);
    S top = std::numeric_limits<S>::lowest(), sum = S(0);
    for (int64_t b = 0; b < blocks; ++b) { top = std::max(top, parts[b * (dv + 2)]); }
    std::fill(at.o, at.o + dv, S(0));
    for (int64_t b = 0; b < blocks; ++b) {
      const S* p = parts + b * (dv + 2);
      const S weight = power(Vec<S>(p[0] - top))[0];
      sum += weight * p[1];
      for (int64_t c = 0; c < dv; ++c) { at.o[c] += weight * p[2 + c]; }
    }
    finish(dv, top, sum, at.o, at.lse);
  }
}

}  // namespace

void run(Stream&, const AttentionForward& a, const AttentionForwardScratch& scratch) {
  dispatch_real(a.q.dtype, [&]<class S>(S) {
    const Heads<S> heads(a);
    if (heads.rows <= kFewRowsOnCpu) {
      forward_few(a, scratch, heads);
      return;
    }
    const int64_t tiles = (heads.rows + kTileRows - 1) / kTileRows;
    parallel_each(heads.spaces * heads.kv_heads * tiles, 1, [&](int64_t i) {
      const int64_t space = i / tiles / heads.kv_heads, head = i / tiles % heads.kv_heads;
      forward_rows(heads.at(space, head), heads.rows_of(a.o.as<S>(), a.o.size(3), space, head),
                   heads.rows_of(a.lse.as<S>(), 1, space, head), i % tiles * kTileRows);
    });
  });
}

}  // namespace cpu
}  // namespace hebb
