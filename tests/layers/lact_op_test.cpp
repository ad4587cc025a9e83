// The fast weights of lact on given queries, keys and values: one head of one row.
#include "layers/lact/op.h"

#include "kernels/lact/newton_schulz.h"
#include "tests/kernels/tensors.h"

namespace {

/// The matrices are W0 [h, D], W1 [D, h], W2 [h, D].
struct Problem {
  int64_t length, dim, fast;
  LactRule rule{};
  Values q = random_values(length * dim, "q", 0.5), k = random_values(length * dim, "k", 0.5),
         v = random_values(length * dim, "v"), rates = random_values(length * 3, "rates"),
         mix = random_values(length, "mix");
  Values w[3] = {random_values(fast * dim, "w0", 0.6), random_values(fast* dim, "w1", 0.6),
                 random_values(fast* dim, "w2", 0.6)};

  int64_t columns(size_t m) const { return m == 1 ? fast : dim; }
};

double dot(int64_t n, const double* a, const double* b) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) { sum += a[i] * b[i]; }
  return sum;
}

/// The matrices that the op ends with.
std::array<Values, 3> run_op(const Problem& p) {
  Tensors t(DType::f64);
  const int64_t n = p.length, d = p.dim, h = p.fast;
  const Rows rows = Rows::streams(t.stream, t.arena, 1, n);
  Tape tape(t.stream, t.arena, false);
  Pass pass{tape, rows};
  const auto input = [&](Shape shape, const Values& values) { return tape.constant(t.make(shape, values)); };
  LactInputs in{input({n, d}, p.q),       input({n, d}, p.k),       input({n, d}, p.v),      input({n, 3}, p.rates), {},
                input({1, h, d}, p.w[0]), input({1, d, h}, p.w[1]), input({1, h, d}, p.w[2])};
  if (p.rule.momentum) { in.mix = input({n, 1}, p.mix); }
  LactState state(t.arena, 1, {1, d, h}, DType::f64);
  lact_memory(pass, in, {1, d, h}, p.rule, &state);
  const Values all = Tensors::read(state.weights);
  const auto at = [&](int64_t m) { return all.begin() + m * d * h; };
  return {Values(at(0), at(1)), Values(at(1), at(2)), Values(at(2), at(3))};
}

/// sum over a chunk of eta f(W, k) . v, eta the rates of matrix m.
double objective(const Problem& p, const Values* w, size_t m, int64_t begin) {
  double sum = 0;
  for (int64_t t = begin; t < begin + p.rule.chunk; ++t) {
    const double *key = &p.k[static_cast<size_t>(t * p.dim)], *value = &p.v[static_cast<size_t>(t * p.dim)],
                 rate = std::log1p(std::exp(p.rates[static_cast<size_t>(t * 3) + m] + p.rule.rate_shift));
    for (int64_t j = 0; j < p.fast; ++j) {
      const double gate = dot(p.dim, &w[0][static_cast<size_t>(j * p.dim)], key),
                   hidden = gate / (1 + std::exp(-gate)) * dot(p.dim, &w[2][static_cast<size_t>(j * p.dim)], key);
      for (int64_t i = 0; i < p.dim; ++i) {
        sum += rate * value[i] * w[1][static_cast<size_t>(i * p.fast + j)] * hidden;
      }
    }
  }
  return sum;
}

/// Its gradient in matrix m by central differences.
Values gradient(const Problem& p, const Values* w, size_t m, int64_t begin) {
  Values moved[3] = {w[0], w[1], w[2]}, g;
  for (double& entry : moved[m]) {
    const double kept = entry, step = 1e-5;
    entry = kept + step;
    const double above = objective(p, moved, m, begin);
    entry = kept - step;
    g.push_back((above - objective(p, moved, m, begin)) / (2 * step));
    entry = kept;
  }
  return g;
}

Values row_lengths(const Values& w, int64_t columns) {
  Values out;
  for (size_t at = 0; at < w.size(); at += static_cast<size_t>(columns)) {
    out.push_back(std::sqrt(dot(columns, &w[at], &w[at])));
  }
  return out;
}

/// rownorm(w + step) times the lengths of the rows of `initial`.
Values move(Values w, const Values& step, const Values& initial, int64_t columns) {
  for (size_t i = 0; i < w.size(); ++i) { w[i] += step[i]; }
  const Values lengths = row_lengths(w, columns), targets = row_lengths(initial, columns);
  for (size_t i = 0; i < w.size(); ++i) {
    const size_t row = i / static_cast<size_t>(columns);
    w[i] *= targets[row] / (lengths[row] + 1e-5);
  }
  return w;
}

Values orthogonalize(int64_t rows, int64_t columns, const Values& g) {
  cpu::ScratchParts<double> count(nullptr);
  cpu::NewtonSchulz<double> sizes(count, rows, columns, false);
  Values scratch(static_cast<size_t>(count.used()) + 16);
  cpu::ScratchParts<double> parts(scratch.data());
  const double* out = cpu::NewtonSchulz<double>(parts, rows, columns, false).forward(rows, columns, g.data());
  return {out, out + g.size()};
}

}  // namespace

TEST_CASE("fast gradients are those of the weighted dot product, with momentum and Muon on top", "[lact][fast]") {
  Problem p{.length = 9, .dim = 5, .fast = 7};
  p.rule.chunk = 4;
  p.rule.momentum = GENERATE(false, true);
  p.rule.muon = GENERATE(false, true);
  Values w[3] = {p.w[0], p.w[1], p.w[2]}, kept[3];
  for (const int64_t begin : {0, 4}) {
    double decay = 0;
    for (int64_t t = begin; t < begin + 4; ++t) { decay += 0.25 / (1 + std::exp(-p.mix[static_cast<size_t>(t)])); }
    Values steps[3];
    for (size_t m = 0; m < 3; ++m) {
      steps[m] = gradient(p, w, m, begin);
      for (size_t i = 0; p.rule.momentum && begin > 0 && i < steps[m].size(); ++i) {
        steps[m][i] += decay * kept[m][i];
      }
      kept[m] = steps[m];
      if (p.rule.muon) { steps[m] = orthogonalize(35 / p.columns(m), p.columns(m), steps[m]); }
    }
    for (size_t m = 0; m < 3; ++m) { w[m] = move(w[m], steps[m], p.w[m], p.columns(m)); }
  }
  const auto found = run_op(p);
  for (size_t m = 0; m < 3; ++m) { check_near("W", found[m], w[m], 1e-6); }  // difference quotients
}

TEST_CASE("rows of fast weights keep their lengths", "[lact][fast]") {
  Problem p{.length = 61, .dim = 6, .fast = 4};
  p.rule.chunk = 4;
  p.rule.muon = GENERATE(false, true);
  const auto found = run_op(p);
  for (size_t m = 0; m < 3; ++m) {
    CHECK(found[m] != p.w[m]);
    check_near("lengths", row_lengths(found[m], p.columns(m)), row_lengths(p.w[m], p.columns(m)), 1e-4);
  }
}
