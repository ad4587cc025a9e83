// The orthogonalisation of Muon on the CPU: what it does to singular values, and its derivative.
#include "kernels/lact/newton_schulz.h"

#include <numeric>

#include "tests/kernels/tensors.h"

namespace {

double dot(size_t n, const double* a, const double* b) { return std::inner_product(a, a + n, b, 0.0); }

struct Orthogonalized {
  Values out, d_g;
};

/// NS of a [rows, columns] matrix, and the gradient at it.
Orthogonalized orthogonalize(int64_t rows, int64_t columns, const Values& g, const Values& d_out = {}) {
  cpu::ScratchParts<double> count(nullptr);
  cpu::NewtonSchulz<double> sizes(count, rows, columns, true);
  Values scratch(static_cast<size_t>(count.used()) + 16);
  cpu::ScratchParts<double> parts(scratch.data());
  cpu::NewtonSchulz<double> ns(parts, rows, columns, true);
  const double* out = ns.forward(rows, columns, g.data());
  Orthogonalized result{{out, out + g.size()}, Values(g.size())};
  if (!d_out.empty()) { ns.backward(rows, columns, g.data(), d_out.data(), result.d_g.data()); }
  return result;
}

Values transpose(size_t rows, size_t columns, const Values& m) {
  Values out(m.size());
  for (size_t i = 0; i < m.size(); ++i) { out[i % columns * rows + i / columns] = m[i]; }
  return out;
}

/// `count` orthonormal vectors of n numbers.
Values orthonormal(size_t n, size_t count, const std::string& label) {
  Values q = random_values(static_cast<int64_t>(n * count), label);
  for (size_t i = 0; i < count; ++i) {
    for (int again = 0; again < 2; ++again) {
      for (size_t j = 0; j < i; ++j) {
        const double s = dot(n, &q[i * n], &q[j * n]);
        for (size_t c = 0; c < n; ++c) { q[i * n + c] -= s * q[j * n + c]; }
      }
    }
    const double length = std::sqrt(dot(n, &q[i * n], &q[i * n]));
    for (size_t c = 0; c < n; ++c) { q[i * n + c] /= length; }
  }
  return q;
}

}  // namespace

TEST_CASE("Newton-Schulz brings singular values near 1 and keeps tiny ones small", "[lact][fast]") {
  // G = U diag(s) Vᵀ with |G|_F = 1: NS acts on the singular values alone.
  const size_t n = 6, m = 9;
  const Values u = orthonormal(n, n, "U"), v = orthonormal(m, n, "V");
  Values s = {0.9, 0.4, 0.1, 0.01, 0.002, 1e-4};
  s[0] = std::sqrt(1 - dot(5, &s[1], &s[1]));
  Values g(n * m);
  for (size_t r = 0; r < n; ++r) {
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < m; ++j) { g[i * m + j] += s[r] * u[r * n + i] * v[r * m + j]; }
    }
  }
  const Values out = orthogonalize(6, 9, g).out;
  for (size_t r = 0; r < n; ++r) {
    double value = 0;
    for (size_t i = 0; i < n; ++i) { value += u[r * n + i] * dot(m, &out[i * m], &v[r * m]); }
    INFO("singular value " << s[r] << " became " << value);
    if (s[r] >= 0.002) {
      CHECK(value > 0.5);
      CHECK(value < 1.3);
    } else {
      CHECK(value <= 493 * s[r]);
      CHECK(value > s[r]);
    }
  }
  check_near("transposed", orthogonalize(9, 6, transpose(6, 9, g)).out, transpose(6, 9, out), 1e-13);
}

TEST_CASE("Newton-Schulz is differentiated exactly", "[lact][fast]") {
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{3, 5}, {5, 3}, {4, 4}, {9, 11}}) {
    const Values g = random_values(rows * columns, "G", 0.7), d_out = random_values(rows * columns, "d_out");
    check_derivative("d_g", g, orthogonalize(rows, columns, g, d_out).d_g,
                     [&, rows = rows, columns = columns](const Values& at) {
                       return weighted_sum(orthogonalize(rows, columns, at).out, d_out);
                     });
  }
}
