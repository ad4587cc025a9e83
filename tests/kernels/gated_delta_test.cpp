#include "kernels/gated_delta/gated_delta.h"

#include "core/parallel.h"
#include "layers/ops/chunk_grid.h"
#include "tests/kernels/tensors.h"

using namespace hebb;
using namespace hebb::testing;

namespace {

struct Problem {
  int64_t batch = 2, length = 70, key_heads = 2, value_heads = 4, key_dim = 7, value_dim = 5;
  std::vector<std::vector<int64_t>> documents;  // lengths by row; empty: one document a row
  bool initial = true;
  double decay = 0.1, strength = 1.0;  // scales of -g and beta
  Values q, k, v, g, beta, start, carried, d_o;

  Shape keys() const { return {batch, length, key_heads, key_dim}; }
  Shape values() const { return {batch, length, value_heads, value_dim}; }
  Shape gates() const { return {batch, length, value_heads}; }
  Shape state() const { return {value_heads, key_dim, value_dim}; }
  Shape states() const { return {batch, value_heads, key_dim, value_dim}; }
  double scale() const { return 1.0 / std::sqrt(static_cast<double>(key_dim)); }

  void fill() {
    q = random_values(keys().numel(), "q");
    k = random_values(keys().numel(), "k", 1.0 / std::sqrt(static_cast<double>(key_dim)));
    v = random_values(values().numel(), "v");
    d_o = random_values(values().numel(), "d_o");
    start = random_values(state().numel(), "start");
    carried = random_values(states().numel(), "carried");
    g = random_values(gates().numel(), "g", decay);
    beta = random_values(gates().numel(), "beta");
    for (double& x : g) { x = -std::abs(x); }
    for (double& x : beta) { x = strength / (1.0 + std::exp(-x)); }
    for (Values* x : {&q, &k, &v, &d_o, &start, &carried, &g, &beta}) {  // exact in fp32 too
      for (double& y : *x) { y = static_cast<double>(static_cast<float>(y)); }
    }
  }

  std::vector<int64_t> ids() const {
    std::vector<int64_t> ids;
    for (const std::vector<int64_t>& row : documents) {
      for (size_t d = 0; d < row.size(); ++d) {
        ids.insert(ids.end(), static_cast<size_t>(row[d]), static_cast<int64_t>(d));
      }
    }
    return ids;
  }
  Rows rows(Tensors& t, int64_t offset) const {
    return documents.empty() ? Rows::streams(t.stream, t.arena, batch, length, offset)
                             : Rows::documents(t.stream, t.arena, batch, length, ids(), offset);
  }
};

struct Result {
  Values o, prediction, state, d_q, d_k, d_v, d_g, d_beta, d_start;
};

/// The recurrence of docs/layers/gdn.md, token by token, and its derivative, token by token backward.
class Recurrence {
 public:
  Recurrence(const Problem& p, bool continues)
      : p_(p),
        continues_(continues),
        dk_(static_cast<size_t>(p.key_dim)),
        dv_(static_cast<size_t>(p.value_dim)),
        n_(dk_ * dv_) {
    r_.o.resize(p.v.size());
    r_.prediction.resize(p.v.size());
    r_.state = p.carried;
    r_.d_q.resize(p.q.size());
    r_.d_k.resize(p.k.size());
    r_.d_v.resize(p.v.size());
    r_.d_g.resize(p.g.size());
    r_.d_beta.resize(p.beta.size());
    r_.d_start.resize(p.start.size());
    const std::vector<int64_t> ids = p.ids();
    for (int64_t b = 0; b < p.batch; ++b) {
      for (int64_t h = 0; h < p.value_heads; ++h) { run_head(b, h, ids); }
    }
  }
  Result result() { return std::move(r_); }

 private:
  bool begins(int64_t b, int64_t t, const std::vector<int64_t>& ids) const {
    const size_t i = static_cast<size_t>(b * p_.length + t);
    return t == 0 ? !continues_ : !ids.empty() && ids[i] != ids[i - 1];
  }

  /// Where the numbers of one token and head begin.
  struct At {
    size_t key, gate, value;
  };
  At at(int64_t b, int64_t h, size_t t) const {
    const size_t i = static_cast<size_t>(b * p_.length) + t;
    const size_t gate = i * static_cast<size_t>(p_.value_heads) + static_cast<size_t>(h);
    const size_t key_head = static_cast<size_t>(h / (p_.value_heads / p_.key_heads));
    return {(i * static_cast<size_t>(p_.key_heads) + key_head) * dk_, gate, gate * dv_};
  }

