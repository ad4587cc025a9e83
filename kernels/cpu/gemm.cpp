#include "kernels/gemm.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>

#include "core/parallel.h"
#include "kernels/cpu/gemm_cpu.h"
#include "kernels/cpu/gemm_kernel.h"

namespace hebb::cpu {
namespace {

using gemm::kColumns;
using gemm::kLeftStep;
using gemm::kRows;

// Cache blocks. A panel of B (kMaxDepth x kColumns) and one of A stay in L1 (48 KB), all packed
// panels of A and B of a block in L2 (2 MB).
constexpr int64_t kMaxDepth = 320;
template <class S> constexpr int64_t kBlockColumns = (sizeof(S) == 4 ? 1024 : 512);
constexpr int64_t kBlockRows = 20 * kRows;

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Length of the blocks of k: a function of k alone, since it decides the rounding.
int64_t block_depth(int64_t k) { return divide_up(k, divide_up(k, kMaxDepth)); }

struct Free {
  void operator()(void* p) const { std::free(p); }
};
template <class S> using Scratch = std::unique_ptr<S[], Free>;

template <class S>
Scratch<S> allocate(int64_t count) {
  void* p = std::aligned_alloc(4096, static_cast<size_t>(divide_up(count * static_cast<int64_t>(sizeof(S)), 4096) * 4096));
  if (p == nullptr) { throw std::bad_alloc(); }
  return Scratch<S>(static_cast<S*>(p));
}

/// Packed panels of the calling thread.
template <class S>
struct Panels {
  Scratch<S> left = allocate<S>(kBlockRows / kRows * kLeftStep<S> * kMaxDepth);
  Scratch<S> right = allocate<S>(kBlockColumns<S> * kMaxDepth);
};
template <class S>
Panels<S>& panels() {
  thread_local Panels<S> p;
  return p;
}

template <class S>
struct Problem {
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
  Range(int64_t n, int64_t unit, int64_t parts, int64_t index)
      : begin(cut(n, unit, parts, index)), size(cut(n, unit, parts, index + 1) - begin) {}

