// The solves of mesa on given queries, keys and values: one head of one row.
#include "layers/mesanet/op.h"

#include <map>

#include "tests/kernels/tensors.h"

namespace {

struct Problem {
  int64_t length, dk, dv;
  MesanetRule rule;
  Values q = random_values(length * dk, "q"), k = random_values(length * dk, "k", 0.7),
         v = random_values(length * dv, "v"), a = random_values(length, "a"), b = random_values(length, "b"),
         lambda_raw = random_values(dk, "lambda", 0.5), d_o = random_values(length * dv, "d_o");
};

/// Outputs and gradients by name.
using Results = std::map<std::string, Values>;

Results run_op(const Problem& p, DType dtype = DType::f64) {
  Tensors t(dtype);
  const Rows rows = Rows::streams(t.stream, t.arena, 1, p.length);
  const MesanetOptions config{.heads = 1,
                              .key_dim = p.dk,
                              .value_dim = p.dv,
                              .silu = false,
                              .l2_norm = false,
                              .rule = p.rule,
                              .decode_steps = p.rule.steps,
                              .chunk = 16};
  std::map<std::string, Tensor> gradients;
  Tape tape(t.stream, t.arena, true);
  Pass pass{tape, rows};
  const auto leaf = [&](const std::string& name, Shape shape, const Values& values) {
    gradients[name] = t.zeros(shape);
    return tape.leaf(t.make(shape, values), gradients[name], nullptr);
  };
  MesanetInputs in;
  in.q.x = leaf("d_q", {p.length, p.dk}, p.q);
  in.k.x = leaf("d_k", {p.length, p.dk}, p.k);
  in.v = leaf("d_v", {p.length, p.dv}, p.v);
  in.a = leaf("d_a", {p.length, 1}, p.a);
  in.b = leaf("d_b", {p.length, 1}, p.b);
  in.lambda_raw = leaf("d_lambda_raw", {1, p.dk}, p.lambda_raw);
  const Var o = mesa(pass, in, config, nullptr, "x");
  Results out{{"o", Tensors::read(tape.value(o))}};
  tape.seed_grad(o, t.make({p.length, p.dv}, p.d_o));
  tape.backward();
  for (const auto& [name, gradient] : gradients) { out[name] = Tensors::read(gradient); }
  return out;
}

void check_same(const Results& found, const Results& expected, double tolerance) {
  for (const auto& [name, values] : expected) { check_near(name, found.at(name), values, tolerance); }
}

/// What the op has read, as the answers of its last token to unit queries: Phi [dk, dv].
Values read_out(Problem p) {
  Values phi;
  for (int64_t i = 0; i < p.dk; ++i) {
    std::fill(p.q.begin(), p.q.end(), 0.0);
    p.q[static_cast<size_t>((p.length - 1) * p.dk + i)] = 1;
    const Values o = run_op(p).at("o");
    phi.insert(phi.end(), o.end() - p.dv, o.end());
  }
  return phi;
}

double beta(const Problem& p, int64_t t) { return 1 / (1 + std::exp(-p.b[static_cast<size_t>(t)])); }
/// What is left of token t's write at the end.
double left_of(const Problem& p, int64_t t) {
  double sum = 0;
  for (int64_t s = t + 1; s < p.length; ++s) { sum -= std::log1p(std::exp(-p.a[static_cast<size_t>(s)])); }
  return beta(p, t) * std::exp(sum);
}

double distance(const Values& a, const Values& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) { sum += (a[i] - b[i]) * (a[i] - b[i]); }
  return std::sqrt(sum);
}

}  // namespace

TEST_CASE("as many steps as key channels solve exactly, fewer leave an error that falls", "[mesanet][fast]") {
  Problem m{.length = 40, .dk = 9, .dv = 5, .rule = {}};
  Problem exact = m;
  exact.rule.exact = true;
  const Results expected = run_op(exact);
  m.rule.steps = 20;
  check_same(run_op(m), expected, 1e-10);
  double before = distance(Values(expected.at("o").size()), expected.at("o"));
  for (const int64_t steps : {1, 3, 5, 7}) {
    m.rule.steps = steps;
    const double error = distance(run_op(m).at("o"), expected.at("o"));
    CHECK(error < before);
    CHECK(error > 1e-12);
    before = error;
  }
  // R of one token has rank one: with one lambda the system has two eigenvalues.
  Problem one{.length = 1, .dk = 9, .dv = 5, .rule = {}};
  one.lambda_raw.assign(9, 0.3);
  one.rule.steps = 2;
  Problem one_exact = one;
  one_exact.rule.exact = true;
  check_same(run_op(one), run_op(one_exact), 1e-13);
}

