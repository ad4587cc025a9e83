#include <cmath>

#include "core/params.h"
#include "tests/test.h"

TEST_CASE("orthogonal initial values are Q of a normal matrix with R's diagonal positive", "[fast]") {
  for (const auto& size : {std::pair<int64_t, int64_t>{7, 7}, {50, 3}, {3, 50}, {1, 5}, {5, 1}, {33, 20}}) {
    const int64_t rows = size.first, columns = size.second;
    INFO(rows << " x " << columns);
    const int64_t n = std::min(rows, columns), length = std::max(rows, columns), count = rows * columns;
    std::vector<float> values(static_cast<size_t>(count));
    Rng rng(3, "orthogonal");
    init::orthogonal(rows, columns, 2.0)(rng, values.data(), count);
    Rng again(3, "orthogonal");
    std::vector<double> drawn(static_cast<size_t>(count));
    for (double& v : drawn) { v = again.normal(); }
    // Vector j of either matrix: a column of a tall one, a row of a wide one.
    const auto at = [&](const auto& m, int64_t j, int64_t i) {
      return static_cast<double>(m[static_cast<size_t>(rows >= columns ? i * columns + j : j * columns + i)]);
    };
    const auto product = [&](const auto& a, int64_t j, const auto& b, int64_t k) {
      double sum = 0;
      for (int64_t i = 0; i < length; ++i) { sum += at(a, j, i) * at(b, k, i); }
      return sum;
    };
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t k = 0; k < n; ++k) {
        CHECK(std::abs(product(values, j, values, k) - (j == k ? 4.0 : 0.0)) < 1e-6);  // rounded to fp32
      }
      // R = Qᵀ A / gain: upper triangular, its diagonal positive.
      CHECK(product(values, j, drawn, j) > 0);
      for (int64_t k = 0; k < j; ++k) { CHECK(std::abs(product(values, j, drawn, k)) < 1e-5); }
    }
  }
}
