#include <numeric>

#include "layers/ops/mesanet.h"
#include "tests/layers/harness.h"

using namespace hebb;
using namespace hebb::testing;

namespace {

using Values = std::vector<double>;

Values random_values(size_t count, double scale, uint64_t seed) {
  Rng rng(seed, "mesa test");
  Values v(count);
  for (double& x : v) { x = scale * rng.normal(); }
  return v;
}

double dot(size_t n, const double* a, const double* b) { return std::inner_product(a, a + n, b, 0.0); }

/// One head of one row, straight from the page: projections as given, no norm.
struct Problem {
  size_t length, dk, dv;
  Values q, k, v, a, b, lambda_raw, d_o;
  MesaRule rule;

  Problem(size_t t, size_t keys, size_t values, uint64_t seed = 3) : length(t), dk(keys), dv(values) {
    q = random_values(t * dk, 1, seed);
    k = random_values(t * dk, 0.7, seed + 1);
    v = random_values(t * dv, 1, seed + 2);
    a = random_values(t, 1, seed + 3);
    b = random_values(t, 1, seed + 4);
    lambda_raw = random_values(dk, 0.5, seed + 5);
    d_o = random_values(t * dv, 1, seed + 6);
  }
  Values lambda() const {
    Values out(dk);
    for (size_t i = 0; i < dk; ++i) { out[i] = rule.lambda_min + std::log1p(std::exp(lambda_raw[i])); }
    return out;
  }
  double beta(size_t t) const { return 1 / (1 + std::exp(-b[t])); }
  double g(size_t t) const { return -std::log1p(std::exp(-a[t])); }
};

struct Results {
  Values o, keys, values;  // outputs, R, S behind the last token
  Values d_q, d_k, d_v, d_a, d_b, d_lambda_raw;
};

/// The page's CG for x A = b, A [n, n].
Values conjugate_gradients(const Values& matrix, const Values& b, const MesaRule& rule) {
  const size_t n = b.size();
  Values x(n, 0.0), r = b, p = b, t(n);
  const double first = dot(n, b.data(), b.data());
  double delta = first;
  for (int64_t step = 0; step < rule.steps; ++step) {
    if (delta <= 0x1p-104 * first) { break; }
    for (size_t i = 0; i < n; ++i) { t[i] = dot(n, &matrix[i * n], p.data()); }
    const double alpha = delta / (dot(n, p.data(), t.data()) + rule.epsilon * first);
    for (size_t i = 0; i < n; ++i) {
      x[i] += alpha * p[i];
      r[i] -= alpha * t[i];
    }
    const double next = dot(n, r.data(), r.data()), ratio = next / (delta + rule.epsilon * first);
    for (size_t i = 0; i < n; ++i) { p[i] = r[i] + ratio * p[i]; }
    delta = next;
  }
  return x;
}

/// Token after token, and back by the implicit rule.
Results recurrence(const Problem& m) {
  const size_t dk = m.dk, dv = m.dv;
  std::vector<Values> keys(m.length + 1, Values(dk * dk)), values(m.length + 1, Values(dk * dv)), x, systems;
  Results out;
  const Values lambda = m.lambda();
  for (size_t t = 0; t < m.length; ++t) {
    Values &r = keys[t + 1], &s = values[t + 1];
    for (size_t i = 0; i < dk; ++i) {
      const double write = m.beta(t) * m.k[t * dk + i];
      for (size_t j = 0; j < dk; ++j) {
        r[i * dk + j] = std::exp(m.g(t)) * keys[t][i * dk + j] + write * m.k[t * dk + j];
      }
      for (size_t j = 0; j < dv; ++j) {
        s[i * dv + j] = std::exp(m.g(t)) * values[t][i * dv + j] + write * m.v[t * dv + j];
      }
    }
    Values system = r;
    for (size_t i = 0; i < dk; ++i) { system[i * dk + i] += lambda[i]; }
    systems.push_back(system);
    x.push_back(conjugate_gradients(system,
                                    Values(m.q.begin() + static_cast<std::ptrdiff_t>(t * dk),
                                           m.q.begin() + static_cast<std::ptrdiff_t>((t + 1) * dk)),
                                    m.rule));
    for (size_t j = 0; j < dv; ++j) {
      double o = 0;
      for (size_t i = 0; i < dk; ++i) { o += x[t][i] * s[i * dv + j]; }
      out.o.push_back(o);
    }
  }
  out.keys = keys.back();
  out.values = values.back();
  out.d_q.resize(m.length * dk);
  out.d_k.resize(m.length * dk);
  out.d_v.resize(m.length * dv);
  out.d_a.resize(m.length);
  out.d_b.resize(m.length);
  out.d_lambda_raw.resize(dk);
  Values d_keys(dk * dk), d_values(dk * dv);
  for (size_t t = m.length; t-- > 0;) {
    const double *d_o = &m.d_o[t * dv], *k = &m.k[t * dk], *v = &m.v[t * dv];
    Values d_x(dk);
    for (size_t i = 0; i < dk; ++i) { d_x[i] = dot(dv, &values[t + 1][i * dv], d_o); }
    const Values w = conjugate_gradients(systems[t], d_x, m.rule);
    double d_beta = 0, d_g = 0;
    for (size_t i = 0; i < dk; ++i) {
      out.d_q[t * dk + i] = w[i];
      out.d_lambda_raw[i] -= w[i] * x[t][i] / (1 + std::exp(-m.lambda_raw[i]));
      for (size_t j = 0; j < dk; ++j) { d_keys[i * dk + j] -= w[i] * x[t][j]; }
      for (size_t j = 0; j < dv; ++j) { d_values[i * dv + j] += x[t][i] * d_o[j]; }
    }
    for (size_t i = 0; i < dk; ++i) {
      for (size_t j = 0; j < dk; ++j) {
        const double d = d_keys[i * dk + j];
        d_beta += d * k[i] * k[j];
        d_g += std::exp(m.g(t)) * d * keys[t][i * dk + j];
        out.d_k[t * dk + i] += m.beta(t) * d * k[j];
        out.d_k[t * dk + j] += m.beta(t) * d * k[i];
      }
      for (size_t j = 0; j < dv; ++j) {
        const double d = d_values[i * dv + j];
        d_beta += d * k[i] * v[j];
        d_g += std::exp(m.g(t)) * d * values[t][i * dv + j];
        out.d_k[t * dk + i] += m.beta(t) * d * v[j];
        out.d_v[t * dv + j] += m.beta(t) * d * k[i];
      }
    }
    out.d_a[t] = d_g / (1 + std::exp(m.a[t]));
    out.d_b[t] = d_beta * m.beta(t) * (1 - m.beta(t));
    for (double& d : d_keys) { d *= std::exp(m.g(t)); }
    for (double& d : d_values) { d *= std::exp(m.g(t)); }
  }
  return out;
}

/// The op on a problem in chunks of `chunk`.
Results run_op(const Problem& m, int64_t chunk, DType dtype = DType::f64) {
  Stream stream;
  Arena arena(DeviceKind::cpu);
  arena.set_poison(true);
  const int64_t length = static_cast<int64_t>(m.length), dk = static_cast<int64_t>(m.dk),
                dv = static_cast<int64_t>(m.dv);
  MesaConfig config;
  config.heads = 1;
  config.key_dim = dk;
  config.value_dim = dv;
  config.silu = config.l2_norm = false;
  config.rule = m.rule;
  config.decode_steps = m.rule.steps;
  config.chunk = chunk;
  const Rows rows = Rows::streams(stream, arena, 1, length);
  std::vector<Buffer> memory;
  const auto upload = [&](const Values& values, Shape shape) {
    memory.emplace_back(arena, shape, dtype, "values");
    const Tensor t = memory.back();
    dispatch_real(dtype, [&](auto zero) {
      const std::vector<decltype(zero)> typed(values.begin(), values.end());
      copy_to_device(stream, t, typed.data());
    });
    return t;
  };
  Results out;
  struct Input {
    const Values* value;
    Shape shape;
    Values* gradient;
    Tensor data, grad;
  };
  std::vector<Input> inputs = {
      {&m.q, {length, dk}, &out.d_q, {}, {}}, {&m.k, {length, dk}, &out.d_k, {}, {}},
      {&m.v, {length, dv}, &out.d_v, {}, {}}, {&m.a, {length, 1}, &out.d_a, {}, {}},
      {&m.b, {length, 1}, &out.d_b, {}, {}},  {&m.lambda_raw, {1, dk}, &out.d_lambda_raw, {}, {}}};
  for (Input& in : inputs) {
    in.data = upload(*in.value, in.shape);
    in.grad = upload(Values(in.value->size(), 0.0), in.shape);
  }
  const Tensor d_o = upload(m.d_o, {length, dv});
  const auto run = [&](Tape& tape, MesaState* state) {
    bool reached = false;
    Var vars[6];
    for (size_t i = 0; i < 6; ++i) { vars[i] = tape.leaf(inputs[i].data, inputs[i].grad, &reached); }
    Pass pass{tape, rows};
    const Var o =
        mesa(pass, {vars[0], vars[1], vars[2], vars[3], vars[4], {}, {}, {}, {}, vars[5]}, config, state, "x");
    if (tape.recording()) {
      tape.seed_grad(o, d_o);
      tape.backward();
    }
    return to_host(stream, tape.value(o)).values;
  };
  {
    Tape tape(stream, arena, false);
    MesaState state(arena, 1, config, dtype);
    out.o = run(tape, &state);
    out.keys = to_host(stream, state.keys).values;
    out.values = to_host(stream, state.values).values;
  }
  Tape tape(stream, arena, true);
  run(tape, nullptr);
  for (Input& in : inputs) { *in.gradient = to_host(stream, in.grad).values; }
  return out;
}

void check_same(const Results& a, const Results& b, double tolerance) {
  check_close("o", a.o, b.o, tolerance);
  check_close("R", a.keys, b.keys, tolerance);
  check_close("S", a.values, b.values, tolerance);
  check_close("d_q", a.d_q, b.d_q, tolerance);
  check_close("d_k", a.d_k, b.d_k, tolerance);
  check_close("d_v", a.d_v, b.d_v, tolerance);
  check_close("d_a", a.d_a, b.d_a, tolerance);
  check_close("d_b", a.d_b, b.d_b, tolerance);
  check_close("d_lambda_raw", a.d_lambda_raw, b.d_lambda_raw, tolerance);
}

double relative_rms(const Values& a, const Values& b) {
  Values difference = a;
  for (size_t i = 0; i < a.size(); ++i) { difference[i] -= b[i]; }
  return std::sqrt(dot(a.size(), difference.data(), difference.data()) / dot(b.size(), b.data(), b.data()));
}

Values last_row(const Values& o, size_t width) { return Values(o.end() - static_cast<std::ptrdiff_t>(width), o.end()); }

/// min |Y - M Phi|^2 by Householder reflections; M [rows, n], Y [rows, columns]; returns Phi [n, columns].
Values least_squares(size_t rows, size_t n, size_t columns, Values m, Values y) {
  for (size_t c = 0; c < n; ++c) {
    Values u(rows, 0.0);
    double square = 0;
    for (size_t i = c; i < rows; ++i) {
      u[i] = m[i * n + c];
      square += u[i] * u[i];
    }
    u[c] += std::copysign(std::sqrt(square), u[c]);
    const double length = dot(rows, u.data(), u.data());
    const auto reflect = [&](Values& x, size_t width, size_t at) {
      double s = 0;
      for (size_t i = c; i < rows; ++i) { s += u[i] * x[i * width + at]; }
      for (size_t i = c; i < rows; ++i) { x[i * width + at] -= 2 * s / length * u[i]; }
    };
    for (size_t j = 0; j < n; ++j) { reflect(m, n, j); }
    for (size_t j = 0; j < columns; ++j) { reflect(y, columns, j); }
  }
  Values phi(n * columns);
  for (size_t i = n; i-- > 0;) {
    for (size_t j = 0; j < columns; ++j) {
      double s = y[i * columns + j];
      for (size_t l = i + 1; l < n; ++l) { s -= m[i * n + l] * phi[l * columns + j]; }
      phi[i * columns + j] = s / m[i * n + i];
    }
  }
  return phi;
}

}  // namespace

