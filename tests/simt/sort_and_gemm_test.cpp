// Sorting and matrix products.
#include <algorithm>
#include <numeric>

#include "kernels/common/cuda/sort.cuh"
#include "support.h"

using namespace hebb_test;

namespace {

std::vector<int32_t> random_ids(int64_t count, uint32_t limit, uint32_t seed) {
  Numbers numbers(seed);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) { ids.push_back(static_cast<int32_t>(numbers.below(limit))); }
  return ids;
}

TEST_CASE("sorted keys are ascending and equal keys keep their order", "[fast]") {
  const int64_t count = GENERATE(1, 31, 2048, 2049, 9001);
  const uint32_t limit = GENERATE(1u, 3u, 256u, 257u, 128256u, 0x7FFFFFFFu);
  const std::vector<int32_t> ids = random_ids(count, limit, 3);
  std::vector<int32_t> order(ids.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return ids[static_cast<size_t>(a)] < ids[static_cast<size_t>(b)]; });
  both_ways([&] {
    TestStream stream;
    DeviceArray<int32_t> in(ids);
    DeviceArray<unsigned char> scratch(device::sort_scratch_bytes(count));
    const device::SortedKeys sorted = device::sort_keys(stream, in.data(), count, limit, scratch.data());
    device::synchronize(stream);
    CHECK(std::equal(order.begin(), order.end(), sorted.positions));
    CHECK(std::equal(order.begin(), order.end(), sorted.keys,
                     [&](int32_t from, int32_t key) { return ids[static_cast<size_t>(from)] == key; }));
  });
}

TEST_CASE("a sort of more tiles than a block has threads keeps the order of equal keys") {
  const int64_t count = 2048 * 257 + 3;
  const std::vector<int32_t> ids = random_ids(count, 3, 5);
  TestStream stream;
  DeviceArray<int32_t> in(ids);
  DeviceArray<unsigned char> scratch(device::sort_scratch_bytes(count));
  const device::SortedKeys sorted = device::sort_keys(stream, in.data(), count, 3, scratch.data());
  device::synchronize(stream);
  CHECK(std::is_sorted(sorted.keys, sorted.keys + count));
  bool keeps_order = true;
  for (int64_t i = 0; i < count; ++i) {
    keeps_order = keeps_order && ids[static_cast<size_t>(sorted.positions[i])] == sorted.keys[i] &&
                  (i == 0 || sorted.keys[i - 1] < sorted.keys[i] || sorted.positions[i - 1] < sorted.positions[i]);
  }
  CHECK(keeps_order);
}

struct MarkLast {
  int64_t* places;
  int64_t last;

  __device__ void operator()(int64_t row, int64_t column) const {
    if (column == last) { places[row] = 1 + row; }
  }
};

TEST_CASE("rows may be wider than a grid's second dimension") {
  TestStream stream;
  DeviceArray<int64_t> places(2);
  const int64_t columns = int64_t{65535} * device::kEachThreads + 1;
  device::each_element("mark_last", stream, 2, columns, MarkLast{places.data(), columns - 1});
  device::synchronize(stream);
  CHECK(places.data()[0] == 1);
  CHECK(places.data()[1] == 2);
}

template <class In, class Out> void check_gemm(bool trans_a, bool trans_b, bool accumulate) {
  const int64_t m = 5, n = 7, k = 11, lda = (trans_a ? m : k) + 3, ldb = (trans_b ? k : n) + 2, ldc = n + 1;
  const auto a = random_values<In>((trans_a ? k : m) * lda, 1), b = random_values<In>((trans_b ? n : k) * ldb, 2);
  const auto c = random_values<Out>(m * ldc, 3);
  std::vector<double> expected = as_double(c);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t l = 0; l < k; ++l) {
        sum += double(value_of(a[static_cast<size_t>(trans_a ? l * lda + i : i * lda + l)])) *
               double(value_of(b[static_cast<size_t>(trans_b ? j * ldb + l : l * ldb + j)]));
      }
      double& to = expected[static_cast<size_t>(i * ldc + j)];
      to = 0.5 * sum + (accumulate ? to : 0);
    }
  }
  TestStream stream;
  DeviceArray<In> a_in(a), b_in(b);
  DeviceArray<Out> c_out(c);
  device::run(stream, hebb::Gemm{.c = c_out.tensor(),
                                 .a = a_in.tensor(),
                                 .b = b_in.tensor(),
                                 .m = m,
                                 .n = n,
                                 .k = k,
                                 .trans_a = trans_a,
                                 .trans_b = trans_b,
                                 .accumulate = accumulate,
                                 .ldc = ldc,
                                 .lda = lda,
                                 .ldb = ldb,
                                 .alpha = 0.5});
  CHECK(relative_error(c_out.values(), expected) < kTolerance<Out>);
}

TEST_CASE("products of fp32 round their operands to TF32 where that is allowed", "[fast]") {
  constexpr int64_t n = 6, k = 50;
  const auto a = random_values<float>(n * k, 1), b = random_values<float>(n * k, 2);
  TestStream stream;
  DeviceArray<float> a_in(a), b_in(b), c_out(std::vector<float>(n * n));
  const auto product = [&](bool allow) {
    static_cast<hebb::Stream&>(stream).allows_tf32 = allow;
    device::run(
        stream,
        hebb::Gemm{
            .c = c_out.tensor(), .a = a_in.tensor(), .b = b_in.tensor(), .m = n, .n = n, .k = k, .trans_b = true});
    return c_out.values();
  };
  const std::vector<double> exact = product(false), rounded = product(true);
  const double error = relative_error(rounded, exact);
  CHECK(error < 1e-3);  // 2 operands of 10 bits: 2^-10 a term
  CHECK(error > 1e-5);
  CHECK(product(false) == exact);
}

TEST_CASE("the stand-in for cuBLASLt multiplies with strides and transpositions", "[fast]") {
  const bool trans_a = GENERATE(false, true), trans_b = GENERATE(false, true), accumulate = GENERATE(false, true);
  both_ways([&] {
    check_gemm<float, float>(trans_a, trans_b, accumulate);
    check_gemm<hebb::bf16, float>(trans_a, trans_b, accumulate);
    check_gemm<hebb::bf16, hebb::bf16>(trans_a, trans_b, accumulate);
  });
}

}  // namespace
