#pragma once
#include <array>
#include <cstdint>
#include <utility>

#include "kernels/common/cpu/vec.h"

/// Inner parts of the matrix product: packing of panels and the register kernel.
///
/// The register kernel holds kRows x 2 vectors of C. Per step of k it does 2 kRows multiply-adds from
/// 2 vector loads of B and kRows broadcasts of A: bound by the multiply-add units, (kRows + 2) loads
/// against 2 kRows of them.
namespace hebb::cpu::gemm {

#if defined(HEBB_AVX512)
inline constexpr int kRows = 14;  // 28 sums + 2 of B + 1 broadcast of 32 registers
#else
inline constexpr int kRows = 6;  // 12 sums + 2 of B + 1 broadcast of 16 registers
#endif
template <class S> inline constexpr int kColumns = 2 * Vec<S>::width;
/// Elements from one step of k to the next in a packed panel of A: kRows rounded up to whole vectors.
template <class S> inline constexpr int kLeftStep = (kRows + Vec<S>::width - 1) / Vec<S>::width* Vec<S>::width;

/// `rows` rows of memory of `width` elements.
template <class S> struct Region {
  const S* data = nullptr;
  int64_t stride = 0, rows = 0, width = 0;

  static constexpr int64_t kLine = 64 / sizeof(S);
  int64_t lines() const { return rows * ((width - 1 + kLine - 1) / kLine + 1); }
};

/// Asks for memory that is needed next, a few lines every kSteps steps of k: the multiply-adds hide the wait
/// for it, while a burst of requests fills the processor's queue of misses.
template <class S> class Prefetch {
 public:
  static constexpr int64_t kSteps = 8;

  Prefetch() = default;
  /// One region and then the other, in `times` calls of fetch.
  Prefetch(const Region<S>& first, const Region<S>& second, int64_t times)
      : region_(first), next_(second), share_((first.lines() + second.lines() + times - 1) / times) {}

  void fetch() {
    for (int64_t i = 0; i < share_; ++i) {
      if (region_.rows == 0) {
        region_ = next_;
        next_.rows = 0;
        if (region_.rows == 0) {
          share_ = 0;
          return;
        }
      }
      // The last element, too: rows begin anywhere in a line.
      const int64_t last = region_.width - 1;
      __builtin_prefetch(region_.data + (at_ < last ? at_ : last), 0, 2);
      at_ += Region<S>::kLine;
      if (at_ >= last + Region<S>::kLine) {
        at_ = 0;
        region_.data += region_.stride;
        --region_.rows;
      }
    }
  }

 private:
  Region<S> region_, next_;
  int64_t at_ = 0, share_ = 0;
};

/// Where the kernel finds op(A): element (i, k) at data[i * row + k * step].
template <class S> struct Left {
  const S* data;
  int64_t row, step;
  Prefetch<S>* prefetch = nullptr;  // where row is 1: what to ask for meanwhile
};
/// op(B): row k starts at data + k * step; whole vectors are readable.
template <class S> struct Right {
  const S* data;
  int64_t step;
};
/// C = alpha sum (+ C when add); the last vector holds `lanes` elements.
template <class S> struct Out {
  S* data;
  int64_t row;
  S alpha;
  bool add;
  int lanes;
};

/// Compilers load what a few operations use anew for each of them, which takes more loads than the processor has in the
/// time of the operations.
template <class S> inline void keep_in_register(Vec<S>& x) {
#if defined(__x86_64__)
  asm("" : "+v"(x.v));
#endif
}

/// adjacent: the rows of op(A) lie beside each other, left.row is 1.
template <class S, int rows, int vectors, bool adjacent>
void kernel(int64_t k, const Left<S>& left, const Right<S>& right, const Out<S>& out) {
  using V = Vec<S>;
  constexpr int w = V::width;
  V sums[rows][vectors];
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 2
    for (int j = 0; j < vectors; ++j) {
      sums[i][j] = V(S(0));
      __builtin_prefetch(out.data + i * out.row + j * w, 1);
    }
  }
  const S *a = left.data, *b = right.data;
  const int64_t a_row = adjacent ? 1 : left.row, a_step = left.step;
  // Row addresses in groups of three: base, base + row, base + 2 row are all x86 can encode.
  const S* bases[(rows + 2) / 3];
#pragma GCC unroll 16
  for (int i = 0; i < rows; i += 3) { bases[i / 3] = a + i * a_row; }
  for (int64_t p = 0; p < k; ++p) {
    if constexpr (adjacent) {
      if (p % Prefetch<S>::kSteps == 0) { left.prefetch->fetch(); }
    }
    V bv[vectors];
#pragma GCC unroll 2
    for (int j = 0; j < vectors; ++j) {
      bv[j] = load(b + j * w);
      if constexpr (rows > 1) { keep_in_register(bv[j]); }
    }
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i) {
      const V av(adjacent ? a[i] : bases[i / 3][i % 3 * a_row]);
#pragma GCC unroll 2
      for (int j = 0; j < vectors; ++j) { sums[i][j] = fma(av, bv[j], sums[i][j]); }
    }
    if constexpr (adjacent) {
      a += a_step;
    } else {
#pragma GCC unroll 16
      for (int i = 0; i < rows; i += 3) { bases[i / 3] += a_step; }
    }
    b += right.step;
  }
  const V alpha(out.alpha);
  // Inlined by force: clang would otherwise keep the sums in memory for the call.
  const auto write = [&](auto last_lanes) __attribute__((always_inline)) {
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i) {
      S* c = out.data + i * out.row;
      if constexpr (vectors == 2) { store(c, out.add ? fma(alpha, sums[i][0], load(c)) : alpha * sums[i][0]); }
      c += (vectors - 1) * w;
      const V last = sums[i][vectors - 1];
      store(c, out.add ? fma(alpha, last, load(c, last_lanes)) : alpha * last, last_lanes);
    }
  };
  if (out.lanes == w) {
    write(AllLanes{});
  } else {
    write(out.lanes);
  }
}

