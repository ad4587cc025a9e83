#include <limits>

#include "support.h"

using namespace hebb_test;

namespace {

enum class Gradient { none, in_place, bf16 };

template <class T> void check(int64_t rows, int64_t vocab, Gradient gradient) {
  auto logits = random_values<T>(rows * vocab, 1, 8);
  std::vector<int32_t> targets;
  Numbers numbers(5);
  for (int64_t r = 0; r < rows; ++r) {
    targets.push_back(r % 3 == 2 ? -100 : static_cast<int32_t>(numbers.below(static_cast<uint32_t>(vocab))));
  }
  const double scale = 0.03;
  std::vector<double> loss, d_logits = as_double(logits);
  for (int64_t r = 0; r < rows; ++r) {
    double* const x = d_logits.data() + r * vocab;
    const int32_t target = targets[static_cast<size_t>(r)];
    double sum = 0;
    for (int64_t v = 0; v < vocab; ++v) { sum += std::exp(x[v]); }
    loss.push_back(target < 0 ? 0 : std::log(sum) - x[target]);
    for (int64_t v = 0; gradient != Gradient::none && v < vocab; ++v) {
      x[v] = target < 0 ? 0 : scale * (std::exp(x[v]) / sum - (v == target ? 1 : 0));
    }
  }
  TestStream stream;
  DeviceArray<T> logits_in(logits);
  DeviceArray<double> loss_out(rows);
  DeviceArray<int32_t> targets_in(targets);
  DeviceArray<hebb::bf16> elsewhere(rows * vocab);
  DeviceArray<double> factor(std::vector<double>{scale / 0.5});
  const bool has_factor = rows % 2 == 1;
  const hebb::Tensor in = logits_in.tensor({rows, vocab});
  device::run(stream, hebb::CrossEntropy{.loss = loss_out.tensor(),
                                         .gradient = gradient == Gradient::none       ? hebb::Tensor{}
                                                     : gradient == Gradient::in_place ? in
                                                                                      : elsewhere.tensor({rows, vocab}),
                                         .logits = in,
                                         .targets = targets_in.tensor(),
                                         .scale = has_factor ? 0.5 : scale,
                                         .factor = has_factor ? factor.tensor() : hebb::Tensor{}});
  CHECK(relative_error(loss_out.host(), loss) < 1e-6);
  if (gradient == Gradient::bf16) {
    CHECK(relative_error(elsewhere.values(), d_logits) < kTolerance<hebb::bf16>);
    CHECK(logits_in.values() == as_double(logits));
  } else {
    CHECK(relative_error(logits_in.values(), d_logits) < (gradient == Gradient::in_place ? kTolerance<T> : 0) + 1e-15);
  }
}

TEMPLATE_TEST_CASE("cross-entropy and its gradient, in place or elsewhere, equal loops in double", "[fast]", float,
                   hebb::bf16) {
  const std::pair<int, int> size = GENERATE(std::pair{1, 1}, std::pair{7, 37}, std::pair{5, 1000}, std::pair{4, 5003});
  const Gradient gradient = GENERATE(Gradient::none, Gradient::in_place, Gradient::bf16);
  CAPTURE(size.first, size.second, static_cast<int>(gradient));
  both_ways([&] { check<TestType>(size.first, size.second, gradient); });
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
