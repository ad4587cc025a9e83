#include "kernels/gemm/gemm.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/parallel.h"
#include "core/random.h"
#include "kernels/gemm/bench.h"
#include "kernels/gemm/gemm_cpu.h"
#include "tests/test.h"

namespace {

/// A product with operands in buffers of exactly the size that their strides need, so that the address
/// sanitizer sees accesses outside; what lies between rows is NaN in A and B and must stay in C.
template <class S> struct Case {
  bool trans_a, trans_b;
  int64_t m, n, k;
  bool accumulate = false;
  S alpha = 1;
  int64_t pad = 0;
  std::vector<S> a, b, c;

  Case(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, bool accumulate = false, S alpha = 1,
       int64_t pad = 0)
      : trans_a(trans_a), trans_b(trans_b), m(m), n(n), k(k), accumulate(accumulate), alpha(alpha), pad(pad) {
    Rng rng(1, "gemm");
    a = matrix(rng, trans_a ? k : m, trans_a ? m : k, std::numeric_limits<S>::quiet_NaN());
    b = matrix(rng, trans_b ? n : k, trans_b ? k : n, std::numeric_limits<S>::quiet_NaN());
    c = matrix(rng, m, n, S(77));
    if (!accumulate) {
      for (int64_t i = 0; i < m * n; ++i) { c_at(i / n, i % n) = std::numeric_limits<S>::quiet_NaN(); }
    }
  }

  std::vector<S> matrix(Rng& rng, int64_t rows, int64_t columns, S between) const {
    if (rows == 0 || columns == 0) { return {}; }
    std::vector<S> x(static_cast<size_t>((rows - 1) * (columns + pad) + columns), between);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        x[static_cast<size_t>(i * (columns + pad) + j)] = static_cast<S>(rng.uniform() - 0.5);
      }
    }
    return x;
  }
  int64_t lda() const { return (trans_a ? m : k) + pad; }
  int64_t ldb() const { return (trans_b ? k : n) + pad; }
  int64_t ldc() const { return n + pad; }
  S a_at(int64_t i, int64_t p) const { return a[static_cast<size_t>(trans_a ? p * lda() + i : i * lda() + p)]; }
  S b_at(int64_t p, int64_t j) const { return b[static_cast<size_t>(trans_b ? j * ldb() + p : p * ldb() + j)]; }
  S& c_at(int64_t i, int64_t j) { return c[static_cast<size_t>(i * ldc() + j)]; }

  void serial() {
    cpu::gemm_serial(trans_a, trans_b, m, n, k, alpha, a.data(), lda(), b.data(), ldb(), accumulate, c.data(), ldc());
  }
  void parallel() {
    cpu::gemm_parallel(trans_a, trans_b, m, n, k, alpha, a.data(), lda(), b.data(), ldb(), accumulate, c.data(), ldc());
  }

  /// Largest error of C in units of eps times the sum of the absolute products, against long double;
  /// infinite when memory between the rows of C has changed.
  double error_of(void (Case::*compute)()) {
    std::vector<S> before = c;
    (this->*compute)();
    double worst = 0;
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        long double sum = 0, size = 0;
        for (int64_t p = 0; p < k; ++p) {
          const long double product = static_cast<long double>(a_at(i, p)) * b_at(p, j);
          sum += product;
          size += std::abs(product);
        }
        const long double old = accumulate ? before[static_cast<size_t>(i * ldc() + j)] : 0.0L;
        const long double exact = old + alpha * sum;
        const long double scale = std::numeric_limits<S>::epsilon() * (std::abs(alpha) * size + std::abs(old));
        const double error =
            static_cast<double>(std::abs(c_at(i, j) - exact) / (scale + std::numeric_limits<S>::min()));
        if (!(error <= worst)) { worst = error; }
      }
      for (int64_t j = n; j < ldc() && i + 1 < m; ++j) {
        if (c_at(i, j) != S(77)) { return std::numeric_limits<double>::infinity(); }
      }
    }
    return worst;
  }
};

// A chain of k roundings errs by at most k/2 eps times the sum of absolute products; random signs and
// the growing partial sums leave far less (measured: below 3 up to k = 700).
constexpr double kLimit = 8;

template <class S> bool same_bits(const std::vector<S>& x, const std::vector<S>& y) {
  return x.size() == y.size() && (x.empty() || std::memcmp(x.data(), y.data(), x.size() * sizeof(S)) == 0);
}

}  // namespace

TEMPLATE_TEST_CASE("gemm_serial agrees with the definition for every small size and transposition", "[fast]", float,
                   double) {
  for (int t = 0; t < 4; ++t) {
    for (int64_t m : {1, 2, 5, 13, 14, 15, 29}) {
      for (int64_t n : {1, 3, 15, 16, 17, 31, 32, 33, 70}) {
        for (int64_t k : {1, 2, 15, 16, 17, 35}) {
          const bool accumulate = (m + n + k) % 2 == 0;
          Case<TestType> g(t & 1, t & 2, m, n, k, accumulate, TestType(accumulate ? -0.5 : 1), m % 3);
          INFO("trans " << t << " m " << m << " n " << n << " k " << k);
          CHECK(g.error_of(&Case<TestType>::serial) < kLimit);
        }
      }
    }
  }
}

