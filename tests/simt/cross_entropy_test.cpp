// What the loss does on a GPU alone: gradients in bf16 beside the logits, and sums that start at the largest logit.
#include <limits>

#include "support.h"

using namespace hebb_test;

namespace {

TEMPLATE_TEST_CASE("a gradient of logits in bf16 elsewhere is the rounded one in place", "[fast]", float, hebb::bf16) {
  const auto [rows, vocab] = GENERATE(std::pair{1, 1}, std::pair{7, 37}, std::pair{5, 1000}, std::pair{4, 5003});
  CAPTURE(rows, vocab);
  const hebb::Shape shape{rows, vocab};
  const auto logits = random_values<TestType>(shape.numel(), 1, 8);
  std::vector<int32_t> targets;
  for (int32_t r = 0; r < rows; ++r) { targets.push_back(r % 3 == 2 ? -100 : r * 7 % vocab); }
  both_ways([&, rows = rows] {
    TestStream stream;
    DeviceArray<TestType> in(logits), in_place(logits);
    DeviceArray<hebb::bf16> elsewhere(shape.numel());
    DeviceArray<double> loss(rows), again(rows);
    DeviceArray<int32_t> to(targets);
    const auto run = [&](const hebb::Tensor& losses, const hebb::Tensor& gradient, const hebb::Tensor& from) {
      device::run(stream,
                  hebb::CrossEntropy{
                      .loss = losses, .gradient = gradient, .logits = from, .targets = to.tensor(), .scale = 0.03});
    };
    run(loss.tensor(), in_place.tensor(shape), in_place.tensor(shape));
    run(again.tensor(), elsewhere.tensor(shape), in.tensor(shape));
    std::vector<double> expected;
    for (const double x : in_place.values()) {
      expected.push_back(double(value_of(rounded<hebb::bf16>(static_cast<float>(x)))));
    }
    CHECK(relative_error(elsewhere.values(), expected) < kTolerance<hebb::bf16>);
    CHECK(relative_error(again.host(), loss.host()) < 1e-6);
    CHECK(in.values() == as_double(logits));
  });
}

TEST_CASE("logits of any size give a finite loss, and a NaN reaches it", "[fast]") {
  both_ways([] {
    TestStream stream;
    std::vector<float> logits(3 * 300, -3e38f);
    logits[7] = 3e38f;                                            // row 0: one huge logit, which is the target
    logits[300 + 299] = -std::numeric_limits<float>::infinity();  // row 1: all equal but one
    logits[600 + 150] = std::numeric_limits<float>::quiet_NaN();
    DeviceArray<float> in(logits);
    DeviceArray<double> loss(3);
    DeviceArray<int32_t> targets(std::vector<int32_t>{7, 0, 1});
    device::run(stream, hebb::CrossEntropy{.loss = loss.tensor(),
                                           .gradient = in.tensor({3, 300}),
                                           .logits = in.tensor({3, 300}),
                                           .targets = targets.tensor(),
                                           .scale = 1});
    const std::vector<double> got = loss.host();
    CHECK(got[0] == 0);
    CHECK(got[1] == Catch::Approx(std::log(299.0)));
    CHECK(std::isnan(got[2]));
  });
}

}  // namespace