TEST_CASE("chunks of mesa equal the recurrence, converged or not, with weak and strong decay", "[mesanet][fast]") {
  for (const size_t length : {size_t{5}, size_t{75}}) {
    for (const int64_t steps : {3, 30}) {
      for (const double strength : {1.0, 300.0}) {
        Problem m(length, 6, 7);
        m.rule.steps = steps;
        for (double& a : m.a) { a = strength == 1 ? a : -std::abs(a) * strength; }
        const Results expected = recurrence(m);
        for (const int64_t chunk : {1, 8, 16, 64}) {
          INFO("T " << length << ", N " << steps << ", g times " << strength << ", C " << chunk);
          check_same(run_op(m, chunk), expected, 1e-10);  // fp64 rounding through unconverged steps
        }
      }
    }
  }
}

TEST_CASE("mesa in fp32 is within 1e-5 of the fp64 recurrence", "[mesanet][fast]") {
  Problem m(150, 24, 17);
  check_same(run_op(m, 64, DType::f32), recurrence(m), 1e-5);  // docs/layers/mesanet.md, Precision
}

TEST_CASE("as many steps as key channels solve exactly, fewer leave an error that falls", "[mesanet][fast]") {
  Problem m(40, 9, 5);
  Problem exact = m;
  exact.rule.exact = true;
  const Results expected = run_op(exact, 16);
  m.rule.steps = 20;
  check_same(run_op(m, 16), expected, 1e-10);
  double before = 1;
  for (const int64_t steps : {1, 3, 5, 7}) {
    m.rule.steps = steps;
    const double error = relative_rms(run_op(m, 16).o, expected.o);
    CHECK(error < before);
    CHECK(error > 1e-12);
    before = error;
  }
  // R of one token has rank one: with one lambda the system has two eigenvalues.
  Problem one(1, 9, 5);
  one.lambda_raw.assign(9, 0.3);
  one.rule.steps = 2;
  Problem one_exact = one;
  one_exact.rule.exact = true;
  check_same(run_op(one, 16), run_op(one_exact, 16), 1e-13);
}

