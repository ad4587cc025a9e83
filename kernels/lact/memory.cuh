#pragma once
// Fast weights of `lact` (docs/layers/lact.md, Update) for all rows and heads side by side: a pair is a row and a head.
// Updates of all rows go in waves, one a slot of LactLayout; tokens read when all versions of the weights are there.
#include "kernels/common/cuda/block.cuh"
#include "kernels/common/cuda/tiles.cuh"
#include "kernels/lact/scratch.h"

namespace hebb::HEBB_DEVICE::lact {

constexpr double kNormEps = 1e-5;  // beside the length of a row

constexpr int kInitial = -1, kCarried = -2;  // versions of weights beside those of slots

/// What an update gathers.
struct Update {
  int64_t token = 0, count = 0;             // the chunk's tokens in this pass
  int previous = kInitial;                  // the weights that they have
  bool exists = false, is_carried = false;  // the chunk began before this pass
};

template <class S> struct Fast {
  LactLayout at;
  int64_t batch, length, heads, dim, fast, chunk;  // D, h, C
  bool has_momentum, has_muon, tf32;
  S shift;
  const S *q, *k, *v, *rates, *mix;
  const S* initial[3];
  const int32_t* doc_start;
  S *weights = nullptr, *momentum = nullptr, *sums = nullptr, *mix_sums = nullptr;  // carried
  S* scratch;
  int64_t stride;

  template <class Args>
  Fast(const Args& a, const Tensor& memory, bool carries, bool backward)
      : at(a.q.size(1), a.rule, a.q.size(3), a.w0.size(1), carries, backward),
        batch(a.q.size(0)),
        length(a.q.size(1)),
        heads(a.q.size(2)),
        dim(a.q.size(3)),
        fast(a.w0.size(1)),
        chunk(a.rule.chunk),
        has_momentum(a.rule.momentum),
        has_muon(a.rule.muon),
        tf32(a.rule.tf32),
        shift(static_cast<S>(a.rule.rate_shift)),
        q(a.q.template as<S>()),
        k(a.k.template as<S>()),
        v(a.v.template as<S>()),
        rates(a.rates.template as<S>()),
        mix(a.mix.template as<S>()),
        initial{a.w0.template as<S>(), a.w1.template as<S>(), a.w2.template as<S>()},
        doc_start(a.doc_start.template as<int32_t>()),
        scratch(memory.as<S>()),
        stride(memory.size(1)) {
    HEBB_ASSERT(memory.size(0) >= pairs() && stride >= at.total);
  }

  __host__ __device__ int64_t pairs() const { return batch * heads; }
  __host__ __device__ int64_t matrix() const { return fast * dim; }
  __host__ __device__ int64_t all() const { return 3 * matrix(); }
  __host__ __device__ int64_t rows(int64_t m) const { return m == 1 ? dim : fast; }
  __host__ __device__ int64_t columns(int64_t m) const { return m == 1 ? fast : dim; }
  __host__ __device__ int64_t longest_side() const { return fast > dim ? fast : dim; }

  __device__ S* part(int64_t pair, int64_t offset) const { return scratch + pair * stride + offset; }
  __device__ int32_t* integers(int64_t pair, int64_t offset) const {
    return reinterpret_cast<int32_t*>(part(pair, offset));
  }
  __device__ int64_t slot_weights(int64_t slot) const { return at.weights + slot * all(); }
  __device__ S* momentum_of(int64_t pair, int64_t slot) const {
    return part(pair, at.momenta + slot % at.keep * all());
  }
  __device__ const S* weights_of(int64_t pair, int version, int64_t m) const {
    return version == kInitial   ? initial[m] + pair % heads * matrix()
           : version == kCarried ? weights + pair * all() + m * matrix()
                                 : part(pair, slot_weights(version)) + m * matrix();
  }

  __device__ int64_t token_stride() const { return heads * dim; }
  /// A token of the pair among all tokens of the batch and heads.
  __device__ int64_t entry(int64_t pair, int64_t token) const {
    return (pair / heads * length + token) * heads + pair % heads;
  }
  __device__ S eta(int64_t entry, int m) const { return smooth_softplus(rates[3 * entry + m] + shift); }

  /// x [count, D] from `token` as a left or right side: rows are tokens.
  __device__ Operand<false, S> tokens(const S* x, int64_t pair, int64_t token, int64_t first, int64_t last) const {
    return {x + entry(pair, token) * dim, token_stride(), first, last};
  }
  /// The same with tokens as depth.
  __device__ Operand<true, S> turned_tokens(const S* x, int64_t pair, int64_t token) const {
    return {x + entry(pair, token) * dim, token_stride(), 0, dim};
  }
  /// [count, h] with tokens as rows or as depth.
  __device__ Operand<false, S> channels(const S* x, int64_t first, int64_t last) const {
    return {x, fast, first, last};
  }
  __device__ Operand<true, S> turned_channels(const S* x) const { return {x, fast, 0, fast}; }
  /// A matrix with its rows or its columns as rows.
  __device__ Operand<false, S> straight(const S* w, int64_t m) const { return {w, columns(m), 0, rows(m)}; }
  __device__ Operand<true, S> turned(const S* w, int64_t m) const { return {w, columns(m), 0, columns(m)}; }

  /// z0 and z2 += the products of W0 and W2 of three matrices with rows x at (row, column) of [tokens, h].
  template <class Stage>
  __device__ __forceinline__ void through_first(Stage& stage, const Operand<false, S>& x, int64_t row, const S* w0,
                                                const S* w2, int64_t column, typename Stage::Sums& z0,
                                                typename Stage::Sums& z2) const {
    tile_products(stage, x, row, straight(w0, 0), w2, column, dim, z0, z2);
  }

  /// The update of a slot; slot at.slots: what the chunk in progress at the row's end has gathered.
  __device__ Update update(int64_t pair, int64_t slot) const {
    const int32_t* const starts = doc_start + pair / heads * length;
    const bool in_progress = slot == at.slots;
    const int64_t end = in_progress ? length : integers(pair, at.begin)[slot];
    Update u;
    if (end < 0) { return u; }
    const int64_t begin = in_progress ? end - 1 - (end - 1 - starts[end - 1]) % chunk : end - chunk;
    u.exists = true;
    u.is_carried = begin < 0;
    u.token = begin < 0 ? 0 : begin;
    u.count = end - u.token;
    u.previous = in_progress                  ? integers(pair, at.version)[length - 1]
                 : begin < 0                  ? kCarried
                 : end - starts[end] == chunk ? kInitial
                                              : static_cast<int>(slot) - 1;
    return u;
  }

  /// f(version, first, last) for the runs of tokens in [row, row + 64) that have the same weights. Whole warps call.
  template <class F> __device__ __forceinline__ void each_run(int64_t pair, int64_t row, F&& f) const {
    static_assert(kTileSize <= 64);
    const int32_t* const version = integers(pair, at.version);
    const int lane = static_cast<int>(threadIdx.x % 32),
              end = static_cast<int>(row + kTileSize < length ? row + kTileSize : length);
    for (int first = static_cast<int>(row); first < end;) {
      const int32_t own = version[first];
      int last = end;
      HEBB_UNROLL
      for (int part = 32; part >= 0; part -= 32) {  // of the next 64 tokens; the nearer half decides last
        const int i = first + 1 + part + lane;
        const unsigned others = __ballot_sync(kAllLanes, i < end && version[i] != own);
        if (others != 0) { last = first + part + __ffs(static_cast<int>(others)); }
      }
      f(own, first, last);
      first = last;
    }
  }
};

// One block a pair: versions of tokens, slots, sums of sigmoid(mix).
template <class S> __global__ void __launch_bounds__(kBlockThreads) lact_tables_kernel(Fast<S> a) {
  const int64_t pair = blockIdx.x;
  const int32_t* const starts = a.doc_start + pair / a.heads * a.length;
  int32_t *const version = a.integers(pair, a.at.version), *const begin = a.integers(pair, a.at.begin);
  int32_t* const end = a.integers(pair, a.at.end);
  block_each(a.at.slots, [&](int64_t slot) { begin[slot] = end[slot] = -1; });
  block_each(a.length, [&](int64_t t) {
    const int64_t position = t - starts[t], first = t - position % a.chunk;
    const int id = first < 0 ? kCarried : position < a.chunk ? kInitial : static_cast<int>(first / a.chunk - a.at.base);
    version[t] = id;
    if (id >= 0 && first == t) { begin[id] = static_cast<int32_t>(t); }
    if (id >= 0 && (t + 1 == a.length || starts[t + 1] != starts[t] || (position + 1) % a.chunk == 0)) {
      end[id] = static_cast<int32_t>(t + 1);
    }
  });
  block_warps(a.at.slots + 1, [&](int64_t slot, int lane) {
    const Update u = a.update(pair, slot);
    S sum = 0;
    for (int64_t i = lane; a.mix != nullptr && i < u.count; i += 32) {
      sum += logistic(a.mix[a.entry(pair, u.token + i)]);
    }
    sum = warp_sum(sum);
    if (lane == 0) { a.part(pair, a.at.mixed)[slot] = sum + (u.is_carried ? a.mix_sums[pair] : S(0)); }
  });
}

/// eta of the rows of a tile of an update that a thread holds sums of.
template <class S, class Stage> struct RowRates {
  S of[Stage::kRows][3] = {};

  __device__ __forceinline__ RowRates(const Stage& stage, const Fast<S>& a, int64_t pair, const Update& u,
                                      int64_t row) {
    tile_rows(stage, row, u.count, [&](int64_t r, int number) {
      const int64_t entry = a.entry(pair, u.token + r);
      HEBB_UNROLL
      for (int m = 0; m < 3; ++m) { of[number][m] = a.eta(entry, m); }
    });
  }
  __device__ __forceinline__ S operator()(int m, int i, int j) const { return of[Stage::row_number(i, j)][m]; }
};

/// What multiplies keys and values in G0, G1, G2, for the tokens that a slot's update gathers; tiles [window, h].
template <class S> struct GatherHidden {
  Fast<S> a;
  int64_t slot;

  template <class Stage> __device__ void operator()(Stage& stage, int64_t pair, int64_t row, int64_t column) const {
    const Update u = a.update(pair, slot);
    if (row >= u.count) { return; }
    typename Stage::Sums z0 = {}, z2 = {}, dh = {};
    a.through_first(stage, a.tokens(a.k, pair, u.token, 0, u.count), row, a.weights_of(pair, u.previous, 0),
                    a.weights_of(pair, u.previous, 2), column, z0, z2);
    tile_product(stage, a.tokens(a.v, pair, u.token, 0, u.count), row, a.turned(a.weights_of(pair, u.previous, 1), 1),
                 column, a.dim, dh);
    S* const out = a.part(pair, a.at.hidden);
    const int64_t size = a.at.window * a.fast;
    const RowRates<S, Stage> eta(stage, a, pair, u, row);
    tile_each(stage, row, column, u.count, a.fast, [&](int64_t r, int64_t c, int i, int j) {
      const int64_t to = r * a.fast + c;
      const S z = z0[i][j], up = z2[i][j], down = dh[i][j], s = sigmoid(z);
      out[to] = eta(0, i, j) * down * up * silu_slope(z, s);
      out[size + to] = eta(1, i, j) * z * s * up;
      out[2 * size + to] = eta(2, i, j) * down * z * s;
    });
  }
};

/// M = G + decay M before, or what the chunk in progress has gathered of G. Batches: pairs and matrices.
template <class S> struct GatherSums {
  Fast<S> a;
  int64_t slot;

  template <class Stage> __device__ void operator()(Stage& stage, int64_t batch, int64_t row, int64_t column) const {
    const int64_t pair = batch / 3, m = batch % 3, rows = a.rows(m), columns = a.columns(m);
    const Update u = a.update(pair, slot);
    if (!u.exists || row >= rows || column >= columns) { return; }
    typename Stage::Sums sums = {};
    const S* const hidden = a.part(pair, a.at.hidden) + m * a.at.window * a.fast;
    if (m == 1) {
      tile_product(stage, a.turned_tokens(a.v, pair, u.token), row, a.turned_channels(hidden), column, u.count, sums);
    } else {
      tile_product(stage, a.turned_channels(hidden), row, a.turned_tokens(a.k, pair, u.token), column, u.count, sums);
    }
    const bool in_progress = slot == a.at.slots;
    S* const carried = u.is_carried || in_progress ? a.sums + pair * a.all() + m * a.matrix() : nullptr;
    S* const to = in_progress ? carried : a.momentum_of(pair, slot) + m * a.matrix();
    const S* before = nullptr;
    S decay = 0;
    if (a.has_momentum && !in_progress && u.previous != kInitial) {
      before = (u.previous == kCarried ? a.momentum + pair * a.all() : a.momentum_of(pair, slot - 1)) + m * a.matrix();
      decay = a.part(pair, a.at.mixed)[slot] / static_cast<S>(a.chunk);
    }
    tile_each(stage, row, column, rows, columns, [&](int64_t r, int64_t c, int i, int j) {
      const int64_t at = r * columns + c;
      const S gathered = sums[i][j] + (u.is_carried ? carried[at] : S(0));
      to[at] = before != nullptr ? gathered + decay * before[at] : gathered;
    });
  }
};

/// A row of one of a pair's matrices, by one warp.
struct MatrixRow {
  int64_t pair, m, at, columns;  // at: its first element within the matrix

