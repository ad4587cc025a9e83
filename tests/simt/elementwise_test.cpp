// Sums, conversions and the optimizer's kernels against loops in double; kernels of nothing and of too much.
#include "support.h"

using namespace hebb_test;

namespace {

TEST_CASE("fp32 and fp64 are converted into each other, rounded to nearest", "[fast]") {
  std::vector<float> single = random_values<float>(300, 1);
  std::vector<double> twice(single.begin(), single.end());
  for (double& x : twice) {
    x += x * 0x1p-26;  // at most a quarter of a unit in the last place of fp32
  }
  both_ways([&] {
    TestStream stream;
    DeviceArray<float> from(single), narrow(300);
    DeviceArray<double> wide(300), exact(twice);
    device::convert(stream, wide.tensor(), from.tensor());
    device::convert(stream, narrow.tensor(), exact.tensor());
    CHECK(wide.host() == std::vector<double>(single.begin(), single.end()));
    CHECK(narrow.host() == single);
  });
}

TEMPLATE_TEST_CASE("sums in place and conversions, also from addresses that are not 16-byte aligned", "[fast]", float,
                   hebb::bf16) {
  const int64_t count = GENERATE(3, 1000, 2051);
  const int64_t offset = GENERATE(0, 1);
  const auto a = random_values<TestType>(count + 1, 1), b = random_values<TestType>(count + 1, 2);
  both_ways([&] {
    TestStream stream;
    DeviceArray<TestType> y(a), x(b);
    DeviceArray<hebb::bf16> narrow(count);
    DeviceArray<float> wide(count);
    const auto part = [&](const DeviceArray<TestType>& array) { return array.tensor().slice(offset, {count}); };
    if (std::is_same_v<TestType, float>) {
      device::convert(stream, narrow.tensor(), part(x));
    } else {
      device::convert(stream, wide.tensor(), part(x));
    }
    device::add_to(stream, part(y), part(x));
    std::vector<double> sums = as_double(a), narrowed, widened;
    for (size_t i = static_cast<size_t>(offset); i < static_cast<size_t>(count + offset); ++i) {
      sums[i] = double(value_of(rounded<TestType>(static_cast<float>(sums[i] + double(value_of(b[i]))))));
      widened.push_back(double(value_of(b[i])));
      narrowed.push_back(double(value_of(rounded<hebb::bf16>(value_of(b[i])))));
    }
    CHECK(y.values() == sums);
    device::run(stream, hebb::AddScaled{.y = part(y), .x = part(x), .alpha = -3, .accumulate = false});
    for (size_t i = static_cast<size_t>(offset); i < static_cast<size_t>(count + offset); ++i) {
      sums[i] = double(value_of(rounded<TestType>(-3 * value_of(b[i]))));
    }
    CHECK(y.values() == sums);
    if (std::is_same_v<TestType, float>) {
      CHECK(narrow.values() == narrowed);
    } else {
      CHECK(wide.values() == widened);
    }
  });
}

TEST_CASE("sums of squares come in fixed blocks, in double", "[fast]") {
  const int64_t count = GENERATE(1, 1001, 65536, 140001);
  const auto x = random_values<float>(count, 1);
  std::vector<double> expected;
  for (size_t i = 0; i < x.size(); ++i) {
    if (i % static_cast<size_t>(hebb::kSumSquaresBlock) == 0) { expected.push_back(0); }
    expected.back() += double(x[i]) * double(x[i]);
  }
  both_ways([&] {
    TestStream stream;
    DeviceArray<float> in(x);
    DeviceArray<double> partial(static_cast<int64_t>(expected.size()));
    device::run(stream, hebb::SumSquares{.partial = partial.tensor(), .x = in.tensor()});
    CHECK(relative_error(partial.host(), expected) < 1e-12);  // of 65,536 roundings
  });
}

TEST_CASE("an AdamW step equals the formula in double, and its copy is the rounded parameter", "[fast]") {
  const int64_t count = GENERATE(1, 37, 5003, 5008);
  const bool has_copy = GENERATE(false, true);
  auto p = random_values<float>(count, 1), m = random_values<float>(count, 2, 0.1),
       v = random_values<float>(count, 3, 0.1), grad = random_values<float>(count, 4);
  for (float& x : v) { x = std::fabs(x); }
  const double lr = 3e-3, decay = 0.1, clip = 0.37, c1 = 1 - std::pow(0.9, 3), c2 = 1 - std::pow(0.95, 3);
  const bool applies = GENERATE(false, true);
  const hebb::AdamW step{.p = {}, .m = {}, .v = {}, .grad = {}, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .rates = {}};
  std::vector<double> p_expected, m_expected, v_expected;
  for (size_t i = 0; i < p.size(); ++i) {
    const double g = clip * double(grad[i]);
    m_expected.push_back(step.beta1 * double(m[i]) + (1 - step.beta1) * g);
    v_expected.push_back(step.beta2 * double(v[i]) + (1 - step.beta2) * g * g);
    p_expected.push_back(double(p[i]) * (1 - lr * decay) -
                         lr * (m_expected[i] / c1) / (std::sqrt(v_expected[i] / c2) + step.eps));
  }
  if (!applies) {
    p_expected.assign(p.begin(), p.end());
    m_expected.assign(m.begin(), m.end());
    v_expected.assign(v.begin(), v.end());
  }
  both_ways([&] {
    TestStream stream;
    DeviceArray<float> p_out(p), m_out(m), v_out(v), grad_in(grad);
    DeviceArray<hebb::bf16> copy(count);
    DeviceArray<double> rates(std::vector<double>{1 - lr * decay, lr / c1, 1 / c2}), factor(std::vector<double>{clip}),
        decided(std::vector<double>{applies ? 1.0 : 0.0});
    hebb::AdamW args = step;
    args.rates = rates.tensor();
    args.clip = factor.tensor();
    args.applies = decided.tensor();
    args.copy = has_copy ? copy.tensor() : hebb::Tensor{};
    args.p = p_out.tensor();
    args.m = m_out.tensor();
    args.v = v_out.tensor();
    args.grad = grad_in.tensor();
    device::run(stream, args);
    CHECK(relative_error(p_out.values(), p_expected) < kTolerance<float>);
    CHECK(relative_error(m_out.values(), m_expected) < kTolerance<float>);
    CHECK(relative_error(v_out.values(), v_expected) < kTolerance<float>);
    std::vector<double> p_rounded;
    for (const double x : p_out.values()) {
      p_rounded.push_back(double(value_of(rounded<hebb::bf16>(static_cast<float>(x)))));
    }
    CHECK((copy.values() == p_rounded) == (has_copy && applies));  // NaN where nothing was written
  });
}

TEST_CASE("what a step decides equals the formula", "[fast]") {
  const double infinity = std::numeric_limits<double>::infinity();
  // A gradient of 300 and one of 2 blocks, the second without a limit; losses of 777 tokens.
  const auto bad = GENERATE(as<std::string>(), "", "loss", "norm");
  std::vector<double> partial = random_values<double>(302, 1), losses = random_values<double>(777, 2);
  double squares[2] = {0, 0}, sum = 0;
  for (size_t i = 0; i < partial.size(); ++i) {
    partial[i] = std::fabs(partial[i]);
    squares[i < 300 ? 0 : 1] += partial[i];
  }
  for (const double x : losses) { sum += x; }
  if (bad == "loss") {
    losses[700] = infinity;
  } else if (bad == "norm") {
    partial[301] = infinity;
  }
  both_ways([&] {
    TestStream stream;
    DeviceArray<double> outcome(hebb::step_outcome_size(2)), of(partial), limits(std::vector<double>{0.7, 0}),
        rows(losses), scale(std::vector<double>{0.25});
    DeviceArray<int64_t> ends(std::vector<int64_t>{300, 302});
    device::run(stream, hebb::DecideStep{.outcome = outcome.tensor(),
                                         .partial = of.tensor(),
                                         .ends = ends.tensor(),
                                         .limits = limits.tensor(),
                                         .row_loss = rows.tensor(),
                                         .scale = scale.tensor()});
    const std::vector<double> found = outcome.host();
    CHECK(found[1] == (bad.empty() ? 1 : 0));
    CHECK(found[2] == Catch::Approx(std::sqrt(squares[0])).epsilon(1e-14));
    CHECK(found[3] == Catch::Approx(0.7 / (std::sqrt(squares[0]) + 1e-6)).epsilon(1e-14));
    CHECK(found[5] == 1);
    if (bad == "loss") {
      CHECK(found[0] == infinity);
    } else {
      CHECK(found[0] == Catch::Approx(0.25 * sum).epsilon(1e-12));  // of 777 roundings
    }
    if (bad != "norm") { CHECK(found[4] == Catch::Approx(std::sqrt(squares[1])).epsilon(1e-14)); }
  });
}

TEST_CASE("kernels of no elements launch nothing", "[fast]") {
  TestStream stream;
  hebb::AdamW step{};
  step.p.shape = {0};
  CHECK_NOTHROW(device::run(stream, step));
  hebb::AddScaled add{};
  add.y.shape = {0};
  CHECK_NOTHROW(device::run(stream, add));
  hebb::CrossEntropy loss{};
  loss.targets.shape = {0};
  CHECK_NOTHROW(device::run(stream, loss));
  hebb::EmbeddingForward read{};
  read.ids.shape = {0};
  read.table.shape = {5, 3};
  CHECK_NOTHROW(device::run(stream, read));
  DeviceArray<float> weight(7);
  hebb::NormForward norm{};
  norm.h.shape = {0, 7};
  norm.weight = weight.tensor();
  CHECK_NOTHROW(device::run(stream, norm));
}

TEST_CASE("a row too wide for the norm kernels is an error that names the limit", "[fast]") {
  TestStream stream;
  DeviceArray<float> x(9000), rstd(1);
  const auto run = [&] {
    device::run(stream, NormForward{.y = x.tensor({1, 9000}),
                                    .h_out = {},
                                    .mean = {},
                                    .rstd = rstd.tensor(),
                                    .h = x.tensor({1, 9000}),
                                    .branch = {},
                                    .weight = x.tensor(),
                                    .bias = {},
                                    .rho = 1,
                                    .eps = 1e-5,
                                    .kind = NormKind::rms});
  };
  CHECK_THROWS_WITH(run(), "model.hidden_size: found 9000, expected at most 8192 on cuda");
}

}  // namespace