  void run_head(int64_t b, int64_t h, const std::vector<int64_t>& ids) {
    double* end = r_.state.data() + static_cast<size_t>(b * p_.value_heads + h) * n_;
    const double* start = p_.start.data() + static_cast<size_t>(h) * n_;
    Values s(end, end + n_);
    history_.assign(static_cast<size_t>(p_.length), {});
    for (size_t t = 0; t < history_.size(); ++t) {
      if (begins(b, static_cast<int64_t>(t), ids)) { s = p_.initial ? Values(start, start + n_) : Values(n_, 0.0); }
      forward_token(at(b, h, t), s, history_[t]);
    }
    std::copy(s.begin(), s.end(), end);
    Values d_s(n_, 0.0);
    for (size_t t = history_.size(); t-- > 0;) {
      backward_token(at(b, h, t), history_[t], d_s);
      if (begins(b, static_cast<int64_t>(t), ids)) {
        for (size_t j = 0; j < n_; ++j) { r_.d_start[static_cast<size_t>(h) * n_ + j] += p_.initial ? d_s[j] : 0.0; }
        d_s.assign(n_, 0.0);
      }
    }
  }

  struct Token {
    Values decayed, after, error;
  };

  void forward_token(const At& i, Values& s, Token& token) {
    for (size_t j = 0; j < n_; ++j) {
      r_.prediction[i.value + j % dv_] += p_.k[i.key + j / dv_] * s[j];
      s[j] *= std::exp(p_.g[i.gate]);
    }
    token.decayed = s;
    token.error.assign(p_.v.begin() + static_cast<std::ptrdiff_t>(i.value),
                       p_.v.begin() + static_cast<std::ptrdiff_t>(i.value + dv_));
    for (size_t j = 0; j < n_; ++j) { token.error[j % dv_] -= p_.k[i.key + j / dv_] * token.decayed[j]; }
    for (size_t j = 0; j < n_; ++j) {
      s[j] += p_.k[i.key + j / dv_] * p_.beta[i.gate] * token.error[j % dv_];
      r_.o[i.value + j % dv_] += p_.scale() * p_.q[i.key + j / dv_] * s[j];
    }
    token.after = s;
  }

  void backward_token(const At& i, const Token& token, Values& d_s) {
    const double beta = p_.beta[i.gate];
    Values d_delta(dv_, 0.0);
    for (size_t j = 0; j < n_; ++j) {
      const size_t a = i.key + j / dv_, c = j % dv_;
      r_.d_q[a] += p_.scale() * token.after[j] * p_.d_o[i.value + c];
      d_s[j] += p_.scale() * p_.q[a] * p_.d_o[i.value + c];
      d_delta[c] += p_.k[a] * d_s[j];
    }
    r_.d_beta[i.gate] = weighted_sum(d_delta, token.error);
    for (size_t c = 0; c < dv_; ++c) { r_.d_v[i.value + c] = beta * d_delta[c]; }
    for (size_t j = 0; j < n_; ++j) {
      const size_t a = i.key + j / dv_, c = j % dv_;
      r_.d_k[a] += beta * (d_s[j] * token.error[c] - token.decayed[j] * d_delta[c]);
      d_s[j] -= p_.k[a] * beta * d_delta[c];
    }
    r_.d_g[i.gate] = weighted_sum(d_s, token.decayed);
    for (double& x : d_s) { x *= std::exp(p_.g[i.gate]); }
  }