TEST_CASE("scaling a query scales the answer", "[mesanet][fast]") {
  const DType dtype = GENERATE(DType::f64, DType::f32);
  for (const double epsilon : {0.0, 1e-5, 0.3}) {
    for (const double c : {1e-12, 1e6}) {
      Problem m{.length = 21, .dk = 6, .dv = 4, .rule = {}};
      m.rule.steps = 4;
      m.rule.epsilon = epsilon;
      Results plain = run_op(m, dtype);
      for (Values* values : {&m.q, &m.d_o}) {  // d_o: right-hand sides of the second solve
        for (double& x : *values) { x *= c; }
      }
      const Results scaled = run_op(m, dtype);
      for (const char* name : {"o", "d_q"}) {
        for (double& x : plain.at(name)) { x *= c; }
        INFO(name);
        CHECK(distance(scaled.at(name), plain.at(name)) <=
              (dtype == DType::f64 ? 1e-12 : 1e-5) * distance(Values(plain.at(name).size()), plain.at(name)));
      }
    }
  }
}

TEST_CASE("a query of zeros answers exactly 0 and changes nothing for the others", "[mesanet][fast]") {
  Problem m{.length = 11, .dk = 6, .dv = 4, .rule = {}};
  const Values before = run_op(m).at("o");
  std::fill_n(m.q.begin() + 5 * 6, 6, 0.0);
  Values after = run_op(m).at("o");
  for (size_t i = 5 * 4; i < 6 * 4; ++i) {
    CHECK(after[i] == 0);
    after[i] = before[i];
  }
  CHECK(after == before);
}

TEST_CASE("mesa answers with the ridge regression over what it has read", "[mesanet][fast]") {
  const Problem m{.length = GENERATE(1, 13), .dk = 5, .dv = 3, .rule = {}};
  const Values phi = read_out(m);
  // Where sum_t w_t |v_t - k_t Phi|^2 + sum_i lambda_i |Phi_i|^2 is least, its derivative is 0.
  Values pull(phi.size()), penalty(phi.size());
  for (int64_t i = 0; i < m.dk; ++i) {
    const double lambda = m.rule.lambda_min + std::log1p(std::exp(m.lambda_raw[static_cast<size_t>(i)]));
    for (int64_t j = 0; j < m.dv; ++j) {
      const auto at = static_cast<size_t>(i * m.dv + j);
      penalty[at] = lambda * phi[at];
      for (int64_t t = 0; t < m.length; ++t) {
        double error = m.v[static_cast<size_t>(t * m.dv + j)];
        for (int64_t l = 0; l < m.dk; ++l) {
          error -= m.k[static_cast<size_t>(t * m.dk + l)] * phi[static_cast<size_t>(l * m.dv + j)];
        }
        pull[at] += left_of(m, t) * m.k[static_cast<size_t>(t * m.dk + i)] * error;
      }
    }
  }
  check_near("derivative", pull, penalty, 1e-12);
}

TEST_CASE("without decay the order of past tokens does not matter to mesa", "[mesanet][fast]") {
  Problem m{.length = 12, .dk = 5, .dv = 3, .rule = {}};
  m.a.assign(12, 60.0);  // g = -1e-26
  const Values before = read_out(m);
  for (const auto& [values, width] : {std::pair{&m.k, m.dk}, {&m.v, m.dv}, {&m.b, int64_t{1}}}) {
    for (int64_t t = 0; t < 5; ++t) {  // turns the first 11 around
      std::swap_ranges(values->begin() + t * width, values->begin() + (t + 1) * width,
                       values->begin() + (10 - t) * width);
    }
  }
  check_near("Phi", read_out(m), before, 1e-12);
}

TEST_CASE("a large ridge leaves gated linear attention, a small one recalls orthonormal keys", "[mesanet][fast]") {
  Problem m{.length = 10, .dk = 5, .dv = 3, .rule = {}};
  m.lambda_raw.assign(5, 1e8);
  Values phi = read_out(m), expected(phi.size());
  for (double& x : phi) { x *= 1e8; }
  for (int64_t t = 0; t < m.length; ++t) {
    for (size_t i = 0; i < expected.size(); ++i) {
      const int64_t row = static_cast<int64_t>(i) / m.dv, column = static_cast<int64_t>(i) % m.dv;
      expected[i] +=
          left_of(m, t) * m.k[static_cast<size_t>(t * m.dk + row)] * m.v[static_cast<size_t>(t * m.dv + column)];
    }
  }
  check_near("linear attention", phi, expected, 1e-6);  // R / lambda is about 1e-7

  Problem recall{.length = 5, .dk = 5, .dv = 3, .rule = {}};
  recall.a.assign(5, 60.0);
  recall.b.assign(5, 60.0);
  recall.lambda_raw.assign(5, -60.0);
  recall.rule.lambda_min = 1e-9;
  recall.k.assign(25, 0.0);
  for (size_t i = 0; i < 5; ++i) { recall.k[i * 6] = 1; }
  check_near("values", read_out(recall), recall.v, 1e-8);
}
