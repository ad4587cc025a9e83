#include "kernels/gemm/gemm.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>
#include <utility>

#include "core/parallel.h"
#include "kernels/gemm/gemm_cpu.h"
#include "kernels/gemm/kernel.h"

namespace hebb::cpu {
namespace {

using gemm::kColumns;
using gemm::kLeftStep;
using gemm::kRows;
using gemm::pack;

// Cache blocks: a panel of A (kMaxDepth x kRows) stays in L1 (48 KB), the packed panels of B
// (kMaxDepth x kBlockColumns, 0.8 MB) in L2 (1 to 2 MB).
constexpr int64_t kMaxDepth = 384;
constexpr int64_t kFirstCache = 32 << 10;  // bytes of L1 of every processor with AVX2
template <class S> constexpr int64_t kBlockColumns = sizeof(S) == 4 ? 512 : 256;

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Length of the blocks of k: a function of k alone, since it decides the rounding.
int64_t block_depth(int64_t k) { return divide_up(k, divide_up(k, kMaxDepth)); }

struct Free {
  void operator()(void* p) const { std::free(p); }
};
template <class S> using Scratch = std::unique_ptr<S[], Free>;

template <class S> Scratch<S> allocate(int64_t count) {
  void* p =
      std::aligned_alloc(4096, static_cast<size_t>(divide_up(count * static_cast<int64_t>(sizeof(S)), 4096) * 4096));
  if (p == nullptr) { throw std::bad_alloc(); }
  return Scratch<S>(static_cast<S*>(p));
}

/// A transposed A is used in place where C has that few columns and its steps lie that near to each other: TN products
/// of 8,192 tokens and 64 to 256 channels are 1.1 to 1.4 times as fast as with packed panels on a Zen 5 (AVX-512 and
/// AVX2).
constexpr int64_t kFewColumns = 64, kNearSteps = 1024;
/// Sizes up to which multiply_small is faster.
constexpr int64_t kSmallRows = 10 * kRows, kSmallDepth = 128;
template <class S> constexpr int64_t kSmallColumns = 4 * kColumns<S>;
/// Panels of a transposed A that are packed at once: a step of k reads their rows side by side, some whole cache lines.
constexpr int64_t kLeftPanels = 8;

/// Packed panels of the calling thread.
template <class S> struct Panels {
  Scratch<S> left = allocate<S>(kLeftPanels * kLeftStep<S> * kMaxDepth);
  Scratch<S> right = allocate<S>(kBlockColumns<S> * kMaxDepth);
};
template <class S> Panels<S>& panels() {
  thread_local Panels<S> p;
  return p;
}

template <class S> struct Problem {
  bool trans_a, trans_b;
  int64_t m, n, k;
  S alpha;
  const S* a;
  int64_t lda;
  const S* b;
  int64_t ldb;
  bool accumulate;
  S* c;
  int64_t ldc;

  const S* a_at(int64_t i, int64_t p) const { return a + (trans_a ? p * lda + i : i * lda + p); }
  const S* b_at(int64_t p, int64_t j) const { return b + (trans_b ? j * ldb + p : p * ldb + j); }
};

/// Part `index` of [0, n) cut into `parts` nearly equal pieces, at multiples of `unit`.
struct Range {
  int64_t begin, size;
  Range(int64_t first, int64_t count) : begin(first), size(count) {}
  Range(int64_t n, int64_t unit, int64_t parts, int64_t index)
      : begin(cut(n, unit, parts, index)), size(cut(n, unit, parts, index + 1) - begin) {}