TEST_CASE("scaling a query scales the answer", "[mesanet][fast]") {
  const DType dtype = GENERATE(DType::f64, DType::f32);
  for (const double epsilon : {0.0, 1e-5, 0.3}) {
    for (const double c : {1e-12, 1e6}) {
      Problem m(21, 6, 4);
      m.rule.steps = 4;
      m.rule.epsilon = epsilon;
      const Results plain = run_op(m, 16, dtype);
      for (double& x : m.q) { x *= c; }
      for (double& x : m.d_o) { x *= c; }  // right-hand sides of the second solve
      const Results scaled = run_op(m, 16, dtype);
      Values o = plain.o, d_q = plain.d_q;
      for (double& x : o) { x *= c; }
      for (double& x : d_q) { x *= c; }
      const double tolerance = dtype == DType::f64 ? 1e-12 : 1e-5;
      check_close("o", scaled.o, o, tolerance, 0);
      check_close("d_q", scaled.d_q, d_q, tolerance, 0);
    }
  }
}

TEST_CASE("a query of zeros answers exactly 0 and changes nothing for the others", "[mesanet][fast]") {
  Problem m(11, 6, 4);
  const Values before = run_op(m, 16).o;
  std::fill_n(m.q.begin() + 5 * 6, 6, 0.0);
  Values after = run_op(m, 16).o;
  for (size_t i = 5 * 4; i < 6 * 4; ++i) {
    CHECK(after[i] == 0);
    after[i] = before[i];
  }
  CHECK(after == before);
}

