#include "kernels/common/cpu/simd.h"

#include <algorithm>
#include <vector>

#include "core/random.h"
#include "tests/test.h"

using cpu::Vec;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

template <class F> float one(F f, float x) { return f(Vec<float>(x))[0]; }

/// Largest relative error of f against exact at n points, point(i, lane);
/// results below the smallest normal number count by their absolute error in its units.
template <class S, class F, class G, class P> double worst_at(F f, G exact, int n, P point) {
  double max_error = 0;
  for (int i = 0; i < n; i += Vec<S>::width) {
    Vec<S> x(S(0));
    for (int lane = 0; lane < Vec<S>::width; ++lane) { x.v[lane] = static_cast<S>(point(i, lane)); }
    const Vec<S> y = f(x);
    for (int lane = 0; lane < Vec<S>::width; ++lane) {
      const long double e = exact(static_cast<long double>(x[lane]));
      const long double scale = std::max<long double>(std::abs(e), std::numeric_limits<S>::min());
      const double error = static_cast<double>(std::abs(y[lane] - e) / scale);
      if (!(error <= max_error)) { max_error = error; }
    }
  }
  return max_error;
}

/// At n points of [low, high]: even lanes evenly spaced, odd lanes random.
template <class S, class F, class G> double worst(F f, G exact, double low, double high, int n = 20000) {
  Rng rng(1, "points");
  return worst_at<S>(f, exact, n, [&](int i, int lane) {
    return low + (lane % 2 ? rng.uniform() : (i + lane) / static_cast<double>(n)) * (high - low);
  });
}

/// At points of every magnitude: sign * 2^u.
template <class S, class F, class G>
double worst_by_magnitude(F f, G exact, double sign, double low_power, double high_power) {
  Rng rng(2, "magnitudes");
  return worst_at<S>(f, exact, 20000,
                     [&](int, int) { return sign * std::exp2(low_power + rng.uniform() * (high_power - low_power)); });
}

long double exact_sigmoid(long double x) { return 1 / (1 + std::exp(-x)); }
long double exact_softplus(long double x) { return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x)); }

const auto vexp = [](auto x) { return cpu::exp(x); };
const auto vlog = [](auto x) { return cpu::log(x); };
const auto vlog1p = [](auto x) { return cpu::log1p(x); };
const auto verf = [](auto x) { return cpu::erf(x); };
const auto vtanh = [](auto x) { return cpu::tanh(x); };
const auto vsigmoid = [](auto x) { return cpu::sigmoid(x); };
const auto vsoftplus = [](auto x) { return cpu::softplus(x); };
const auto exact_exp = [](long double x) { return std::exp(x); };
const auto exact_log = [](long double x) { return std::log(x); };
const auto exact_log1p = [](long double x) { return std::log1p(x); };
const auto exact_erf = [](long double x) { return std::erf(x); };
const auto exact_tanh = [](long double x) { return std::tanh(x); };

// Two units in the last place are 2.4e-7 at most; the polynomials add below 2e-8.
constexpr double kFloat = 3e-7;
// libm is within one unit (2.2e-16); sigmoid and softplus compose two or three such steps.
constexpr double kDouble = 1e-15;

}  // namespace

TEMPLATE_TEST_CASE("partial loads and stores touch the first lanes only", "[fast]", float, double) {
  using S = TestType;
  constexpr int w = Vec<S>::width;
  for (int count = 0; count <= w; ++count) {
    // Exactly `count` elements on the heap: the address sanitizer sees any access behind them.
    std::vector<S> in(static_cast<size_t>(count)), out(static_cast<size_t>(count), S(-1));
    in.reserve(1);  // a valid address for count 0
    out.reserve(1);
    for (int i = 0; i < count; ++i) { in[static_cast<size_t>(i)] = S(i + 1); }
    const Vec<S> x = cpu::load(in.data(), count);
    for (int i = 0; i < w; ++i) { CHECK(x[i] == (i < count ? S(i + 1) : S(0))); }
    cpu::store(out.data(), x, count);
    CHECK(out == in);
    S guarded[w + 1];
    std::fill_n(guarded, w + 1, S(7));
    cpu::store(guarded, x, count);
    CHECK(std::all_of(guarded + count, guarded + w + 1, [](S v) { return v == S(7); }));
    const Vec<S> filled = cpu::fill_behind(x, count, S(9));
    for (int i = 0; i < w; ++i) { CHECK(filled[i] == (i < count ? S(i + 1) : S(9))); }
  }
}