  const Problem& p_;
  bool continues_;
  size_t dk_, dv_, n_;
  std::vector<Token> history_;
  Result r_;
};

enum class Form { chunks, steps };

/// Runs the kernels. offset > 0: rows continue p.carried; the state is carried whenever `carry`.
Result run_kernels(const Problem& p, DType dtype, Form form, int64_t chunk, int64_t offset, bool carry,
                   bool gradients) {
  Tensors t(dtype);
  const Rows rows = p.rows(t, offset);
  const Tensor q = t.make(p.keys(), p.q), k = t.make(p.keys(), p.k), v = t.make(p.values(), p.v);
  const Tensor g = t.make(p.gates(), p.g), beta = t.make(p.gates(), p.beta);
  const Tensor start = p.initial ? t.make(p.state(), p.start) : Tensor{};
  const Tensor state = !carry ? Tensor{} : offset > 0 ? t.make(p.states(), p.carried) : t.empty(p.states());
  const Tensor o = t.empty(p.values()), prediction = t.empty(p.values());
  Result r;
  if (form == Form::steps) {
    run(t.stream, GatedDeltaSteps{.o = o,
                                  .prediction = prediction,
                                  .state = state,
                                  .q = q,
                                  .k = k,
                                  .v = v,
                                  .g = g,
                                  .beta = beta,
                                  .initial_state = start,
                                  .doc_start = rows.doc_start(),
                                  .scale = p.scale()});
  } else {
    Tape tape(t.stream, t.arena, false);
    const ChunkGrid grid = chunk_grid(tape, rows, chunk);
    run(t.workspace(), GatedDeltaForward{.o = o,
                                         .prediction = prediction,
                                         .state = state,
                                         .q = q,
                                         .k = k,
                                         .v = v,
                                         .g = g,
                                         .beta = beta,
                                         .initial_state = start,
                                         .doc_start = rows.doc_start(),
                                         .grid = grid,
                                         .scale = p.scale()});
    if (gradients) {
      const Tensor d_q = t.empty(p.keys()), d_k = t.empty(p.keys()), d_v = t.empty(p.values()),
                   d_g = t.empty(p.gates());
      const Tensor d_beta = t.empty(p.gates()), d_start = p.initial ? t.zeros(p.state()) : Tensor{};
      run(t.workspace(), GatedDeltaBackward{.d_q = d_q,
                                            .d_k = d_k,
                                            .d_v = d_v,
                                            .d_g = d_g,
                                            .d_beta = d_beta,
                                            .d_initial_state = d_start,
                                            .d_o = t.make(p.values(), p.d_o),
                                            .q = q,
                                            .k = k,
                                            .v = v,
                                            .g = g,
                                            .beta = beta,
                                            .initial_state = start,
                                            .doc_start = rows.doc_start(),
                                            .grid = grid,
                                            .scale = p.scale()});
      r.d_q = Tensors::read(d_q);
      r.d_k = Tensors::read(d_k);
      r.d_v = Tensors::read(d_v);
      r.d_g = Tensors::read(d_g);
      r.d_beta = Tensors::read(d_beta);
      r.d_start = p.initial ? Tensors::read(d_start) : Values(p.start.size(), 0.0);
    }
  }
  r.o = Tensors::read(o);
  r.prediction = Tensors::read(prediction);
  if (carry) { r.state = Tensors::read(state); }
  return r;
}

void check_outputs(const Result& found, const Result& expected, double tolerance) {
  check_near("o", found.o, expected.o, tolerance);
  check_near("prediction", found.prediction, expected.prediction, tolerance);
  if (!found.state.empty()) { check_near("state", found.state, expected.state, tolerance); }
}

void check_gradients(const Result& found, const Result& expected, double tolerance) {
  check_near("d_q", found.d_q, expected.d_q, tolerance);
  check_near("d_k", found.d_k, expected.d_k, tolerance);
  check_near("d_v", found.d_v, expected.d_v, tolerance);
  check_near("d_g", found.d_g, expected.d_g, tolerance);
  check_near("d_beta", found.d_beta, expected.d_beta, tolerance);
  check_near("d_start", found.d_start, expected.d_start, tolerance);
}

}  // namespace

TEST_CASE("the chunked delta rule equals the recurrence for every chunk size and length", "[gated_delta][fast]") {
  const int64_t chunk = GENERATE(1, 16, 32, 64, 128), length = GENERATE(1, 15, 33, 64, 65, 200);
  Problem p;
  p.length = length;
  p.initial = length % 2 == 1;
  p.fill();
  INFO("chunk " << chunk << ", length " << length);
  const Result expected = Recurrence(p, false).result();
  const Result found = run_kernels(p, DType::f64, Form::chunks, chunk, 0, true, true);
  check_outputs(found, expected, 1e-12);  // fp64, sums of up to 200 terms
  check_gradients(found, expected, 1e-11);
}

