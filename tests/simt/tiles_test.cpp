// Products by tiles, in both forms, against plain sums.
#include "kernels/common/cuda/tiles.cuh"
#include "support.h"

using namespace hebb_test;
using namespace hebb::HEBB_DEVICE;

namespace {

template <bool kA, bool kB> struct Products {
  Operand<kA> a;
  Operand<kB> b, c;  // lie alike
  int64_t rows, columns, depth;
  float* out;  // [4][rows][columns]: a b, a c of one call; a c, a b twice of calls of their own

  template <class Stage> __device__ void operator()(Stage& stage, int64_t, int64_t row, int64_t column) const {
    typename Stage::Sums first = {}, second = {}, one = {}, twice = {};
    tile_products(stage, a, row, b, c.data, column, depth, first, second);
    tile_product(stage, a, row, c, column, depth, one);
    tile_product(stage, a, row, b, column, depth, twice);
    tile_product(stage, a, row, b, column, depth, twice);
    tile_each(stage, row, column, rows, columns, [&](int64_t r, int64_t c, int i, int j) {
      const int64_t at = r * columns + c, size = rows * columns;
      out[at] = first[i][j];
      out[size + at] = second[i][j];
      out[2 * size + at] = one[i][j];
      out[3 * size + at] = twice[i][j];
    });
  }
};

/// A side of `size` rows that begins `offset` numbers behind a multiple of 16 bytes and has `gap` numbers between its
/// lines; NaN where nothing may be read.
template <bool kIsTurned> struct Side {
  int64_t depth, stride, first, last, offset;
  std::vector<float> values;
  std::unique_ptr<DeviceArray<float>> device;

  Side(int64_t size, int64_t depth, int64_t gap, int64_t first, int64_t last, int64_t offset, uint32_t seed,
       bool is_rounded)
      : depth(depth),
        stride((kIsTurned ? size : depth) + gap),
        first(first),
        last(last),
        offset(offset),
        values(static_cast<size_t>(offset + (kIsTurned ? depth : size) * stride), std::nanf("")) {
    Numbers numbers(seed);
    for (int64_t i = first; i < last; ++i) {
      for (int64_t d = 0; d < depth; ++d) {
        const auto x = static_cast<float>(numbers.next());
        values[at(i, d)] = is_rounded ? __uint_as_float(round_to_tf32(x)) : x;
      }
    }
    device = std::make_unique<DeviceArray<float>>(values);
  }

  Operand<kIsTurned> operand() const { return {device->data() + offset, stride, first, last}; }
  double operator()(int64_t i, int64_t d) const { return i >= first && i < last ? double(values[at(i, d)]) : 0; }

 private:
  size_t at(int64_t i, int64_t d) const {
    return static_cast<size_t>(offset + (kIsTurned ? d * stride + i : i * stride + d));
  }
};

struct ProductSizes {
  int64_t rows, columns, depth, gap, offset;
};

template <bool kA, bool kB> void check_products(const ProductSizes& n, bool in_tf32, bool is_rounded) {
  CAPTURE(kA, kB, n.rows, n.columns, n.depth, n.gap, n.offset, in_tf32, is_rounded);
  // Bounds within packs, tiles and the sides of warps.
  const Side<kA> a(n.rows, n.depth, n.gap, 1, n.rows - 3, n.offset, 1, is_rounded);
  const Side<kB> b(n.columns, n.depth, n.gap, n.columns / 3, n.columns, n.offset, 2, is_rounded);
  const Side<kB> c(n.columns, n.depth, n.gap, n.columns / 3, n.columns, 4, 3, is_rounded);
  const int64_t size = n.rows * n.columns;
  DeviceArray<float> out(4 * size);
  TestStream stream;
  each_tile<float>("products", stream, in_tf32, 1, n.rows, n.columns,
                   Products<kA, kB>{a.operand(), b.operand(), c.operand(), n.rows, n.columns, n.depth, out.data()});
  simt::synchronize_all();
  const std::vector<double> found = out.values();
  // Relative to the sum of absolute products: 2^-11 an operand, and fp32 sums.
  const double limit = (in_tf32 && !is_rounded ? 1.01 * 0x1p-10 : 0) + static_cast<double>(n.depth + 2) * 0x1p-24;
  double worst = 0;
  for (int64_t r = 0; r < n.rows; ++r) {
    for (int64_t i = 0; i < n.columns; ++i) {
      double first = 0, second = 0, of_first = 0, of_second = 0;
      for (int64_t d = 0; d < n.depth; ++d) {
        first += a(r, d) * b(i, d);
        second += a(r, d) * c(i, d);
        of_first += std::fabs(a(r, d) * b(i, d));
        of_second += std::fabs(a(r, d) * c(i, d));
      }
      const double expected[4] = {first, second, second, 2 * first},
                   scale[4] = {of_first, of_second, of_second, 2 * of_first};
      for (int64_t k = 0; k < 4; ++k) {
        const double error = std::fabs(found[static_cast<size_t>(k * size + r * n.columns + i)] - expected[k]);
        REQUIRE(error <= 2 * limit * scale[k]);  // `twice` rounds twice as many sums
        worst = std::fmax(worst, scale[k] > 0 ? error / scale[k] : 0);
      }
    }
  }
  if (in_tf32 && !is_rounded) {
    CHECK(worst > 0x1p-13);  // or nothing was rounded
    CHECK(worst <= limit);
  }
}

TEST_CASE("products by tiles equal plain sums in both forms", "[fast]") {
  const bool in_tf32 = GENERATE(false, true), is_rounded = GENERATE(false, true);
  // Packs of 16 bytes where gaps and offsets leave them aligned (100 columns, 36 deep), single numbers elsewhere.
  const ProductSizes n = GENERATE(ProductSizes{70, 100, 36, 0, 0}, ProductSizes{67, 31, 65, 2, 0},
                                  ProductSizes{5, 68, 3, 1, 4}, ProductSizes{66, 72, 40, 4, 3});
  both_ways([&] {
    check_products<false, false>(n, in_tf32, is_rounded);
    check_products<false, true>(n, in_tf32, is_rounded);
    check_products<true, false>(n, in_tf32, is_rounded);
    check_products<true, true>(n, in_tf32, is_rounded);
  });
}

TEST_CASE("products by tiles of no depth are zeros", "[fast]") {
  const bool in_tf32 = GENERATE(false, true);
  const DeviceArray<float> nothing(4), out(4 * 6);
  TestStream stream;
  each_tile<float>(
      "products", stream, in_tf32, 1, 2, 3,
      Products<false, true>{
          {nothing.data(), 4, 0, 2}, {nothing.data(), 4, 0, 3}, {nothing.data(), 4, 0, 3}, 2, 3, 0, out.data()});
  simt::synchronize_all();
  for (const float x : out.host()) { CHECK(x == 0.0f); }
}

}  // namespace