  template <class S> __device__ MatrixRow(const Fast<S>& a, int64_t item) {
    const int64_t of_pair = 2 * a.fast + a.dim;
    const int64_t row = item % of_pair;
    pair = item / of_pair;
    m = row < a.fast ? 0 : row < a.fast + a.dim ? 1 : 2;
    columns = a.columns(m);
    at = (row - (m == 0 ? 0 : m == 1 ? a.fast : a.fast + a.dim)) * columns;
  }
};

/// The step of an update: M, or what Muon made of it.
template <class S>
__device__ __forceinline__ const S* step_of(const Fast<S>& a, int64_t pair, int64_t slot, int64_t m,
                                            int64_t last_iterate) {
  return a.has_muon ? a.part(pair, a.at.iterates + (3 * last_iterate + m) * a.matrix())
                    : a.momentum_of(pair, slot) + m * a.matrix();
}

/// W' = rownorm(W + step) N, row by row; N: lengths of the initial rows.
template <class S> struct Move {
  Fast<S> a;
  int64_t slot, last_iterate;

  __device__ void operator()(int64_t item, int lane) const {
    const MatrixRow row(a, item);
    const Update u = a.update(row.pair, slot);
    if (!u.exists) { return; }
    const S* const w = a.weights_of(row.pair, u.previous, row.m) + row.at;
    const S* const step = step_of(a, row.pair, slot, row.m, last_iterate) + row.at;
    const S* const first = a.weights_of(row.pair, kInitial, row.m) + row.at;
    S* const next = a.part(row.pair, a.slot_weights(slot)) + row.m * a.matrix() + row.at;
    S squares = 0;
    for (int64_t i = lane; i < row.columns; i += 32) {
      const S x = w[i] + step[i];
      next[i] = x;
      squares += x * x;
    }
    const S target = std::sqrt(warp_dot(row.columns, first, first, lane)),
            scale = target / (std::sqrt(warp_sum(squares)) + S(kNormEps));
    for (int64_t i = lane; i < row.columns; i += 32) { next[i] *= scale; }
  }
};

}  // namespace hebb::HEBB_DEVICE::lact