TEST_CASE("mesa answers with the ridge regression over what it has read", "[mesanet][fast]") {
  Problem m(13, 5, 3);
  const Values lambda = m.lambda();
  const size_t rows = m.length + m.dk;
  Values left(rows * m.dk), right(rows * m.dv);
  double gam = 0;
  for (size_t t = m.length; t-- > 0;) {
    const double weight = std::sqrt(m.beta(t) * std::exp(gam));
    for (size_t i = 0; i < m.dk; ++i) { left[t * m.dk + i] = weight * m.k[t * m.dk + i]; }
    for (size_t i = 0; i < m.dv; ++i) { right[t * m.dv + i] = weight * m.v[t * m.dv + i]; }
    gam += m.g(t);
  }
  for (size_t i = 0; i < m.dk; ++i) { left[(m.length + i) * m.dk + i] = std::sqrt(lambda[i]); }
  const Values phi = least_squares(rows, m.dk, m.dv, left, right);
  Values expected(m.dv, 0.0);
  for (size_t j = 0; j < m.dv; ++j) {
    for (size_t i = 0; i < m.dk; ++i) { expected[j] += m.q[(m.length - 1) * m.dk + i] * phi[i * m.dv + j]; }
  }
  check_close("last answer", last_row(run_op(m, 4).o, m.dv), expected, 1e-12);
}

