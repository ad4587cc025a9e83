#include <numeric>

#include "kernels/lact/newton_schulz.h"
#include "layers/ops/lact.h"
#include "tests/layers/harness.h"

using namespace hebb;
using namespace hebb::testing;

namespace {

using Values = std::vector<double>;

Values random_values(size_t count, double scale, uint64_t seed) {
  Rng rng(seed, "lact test");
  Values v(count);
  for (double& x : v) { x = scale * rng.normal(); }
  return v;
}

double dot(size_t n, const double* a, const double* b) { return std::inner_product(a, a + n, b, 0.0); }

/// One head, one row; the matrices are W0 [h, D], W1 [D, h], W2 [h, D].
struct Problem {
  size_t length, dim, fast;
  Values q, k, v, rates, mix, w[3];
  LactRule rule;

  Problem(size_t t, size_t d, size_t h) : length(t), dim(d), fast(h) {
    q = random_values(t * d, 0.5, 1);
    k = random_values(t * d, 0.5, 2);
    v = random_values(t * d, 1, 3);
    rates = random_values(t * 3, 1, 4);
    mix = random_values(t, 1, 5);
    for (size_t m = 0; m < 3; ++m) { w[m] = random_values(h * d, 0.6, 6 + m); }
    rule.chunk = 4;
  }
  size_t columns(size_t m) const { return m == 1 ? fast : dim; }
  double eta(size_t t, size_t m) const { return std::log1p(std::exp(rates[t * 3 + m] + rule.rate_shift)); }
};

Values apply(const Problem& p, const Values* w, const double* z) {
  Values y(p.dim, 0.0);
  for (size_t j = 0; j < p.fast; ++j) {
    const double gate = dot(p.dim, &w[0][j * p.dim], z),
                 hidden = gate / (1 + std::exp(-gate)) * dot(p.dim, &w[2][j * p.dim], z);
    for (size_t i = 0; i < p.dim; ++i) { y[i] += w[1][i * p.fast + j] * hidden; }
  }
  return y;
}

/// The op's outputs and the matrices that it ends with.
struct Results {
  Values y, w[3];
};

Results run_op(const Problem& p) {
  Stream stream;
  Arena arena(DeviceKind::cpu);
  arena.set_poison(true);
  const int64_t t = static_cast<int64_t>(p.length), d = static_cast<int64_t>(p.dim), h = static_cast<int64_t>(p.fast);
  const Rows rows = Rows::streams(stream, arena, 1, t);
  Tape tape(stream, arena, false);
  Pass pass{tape, rows};
  const auto upload = [&](const Values& values, Shape shape) {
    const Var out = tape.output(shape, DType::f64, "input");
    copy_to_device(stream, tape.value(out), values.data());
    return out;
  };
  LactInputs in{
      upload(p.q, {t, d}),       upload(p.k, {t, d}),       upload(p.v, {t, d}),      upload(p.rates, {t, 3}), {},
      upload(p.w[0], {1, h, d}), upload(p.w[1], {1, d, h}), upload(p.w[2], {1, h, d})};
  if (p.rule.momentum) { in.mix = upload(p.mix, {t, 1}); }
  LactState state(arena, 1, {1, d, h}, DType::f64);
  Results out;
  out.y = to_host(stream, tape.value(lact_memory(pass, in, {1, d, h}, p.rule, &state))).values;
  const Values all = to_host(stream, state.weights).values;
  for (size_t m = 0; m < 3; ++m) {
    const auto at = all.begin() + static_cast<std::ptrdiff_t>(m * p.dim * p.fast);
    out.w[m].assign(at, at + static_cast<std::ptrdiff_t>(p.dim * p.fast));
  }
  return out;
}

/// Gradient of sum_t eta_t[m] f(W, k_t) . v_t over [begin, begin + chunk) by central differences.
Values gradient(const Problem& p, const Values* w, size_t m, size_t begin) {
  Values moved[3] = {w[0], w[1], w[2]}, g(w[m].size());
  const auto objective = [&] {
    double sum = 0;
    for (size_t t = begin; t < begin + static_cast<size_t>(p.rule.chunk); ++t) {
      sum += p.eta(t, m) * dot(p.dim, apply(p, moved, &p.k[t * p.dim]).data(), &p.v[t * p.dim]);
    }
    return sum;
  };
  for (size_t i = 0; i < g.size(); ++i) {
    const double kept = moved[m][i], step = 1e-5;
    moved[m][i] = kept + step;
    const double above = objective();
    moved[m][i] = kept - step;
    g[i] = (above - objective()) / (2 * step);
    moved[m][i] = kept;
  }
  return g;
}

Values row_lengths(const Values& w, size_t columns) {
  Values out;
  for (size_t at = 0; at < w.size(); at += columns) { out.push_back(std::sqrt(dot(columns, &w[at], &w[at]))); }
  return out;
}

/// rownorm(w + step) times the lengths of the rows of `initial`.
Values move(Values w, const Values& step, const Values& initial, size_t columns) {
  for (size_t i = 0; i < w.size(); ++i) { w[i] += step[i]; }
  const Values lengths = row_lengths(w, columns), targets = row_lengths(initial, columns);
  for (size_t i = 0; i < w.size(); ++i) { w[i] *= targets[i / columns] / (lengths[i / columns] + 1e-5); }
  return w;
}

/// NS of a [rows, columns] matrix, and the gradient at it.
struct Orthogonalized {
  Values out, d_g;
};
Orthogonalized orthogonalize(int64_t rows, int64_t columns, const Values& g, const Values& d_out) {
  cpu::delta::ScratchParts<double> count(nullptr);
  cpu::NewtonSchulz<double> sizes(count, rows, columns, true);
  Values scratch(static_cast<size_t>(count.used()) + 16), d_g(g.size());
  cpu::delta::ScratchParts<double> parts(scratch.data());
  cpu::NewtonSchulz<double> ns(parts, rows, columns, true);
  const double* out = ns.forward(rows, columns, g.data());
  Orthogonalized result{{out, out + g.size()}, {}};
  if (!d_out.empty()) { ns.backward(rows, columns, g.data(), d_out.data(), d_g.data()); }
  result.d_g = d_g;
  return result;
}

Values transpose(size_t rows, size_t columns, const Values& m) {
  Values out(m.size());
  for (size_t i = 0; i < m.size(); ++i) { out[i % columns * rows + i / columns] = m[i]; }
  return out;
}

/// Columns of a random [n, count] matrix made orthonormal.
Values orthonormal(size_t n, size_t count, uint64_t seed) {
  Values q = random_values(n * count, 1, seed);  // vectors as rows here
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

TEST_CASE("the first chunk reads the initial fast weights", "[lact][fast]") {
  const Problem p(4, 5, 7);
  Values expected;
  for (size_t t = 0; t < 4; ++t) {
    const Values y = apply(p, p.w, &p.q[t * 5]);
    expected.insert(expected.end(), y.begin(), y.end());
  }
  check_close("y", run_op(p).y, expected, 1e-13);
}

TEST_CASE("fast gradients are those of the weighted dot product, with momentum and Muon on top", "[lact][fast]") {
  for (const bool momentum : {false, true}) {
    for (const bool muon : {false, true}) {
      INFO("momentum " << momentum << ", Muon " << muon);
      Problem p(9, 5, 7);
      p.rule.momentum = momentum;
      p.rule.muon = muon;
      Values w[3] = {p.w[0], p.w[1], p.w[2]}, kept[3];
      for (const size_t begin : {size_t{0}, size_t{4}}) {
        double decay = 0;
        for (size_t t = begin; t < begin + 4; ++t) { decay += 0.25 / (1 + std::exp(-p.mix[t])); }
        Values steps[3];
        for (size_t m = 0; m < 3; ++m) {
          steps[m] = gradient(p, w, m, begin);
          for (size_t i = 0; momentum && begin > 0 && i < steps[m].size(); ++i) { steps[m][i] += decay * kept[m][i]; }
          kept[m] = steps[m];
          const int64_t columns = static_cast<int64_t>(p.columns(m));
          if (muon) { steps[m] = orthogonalize(35 / columns, columns, steps[m], {}).out; }
        }
        for (size_t m = 0; m < 3; ++m) { w[m] = move(w[m], steps[m], p.w[m], p.columns(m)); }
      }
      const Results out = run_op(p);
      for (size_t m = 0; m < 3; ++m) { check_close("W", out.w[m], w[m], 1e-6); }  // difference quotients
    }
  }
}

TEST_CASE("rows of fast weights keep their lengths", "[lact][fast]") {
  for (const bool muon : {false, true}) {
    Problem p(61, 6, 4);
    p.rule.muon = muon;
    const Results out = run_op(p);
    for (size_t m = 0; m < 3; ++m) {
      CHECK(compare(out.w[m], p.w[m]).relative() > 0.1);  // they did move
      check_close("lengths", row_lengths(out.w[m], p.columns(m)), row_lengths(p.w[m], p.columns(m)), 1e-4);
    }
  }
}

TEST_CASE("Newton-Schulz brings singular values near 1 and keeps tiny ones small", "[lact][fast]") {
  // G = U diag(s) Vᵀ with |G|_F = 1: NS acts on the singular values alone.
  const size_t n = 6, m = 9;
  const Values u = orthonormal(n, n, 11), v = orthonormal(m, n, 12);
  Values s = {0.9, 0.4, 0.1, 0.01, 0.002, 1e-4};
  s[0] = std::sqrt(1 - dot(5, &s[1], &s[1]));
  Values g(n * m);
  for (size_t r = 0; r < n; ++r) {
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < m; ++j) { g[i * m + j] += s[r] * u[r * n + i] * v[r * m + j]; }
    }
  }
  const Values out = orthogonalize(6, 9, g, {}).out;
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
  check_close("transposed", orthogonalize(9, 6, transpose(6, 9, g), {}).out, transpose(6, 9, out), 1e-13);
}

TEST_CASE("Newton-Schulz is differentiated exactly", "[lact][fast]") {
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{3, 5}, {5, 3}, {4, 4}}) {
    Values g = random_values(static_cast<size_t>(rows * columns), 0.7, 21);
    const Values d_out = random_values(g.size(), 1, 22);
    const Values d_g = orthogonalize(rows, columns, g, d_out).d_g;
    Values expected(g.size());
    for (size_t i = 0; i < g.size(); ++i) {
      const double kept = g[i], step = 1e-6;
      g[i] = kept + step;
      const Values above = orthogonalize(rows, columns, g, {}).out;
      g[i] = kept - step;
      const Values below = orthogonalize(rows, columns, g, {}).out;
      g[i] = kept;
      expected[i] =
          (dot(g.size(), above.data(), d_out.data()) - dot(g.size(), below.data(), d_out.data())) / (2 * step);
    }
    check_close("d_g", d_g, expected, 1e-6);
  }
}