TEMPLATE_TEST_CASE("lane arithmetic agrees with scalars", "[fast]", float, double) {
  using S = TestType;
  constexpr int w = Vec<S>::width;
  S a[w], b[w];
  for (int i = 0; i < w; ++i) {
    a[i] = S(i) - S(1.5);
    b[i] = S(2) - S(i) * S(0.75);
  }
  const Vec<S> x = cpu::load(a), y = cpu::load(b);
  S total = 0;
  for (int i = 0; i < w; ++i) {
    CHECK((x + y)[i] == a[i] + b[i]);
    CHECK((x * y - x / S(2))[i] == a[i] * b[i] - a[i] / S(2));
    CHECK((-x)[i] == -a[i]);
    CHECK(cpu::fma(x, y, Vec<S>(S(3)))[i] == std::fma(a[i], b[i], S(3)));  // small multiples of 1/8: exact either way
    CHECK(cpu::max(x, y)[i] == std::max(a[i], b[i]));
    CHECK(cpu::min(x, y)[i] == std::min(a[i], b[i]));
    CHECK(cpu::abs(x)[i] == std::abs(a[i]));
    CHECK(cpu::copysign(x, y)[i] == std::copysign(a[i], b[i]));
    CHECK(cpu::sqrt(cpu::abs(x))[i] == std::sqrt(std::abs(a[i])));
    CHECK(cpu::select(x < y, x, y)[i] == std::min(a[i], b[i]));
    total += a[i];
  }
  CHECK(cpu::sum(x) == total);  // small halves: exact in any order
  CHECK(cpu::max_lane(y) == S(2));
  CHECK(std::signbit(Vec<S>(S(-0.0))[0]));
}

TEST_CASE("max and min return their second argument for NaN", "[fast]") {
  CHECK(std::isnan(cpu::max(Vec<float>(1.0f), Vec<float>(kNan))[0]));
  CHECK(std::isnan(cpu::min(Vec<float>(1.0f), Vec<float>(kNan))[0]));
  CHECK(cpu::max(Vec<float>(kNan), Vec<float>(1.0f))[0] == 1.0f);
}

TEST_CASE("vector_loop visits whole vectors and then the rest", "[fast]") {
  for (int64_t n : {0, 1, 7, 16, 33, 100}) {
    std::vector<float> x(static_cast<size_t>(n), 1.0f), y(static_cast<size_t>(n));
    cpu::vector_loop<float>(
        n, [&](int64_t i, auto lanes) { cpu::store(y.data() + i, cpu::load(x.data() + i, lanes) + 2.0f, lanes); });
    CHECK(y == std::vector<float>(static_cast<size_t>(n), 3.0f));
  }
}

TEST_CASE("float functions are within about two units in the last place", "[fast]") {
  CHECK(worst<float>(vexp, exact_exp, -87, 88.7) < kFloat);
  CHECK(worst<float>(vexp, exact_exp, -1, 1) < kFloat);
  CHECK(worst_by_magnitude<float>(vexp, exact_exp, -1, -30, 6) < kFloat);
  CHECK(worst_by_magnitude<float>(vlog, exact_log, 1, -148, 128) < kFloat);
  CHECK(worst<float>(vlog, exact_log, 0.5, 2) < kFloat);
  CHECK(worst_by_magnitude<float>(vlog1p, exact_log1p, 1, -60, 120) < kFloat);
  CHECK(worst_by_magnitude<float>(vlog1p, exact_log1p, -1, -60, -0.001) < kFloat);
  CHECK(worst<float>(verf, exact_erf, -6, 6) < kFloat);
  CHECK(worst_by_magnitude<float>(verf, exact_erf, -1, -60, 3) < kFloat);
  CHECK(worst<float>(vtanh, exact_tanh, -12, 12) < kFloat);
  CHECK(worst_by_magnitude<float>(vtanh, exact_tanh, 1, -60, 5) < kFloat);
  CHECK(worst<float>(vsigmoid, exact_sigmoid, -87, 30) < kFloat);
  CHECK(worst<float>(vsoftplus, exact_softplus, -87, 100) < kFloat);
}