TEST_CASE("head sizes and groups of any kind agree with the recurrence", "[gated_delta][fast]") {
  struct Sizes {
    int64_t key_heads, value_heads, key_dim, value_dim;
  };
  for (const Sizes& n : {Sizes{1, 1, 1, 1}, Sizes{1, 3, 16, 17}, Sizes{3, 3, 33, 2}, Sizes{2, 2, 64, 48}}) {
    Problem p;
    p.length = 83;
    p.key_heads = n.key_heads;
    p.value_heads = n.value_heads;
    p.key_dim = n.key_dim;
    p.value_dim = n.value_dim;
    p.fill();
    const Result expected = Recurrence(p, false).result();
    const Result found = run_kernels(p, DType::f64, Form::chunks, 32, 0, false, true);
    check_outputs(found, expected, 1e-12);
    check_gradients(found, expected, 1e-11);
  }
}

TEST_CASE("documents start from the initial state, and chunks do not cross them", "[gated_delta][fast]") {
  Problem p;
  p.length = 100;
  p.documents = {{1, 1, 40, 58}, {70, 1, 16, 13}};
  for (const bool initial : {false, true}) {
    p.initial = initial;
    p.fill();
    const Result expected = Recurrence(p, false).result();
    for (const int64_t chunk : {16, 64}) {
      const Result found = run_kernels(p, DType::f64, Form::chunks, chunk, 0, true, true);
      check_outputs(found, expected, 1e-12);
      check_gradients(found, expected, 1e-11);
    }
  }
}

TEST_CASE("steps and chunks continue a carried state", "[gated_delta][fast]") {
  Problem p;
  p.length = 37;
  for (const bool packed : {false, true}) {
    p.documents = packed ? std::vector<std::vector<int64_t>>{{5, 32}, {36, 1}} : std::vector<std::vector<int64_t>>{};
    p.fill();
    const Result expected = Recurrence(p, true).result();
    check_outputs(run_kernels(p, DType::f64, Form::chunks, 16, 9, true, false), expected, 1e-12);
    check_outputs(run_kernels(p, DType::f64, Form::steps, 0, 9, true, false), expected, 1e-12);
  }
}

TEST_CASE("the fp32 delta rule stays within 1e-5 of the fp64 recurrence", "[gated_delta][fast]") {
  // Also with decays that leave nothing of the state, next to ones that keep all of it.
  for (const double decay : {0.05, 2.0, 30.0}) {
    Problem p;
    p.length = 150;
    p.key_dim = 24;
    p.value_dim = 18;
    p.decay = decay;
    p.fill();
    for (size_t i = 0; i < p.g.size(); i += 3) { p.g[i] = static_cast<double>(static_cast<float>(p.g[i] * 1e-3)); }
    const Result expected = Recurrence(p, false).result();
    const Result found = run_kernels(p, DType::f32, Form::chunks, 64, 0, true, true);
    check_outputs(found, expected, 1e-5);
    check_gradients(found, expected, 1e-5);
    check_outputs(run_kernels(p, DType::f32, Form::steps, 0, 0, true, false), expected, 1e-5);
  }
}

TEST_CASE("write strengths up to 2 agree with the recurrence", "[gated_delta][fast]") {
  Problem p;
  p.strength = 2.0;
  p.fill();
  // Keys of length 1, as the l2 norm makes them: with beta = 2 the transition is a reflection.
  for (size_t i = 0; i < p.k.size(); i += 7) {
    double square = 0;
    for (size_t a = 0; a < 7; ++a) { square += p.k[i + a] * p.k[i + a]; }
    for (size_t a = 0; a < 7; ++a) { p.k[i + a] /= std::sqrt(square); }
  }
  const Result expected = Recurrence(p, false).result();
  const Result found = run_kernels(p, DType::f64, Form::chunks, 64, 0, true, true);
  check_outputs(found, expected, 1e-12);
  check_gradients(found, expected, 1e-11);
}

TEST_CASE("orthonormal keys are recalled exactly, and writing a key again replaces its value", "[gated_delta][fast]") {
  Problem p;
  p.batch = p.key_heads = p.value_heads = 1;
  p.length = 9;
  p.initial = false;
  p.fill();
  std::fill(p.g.begin(), p.g.end(), 0.0);
  std::fill(p.beta.begin(), p.beta.end(), 1.0);
  std::fill(p.k.begin(), p.k.end(), 0.0);
  for (size_t t = 0; t < 9; ++t) {
    p.k[t * 7 + t % 7] = 1.0;  // tokens 7 and 8 write keys 0 and 1 again
  }
  for (const Form form : {Form::chunks, Form::steps}) {
    const Result found = run_kernels(p, DType::f64, form, 64, 0, true, false);
    for (size_t a = 0; a < 7; ++a) {
      const size_t writer = a < 2 ? a + 7 : a;
      for (size_t c = 0; c < 5; ++c) {
        CHECK(found.state[a * 5 + c] == Approx(p.v[writer * 5 + c]).margin(1e-14));
        CHECK(found.prediction[(7 + a % 2) * 5 + c] == Approx(p.v[(a % 2) * 5 + c]).margin(1e-14));
      }
    }
  }
}

