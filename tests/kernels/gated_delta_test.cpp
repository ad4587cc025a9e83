// The gated delta rule on the CPU against its recurrence, in more shapes than tests/op_cases/gated_delta.cpp has for
// all devices.
#include "tests/op_cases/gated_delta.h"

#include <numeric>

using namespace hebb_test;

namespace {

struct Expected {
  Values o, prediction, state, d_q, d_k, d_v, d_g, d_beta, d_start;
};

/// The recurrence of docs/layers/gdn.md, token by token, and its derivative, token by token backward. d_start is added
/// to what is there.
class Recurrence {
 public:
  /// state: what rows continue.
  Recurrence(Machine& m, const Delta& d, const DeltaInputs& in, const Tensor& d_o, const Values& state,
             const Values& d_start)
      : d_(d),
        q_(m.read(in.q)),
        k_(m.read(in.k)),
        v_(m.read(in.v)),
        g_(m.read(in.g)),
        beta_(m.read(in.beta)),
        start_(d.initial ? m.read(in.initial) : Values(static_cast<size_t>(d.start().numel()))),
        d_o_(d_o.defined() ? m.read(d_o) : Values(v_.size())),
        dv_(static_cast<size_t>(d.dv)),
        n_(static_cast<size_t>(d.dk * d.dv)) {
    r_ = {.o = Values(v_.size()),
          .prediction = Values(v_.size()),
          .state = state.empty() ? Values(2 * start_.size()) : state,
          .d_q = Values(q_.size()),
          .d_k = Values(k_.size()),
          .d_v = Values(v_.size()),
          .d_g = Values(g_.size()),
          .d_beta = Values(g_.size()),
          .d_start = d_start};
    for (int64_t b = 0; b < 2; ++b) {
      for (int64_t h = 0; h < d.value_heads; ++h) { run_head(b, h); }
    }
  }
  Expected result() { return std::move(r_); }

 private:
  bool begins(int64_t b, int64_t t) const { return d_.doc_start[static_cast<size_t>(b * d_.length + t)] == t; }

  /// Where the numbers of one token and head begin.
  struct At {
    size_t key, gate, value;
  };
  At at(int64_t b, int64_t h, size_t t) const {
    const size_t i = static_cast<size_t>(b * d_.length) + t;
    const size_t gate = i * static_cast<size_t>(d_.value_heads) + static_cast<size_t>(h);
    const auto key_head = static_cast<size_t>(h / (d_.value_heads / d_.heads));
    return {(i * static_cast<size_t>(d_.heads) + key_head) * static_cast<size_t>(d_.dk), gate, gate * dv_};
  }

  struct Token {
    Values decayed, after, error;
  };

  void run_head(int64_t b, int64_t h) {
    double* end = r_.state.data() + static_cast<size_t>(b * d_.value_heads + h) * n_;
    const double* start = start_.data() + static_cast<size_t>(h) * n_;
    Values s(end, end + n_);
    std::vector<Token> history(static_cast<size_t>(d_.length));
    for (size_t t = 0; t < history.size(); ++t) {
      if (begins(b, static_cast<int64_t>(t))) { s.assign(start, start + n_); }
      forward_token(at(b, h, t), s, history[t]);
    }
    std::copy(s.begin(), s.end(), end);
    Values d_s(n_, 0.0);
    for (size_t t = history.size(); t-- > 0;) {
      backward_token(at(b, h, t), history[t], d_s);
      if (begins(b, static_cast<int64_t>(t))) {
        for (size_t j = 0; d_.initial && j < n_; ++j) { r_.d_start[static_cast<size_t>(h) * n_ + j] += d_s[j]; }
        d_s.assign(n_, 0.0);
      }
    }
  }

  void forward_token(const At& i, Values& s, Token& token) {
    for (size_t j = 0; j < n_; ++j) {
      r_.prediction[i.value + j % dv_] += k_[i.key + j / dv_] * s[j];
      s[j] *= std::exp(g_[i.gate]);
    }
    token.decayed = s;
    token.error.assign(v_.begin() + static_cast<std::ptrdiff_t>(i.value),
                       v_.begin() + static_cast<std::ptrdiff_t>(i.value + dv_));
    for (size_t j = 0; j < n_; ++j) { token.error[j % dv_] -= k_[i.key + j / dv_] * token.decayed[j]; }
    for (size_t j = 0; j < n_; ++j) {
      s[j] += k_[i.key + j / dv_] * beta_[i.gate] * token.error[j % dv_];
      r_.o[i.value + j % dv_] += d_.scale * q_[i.key + j / dv_] * s[j];
    }
    token.after = s;
  }

  static double dot(const Values& a, const Values& b) { return std::inner_product(a.begin(), a.end(), b.begin(), 0.0); }