 private:
  static int64_t cut(int64_t n, int64_t unit, int64_t parts, int64_t index) {
    return std::min(n, divide_up(n, unit) * index / parts * unit);
  }
};

template <class S>
void zero(const Problem<S>& g) {
  for (int64_t i = 0; i < g.m; ++i) { std::fill_n(g.c + i * g.ldc, g.n, S(0)); }
}

/// A call on blocks: rows [i, i + rows) by columns [j, j + columns) by depth [p, p + depth).
template <class S>
struct Block {
  int64_t i, rows, j, columns, p, depth;
};

template <class S>
void pack_right(const Problem<S>& g, const Block<S>& at, S* packed) {
  for (int64_t j = 0; j < at.columns; j += kColumns<S>) {
    const int width = static_cast<int>(std::min<int64_t>(kColumns<S>, at.columns - j));
    const S* source = g.b_at(at.p, at.j + j);
    (g.trans_b ? gemm::pack_transposed<S> : gemm::pack_rows<S>)(at.depth, width, source, g.ldb, packed + j * at.depth,
                                                                kColumns<S>);
  }
}

template <class S>
void multiply_block(const Problem<S>& g, const Block<S>& at, bool packed_a, const S* left, const S* right) {
  const int64_t row_panels = divide_up(at.rows, kRows);
  for (int64_t j = 0; j < at.columns; j += kColumns<S>) {
    const int width = static_cast<int>(std::min<int64_t>(kColumns<S>, at.columns - j));
    const int vectors = static_cast<int>(divide_up(width, Vec<S>::width));
    const gemm::Right<S> b = right != nullptr ? gemm::Right<S>{right + j * at.depth, kColumns<S>}
                                              : gemm::Right<S>{g.b_at(at.p, at.j + j), g.ldb};
    for (int64_t panel = 0; panel < row_panels; ++panel) {
      const Range rows(at.rows, 1, row_panels, panel);
      const gemm::Left<S> a = packed_a
                                  ? gemm::Left<S>{left + panel * kLeftStep<S> * at.depth, 1, kLeftStep<S>}
                                  : gemm::Left<S>{g.a_at(at.i + rows.begin, at.p), g.trans_a ? 1 : g.lda, g.trans_a ? g.lda : 1};
      const gemm::Out<S> c{g.c + (at.i + rows.begin) * g.ldc + at.j + j, g.ldc, g.alpha, g.accumulate || at.p > 0,
                           width - (vectors - 1) * Vec<S>::width};
      const int r = static_cast<int>(rows.size);
      (packed_a ? gemm::find_kernel<S, true>(r, vectors) : gemm::find_kernel<S, false>(r, vectors))(at.depth, a, b, c);
    }
  }
}

template <class S>
void pack_left(const Problem<S>& g, const Block<S>& at, S* packed) {
  const int64_t row_panels = divide_up(at.rows, kRows);
  for (int64_t panel = 0; panel < row_panels; ++panel) {
    const Range rows(at.rows, 1, row_panels, panel);
    const int r = static_cast<int>(rows.size);
    const S* source = g.a_at(at.i + rows.begin, at.p);
    (g.trans_a ? gemm::pack_rows<S> : gemm::pack_transposed<S>)(at.depth, r, source, g.lda,
                                                                packed + panel * kLeftStep<S> * at.depth, kLeftStep<S>);
  }
}

template <class S>
void multiply(const Problem<S>& g) {
  constexpr int w = Vec<S>::width;
  const int64_t depth = block_depth(g.k);
  const bool packed_a = g.n > 4 * kColumns<S>;
  const bool packed_b = g.trans_b || g.m > 6 * kRows || g.n % w != 0;
  for (int64_t j = 0; j < g.n; j += kBlockColumns<S>) {
    for (int64_t p = 0; p < g.k; p += depth) {
      Block<S> at{0, 0, j, std::min(kBlockColumns<S>, g.n - j), p, std::min(depth, g.k - p)};
      S* right = packed_b ? panels<S>().right.get() : nullptr;
      S* left = packed_a ? panels<S>().left.get() : nullptr;
      if (packed_b) { pack_right(g, at, right); }
      for (int64_t i = 0; i < g.m; i += kBlockRows) {
        at.i = i;
        at.rows = std::min(kBlockRows, g.m - i);
        if (packed_a) { pack_left(g, at, left); }
        multiply_block(g, at, packed_a, left, right);
      }
    }
  }
}

struct Grid {
  int64_t rows, columns;
};

/// Cuts C into about four tiles a thread, fewer where a tile would be too short to be worth handing
/// out, such that tiles pack the fewest elements: each tile packs its rows of A and its columns of B.
template <class S>
Grid tile_grid(int64_t m, int64_t n, int64_t k) {
  constexpr int64_t kMinTile = 1 << 19;  // multiply-adds, about 5 us in float
  const int64_t row_panels = std::max<int64_t>(1, divide_up(m, kRows));
  const int64_t column_panels = std::max<int64_t>(1, divide_up(n, kColumns<S>));
  const int64_t wanted = threads() == 1 ? 1 : std::clamp<int64_t>(m * n * k / kMinTile, 1, 4 * threads());
  Grid best{1, std::min(column_panels, wanted)};
  for (int64_t rows = 2; rows <= std::min(row_panels, wanted); ++rows) {
    const Grid grid{rows, std::min(column_panels, divide_up(wanted, rows))};
    const bool enough = grid.rows * grid.columns >= best.rows * best.columns || grid.rows * grid.columns >= wanted;
    if (enough && grid.columns * m + grid.rows * n < best.columns * m + best.rows * n) { best = grid; }
    if (best.rows * best.columns < wanted && grid.rows * grid.columns > best.rows * best.columns) { best = grid; }
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
  if (k > 0) {
    multiply(g);
  } else if (!accumulate) {
    zero(g);
  }
}

template <class S>
void gemm_parallel(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, S alpha, const S* a, int64_t lda,
                   const S* b, int64_t ldb, bool accumulate, S* c, int64_t ldc) {
  const Problem<S> whole{trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, accumulate, c, ldc};
  const Grid grid = tile_grid<S>(m, n, k);
  parallel_for(grid.rows * grid.columns, 1, [&](int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile) {
      // Whole panels, so that cuts add no narrow ones.
      const Range i(m, kRows, grid.rows, tile % grid.rows);
      const Range j(n, kColumns<S>, grid.columns, tile / grid.rows);
      gemm_serial(trans_a, trans_b, i.size, j.size, k, alpha, whole.a_at(i.begin, 0), lda, whole.b_at(0, j.begin), ldb,
                  accumulate, c + i.begin * ldc + j.begin, ldc);
    }
  });
}

void run(Stream&, const Gemm& g) {
  HEBB_ASSERT(g.m >= 0 && g.n >= 0 && g.k >= 0);
  HEBB_ASSERT(g.a.dtype == g.c.dtype && g.b.dtype == g.c.dtype);
  HEBB_ASSERT(holds(g.c, g.m, g.n, g.ldc));
  HEBB_ASSERT(g.trans_a ? holds(g.a, g.k, g.m, g.lda) : holds(g.a, g.m, g.k, g.lda));
  HEBB_ASSERT(g.trans_b ? holds(g.b, g.n, g.k, g.ldb) : holds(g.b, g.k, g.n, g.ldb));
  dispatch_real(g.c.dtype, [&](auto real) {
    using S = decltype(real);
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