 private:
  static int64_t cut(int64_t n, int64_t unit, int64_t parts, int64_t index) {
    return std::min(n, divide_up(n, unit) * index / parts * unit);
  }
};

/// Columns [j, j + columns) of C over depth [p, p + depth).
struct Block {
  int64_t j, columns, p, depth;
};

/// Rows of op(A) at a block.
template <class S> gemm::Region<S> left_region(const Problem<S>& g, const Range& rows, const Block& at) {
  return {g.a_at(rows.begin, at.p), g.lda, g.trans_a ? at.depth : rows.size, g.trans_a ? rows.size : at.depth};
}

/// A panel of rows of A stays in L1 while the panels of B stream past it from L2: C is then read and
/// written along its rows. `next` is the block behind this one, of no columns behind the last. `left` and `right` are
/// scratch for packed panels, null to use A and B in place.
template <class S>
void multiply_block(const Problem<S>& g, const Block& at, const Block& next, S* left, const S* right) {
  const int64_t panels = divide_up(g.m, kRows), calls = divide_up(at.columns, kColumns<S>);
  const int64_t groups = g.trans_a && left != nullptr ? divide_up(panels, kLeftPanels) : panels;
  const auto panel_at = [&](int64_t i) { return Range(g.m, 1, panels, i); };
  const auto group_at = [&](int64_t i) {
    const Range in_group(panels, 1, groups, i);
    const Range first = panel_at(in_group.begin), last = panel_at(in_group.begin + in_group.size - 1);
    return std::pair(in_group, Range(first.begin, last.begin + last.size - first.begin));
  };
  const bool adjacent = g.trans_a || left != nullptr;
  const int64_t times = calls * divide_up(at.depth, gemm::Prefetch<S>::kSteps);
  // Panels of A in place share cache lines: all of the next block is asked for, and of B where that is in place, too.
  const bool in_place = g.trans_a && left == nullptr;
  gemm::Prefetch<S> prefetch;
  if (in_place && next.columns > 0) {
    const gemm::Region<S> b{g.b_at(next.p, next.j), g.ldb, right == nullptr ? next.depth : 0, next.columns};
    prefetch = {left_region(g, Range(0, g.m), next), b, panels * times};
  }
  for (int64_t group = 0; group < groups; ++group) {
    const std::pair<Range, Range> ranges = group_at(group);
    const Range &in_group = ranges.first, &group_rows = ranges.second;  // clang 14 captures no structured binding
    if (!in_place && group + 1 < groups) {
      prefetch = {left_region(g, group_at(group + 1).second, at), {}, in_group.size * times};
    } else if (!in_place && next.columns > 0) {
      prefetch = {left_region(g, group_at(0).second, next), {}, in_group.size * times};
    }
    if (g.trans_a && left != nullptr) {
      gemm::pack_panels<S>(
          at.depth, g.a_at(group_rows.begin, at.p), g.lda, in_group.size,
          [&](int64_t i) { return panel_at(in_group.begin + i).begin - group_rows.begin; }, group_rows.size, left);
    }
    for (int64_t i = 0; i < in_group.size; ++i) {
      const Range rows = panel_at(in_group.begin + i);
      const int row_count = static_cast<int>(rows.size);
      gemm::Left<S> a{g.a_at(rows.begin, at.p), g.trans_a ? 1 : g.lda, g.trans_a ? g.lda : 1, &prefetch};
      if (left != nullptr) {
        if (!g.trans_a) { gemm::pack_transposed<S>(at.depth, row_count, a.data, g.lda, left, kLeftStep<S>); }
        a = {left + i * at.depth * kLeftStep<S>, 1, kLeftStep<S>, &prefetch};
      }
      const auto wide = adjacent ? gemm::find_kernel<S, true>(row_count, 2) : gemm::find_kernel<S, false>(row_count, 2);
      const auto narrow =
          adjacent ? gemm::find_kernel<S, true>(row_count, 1) : gemm::find_kernel<S, false>(row_count, 1);
      for (int64_t j = 0; j < at.columns; j += kColumns<S>) {
        const int width = static_cast<int>(std::min<int64_t>(kColumns<S>, at.columns - j));
        const bool is_wide = width > Vec<S>::width;
        const gemm::Right<S> b = right != nullptr ? gemm::Right<S>{right + j * at.depth, kColumns<S>}
                                                  : gemm::Right<S>{g.b_at(at.p, at.j + j), g.ldb};
        const gemm::Out<S> c{g.c + rows.begin * g.ldc + at.j + j, g.ldc, g.alpha, g.accumulate || at.p > 0,
                             is_wide ? width - Vec<S>::width : width};
        (is_wide ? wide : narrow)(at.depth, a, b, c);
      }
    }
  }
}

/// The product of a few rows by a B that lies transposed, which is read once and in place.
template <class S> void multiply_few(const Problem<S>& g) {
  constexpr int64_t w = Vec<S>::width;
  const int64_t depth = block_depth(g.k);
  const auto kernel = gemm::find_transposed_kernel<S>(g.m);
  for (int64_t j = 0; j < g.n; j += w) {
    for (int64_t p = 0; p < g.k; p += depth) {
      const gemm::Left<S> a{g.a_at(0, p), g.trans_a ? 1 : g.lda, g.trans_a ? g.lda : 1};
      const int lanes = static_cast<int>(std::min(w, g.n - j));
      kernel(std::min(depth, g.k - p), a, g.b_at(p, j), g.ldb, {g.c + j, g.ldc, g.alpha, g.accumulate || p > 0, lanes});
    }
  }
}

/// A product of one block whose A stays where it is: no groups of panels, and nothing is asked for ahead. For products
/// of some thousand multiply-adds what multiply_block works out beforehand takes as long as they do.
template <class S> void multiply_small(const Problem<S>& g, const S* right) {
  gemm::Prefetch<S> none;
  const int m = static_cast<int>(g.m), panels = (m + kRows - 1) / kRows, fewest = m / panels, longer = m % panels;
  for (int i = 0, row = 0; i < panels; ++i) {
    const int rows = fewest + (i < longer ? 1 : 0);
    const gemm::Left<S> a{g.a_at(row, 0), g.trans_a ? 1 : g.lda, g.trans_a ? g.lda : 1, &none};
    for (int64_t j = 0; j < g.n; j += kColumns<S>) {
      const int width = static_cast<int>(std::min<int64_t>(kColumns<S>, g.n - j));
      const int vectors = width > Vec<S>::width ? 2 : 1;
      const gemm::Right<S> b =
          right != nullptr ? gemm::Right<S>{right + j * g.k, kColumns<S>} : gemm::Right<S>{g.b + j, g.ldb};
      const gemm::Out<S> c{g.c + row * g.ldc + j, g.ldc, g.alpha, g.accumulate, width - (vectors - 1) * Vec<S>::width};
      (g.trans_a ? gemm::find_kernel<S, true>(rows, vectors) : gemm::find_kernel<S, false>(rows, vectors))(g.k, a, b,
                                                                                                           c);
    }
    row += rows;
  }
}

template <class S> void multiply(const Problem<S>& g) {
  if (g.trans_b && g.m <= gemm::kFewRows) { return multiply_few(g); }
  const bool few_rows = g.m <= kRows;  // every panel of B is used once: memory decides
  const int64_t depth = block_depth(g.k);
  // A panel of A may not find room in L1 as it lies: its rows are far apart, or its steps are. Packing pays where it is
  // used more than a few times.
  const bool is_apart =
      g.trans_a ? depth * g.lda * static_cast<int64_t>(sizeof(S)) > kFirstCache : g.n > 4 * kColumns<S>;
  const bool few_uses = g.trans_a && g.n <= kFewColumns && g.lda <= kNearSteps;
  const bool pack_a = !few_rows && is_apart && !few_uses;
  // B is used in place where the kernel can read its rows in whole vectors, a few times only: fewer where
  // distant rows collide in the cache.
  const int64_t in_place_rows = g.ldb <= kBlockColumns<S> ? 6 * kRows : 3 * kRows;
  const bool pack_b = g.trans_b || g.m > in_place_rows || g.n % Vec<S>::width != 0;
  if (!pack_a && g.m <= kSmallRows && g.n <= kSmallColumns<S> && g.k <= kSmallDepth) {
    S* right = pack_b ? panels<S>().right.get() : nullptr;
    if (pack_b) { pack<S, kColumns<S>>(g.trans_b, g.k, g.n, g.b, g.ldb, right); }
    return multiply_small(g, right);
  }
  S* left = pack_a ? panels<S>().left.get() : nullptr;
  S* right = pack_b ? panels<S>().right.get() : nullptr;
  const int64_t depths = divide_up(g.k, depth);
  const int64_t blocks = depths * divide_up(g.n, few_rows && g.trans_b ? kColumns<S> : kBlockColumns<S>);
  const auto block_at = [&](int64_t i) {
    if (i == blocks) { return Block{}; }
    const Range columns(g.n, kColumns<S>, blocks / depths, i / depths);
    const int64_t p = i % depths * depth;
    return Block{columns.begin, columns.size, p, std::min(depth, g.k - p)};
  };
  for (int64_t i = 0; i < blocks; ++i) {
    const Block at = block_at(i);
    if (pack_b) { pack<S, kColumns<S>>(g.trans_b, at.depth, at.columns, g.b_at(at.p, at.j), g.ldb, right); }
    multiply_block(g, at, block_at(i + 1), left, right);
  }
}

struct Grid {
  int64_t rows, columns;
  int64_t tiles() const { return rows * columns; }
};

/// The cut of C into tiles with the least expected time, in multiply-adds per step of k. The time is the rounds
/// in which the threads take tiles, and a tenth of one, which threads that finish late lose, times the cost of
/// a tile. A tile packs its rows of A and its columns of B.
template <class S> Grid tile_grid(int64_t m, int64_t n, int64_t k) {
  constexpr double kPacking = 14;   // of one element, in multiply-adds
  constexpr double kHandOut = 2e5;  // of one tile
  const int64_t row_panels = divide_up(m, kRows), column_panels = divide_up(n, kColumns<S>);
  const int64_t most = threads() == 1 ? 1 : 4 * threads();
  const auto cost = [&](const Grid& g) {
    // At least kRows: fewer rows wait for the memory of B instead.
    const double tile_m = static_cast<double>(divide_up(row_panels, g.rows) * kRows);
    const double tile_n = static_cast<double>(divide_up(column_panels, g.columns) * kColumns<S>);
    const double rounds = static_cast<double>(divide_up(g.tiles(), threads()));
    return (rounds + 0.1) * (tile_m * tile_n + kPacking * (tile_m + tile_n) + kHandOut / static_cast<double>(k + 1));
  };
  Grid best{1, 1};
  for (int64_t rows = 1; rows <= std::min(row_panels, most); ++rows) {
    for (int64_t columns = 1; columns <= std::min(column_panels, most / rows); ++columns) {
      const Grid grid{rows, columns};
      if (cost(grid) < cost(best)) { best = grid; }
    }
  }
  return best;
}

/// Whether a [rows, columns] matrix of this leading stride lies inside the tensor.
bool holds(const Tensor& t, int64_t rows, int64_t columns, int64_t stride) {
  return rows == 0 || columns == 0 || (stride >= columns && (rows - 1) * stride + columns <= t.numel());
}

}  // namespace

template <class S>
void gemm_serial(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, S alpha, const S* a, int64_t lda,
                 const S* b, int64_t ldb, bool accumulate, S* c, int64_t ldc) {
  const Problem<S> g{trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, accumulate, c, ldc};
  if (m == 0 || n == 0) { return; }
  if (k > 0) {
    multiply(g);
  } else if (!accumulate) {
    for (int64_t i = 0; i < m; ++i) { std::fill_n(c + i * ldc, n, S(0)); }
  }
}

template <class S>
void gemm_parallel(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, S alpha, const S* a, int64_t lda,
                   const S* b, int64_t ldb, bool accumulate, S* c, int64_t ldc) {
  const Problem<S> whole{trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, accumulate, c, ldc};
  const Grid grid = tile_grid<S>(m, n, k);
  parallel_each(grid.tiles(), 1, [&](int64_t tile) {
    // Whole panels, so that cuts add no narrow ones.
    const Range i(m, kRows, grid.rows, tile % grid.rows);
    const Range j(n, kColumns<S>, grid.columns, tile / grid.rows);
    gemm_serial(trans_a, trans_b, i.size, j.size, k, alpha, whole.a_at(i.begin, 0), lda, whole.b_at(0, j.begin), ldb,
                accumulate, c + i.begin * ldc + j.begin, ldc);
  });
}

void run(Stream&, const Gemm& g) {
  HEBB_ASSERT(g.m >= 0 && g.n >= 0 && g.k >= 0);
  HEBB_ASSERT(g.a.dtype == g.c.dtype && g.b.dtype == g.c.dtype);
  HEBB_ASSERT(holds(g.c, g.m, g.n, g.ldc));
  HEBB_ASSERT(g.trans_a ? holds(g.a, g.k, g.m, g.lda) : holds(g.a, g.m, g.k, g.lda));
  HEBB_ASSERT(g.trans_b ? holds(g.b, g.n, g.k, g.ldb) : holds(g.b, g.k, g.n, g.ldb));
  dispatch_real(g.c.dtype, [&]<class S>(S) {
    gemm_parallel<S>(g.trans_a, g.trans_b, g.m, g.n, g.k, static_cast<S>(g.alpha), g.a.as<S>(), g.lda, g.b.as<S>(),
                     g.ldb, g.accumulate, g.c.as<S>(), g.ldc);
  });
}

template void gemm_serial<float>(bool, bool, int64_t, int64_t, int64_t, float, const float*, int64_t, const float*,
                                 int64_t, bool, float*, int64_t);
template void gemm_serial<double>(bool, bool, int64_t, int64_t, int64_t, double, const double*, int64_t, const double*,
                                  int64_t, bool, double*, int64_t);
template void gemm_parallel<float>(bool, bool, int64_t, int64_t, int64_t, float, const float*, int64_t, const float*,
                                   int64_t, bool, float*, int64_t);
template void gemm_parallel<double>(bool, bool, int64_t, int64_t, int64_t, double, const double*, int64_t,
                                    const double*, int64_t, bool, double*, int64_t);

}  // namespace hebb::cpu