TEST_CASE("without decay the order of past tokens does not matter", "[mesanet][fast]") {
  Problem m(12, 5, 3);
  m.a.assign(m.length, 60.0);  // g = -1e-26
  const Values before = last_row(run_op(m, 4).o, 3);
  std::reverse(m.k.begin(), m.k.end() - 5);
  for (size_t t = 0; t < 11; ++t) {
    std::reverse(m.k.begin() + static_cast<std::ptrdiff_t>(t * 5),
                 m.k.begin() + static_cast<std::ptrdiff_t>(t * 5 + 5));
  }
  std::reverse(m.v.begin(), m.v.end() - 3);
  for (size_t t = 0; t < 11; ++t) {
    std::reverse(m.v.begin() + static_cast<std::ptrdiff_t>(t * 3),
                 m.v.begin() + static_cast<std::ptrdiff_t>(t * 3 + 3));
  }
  std::reverse(m.b.begin(), m.b.end() - 1);
  check_close("last answer", last_row(run_op(m, 4).o, 3), before, 1e-12);
}

TEST_CASE("a large ridge leaves gated linear attention, a small one recalls orthonormal keys", "[mesanet][fast]") {
  Problem m(10, 5, 3);
  m.lambda_raw.assign(5, 1e8);
  Values o = run_op(m, 4).o;
  for (double& x : o) { x *= 1e8; }
  Values expected;
  for (size_t t = 0; t < m.length; ++t) {
    for (size_t j = 0; j < 3; ++j) {
      double sum = 0, gam = 0;
      for (size_t s = t + 1; s-- > 0;) {
        sum += std::exp(gam) * m.beta(s) * dot(5, &m.q[t * 5], &m.k[s * 5]) * m.v[s * 3 + j];
        gam += m.g(s);
      }
      expected.push_back(sum);
    }
  }
  check_close("linear attention", o, expected, 1e-6);  // R / lambda is about 1e-7

  Problem recall(5, 5, 3);
  recall.a.assign(5, 60.0);
  recall.b.assign(5, 60.0);
  recall.lambda_raw.assign(5, -60.0);
  recall.rule.lambda_min = 1e-9;
  recall.k.assign(25, 0.0);
  for (size_t i = 0; i < 5; ++i) { recall.k[i * 6] = 1; }
  for (size_t i = 0; i < 5; ++i) {
    recall.q.assign(25, 0.0);
    recall.q[4 * 5 + i] = 1;
    check_close("value", last_row(run_op(recall, 4).o, 3),
                Values(recall.v.begin() + static_cast<std::ptrdiff_t>(3 * i),
                       recall.v.begin() + static_cast<std::ptrdiff_t>(3 * i + 3)),
                1e-8);
  }
}

TEST_CASE("the first token's answer is that of its own write", "[mesanet][fast]") {
  Problem m(1, 5, 3);
  const Values lambda = m.lambda();
  double qu = 0, ku = 0;
  for (size_t i = 0; i < 5; ++i) {
    qu += m.q[i] * m.k[i] / lambda[i];
    ku += m.k[i] * m.k[i] / lambda[i];
  }
  Values expected = m.v;
  for (double& x : expected) { x *= m.beta(0) * qu / (1 + m.beta(0) * ku); }
  check_close("o", run_op(m, 16).o, expected, 1e-13);
}