TEMPLATE_TEST_CASE("gemm_serial agrees with the definition across cache blocks", "[fast]", float, double) {
  for (int t = 0; t < 4; ++t) {
    for (const auto& [m, n, k] :
         {std::array<int64_t, 3>{300, 21, 40}, {19, 1100, 37}, {17, 40, 700}, {100, 150, 330}, {3, 200, 650}}) {
      Case<TestType> g(t & 1, t & 2, m, n, k, t % 2 == 0, TestType(1.5), 5);
      INFO("trans " << t << " m " << m << " n " << n << " k " << k);
      CHECK(g.error_of(&Case<TestType>::serial) < kLimit);
    }
  }
}

TEMPLATE_TEST_CASE("gemm_parallel agrees with the definition", "[fast][threads]", float, double) {
  set_threads(3);
  for (int t = 0; t < 4; ++t) {
    Case<TestType> g(t & 1, t & 2, 130, 170, 90, t % 2 == 1, TestType(0.75), 3);
    CHECK(g.error_of(&Case<TestType>::parallel) < kLimit);
  }
  set_threads(0);
}

TEMPLATE_TEST_CASE("gemm gives the same bits on 1, 2, 3 and 5 threads", "[fast][threads]", float, double) {
  for (int t = 0; t < 4; ++t) {
    for (const auto& [m, n, k] : {std::array<int64_t, 3>{200, 130, 97}, {3, 1000, 700}, {257, 40, 330}}) {
      std::vector<TestType> first;
      for (int count : {1, 2, 3, 5}) {
        set_threads(count);
        Case<TestType> g(t & 1, t & 2, m, n, k, true);
        g.parallel();
        if (first.empty()) { first = g.c; }
        CHECK(same_bits(first, g.c));
      }
    }
  }
  set_threads(0);
}

TEMPLATE_TEST_CASE("rows and columns of a product do not depend on what is computed beside them", "[fast]", float,
                   double) {
  using S = TestType;
  for (int t = 0; t < 4; ++t) {
    Case<S> g(t & 1, t & 2, 150, 300, 500);
    g.serial();
    for (const auto& [i, rows, j, columns] : {std::array<int64_t, 4>{0, 1, 0, 300},
                                              {17, 8, 5, 290},
                                              {149, 1, 299, 1},
                                              {3, 147, 33, 20},
                                              {40, 16, 64, 64}}) {
      std::vector<S> part(static_cast<size_t>(rows * columns));
      cpu::gemm_serial(g.trans_a, g.trans_b, rows, columns, g.k, g.alpha, g.a.data() + (g.trans_a ? i : i * g.lda()),
                       g.lda(), g.b.data() + (g.trans_b ? j * g.ldb() : j), g.ldb(), false, part.data(), columns);
      int64_t different = 0;
      for (int64_t x = 0; x < rows * columns; ++x) {
        different += part[static_cast<size_t>(x)] != g.c_at(i + x / columns, j + x % columns);
      }
      CHECK(different == 0);
    }
  }
}

TEST_CASE("gemm with empty sizes writes what the definition says", "[fast]") {
  Case<float> no_depth(false, false, 3, 5, 0, false, 2.0f, 1);
  no_depth.serial();
  for (int64_t i = 0; i < 15; ++i) { CHECK(no_depth.c_at(i / 5, i % 5) == 0.0f); }
  Case<float> kept(false, false, 3, 5, 0, true);
  const std::vector<float> before = kept.c;
  kept.parallel();
  CHECK(kept.c == before);
  Case<float>(false, true, 0, 5, 4).serial();
  Case<float>(true, false, 4, 0, 4).parallel();
}

TEST_CASE("the Gemm kernel takes tensors, strides and both dtypes", "[fast]") {
  Stream stream;
  const auto check = [&]<class S>(Case<S> g) {
    Case<S> expected = g;
    expected.serial();
    const auto tensor = [](std::vector<S>& v) {
      return Tensor{v.data(), dtype_of<S>, Shape{static_cast<int64_t>(v.size())}};
    };
    run(stream, Gemm{.c = tensor(g.c),
                     .a = tensor(g.a),
                     .b = tensor(g.b),
                     .m = g.m,
                     .n = g.n,
                     .k = g.k,
                     .trans_a = g.trans_a,
                     .trans_b = g.trans_b,
                     .accumulate = g.accumulate,
                     .ldc = g.ldc(),
                     .lda = g.lda(),
                     .ldb = g.ldb(),
                     .alpha = static_cast<double>(g.alpha)});
    CHECK(g.c == expected.c);
  };
  check(Case<float>(false, true, 37, 50, 20, true, 0.25f));
  check(Case<double>(true, false, 37, 50, 20, false, 2.0));
  CHECK(stream.launches == 2);
}

TEST_CASE("measure_gemm reports each shape with its rate and the peak", "[fast]") {
  for (DType dtype : {DType::f32, DType::f64}) {
    const auto rates = cpu::measure_gemm(dtype, {{false, true, 33, 47, 65}, {true, false, 20, 30, 40}}, 1e-4);
    REQUIRE(rates.size() == 2);
    CHECK(rates[1].shape.k == 40);
    for (const cpu::GemmRate& r : rates) {
      CHECK(r.threads == threads());
      CHECK(r.gflops > 0);
      CHECK(r.peak_gflops > 0);
    }
  }
}
