// The ordered sum adds in the CPU's order, bit for bit; sums of squares have an order of their own.
#include "kernels/ordered_sum/ordered_sum.h"

#include "support.h"

using namespace hebb_test;
using namespace hebb;

TEST_CASE("the ordered sum has the CPU's bits", "[fast]") {
  const auto check = [](int64_t parts, int64_t count) {
    CAPTURE(parts, count);
    std::vector<float> rows = random_values<float>(parts * count, 3);
    for (size_t i = 0; i < rows.size(); ++i) { rows[i] = std::ldexp(rows[i], static_cast<int>(i * 7 % 29)); }
    rows[0] = -0.0f;
    std::vector<float> expected(static_cast<size_t>(count));
    Stream host;
    cpu::run(host, OrderedSum{{expected.data(), DType::f32, {count}}, {rows.data(), DType::f32, {parts, count}}});
    const DeviceArray<float> from(rows), to(count);
    TestStream stream;
    device::run(stream, OrderedSum{to.tensor(), from.tensor({parts, count})});
    simt::synchronize_all();
    const std::vector<float> found = to.host();
    CHECK(std::memcmp(found.data(), expected.data(), expected.size() * sizeof(float)) == 0);
  };
  for (const int64_t parts : {1, 2, 3, 4, 6, 7, 8, 12, 16, 24, 64}) {
    for (const int64_t count : {1, 61, 1028}) { check(parts, count); }
  }
  check(4, 16383);
  check(128, 64);
}

TEST_CASE("sums of squares of segments do not depend on where these begin", "[fast]") {
  std::vector<float> x = random_values<float>(40000, 5);
  std::copy(x.begin(), x.begin() + 16384, x.begin() + 17001);
  const std::vector<int64_t> begin{0, 17001, 5}, end{16384, 33385, 5};
  const DeviceArray<float> values(x);
  const DeviceArray<int64_t> begins(begin), ends(end);
  const DeviceArray<double> found(3);
  TestStream stream;
  device::run(
      stream,
      SegmentSquares{.partial = found.tensor(), .x = values.tensor(), .begin = begins.tensor(), .end = ends.tensor()});
  simt::synchronize_all();
  double expected = 0;
  for (int i = 0; i < 16384; ++i) { expected += static_cast<double>(x[i]) * static_cast<double>(x[i]); }
  const std::vector<double> sums = found.host();
  CHECK(sums[0] == Approx(expected).epsilon(1e-13));
  CHECK(sums[1] == sums[0]);
  CHECK(sums[2] == 0);
}