TEST_CASE("without writes the state only decays", "[gated_delta][fast]") {
  Problem p;
  p.fill();
  std::fill(p.beta.begin(), p.beta.end(), 0.0);
  const Result found = run_kernels(p, DType::f64, Form::chunks, 16, 5, true, false);
  for (int64_t b = 0; b < p.batch; ++b) {
    for (int64_t h = 0; h < p.value_heads; ++h) {
      double total = 0;
      for (int64_t t = 0; t < p.length; ++t) {
        total += p.g[static_cast<size_t>((b * p.length + t) * p.value_heads + h)];
      }
      for (int64_t i = 0; i < 35; ++i) {
        const size_t at = static_cast<size_t>((b * p.value_heads + h) * 35 + i);
        CHECK(found.state[at] == Approx(p.carried[at] * std::exp(total)).epsilon(1e-12));
      }
    }
  }
}

TEST_CASE("a decay to nothing leaves each token its own write, and finite gradients", "[gated_delta][fast]") {
  const DType dtype = GENERATE(DType::f64, DType::f32);
  Problem p;
  p.length = 90;
  p.fill();
  std::fill(p.g.begin(), p.g.end(), -400.0);
  const double tolerance = dtype == DType::f64 ? 1e-12 : 1e-5;
  const Result found = run_kernels(p, dtype, Form::chunks, 64, 0, true, true);
  const Result expected = Recurrence(p, false).result();
  check_outputs(found, expected, tolerance);
  check_gradients(found, expected, tolerance);
  for (size_t i = 0; i < p.beta.size(); ++i) {
    const size_t key = i / 4 * 14 + i % 4 / 2 * 7;
    double match = 0;
    for (size_t a = 0; a < 7; ++a) { match += p.scale() * p.q[key + a] * p.k[key + a]; }
    for (size_t c = 0; c < 5; ++c) {
      CHECK(found.o[i * 5 + c] == Approx(p.beta[i] * match * p.v[i * 5 + c]).epsilon(10 * tolerance).margin(tolerance));
    }
  }
}

TEST_CASE("the chunked prediction keeps its direction after resets", "[gated_delta][fast]") {
  Problem p;
  p.length = 64;
  p.initial = false;
  p.fill();
  for (size_t i = 0; i < p.g.size(); i += 2) { p.g[i] = -20.0; }
  const Result expected = Recurrence(p, false).result();
  const Result found = run_kernels(p, DType::f32, Form::chunks, 64, 0, false, false);
  for (size_t i = 0; i < p.beta.size(); ++i) {
    double along = 0, a = 0, b = 0;
    for (size_t c = i * 5; c < i * 5 + 5; ++c) {
      along += found.prediction[c] * expected.prediction[c];
      a += found.prediction[c] * found.prediction[c];
      b += expected.prediction[c] * expected.prediction[c];
    }
    if (b > 0) {
      CHECK(along / std::sqrt(a * b) == Approx(1.0).margin(1e-6));  // fp32, sums of 64 terms
    }
  }
}

TEST_CASE("the delta rule gives the same bits on 1 and 3 threads", "[gated_delta][threads]") {
  Problem p;
  p.documents = {{33, 37}, {70}};
  p.fill();
  set_threads(1);
  const Result one = run_kernels(p, DType::f32, Form::chunks, 16, 0, true, true);
  set_threads(3);
  const Result three = run_kernels(p, DType::f32, Form::chunks, 16, 0, true, true);
  set_threads(0);
  CHECK(one.o == three.o);
  CHECK(one.state == three.state);
  CHECK(one.d_q == three.d_q);
  CHECK(one.d_k == three.d_k);
  CHECK(one.d_v == three.d_v);
  CHECK(one.d_g == three.d_g);
  CHECK(one.d_beta == three.d_beta);
  CHECK(one.d_start == three.d_start);
}