  void backward_token(const At& i, const Token& token, Values& d_s) {
    const double beta = beta_[i.gate];
    Values d_delta(dv_, 0.0);
    for (size_t j = 0; j < n_; ++j) {
      const size_t a = i.key + j / dv_, c = j % dv_;
      r_.d_q[a] += d_.scale * token.after[j] * d_o_[i.value + c];
      d_s[j] += d_.scale * q_[a] * d_o_[i.value + c];
      d_delta[c] += k_[a] * d_s[j];
    }
    r_.d_beta[i.gate] = dot(d_delta, token.error);
    for (size_t c = 0; c < dv_; ++c) { r_.d_v[i.value + c] = beta * d_delta[c]; }
    for (size_t j = 0; j < n_; ++j) {
      const size_t a = i.key + j / dv_, c = j % dv_;
      r_.d_k[a] += beta * (d_s[j] * token.error[c] - token.decayed[j] * d_delta[c]);
      d_s[j] -= k_[a] * beta * d_delta[c];
    }
    r_.d_g[i.gate] = dot(d_s, token.decayed);
    for (double& x : d_s) { x *= std::exp(g_[i.gate]); }
  }

  const Delta& d_;
  Values q_, k_, v_, g_, beta_, start_, d_o_;
  size_t dv_, n_;
  Expected r_;
};

using Change = std::function<void(Machine&, DeltaInputs&)>;

template <class Args>
void check_outputs(Machine& m, const Delta& d, const DeltaInputs& in, const Args& args, double single) {
  const Values state = args.state.defined() ? m.read(args.state) : Values{};
  m.run(args, single);
  if (!m.has_formulas()) { return; }
  const Expected expected = Recurrence(m, d, in, {}, state, Values(static_cast<size_t>(d.start().numel()))).result();
  m.expect(args.o, expected.o);
  m.expect(args.prediction, expected.prediction);
  m.expect(args.state, expected.state);
}

void check_gradients(Machine& m, const Delta& d, const DeltaInputs& in, double single) {
  constexpr double kGradients = 1e-11;  // sums of up to 200 terms
  const GatedDeltaBackward b = delta_backward(m, d, in);
  const Values d_start = d.initial ? m.read(b.d_initial_state) : Values(static_cast<size_t>(d.start().numel()));
  m.run(b, single);
  if (!m.has_formulas()) { return; }
  const Expected expected = Recurrence(m, d, in, b.d_o, {}, d_start).result();
  m.expect(b.d_q, expected.d_q, kGradients);
  m.expect(b.d_k, expected.d_k, kGradients);
  m.expect(b.d_v, expected.d_v, kGradients);
  m.expect(b.d_g, expected.d_g, kGradients);
  m.expect(b.d_beta, expected.d_beta, kGradients);
  m.expect(b.d_initial_state, expected.d_start, kGradients);
}

/// Outputs by chunks, and by steps where rows go on, and, where they do not, gradients. `single`: of fp32.
void check_delta(const Delta& d, double single = 3e-5, const Change& change = {}) {
  CAPTURE(d.length, d.chunk, d.dk, d.dv);
  check(DType::f32, [&](Machine& m) {
    DeltaInputs in(m, d);
    if (change) { change(m, in); }
    check_outputs(m, d, in, delta_forward(m, d, in), single);
    if (d.doc_start[0] < 0) {
      check_outputs(m, d, in, delta_steps(m, d, in), single);
    } else {
      check_gradients(m, d, in, single);
    }
  });
}

/// First tokens of documents with these lengths, row by row.
std::vector<int64_t> documents(const std::vector<std::vector<int64_t>>& lengths) {
  std::vector<int64_t> starts;
  for (const std::vector<int64_t>& row : lengths) {
    int64_t begin = 0;
    for (const int64_t length : row) {
      starts.insert(starts.end(), static_cast<size_t>(length), begin);
      begin += length;
    }
  }
  return starts;
}

/// Two key heads of 7 channels, four value heads of 5.
Delta grouped(int64_t length, int64_t chunk) {
  return {length, 2, 4, 7, 5, chunk, std::vector<int64_t>(static_cast<size_t>(2 * length)), true, true};
}

TEST_CASE("the chunked delta rule equals the recurrence for every chunk size and length", "[gated_delta][fast]") {
  const int64_t chunk = GENERATE(1, 16, 32, 64, 128), length = GENERATE(1, 15, 33, 64, 65, 200);
  Delta d = grouped(length, chunk);
  d.initial = length % 2 == 1;
  check_delta(d);
}

TEST_CASE("head sizes and groups of any kind agree with the recurrence", "[gated_delta][fast]") {
  const std::vector<int64_t> starts(2 * 83);
  check_delta({83, 1, 1, 1, 1, 32, starts, true});
  check_delta({83, 1, 3, 16, 17, 32, starts, true});
  check_delta({83, 3, 3, 33, 2, 32, starts, true});
  check_delta({83, 2, 2, 64, 48, 32, starts, true});
}

TEST_CASE("documents start from the initial state, and chunks do not cross them", "[gated_delta][fast]") {
  Delta d = grouped(100, GENERATE(16, 64));
  d.initial = GENERATE(false, true);
  d.doc_start = documents({{1, 1, 40, 58}, {70, 1, 16, 13}});
  check_delta(d);
}

TEST_CASE("steps and chunks continue a carried state", "[gated_delta][fast]") {
  Delta d = grouped(37, 16);
  if (GENERATE(false, true)) { d.doc_start = documents({{5, 32}, {36, 1}}); }
  for (int64_t& start : d.doc_start) { start = start == 0 ? -9 : start; }
  check_delta(d);
}

TEST_CASE("the fp32 delta rule stays within 1e-5 of the fp64 recurrence", "[gated_delta][fast]") {
  // Also with decays that leave nothing of the state, next to ones that keep all of it.
  const double decay = GENERATE(0.05, 2.0, 30.0);
  Delta d = grouped(150, 64);
  d.dk = 24;
  d.dv = 18;
  check_delta(d, 1e-5, [&](Machine& m, DeltaInputs& in) {
    Values g = decays(d.gates(), 0, -decay);
    for (size_t i = 0; i < g.size(); i += 3) { g[i] *= 1e-3; }
    in.g = m.values(d.gates(), g);
  });
}

TEST_CASE("write strengths up to 2 agree with the recurrence", "[gated_delta][fast]") {
  Delta d = grouped(70, 64);
  d.strength = 2;
  // Keys of length 1, as the l2 norm makes them: with beta = 2 the transition is a reflection.
  check_delta(d, 3e-5, [&](Machine& m, DeltaInputs& in) {
    Values k = m.read(in.k);
    for (size_t i = 0; i < k.size(); i += 7) {
      double square = 0;
      for (size_t a = 0; a < 7; ++a) { square += k[i + a] * k[i + a]; }
      for (size_t a = 0; a < 7; ++a) { k[i + a] /= std::sqrt(square); }
    }
    in.k = m.activations(d.keys(), k);
  });
}

TEST_CASE("without writes, and with decays to nothing, the delta rule equals the recurrence", "[gated_delta][fast]") {
  const bool writes = GENERATE(false, true);
  const Delta d = grouped(90, 64);
  check_delta(d, 1e-5, [&](Machine& m, DeltaInputs& in) {
    const auto count = static_cast<size_t>(d.gates().numel());
    if (writes) {
      in.g = m.values(d.gates(), Values(count, -400.0));
    } else {
      in.beta = m.values(d.gates(), Values(count, 0.0));
    }
  });
}

TEST_CASE("orthonormal keys are recalled exactly, and writing a key again replaces its value", "[gated_delta][fast]") {
  const Delta d{9, 1, 1, 7, 5, 64, std::vector<int64_t>(18), false, true};
  Values k(2 * 9 * 7);
  for (size_t t = 0; t < 18; ++t) { k[t * 7 + t % 9 % 7] = 1.0; }  // tokens 7 and 8 write keys 0 and 1 again
  const auto check_recall = [&](Machine& m, const Values& v, const auto& args) {
    m.run(args);
    const Values state = m.read(args.state), prediction = m.read(args.prediction);
    for (size_t a = 0; a < 7; ++a) {
      for (size_t c = 0; c < 5; ++c) {
        CHECK(state[a * 5 + c] == Approx(v[(a < 2 ? a + 7 : a) * 5 + c]).margin(1e-14));
        CHECK(prediction[(7 + a % 2) * 5 + c] == Approx(v[(a % 2) * 5 + c]).margin(1e-14));
      }
    }
  };
  const std::unique_ptr<Memory> memory = host_memory();
  Machine m(*memory, {.activations = DType::f32, .reals = DType::f64});
  DeltaInputs in(m, d);
  in.k = m.activations(d.keys(), k);
  in.g = m.values(d.gates(), Values(18));
  in.beta = m.values(d.gates(), Values(18, 1.0));
  check_recall(m, m.read(in.v), delta_forward(m, d, in));
  check_recall(m, m.read(in.v), delta_steps(m, d, in));
}

TEST_CASE("the chunked prediction keeps its direction after resets", "[gated_delta][fast]") {
  const Delta d{64, 2, 4, 7, 5, 64, std::vector<int64_t>(128)};
  Values g = decays(d.gates(), 0, -0.1), found[2];
  for (size_t i = 0; i < g.size(); i += 2) { g[i] = -20.0; }
  for (const DType dtype : {DType::f64, DType::f32}) {
    const std::unique_ptr<Memory> memory = host_memory();
    Machine m(*memory, {.activations = DType::f32, .reals = dtype});
    DeltaInputs in(m, d);
    in.g = m.values(d.gates(), g);
    const GatedDeltaForward forward = delta_forward(m, d, in);
    m.run(forward);
    found[dtype == DType::f32] = m.read(forward.prediction);
  }
  for (size_t i = 0; i < g.size(); ++i) {
    double along = 0, a = 0, b = 0;
    for (size_t c = i * 5; c < i * 5 + 5; ++c) {
      along += found[1][c] * found[0][c];
      a += found[1][c] * found[1][c];
      b += found[0][c] * found[0][c];
    }
    if (b > 0) {
      CHECK(along / std::sqrt(a * b) == Approx(1.0).margin(1e-6));  // fp32, sums of 64 terms
    }
  }
}

TEST_CASE("the delta rule gives the same bits on 1 and 3 threads", "[gated_delta][threads]") {
  Delta d = grouped(70, 16);
  d.doc_start = documents({{33, 37}, {70}});
  check_delta(d);
}

}  // namespace