template <class S> using Kernel = void (*)(int64_t k, const Left<S>&, const Right<S>&, const Out<S>&);

template <class S, int vectors, bool adjacent, int... i>
constexpr std::array<Kernel<S>, kRows> kernels_of(std::integer_sequence<int, i...>) {
  return {kernel<S, i + 1, vectors, adjacent>...};
}

/// The kernel for `rows` (1 to kRows) by `vectors` (1 or 2).
template <class S, bool adjacent> Kernel<S> find_kernel(int rows, int vectors) {
  constexpr auto all = std::make_integer_sequence<int, kRows>();
  static constexpr std::array<Kernel<S>, kRows> narrow = kernels_of<S, 1, adjacent>(all);
  static constexpr std::array<Kernel<S>, kRows> wide = kernels_of<S, 2, adjacent>(all);
  return (vectors == 1 ? narrow : wide)[static_cast<size_t>(rows - 1)];
}

/// One stage of a transposition: exchanges the `half`-wide blocks off the diagonal of a and b.
template <class S, int half, int... i> inline void exchange(Vec<S>& a, Vec<S>& b, std::integer_sequence<int, i...>) {
  constexpr int w = Vec<S>::width;
  const auto x = a.v, y = b.v;
#if defined(__clang__)
  a.v = __builtin_shufflevector(x, y, (i & half ? w + i - half : i)...);
  b.v = __builtin_shufflevector(x, y, (i & half ? w + i : i + half)...);
#else
  using Bits = typename Vec<S>::Bits;
  a.v = __builtin_shuffle(x, y, Bits{(i & half ? w + i - half : i)...});
  b.v = __builtin_shuffle(x, y, Bits{(i & half ? w + i : i + half)...});
#endif
}

template <class S, int half = Vec<S>::width / 2> inline void transpose(Vec<S>* rows) {
  constexpr int w = Vec<S>::width;
#pragma GCC unroll 16
  for (int i = 0; i < w; ++i) {
    if (!(i & half)) { exchange<S, half>(rows[i], rows[i + half], std::make_integer_sequence<int, w>()); }
  }
  if constexpr (half > 1) { transpose<S, half / 2>(rows); }
}

/// Packs a [k, columns] matrix, element (p, j) at source[p * stride + j], to packed[p * row + j]; columns up
/// to the next whole vector become zero, so `row` must have room for them.
template <class S> void pack_rows(int64_t k, int columns, const S* source, int64_t stride, S* packed, int row) {
  for (int64_t p = 0; p < k; ++p) {
    vector_loop<S>(columns,
                   [&](int64_t j, auto lanes) { store(packed + p * row + j, load(source + p * stride + j, lanes)); });
  }
}

/// The same of a matrix stored transposed: element (p, j) at source[j * stride + p].
template <class S> void pack_transposed(int64_t k, int columns, const S* source, int64_t stride, S* packed, int row) {
  constexpr int w = Vec<S>::width;
  for (int j = 0; j < columns; j += w) {
    const int count = columns - j < w ? columns - j : w;
    vector_loop<S>(k, [&](int64_t p, auto lanes) {
      Vec<S> block[w];
#pragma GCC unroll 16
      for (int i = 0; i < w; ++i) { block[i] = i < count ? load(source + (j + i) * stride + p, lanes) : Vec<S>(S(0)); }
      transpose(block);
      S* to = packed + p * row + j;
      if constexpr (std::is_same_v<decltype(lanes), AllLanes>) {
#pragma GCC unroll 16
        for (int i = 0; i < w; ++i) { store(to + i * row, block[i]); }
      } else {
#pragma GCC unroll 16
        for (int i = 0; i < w; ++i) {
          if (i < lanes) { store(to + i * row, block[i]); }
        }
      }
    });
  }
}