TEST_CASE("double functions are within 1e-15", "[fast]") {
  CHECK(worst<double>(vexp, exact_exp, -700, 700) < kDouble);
  CHECK(worst_by_magnitude<double>(vlog, exact_log, 1, -1000, 1000) < kDouble);
  CHECK(worst_by_magnitude<double>(vlog1p, exact_log1p, 1, -300, 1000) < kDouble);
  CHECK(worst<double>(verf, exact_erf, -6, 6) < kDouble);
  CHECK(worst<double>(vtanh, exact_tanh, -20, 20) < kDouble);
  CHECK(worst<double>(vsigmoid, exact_sigmoid, -700, 40) < kDouble);
  CHECK(worst<double>(vsoftplus, exact_softplus, -700, 700) < kDouble);
}

TEST_CASE("exp underflows gradually to zero and overflows to infinity", "[fast]") {
  CHECK(one(vexp, 0.0f) == 1.0f);
  CHECK(one(vexp, -0.0f) == 1.0f);
  CHECK(one(vexp, -kInf) == 0.0f);
  CHECK(one(vexp, -1e30f) == 0.0f);
  CHECK(one(vexp, -104.0f) == 0.0f);
  CHECK(one(vexp, -103.0f) == 0x1p-149f);
  CHECK(std::abs(one(vexp, -95.0f) - std::exp(-95.0f)) <= 0x1p-149f);
  CHECK(one(vexp, 88.8f) == kInf);
  CHECK(one(vexp, kInf) == kInf);
}

TEST_CASE("the other float functions keep their limits", "[fast]") {
  CHECK(one(vsigmoid, 0.0f) == 0.5f);
  CHECK(one(vsigmoid, -0.0f) == 0.5f);
  CHECK(one(vsigmoid, -kInf) == 0.0f);
  CHECK(one(vsigmoid, -200.0f) == 0.0f);
  CHECK(one(vsigmoid, -100.0f) > 0.0f);
  CHECK(one(vsigmoid, kInf) == 1.0f);
  CHECK(one(vlog, 0.0f) == -kInf);
  CHECK(one(vlog, -0.0f) == -kInf);
  CHECK(std::isnan(one(vlog, -1.0f)));
  CHECK(one(vlog, kInf) == kInf);
  CHECK(one(vlog, 1.0f) == 0.0f);
  CHECK(one(vlog1p, -1.0f) == -kInf);
  CHECK(one(vlog1p, kInf) == kInf);
  CHECK(std::isnan(one(vlog1p, -2.0f)));
  CHECK(one(vsoftplus, -kInf) == 0.0f);
  CHECK(one(vsoftplus, kInf) == kInf);
  CHECK(one(verf, kInf) == 1.0f);
  CHECK(one(verf, -kInf) == -1.0f);
  CHECK(one(vtanh, kInf) == 1.0f);
  CHECK(one(vtanh, -kInf) == -1.0f);
  CHECK(std::signbit(one(vtanh, -0.0f)));
  CHECK(std::signbit(one(verf, -0.0f)));
}

TEST_CASE("NaN passes through every float function", "[fast]") {
  CHECK(std::isnan(one(vexp, kNan)));
  CHECK(std::isnan(one(vlog, kNan)));
  CHECK(std::isnan(one(vlog1p, kNan)));
  CHECK(std::isnan(one(verf, kNan)));
  CHECK(std::isnan(one(vtanh, kNan)));
  CHECK(std::isnan(one(vsigmoid, kNan)));
  CHECK(std::isnan(one(vsoftplus, kNan)));
}
