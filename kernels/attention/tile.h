#pragma once
#include <algorithm>
#include <limits>
#include <numbers>
#include <vector>

#include "kernels/common/cpu/simd.h"
#include "kernels/gemm/kernel.h"

/// Parts that the forward and backward kernels of attention share.
///
/// The G query heads of a kv head are stacked: row r = token * G + g of a key space. A tile of scores
/// is kept transposed, [key][row] with leading stride kTileRows. So the softmax runs along vectors of
/// rows. No key or value needs transposing, and the queries one transposed copy per tile.
/// Intervals do not decrease over rows, so that every block of rows or keys needs one range of the
/// other side; products skip what lies outside, in steps of kBlock.
namespace hebb::cpu::attention {

// The scores of a tile (16 KB in float) and a panel of the other operand stay in L1.
inline constexpr int kTileRows = 64;
inline constexpr int kTileKeys = 64;
inline constexpr int kBlock = gemm::kRows >= 8 ? 8 : 4;  // rows of the register kernel; divides both

/// Powers in the base that is cheap for S: 2 in float, e in double (which verifies).
template <class S> inline constexpr S kLogBase = S(1);  // log_base(e)
template <> inline constexpr float kLogBase<float> = std::numbers::log2e_v<float>;

inline Vec<double> power(Vec<double> x) { return exp(x); }
/// 2^x for x <= 127, relative error 1e-7; exactly 1 at 0, exactly 0 below -126.5; NaN stays NaN.
inline Vec<float> power(Vec<float> x) {
  using V = Vec<float>;
  x = max(V(-127.0f), x);
  // Adding it rounds to an integer n, held with the exponent's bias in the low mantissa bits.
  const V shifter(0x1.8p23f + 127.0f);
  const V shifted = x + shifter;
  const V r = x - (shifted - shifter);
  const V p = detail::polynomial(r, 1.0f, 0x1.62e432p-1f, 0x1.ebfbe2p-3f, 0x1.c6ae72p-5f, 0x1.3b270ep-7f,
                                 0x1.5f7276p-10f, 0x1.470b4ap-13f);
  return p * V::from_bits(shifted.bits() << 23);
}

inline int round_up(int n, int to) { return (n + to - 1) / to * to; }

/// A range of keys or rows inside a tile.
struct Range {
  int begin, end;
  bool empty() const { return begin >= end; }
};

/// The rows of one kv head in a [tokens, H, C] tensor: row r of token r / group.
template <class S> struct HeadRows {
  S* data;
  int64_t token_stride, head_stride, group;
  S* row(int64_t r) const {
    return group == 1 ? data + r * token_stride : data + r / group * token_stride + r % group * head_stride;
  }
};

/// One kv head of one key space.
template <class S> struct Head {
  int64_t rows, keys, group;  // stacked query rows, S, G
  int64_t d, dv;
  const int32_t *lo, *hi;  // per token
  HeadRows<const S> q;
  const S *k, *v, *bias;  // first key's row; bias may be null
  int64_t k_stride, v_stride, bias_stride;
  S scale;
};

/// All of them.
template <class S> struct Heads {
  int64_t spaces, kv_heads, rows;  // rows of one space

  template <class Args>
  explicit Heads(const Args& a)
      : spaces(a.k.size(0)),
        kv_heads(a.k.size(2)),
        rows(a.q.size(0) * a.q.size(1) / spaces * (a.q.size(2) / kv_heads)),
        keys_(a.k.size(1)),
        heads_(a.q.size(2)),
        d_(a.q.size(3)),
        dv_(a.v.size(3)),
        q_(a.q.template as<S>()),
        k_(a.k.template as<S>()),
        v_(a.v.template as<S>()),
        bias_(a.bias.template as<S>()),
        lo_(a.lo.template as<int32_t>()),
        hi_(a.hi.template as<int32_t>()),
        scale_(static_cast<S>(a.scale)) {}

  int64_t group() const { return heads_ / kv_heads; }
  /// Rows of `head` in a [B, T, H, channels] tensor.
  template <class P> HeadRows<P> rows_of(P* data, int64_t channels, int64_t space, int64_t head) const {
    const int64_t tokens = rows / group();
    return {data == nullptr ? nullptr : data + (space * tokens * heads_ + head * group()) * channels, heads_ * channels,
            channels, group()};
  }
  /// First key's row of `head` in a [Bk, S, K, channels] tensor.
  template <class P> P* keys_of(P* data, int64_t channels, int64_t space, int64_t head) const {
    return data == nullptr ? nullptr : data + (space * keys_ * kv_heads + head) * channels;
  }
  Head<S> at(int64_t space, int64_t head) const {
    const int64_t tokens = rows / group();
    return {rows,
            keys_,
            group(),
            d_,
            dv_,
            lo_ + space * tokens,
            hi_ + space * tokens,
            rows_of(q_, d_, space, head),
            keys_of(k_, d_, space, head),
            keys_of(v_, dv_, space, head),
            keys_of(bias_, 1, space, head),
            kv_heads * d_,
            kv_heads * dv_,
            kv_heads,
            scale_};
  }

 private:
  int64_t keys_, heads_, d_, dv_;
  const S *q_, *k_, *v_, *bias_;
  const int32_t *lo_, *hi_;
  S scale_;
};

/// Visible keys of the rows of a tile, non-decreasing; rows behind the last real one see nothing.
struct Intervals {
  int64_t lo[kTileRows], hi[kTileRows];
  int rows, columns;  // real rows, and rows rounded up to whole vectors
  int64_t first_key() const { return lo[0]; }
  int64_t last_key() const { return hi[rows - 1]; }
};

template <class S> Intervals load_intervals(const Head<S>& h, int64_t row) {
  Intervals t;
  t.rows = static_cast<int>(std::min<int64_t>(kTileRows, h.rows - row));
  t.columns = round_up(t.rows, Vec<S>::width);
  for (int r = 0; r < kTileRows; ++r) {
    const bool real = r < t.rows;
    const int64_t token = (row + std::min(r, t.rows - 1)) / h.group;
    t.hi[r] = h.hi[token];
    t.lo[r] = real ? h.lo[token] : t.hi[r];
  }
  return t;
}

/// The part of a tile of rows that meets keys [base, base + count): intervals relative to base.
template <class S> struct Meeting {
  int64_t base;
  int count;
  int rows, columns;
  int lo[kTileRows], hi[kTileRows];
  alignas(64) S lo_value[kTileRows], hi_value[kTileRows];  // the same numbers, for masks

  Meeting(const Intervals& t, int64_t base, int count) : base(base), count(count), rows(t.rows), columns(t.columns) {
    for (int r = 0; r < kTileRows; ++r) {
      lo[r] = static_cast<int>(std::clamp<int64_t>(t.lo[r] - base, 0, count));
      hi[r] = static_cast<int>(std::clamp<int64_t>(t.hi[r] - base, 0, count));
      lo_value[r] = static_cast<S>(lo[r]);
      hi_value[r] = static_cast<S>(hi[r]);
    }
  }

  /// Keys that some row sees: what must be in memory.
  Range keys() const { return {lo[0], hi[rows - 1]}; }
  /// Keys of rows [first, first + n).
  Range keys_of(int first, int n) const { return {lo[first], hi[std::min(first + n, kTileRows) - 1]}; }
  /// The same in whole blocks of keys.
  Range blocks_of(int first, int n) const {
    const Range r = keys_of(first, n);
    return {r.begin / kBlock * kBlock, round_up(r.end, kBlock)};
  }
  /// Keys that all of these rows see.
  Range common_keys(int first, int n) const { return {lo[std::min(first + n, kTileRows) - 1], hi[first]}; }
  /// Rows that see some of the keys [first, first + n): inside what blocks_of covers.
  Range rows_of(int first, int n) const {
    const int* begin = std::upper_bound(hi, hi + rows, first);
    const int* end = std::lower_bound(lo, lo + rows, first + n);
    return {static_cast<int>(begin - hi), static_cast<int>(end - lo)};
  }
};

/// Calls f(first column, vectors) for panels of up to two vectors of the tile's columns.
template <class S, class F> inline void each_panel(int columns, F&& f) {
  constexpr int w = Vec<S>::width;
  for (int c = 0; c < columns; c += 2 * w) { f(c, columns - c > w ? 2 : 1); }
}

/// Calls f(blocks of keys, first column, vectors) for panels of the tile's rows that see some keys. Rows of a narrow
/// window share few keys: a panel of two vectors, which is the faster one per key, computes more that is hidden. A
/// panel holds whole blocks of rows, since add_to_rows reads the scores of all keys that some row of a block sees.
template <class S, class F> inline void each_score_panel(const Meeting<S>& m, F&& f) {
  constexpr int w = Vec<S>::width;
  static_assert(2 * w % kBlock == 0);
  const auto take = [&](Range blocks, int column, int vectors) {
    if (!blocks.empty()) { f(blocks, column, vectors); }
  };
  each_panel<S>(m.columns, [&](int column, int vectors) {
    const Range all = m.blocks_of(column, vectors * w);
    if (w % kBlock == 0 && vectors == 2) {
      const Range first = m.blocks_of(column, w), second = m.blocks_of(column + w, w);
      const int apart = std::max(0, first.end - first.begin) + std::max(0, second.end - second.begin);
      if (2 * apart < 3 * (all.end - all.begin)) {
        take(first, column, 1);
        take(second, column + w, 1);
        return;
      }
    }
    take(all, column, vectors);
  });
}

template <class S> inline gemm::Kernel<S> block_kernel(int vectors) {
  return vectors == 2 ? gemm::kernel<S, kBlock, 2, false> : gemm::kernel<S, kBlock, 1, false>;
}

/// Scores of a panel of rows: out[j][c] = left[j] . right[.][c] for keys j of whole blocks.
/// left: [key][depth] with stride; right [depth][kTileRows]; out [key][kTileRows].
template <class S>
inline void score_panel(Range keys, int column, int vectors, int64_t depth, const S* left, int64_t left_stride,
                        const S* right, S* out) {
  const gemm::Kernel<S> kernel = block_kernel<S>(vectors);
  for (int j = keys.begin; j < keys.end; j += kBlock) {
    kernel(depth, {left + j * left_stride, left_stride, 1}, {right + column, kTileRows},
           {out + j * kTileRows + column, kTileRows, S(1), false, Vec<S>::width});
  }
}

/// Rows with a stride.
template <class S> struct StridedRows {
  const S* data;
  int64_t stride;
};

/// Keys or values of a meeting for score_panel, which reads whole blocks: where they lie, or copied to
/// `copy` where the last block would reach behind the last key.
template <class S>
inline StridedRows<S> rows_of_blocks(const Head<S>& h, const Meeting<S>& m, const S* source, int64_t stride,
                                     int channels, S* copy, int width) {
  const Range seen = m.keys();
  const S* first = source + m.base * stride;
  if (m.base + round_up(seen.end, kBlock) <= h.keys) { return {first, stride}; }
  gemm::pack_rows<S>(seen.end - seen.begin, channels, first + seen.begin * stride, stride, copy + seen.begin * width,
                     width);
  return {copy, width};
}

/// out[r][.] += sum_j scores[j][r] right[j][.] for every row of the tile, each block of rows over its
/// own keys. right [key][width], out [row][width]; width is whole vectors.
template <class S> inline void add_to_rows(const Meeting<S>& m, const S* scores, const S* right, int width, S* out) {
  each_panel<S>(width, [&](int column, int vectors) {
    const gemm::Kernel<S> kernel = block_kernel<S>(vectors);
    for (int r = 0; r < m.rows; r += kBlock) {
      const Range keys = m.keys_of(r, kBlock);
      if (!keys.empty()) {
        kernel(keys.end - keys.begin, {scores + keys.begin * kTileRows + r, 1, kTileRows},
               {right + keys.begin * width + column, width},
               {out + r * width + column, width, S(1), true, Vec<S>::width});
      }
    }
  });
}

/// Adds the bias of each key to its scores and hides what a row does not see, in a panel whose scores
/// were just computed. Hidden scores become -inf.
template <class S>
inline void bias_and_mask(const Meeting<S>& m, Range keys, int column, int vectors, const S* bias, int64_t bias_stride,
                          S* scores) {
  using V = Vec<S>;
  constexpr int w = V::width;
  if (bias != nullptr) {
    for (int j = keys.begin; j < std::min(keys.end, m.count); ++j) {
      const V b(bias[(m.base + j) * bias_stride] * kLogBase<S>);
      for (int c = column; c < column + vectors * w; c += w) {
        store(scores + j * kTileRows + c, load(scores + j * kTileRows + c) + b);
      }
    }
  }
  const Range open = m.common_keys(column, vectors * w);
  for (int j = keys.begin; j < keys.end; ++j) {
    if (j >= open.begin && j < open.end) {
      j = open.end - 1;
      continue;
    }
    const V at(static_cast<S>(j));
    for (int c = column; c < column + vectors * w; c += w) {
      S* s = scores + j * kTileRows + c;
      const auto visible = (load(m.lo_value + c) <= at) & (at < load(m.hi_value + c));
      store(s, select(visible, load(s), V(-std::numeric_limits<S>::infinity())));
    }
  }
}

/// Rows [row, row + rows) of a head side by side in `natural` [kTileRows][width], and transposed and
/// multiplied by `factor` in `transposed` [d][kTileRows]; columns and rows behind become zero.
template <class S>
inline void load_rows(const HeadRows<const S>& source, int64_t row, const Intervals& t, int64_t d, int width, S factor,
                      S* natural, S* transposed) {
  using V = Vec<S>;
  for (int r = 0; r < kTileRows; ++r) {
    S* to = natural + r * width;
    if (r < t.rows) {
      const S* from = source.row(row + r);
      vector_loop<S>(d, [&](int64_t i, auto lanes) { store(to + i, load(from + i, lanes), lanes); });
      std::fill(to + d, to + width, S(0));
    } else {
      std::fill(to, to + width, S(0));
    }
  }
  gemm::pack_transposed<S>(d, t.columns, natural, width, transposed, kTileRows);
  const V f(factor);
  for (int64_t i = 0; i < d; ++i) {
    for (int c = 0; c < t.columns; c += V::width) {
      store(transposed + i * kTileRows + c, load(transposed + i * kTileRows + c) * f);
    }
  }
}

/// Scratch of one thread: grows with head sizes only.
template <class S> class TileMemory {
 public:
  void begin(int64_t elements) {
    if (static_cast<int64_t>(memory_.size()) < elements + kAlign) {
      memory_.assign(static_cast<size_t>(elements + kAlign), S(0));
    }
    const auto address = reinterpret_cast<uintptr_t>(memory_.data());
    next_ = memory_.data() + (64 - address % 64) % 64 / sizeof(S);
  }
  /// `elements` must be a multiple of kAlign.
  S* take(int64_t elements) {
    S* p = next_;
    next_ += elements;
    return p;
  }

 private:
  static constexpr int64_t kAlign = 64 / sizeof(S);
  std::vector<S> memory_;
  S* next_ = nullptr;
};

}  // namespace hebb::cpu::attention