/// Packs panels of a [k, columns] matrix, element (p, j) at source[p * stride + j]: panel i begins at column begin(i),
/// and its columns lie at packed + (i * k + p) * kLeftStep, followed by others up to kLeftStep.
template <class S, class Begin>
void pack_panels(int64_t k, const S* source, int64_t stride, int64_t panels, Begin begin, int64_t columns, S* packed) {
  constexpr int64_t kAhead = 8;  // rows are far apart, so that the processor does not see the next one
  int64_t whole = panels;        // of these, kLeftStep columns can be read
  while (whole > 0 && columns < begin(whole - 1) + kLeftStep<S>) { --whole; }
  for (int64_t p = 0; p < k; ++p) {
    const S* row = source + p * stride;
    for (int64_t i = 0; i < panels; ++i) {
      const int64_t at = begin(i);
      S* to = packed + (i * k + p) * kLeftStep<S>;
      if (i < whole) {
        for (int64_t j = 0; j < kLeftStep<S>; j += Vec<S>::width) { store(to + j, load(row + at + j)); }
      } else {
        vector_loop<S>(columns - at, [&](int64_t j, auto lanes) { store(to + j, load(row + at + j, lanes)); });
      }
    }
    if (p + kAhead < k) {
      for (int64_t j = 0; j < columns; j += 64 / static_cast<int64_t>(sizeof(S))) {
        __builtin_prefetch(row + kAhead * stride + j);
      }
    }
  }
}

/// The kernel for `rows` rows by a vector of columns of a B that lies transposed, column j at b + j * stride: without a
/// packed panel between, which is read once where rows are few. The sums are those of the kernel above.
template <class S, int rows>
void kernel_transposed(int64_t k, const Left<S>& left, const S* b, int64_t stride, const Out<S>& out) {
  using V = Vec<S>;
  constexpr int w = V::width;
  V sums[rows];
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i) { sums[i] = V(S(0)); }
  vector_loop<S>(k, [&](int64_t p, auto lanes) {
    V block[w];
#pragma GCC unroll 16
    for (int i = 0; i < w; ++i) {
      block[i] = i < out.lanes ? load(b + i * stride + p, lanes) : V(S(0));
      // Of the next columns: the rows are too many and too short for the processor to see them come.
      __builtin_prefetch(b + (i + w) * stride + p, 0, 2);
    }
    transpose(block);
#pragma GCC unroll 16
    for (int q = 0; q < w; ++q) {
      if constexpr (!std::is_same_v<decltype(lanes), AllLanes>) {
        if (q >= lanes) { break; }
      }
#pragma GCC unroll 16
      for (int i = 0; i < rows; ++i) {
        sums[i] = fma(V(left.data[i * left.row + (p + q) * left.step]), block[q], sums[i]);
      }
    }
  });
  const V alpha(out.alpha);
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i) {
    S* c = out.data + i * out.row;
    store(c, out.add ? fma(alpha, sums[i], load(c, out.lanes)) : alpha * sums[i], out.lanes);
  }
}

template <class S>
using TransposedKernel = void (*)(int64_t k, const Left<S>&, const S* b, int64_t stride, const Out<S>&);

#if defined(HEBB_AVX512)
inline constexpr int kFewRows = 8;  // sums beside a block of 16 vectors in 32 registers
#else
inline constexpr int kFewRows = 4;  // and of 8 vectors in 16
#endif
template <class S, int... i>
constexpr std::array<TransposedKernel<S>, kFewRows> transposed_kernels_of(std::integer_sequence<int, i...>) {
  return {kernel_transposed<S, i + 1>...};
}
/// The kernel for `rows` (1 to kFewRows).
template <class S> TransposedKernel<S> find_transposed_kernel(int64_t rows) {
  static constexpr std::array<TransposedKernel<S>, kFewRows> all =
      transposed_kernels_of<S>(std::make_integer_sequence<int, kFewRows>());
  return all[static_cast<size_t>(rows - 1)];
}

/// Packs a [k, columns] matrix, stored as it is or transposed, into panels of `panel` columns, each
/// [k, panel], one behind the other.
template <class S, int panel>
void pack(bool transposed, int64_t k, int64_t columns, const S* source, int64_t stride, S* packed) {
  static_assert(panel % Vec<S>::width == 0);
  if (transposed) {
    for (int64_t j = 0; j < columns; j += panel) {
      const int count = columns - j < panel ? static_cast<int>(columns - j) : panel;
      pack_transposed<S>(k, count, source + j * stride, stride, packed + j * k, panel);
    }
    return;
  }
  // Along the rows of the source over all panels: reading is what memory and prefetching notice.
  for (int64_t p = 0; p < k; ++p) {
    vector_loop<S>(columns, [&](int64_t j, auto lanes) {
      store(packed + (j / panel * k + p) * panel + j % panel, load(source + p * stride + j, lanes));
    });
  }
}

}  // namespace hebb::cpu::gemm
