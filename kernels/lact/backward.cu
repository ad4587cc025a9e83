#include "kernels/common/cuda/add_slices.cuh"
#include "kernels/lact/muon.cuh"

// The waves of the forward pass run again: 12 h D FLOPs a gathered token and head. Then what reads contribute, all
// tokens side by side: 16 h D. Then the waves in reverse: 30 h D, gathered. A wave has 7 launches, 50 with Muon.
// Bounds: forward.cu.
namespace hebb::HEBB_DEVICE {
namespace {

using namespace lact;

/// Where the gradients go; null: not wanted.
template <class S> struct Gradients {
  S *q, *k, *v, *rates, *mix;
  S* sums;  // [pairs, 3 h D] at the initial weights
  const S* d_y;
  bool accumulate_q, accumulate_k, accumulate_v, accumulate_rates, accumulate_mix;
};

template <class S> struct LactBackwardTask {
  Fast<S> a;
  Gradients<S> d;
  int64_t slot;

  __device__ S* sums_of(int64_t pair) const { return d.sums + pair * a.all(); }
  /// The gradient at a version of the weights.
  __device__ S* at_weights(int64_t pair, int version) const {
    return version == kInitial ? sums_of(pair) : a.part(pair, a.at.d_weights + version * a.all());
  }
  /// Whether the document has an update after this one, whose momentum comes from this one's.
  __device__ bool goes_on(int64_t pair) const {
    const int32_t* const begin = a.integers(pair, a.at.begin);
    return slot + 1 < a.at.slots && begin[slot + 1] == begin[slot] + a.chunk;
  }
};

/// Gradients at z0 and z2 and the hidden values of all queries; tiles [T, h].
template <class S> struct ReadBackHidden {
  LactBackwardTask<S> b;

  template <class Stage> __device__ void operator()(Stage& stage, int64_t pair, int64_t row, int64_t column) const {
    const Fast<S>& a = b.a;
    typename Stage::Sums z0 = {}, z2 = {}, dh = {};
    a.each_run(pair, row, [&](int version, int64_t first, int64_t last) {
      a.through_first(stage, a.tokens(a.q, pair, 0, first, last), row, a.weights_of(pair, version, 0),
                      a.weights_of(pair, version, 2), column, z0, z2);
      tile_product(stage, a.tokens(b.d.d_y, pair, 0, first, last), row, a.turned(a.weights_of(pair, version, 1), 1),
                   column, a.dim, dh);
    });
    S* const out = a.part(pair, a.at.hidden);
    const int64_t size = a.length * a.fast;
    tile_each(stage, row, column, a.length, a.fast, [&](int64_t r, int64_t c, int i, int j) {
      const S z = z0[i][j], up = z2[i][j], d = dh[i][j], s = sigmoid(z);
      const int64_t to = r * a.fast + c;
      out[to] = d * up * silu_slope(z, s);
      out[size + to] = z * s * up;
      out[2 * size + to] = d * z * s;
    });
  }
};

/// d_q; tiles [T, D].
template <class S> struct ReadBackQueries {
  LactBackwardTask<S> b;

  template <class Stage> __device__ void operator()(Stage& stage, int64_t pair, int64_t row, int64_t column) const {
    const Fast<S>& a = b.a;
    typename Stage::Sums sums = {};
    const S* const hidden = a.part(pair, a.at.hidden);
    a.each_run(pair, row, [&](int version, int64_t first, int64_t last) {
      for (int64_t m = 0; m < 3; m += 2) {
        const Operand<false, S> left = a.channels(hidden + m * a.length * a.fast, first, last);
        tile_product(stage, left, row, a.turned(a.weights_of(pair, version, m), m), column, a.fast, sums);
      }
    });
    tile_each(stage, row, column, a.length, a.dim, [&](int64_t r, int64_t c, int i, int j) {
      write(b.d.q[a.entry(pair, r) * a.dim + c], sums[i][j], b.d.accumulate_q);
    });
  }
};

/// What reads contribute to the gradients at all versions of the weights. Batches: pairs, matrices, and slots and the
/// initial weights.
template <class S> struct ReadBackWeights {
  LactBackwardTask<S> b;

  template <class Stage> __device__ void operator()(Stage& stage, int64_t batch, int64_t row, int64_t column) const {
    const Fast<S>& a = b.a;
    const int64_t slots = a.at.slots + 1, pair = batch / (3 * slots), m = batch / slots % 3, slot = batch % slots;
    const int32_t *const begin = a.integers(pair, a.at.begin), *const end = a.integers(pair, a.at.end);
    const int64_t rows = a.rows(m), columns = a.columns(m);
    const bool is_initial = slot == a.at.slots;
    if (row >= rows || column >= columns || (!is_initial && begin[slot] < 0)) { return; }
    typename Stage::Sums sums = {};
    const S* const hidden = a.part(pair, a.at.hidden) + m * a.length * a.fast;
    const auto add = [&](int64_t first, int64_t last) {
      if (m == 1) {
        tile_product(stage, a.turned_tokens(b.d.d_y, pair, first), row, a.turned_channels(hidden + first * a.fast),
                     column, last - first, sums);
      } else {
        tile_product(stage, a.turned_channels(hidden + first * a.fast), row, a.turned_tokens(a.q, pair, first), column,
                     last - first, sums);
      }
    };
    if (is_initial) {  // what lies between the slots' tokens
      int64_t first = 0;
      for (int64_t s = 0; s < a.at.slots; ++s) {
        if (begin[s] >= 0) {
          add(first, begin[s]);
          first = end[s];
        }
      }
      add(first, a.length);
    } else {
      add(begin[slot], end[slot]);
    }
    S* const to = b.at_weights(pair, is_initial ? kInitial : static_cast<int>(slot)) + m * a.matrix();
    tile_each(stage, row, column, rows, columns,
              [&](int64_t r, int64_t c, int i, int j) { to[r * columns + c] = sums[i][j]; });
  }
};

/// Tokens of a document's last chunk write nothing. Rows: tokens of all rows and heads.
template <class S> struct WriteZeros {
  LactBackwardTask<S> b;

  __device__ void operator()(int64_t item, int64_t c) const {
    const Fast<S>& a = b.a;
    const int64_t pair = item / a.length, t = item % a.length;
    const int32_t* const starts = a.doc_start + pair / a.heads * a.length;
    const int64_t next = t - (t - starts[t]) % a.chunk + a.chunk;
    if (next < a.length && starts[next] == starts[t]) { return; }
    const int64_t entry = a.entry(pair, t);
    const auto clear = [&](S* to, int64_t width, bool accumulate) {
      if (to != nullptr && !accumulate && c < width) { to[entry * width + c] = 0; }
    };
    clear(b.d.k, a.dim, b.d.accumulate_k);
    clear(b.d.v, a.dim, b.d.accumulate_v);
    clear(b.d.rates, 3, b.d.accumulate_rates);
    clear(b.d.mix, 1, b.d.accumulate_mix);
  }
};

/// W' = N P / (|P| + eps), P = W + step, row by row: from W' to P, hence to W and the step, and to N.
template <class S> struct UndoMove {
  LactBackwardTask<S> b;
  int64_t last_iterate;

  __device__ void operator()(int64_t item, int lane) const {
    const Fast<S>& a = b.a;
    const MatrixRow row(a, item);
    const Update u = a.update(row.pair, b.slot);
    if (!u.exists) { return; }
    const int64_t at = row.m * a.matrix() + row.at;
    const S *const w = a.weights_of(row.pair, u.previous, row.m) + row.at,
                   *const step = step_of(a, row.pair, b.slot, row.m, last_iterate) + row.at,
                   *const first = a.weights_of(row.pair, kInitial, row.m) + row.at,
                   *const d = b.at_weights(row.pair, static_cast<int>(b.slot)) + at;
    S squares = 0, along = 0;
    for (int64_t i = lane; i < row.columns; i += 32) {
      const S p = w[i] + step[i];
      squares += p * p;
      along += d[i] * p;
    }
    const S length = std::sqrt(warp_sum(squares)), inverse = S(1) / (length + S(kNormEps));
    const S target = std::sqrt(warp_dot(row.columns, first, first, lane));
    along = warp_sum(along) * inverse;  // the gradient at N
    const S scale = target * inverse, back = length > S(0) ? -scale * along / length : S(0);
    const S of_first = target > S(0) ? along / target : S(0);
    S *const d_step = a.part(row.pair, a.at.d_step) + at, *const before = b.at_weights(row.pair, u.previous) + at,
             *const total = b.sums_of(row.pair) + at;
    for (int64_t i = lane; i < row.columns; i += 32) {
      const S d_p = scale * d[i] + back * (w[i] + step[i]);
      d_step[i] = d_p;
      before[i] += d_p;
      total[i] += of_first * first[i];  // may be the same number
    }
  }
};

/// Muon's input, from the gradient at its result; one block a matrix of a pair.
template <class S>
__global__ void __launch_bounds__(kMatrixThreads) lact_muon_end_kernel(Fast<S> a, int64_t slot, int64_t from) {
  const int64_t pair = blockIdx.x / 3, m = blockIdx.x % 3;
  if (!a.update(pair, slot).exists) { return; }
  const S *const g = a.momentum_of(pair, slot) + m * a.matrix(), *const d =
                                                                     a.part(pair, a.at.d_iterates +
                                                                                      (3 * from + m) * a.matrix());
  S sum = 0;
  struct Both {
    S d, g;
  };
  const auto load = [&](int64_t i) { return Both{d[i], g[i]}; };
  each_of_matrix(a.matrix(), load, [&](int64_t, const Both& x) { sum += x.d * x.g; });
  BlockReducer<S> reduce;
  sum = reduce.sum(sum);
  const S norm = a.part(pair, a.at.lengths)[m], length = norm + S(kMuonEps),
          back = norm > S(0) ? -sum / (length * length * norm) : S(0);
  S* const to = a.part(pair, a.at.d_step) + m * a.matrix();
  each_of_matrix(a.matrix(), load, [&](int64_t i, const Both& x) { to[i] = x.d / length + back * x.g; });
}

/// The gradient at Muon's result, as its last iterate lies.
template <class S> struct MuonGradient {
  Fast<S> a;

  __device__ void operator()(int64_t pair, int64_t i) const {
    a.part(pair, a.at.d_iterates)[i] = a.part(pair, a.at.d_step)[i];
  }
};

// From the gradient at the step to that at G: the momentum goes on to the next update, and comes from the one before.
// One block a pair.
template <class S> __global__ void __launch_bounds__(kMatrixThreads) lact_undo_momentum_kernel(LactBackwardTask<S> b) {
  const Fast<S>& a = b.a;
  const int64_t pair = blockIdx.x;
  const Update u = a.update(pair, b.slot);
  if (!u.exists) { return; }
  S *const d = a.part(pair, a.at.d_step), *const d_momentum = a.part(pair, a.at.d_momentum);
  const S* const before = u.previous >= 0 ? a.momentum_of(pair, b.slot - 1) : nullptr;
  const S decay = a.part(pair, a.at.mixed)[b.slot] / static_cast<S>(a.chunk);
  const bool goes_on = b.goes_on(pair);
  double sum = 0;
  struct Loaded {
    S d, later, before;
  };
  const auto load = [&](int64_t i) {  // sums are not made here: they would wait for each element's loads
    return Loaded{d[i], goes_on ? d_momentum[i] : S(0), before != nullptr ? before[i] : S(0)};
  };
  each_of_matrix(a.all(), load, [&](int64_t i, const Loaded& x) {
    const S g = x.d + x.later;
    d[i] = g;
    if (before != nullptr) {
      sum += static_cast<double>(g * x.before);
      d_momentum[i] = decay * g;
    }
  });
  BlockReducer<double> reduce;
  sum = reduce.sum(sum);
  if (threadIdx.x == 0) { *a.part(pair, a.at.d_decay) = static_cast<S>(sum); }
}

/// With b1 = v X1, c0 = k X0ᵀ, c2 = k X2ᵀ for the gradient X at G, differentiates sum_j eta1 b1 s z2 + eta2 c2 dh s +
/// eta0 c0 dh z2 s', s = silu(z0): z0, dh, z2 become their gradients; c0, b1, c2 what multiplies X in those of k and v.
/// Tiles [window, h].
template <class S> struct GatherBackHidden {
  LactBackwardTask<S> b;

  template <class Stage> __device__ void operator()(Stage& stage, int64_t pair, int64_t row, int64_t column) const {
    const Fast<S>& a = b.a;
    const Update u = a.update(pair, b.slot);
    if (row >= u.count) { return; }
    const int64_t matrix = a.matrix();
    const S* const x = a.part(pair, a.at.d_step);
    typename Stage::Sums z0 = {}, z2 = {}, dh = {}, c0 = {}, b1 = {}, c2 = {};
    const Operand<false, S> keys = a.tokens(a.k, pair, u.token, 0, u.count),
                            values = a.tokens(a.v, pair, u.token, 0, u.count);
    a.through_first(stage, keys, row, a.weights_of(pair, u.previous, 0), a.weights_of(pair, u.previous, 2), column, z0,
                    z2);
    a.through_first(stage, keys, row, x, x + 2 * matrix, column, c0, c2);
    tile_products(stage, values, row, a.turned(a.weights_of(pair, u.previous, 1), 1), x + matrix, column, a.dim, dh,
                  b1);
    S* const out = a.part(pair, a.at.hidden);
    const int64_t size = a.at.window * a.fast;
    const RowRates<S, Stage> eta(stage, a, pair, u, row);
    S shares[Stage::kRows][3] = {};  // of the thread's rows in the gradients at eta
    tile_each(stage, row, column, u.count, a.fast, [&](int64_t r, int64_t c, int i, int j) {
      const int64_t to = r * a.fast + c;
      const S z = z0[i][j], up = z2[i][j], down = dh[i][j], s = sigmoid(z), silu = z * s, slope = silu_slope(z, s);
      const S a0 = down * up * slope, a1 = silu * up, a2 = down * silu;
      const S eta0 = eta(0, i, j), eta1 = eta(1, i, j), eta2 = eta(2, i, j);
      const S e0 = eta0 * c0[i][j], e1 = eta1 * b1[i][j], e2 = eta2 * c2[i][j];
      S(&share)[3] = shares[Stage::row_number(i, j)];
      share[0] += c0[i][j] * a0;
      share[1] += b1[i][j] * a1;
      share[2] += c2[i][j] * a2;
      out[to] = slope * (e1 * up + e2 * down) + e0 * down * up * silu_bend(z, s);
      out[size + to] = e2 * silu + e0 * up * slope;
      out[2 * size + to] = e1 * silu + e0 * down * slope;
      out[3 * size + to] = eta0 * a0;
      out[4 * size + to] = eta1 * a1;
      out[5 * size + to] = eta2 * a2;
    });
    const int64_t panel = (column + Stage::column(0, 0)) / LactLayout::kPanel;
    HEBB_UNROLL
    for (int item = 0; item < 3 * Stage::kRows; ++item) {
      const int number = item / 3, m = item % 3;
      const S sum = warp_sum<Stage::kRowLanes>(shares[number][m]);  // over the row's channels in the panel
      const int64_t r = row + Stage::row(number);
      if (threadIdx.x % Stage::kRowLanes == 0 && r < u.count && panel < a.at.panels) {
        a.part(pair, a.at.shares)[(r * a.at.panels + panel) * 3 + m] = sum;
      }
    }
  }
};

/// d_k and d_v; batches: pairs and which; tiles [window, D].
template <class S> struct GatherBackTokens {
  LactBackwardTask<S> b;

  template <class Stage> __device__ void operator()(Stage& stage, int64_t batch, int64_t row, int64_t column) const {
    const Fast<S>& a = b.a;
    const int64_t pair = batch / 2;
    const bool is_value = batch % 2 == 1;
    const Update u = a.update(pair, b.slot);
    S* const to = is_value ? b.d.v : b.d.k;
    if (row >= u.count || to == nullptr) { return; }
    const S *const hidden = a.part(pair, a.at.hidden), *const x = a.part(pair, a.at.d_step);
    const auto channels = [&](int64_t i) { return a.channels(hidden + i * a.at.window * a.fast, 0, u.count); };
    typename Stage::Sums sums = {};
    if (is_value) {
      tile_product(stage, channels(1), row, a.straight(a.weights_of(pair, u.previous, 1), 1), column, a.fast, sums);
      tile_product(stage, channels(4), row, a.straight(x + a.matrix(), 1), column, a.fast, sums);
    } else {
      for (int64_t m = 0; m < 3; m += 2) {
        tile_product(stage, channels(m), row, a.turned(a.weights_of(pair, u.previous, m), m), column, a.fast, sums);
        tile_product(stage, channels(3 + m), row, a.turned(x + m * a.matrix(), m), column, a.fast, sums);
      }
    }
    tile_each(stage, row, column, u.count, a.dim, [&](int64_t r, int64_t c, int i, int j) {
      write(to[a.entry(pair, u.token + r) * a.dim + c], sums[i][j], is_value ? b.d.accumulate_v : b.d.accumulate_k);
    });
  }
};

/// What gathering adds to the gradient at the weights that it used. Batches: pairs and matrices.
template <class S> struct GatherBackWeights {
  LactBackwardTask<S> b;

  template <class Stage> __device__ void operator()(Stage& stage, int64_t batch, int64_t row, int64_t column) const {
    const Fast<S>& a = b.a;
    const int64_t pair = batch / 3, m = batch % 3, rows = a.rows(m), columns = a.columns(m);
    const Update u = a.update(pair, b.slot);
    if (!u.exists || row >= rows || column >= columns) { return; }
    typename Stage::Sums sums = {};
    const Operand<true, S> hidden = a.turned_channels(a.part(pair, a.at.hidden) + m * a.at.window * a.fast);
    if (m == 1) {
      tile_product(stage, a.turned_tokens(a.v, pair, u.token), row, hidden, column, u.count, sums);
    } else {
      tile_product(stage, hidden, row, a.turned_tokens(a.k, pair, u.token), column, u.count, sums);
    }
    S* const to = b.at_weights(pair, u.previous) + m * a.matrix();
    tile_each(stage, row, column, rows, columns,
              [&](int64_t r, int64_t c, int i, int j) { to[r * columns + c] += sums[i][j]; });
  }
};

/// d_rates and d_mix of the tokens that an update gathers.
template <class S> struct WriteRates {
  LactBackwardTask<S> b;

  __device__ void operator()(int64_t pair, int64_t r) const {
    const Fast<S>& a = b.a;
    const Update u = a.update(pair, b.slot);
    if (r >= u.count) { return; }
    const int64_t entry = a.entry(pair, u.token + r);
    for (int64_t m = 0; b.d.rates != nullptr && m < 3; ++m) {
      S sum = 0;
      for (int64_t panel = 0; panel < a.at.panels; ++panel) {
        sum += a.part(pair, a.at.shares)[(r * a.at.panels + panel) * 3 + m];
      }
      write(b.d.rates[3 * entry + m], sum * logistic(a.rates[3 * entry + m] + a.shift), b.d.accumulate_rates);
    }
    if (b.d.mix != nullptr) {
      const S s = logistic(a.mix[entry]);
      write(b.d.mix[entry], *a.part(pair, a.at.d_decay) / static_cast<S>(a.chunk) * s * (S(1) - s), b.d.accumulate_mix);
    }
  }
};

template <class S> void undo_muon(Stream& stream, const Fast<S>& a, int64_t slot) {
  each_element("lact_muon_gradient", stream, a.pairs(), a.all(), MuonGradient<S>{a});
  int64_t at = 0;  // of the two gradients
  for (int step = kMuonSteps - 1; step >= 0; --step, at = 1 - at) {
    muon_product(stream, a, slot, MuonProduct::square, step, step, 0);
    muon_product(stream, a, slot, MuonProduct::polynomial, step, step, 0);
    muon_product(stream, a, slot, MuonProduct::d_polynomial, step, step, 1 - at);
    muon_product(stream, a, slot, MuonProduct::d_square, step, step, 1 - at);
    muon_product(stream, a, slot, MuonProduct::d_next, step, step, 1 - at);
  }
  HEBB_LAUNCH(lact_muon_end_kernel<S>, blocks_for(3 * a.pairs(), 1), kMatrixThreads, 0, stream, a, slot, at);
}

/// From the gradient at the weights behind a slot's update to all that it came from.
template <class S> void undo_update(Stream& stream, const LactBackwardTask<S>& b) {
  const Fast<S>& a = b.a;
  const int64_t last = run_muon(stream, a, b.slot, true);
  each_warp("lact_undo_move", stream, a.pairs() * (2 * a.fast + a.dim), UndoMove<S>{b, last});
  if (a.has_muon) { undo_muon(stream, a, b.slot); }
  if (a.has_momentum) {
    HEBB_LAUNCH(lact_undo_momentum_kernel<S>, blocks_for(a.pairs(), 1), kMatrixThreads, 0, stream, b);
  }
  each_tile<S, 1>("lact_gather_back_hidden", stream, a.tf32, a.pairs(), a.at.window, a.fast, GatherBackHidden<S>{b});
  each_tile<S>("lact_gather_back_tokens", stream, a.tf32, 2 * a.pairs(), a.at.window, a.dim, GatherBackTokens<S>{b});
  each_tile<S>("lact_gather_back_weights", stream, a.tf32, 3 * a.pairs(), a.longest_side(), a.longest_side(),
               GatherBackWeights<S>{b});
  each_element("lact_rates", stream, a.pairs(), a.at.window, WriteRates<S>{b});
}

template <class S> void backward(Stream& stream, const LactBackward& a, const LactBackwardScratch& scratch) {
  const Fast<S> f(a, scratch.memory, false, true);
  LactBackwardTask<S> b{
      f,
      {a.d_q.as<S>(), a.d_k.as<S>(), a.d_v.as<S>(), a.d_rates.as<S>(), a.d_mix.as<S>(), scratch.sums.as<S>(),
       a.d_y.as<S>(), a.accumulate_q, a.accumulate_k, a.accumulate_v, a.accumulate_rates, a.accumulate_mix},
      0};
  HEBB_LAUNCH(lact_tables_kernel<S>, blocks_for(f.pairs(), 1), kBlockThreads, 0, stream, f);
  for (int64_t slot = 0; slot < f.at.slots; ++slot) { run_update(stream, f, slot, true); }
  each_element("lact_zeros", stream, f.pairs() * f.length, f.dim > 3 ? f.dim : 3, WriteZeros<S>{b});
  each_tile<S>("lact_read_back_hidden", stream, f.tf32, f.pairs(), f.length, f.fast, ReadBackHidden<S>{b});
  if (b.d.q != nullptr) {
    each_tile<S>("lact_read_back_queries", stream, f.tf32, f.pairs(), f.length, f.dim, ReadBackQueries<S>{b});
  }
  const int64_t side = f.longest_side();
  each_tile<S>("lact_read_back_weights", stream, f.tf32, 3 * f.pairs() * (f.at.slots + 1), side, side,
               ReadBackWeights<S>{b});
  for (b.slot = f.at.slots - 1; b.slot >= 0; --b.slot) { undo_update(stream, b); }
  S* const d_w[3] = {a.d_w0.as<S>(), a.d_w1.as<S>(), a.d_w2.as<S>()};
  for (int64_t m = 0; m < 3; ++m) {
    if (d_w[m] != nullptr) {
      each_element(
          "lact_weights", stream, f.heads, f.matrix(),
          AddSlices<S>{d_w[m], b.d.sums + m * f.matrix(), f.batch, f.heads * f.all(), f.all(), f.matrix(), true});
    }
  }
}

}  // namespace

void run(Stream& stream, const LactBackward& a, const LactBackwardScratch& scratch) {
  dispatch_real(a.q.dtype, [&]<class S>(S) { backward<S>(stream, a, scratch); });
}

}  // namespace hebb::HEBB_DEVICE
