// The fast weights of lact, and what lies around them.
#include "kernels/lact/scratch.h"

#include <algorithm>

#include "kernels/lact/heads_scratch.h"
#include "tests/op_cases/machine.h"

using namespace hebb_test;

namespace {

// Muon multiplies what rounding does to small singular values by up to 493: as in models, in fp64 or with products in
// TF32.
DType type_of(const LactRule& rule) { return rule.muon && !rule.tf32 ? DType::f64 : DType::f32; }

// A chain of updates that normalise what they sum. In TF32 operands are off by 2^-11 (5e-4), and Muon multiplies what
// that does to the small singular values of such small sums.
double tolerance(const LactRule& rule) {
  return rule.tf32 ? (rule.muon ? 0.12 : 4e-3) : type_of(rule) == DType::f64 ? 1e-11 : 2e-5;
}

struct LactCase {
  int64_t length, heads, dim, fast;
  std::vector<int64_t> doc_start;

  Shape tokens(int64_t channels) const { return {2, length, heads, channels}; }
  Shape states() const { return {2, heads, 3 * dim * fast}; }
  Shape in() const { return {heads, fast, dim}; }
  Shape out() const { return {heads, dim, fast}; }
};

struct Inputs {
  Tensor q, k, v, rates, mix, w0, w1, w2, doc_start;

  Inputs(Machine& m, const LactCase& s, const LactRule& rule)
      : q(m.input(s.tokens(s.dim))),
        k(m.input(s.tokens(s.dim))),
        v(m.input(s.tokens(s.dim))),
        rates(m.input(s.tokens(3), 2)),
        mix(rule.momentum ? m.input(s.tokens(1), 2) : Tensor{}),
        w0(m.input(s.in())),
        w1(m.input(s.out())),
        w2(m.input(s.in())),
        doc_start(m.integers({2, s.length}, s.doc_start)) {}
};

/// The args of a kernel with its inputs.
template <class Args> Args args_of(const Inputs& in, const LactRule& rule) {
  Args args{};
  args.q = in.q;
  args.k = in.k;
  args.v = in.v;
  args.rates = in.rates;
  args.mix = in.mix;
  args.w0 = in.w0;
  args.w1 = in.w1;
  args.w2 = in.w2;
  args.doc_start = in.doc_start;
  args.rule = rule;
  return args;
}

void check_forward(const LactCase& s, const LactRule& rule, bool carried) {
  check(type_of(rule), [&](Machine& m) {
    auto args = args_of<LactForward>(Inputs(m, s, rule), rule);
    args.y = m.output(s.tokens(s.dim));
    if (carried) {
      args.weights = m.sum(s.states());
      args.momentum = m.sum(s.states());
      args.sums = m.sum(s.states());
      args.mix_sums = m.sum({2, s.heads});
    }
    m.run(args, tolerance(rule));
  });
}

void check_backward(const LactCase& s, const LactRule& rule, bool accumulate, bool wanted) {
  check(type_of(rule), [&](Machine& m) {
    auto args = args_of<LactBackward>(Inputs(m, s, rule), rule);
    const auto gradient = [&](int64_t channels) { return m.gradient(s.tokens(channels), accumulate); };
    args.d_y = m.input(s.tokens(s.dim));
    if (wanted) { args.d_q = gradient(s.dim); }
    args.d_k = gradient(s.dim);
    if (wanted) { args.d_v = gradient(s.dim); }
    args.d_rates = gradient(3);
    if (rule.momentum) { args.d_mix = gradient(1); }
    args.d_w0 = m.sum(s.in());
    if (wanted) { args.d_w1 = m.sum(s.out()); }
    args.d_w2 = m.sum(s.in());
    args.accumulate_q = args.accumulate_k = args.accumulate_v = accumulate;
    args.accumulate_rates = args.accumulate_mix = accumulate;
    m.run(args, tolerance(rule));
  });
}

LactRule rule_of(int64_t chunk, bool momentum, bool muon, bool tf32 = false) {
  return {chunk, momentum, muon, -1.0, tf32};
}

TEST_CASE("fast weights of lact", "[fast]") {
  const bool momentum = GENERATE(false, true), muon = GENERATE(false, true), stands = GENERATE(false, true);
  const LactCase s{34, 2, stands ? 7 : 10, stands ? 10 : 7, documents_of_two_rows(34)};  // three updates in a document
  check_forward(s, rule_of(9, momentum, muon), false);
}

TEST_CASE("fast weights of lact, larger than a tile", "[fast]") {
  check_forward({140, 1, 66, 70, std::vector<int64_t>(280)}, rule_of(67, true, false), false);
}

TEST_CASE("carried fast weights of lact", "[fast]") {
  // Chunks of 6: in progress, complete, and in progress with tokens left in it behind the pass.
  const int64_t before = GENERATE(4, 6, 13), length = GENERATE(1, 2, 17);
  const bool momentum = GENERATE(false, true);
  LactCase s{length, 2, 5, 7, std::vector<int64_t>(static_cast<size_t>(2 * length), -before)};
  if (length > 10) {
    std::fill(s.doc_start.begin() + 3, s.doc_start.begin() + length, 3);
  } else {
    std::fill(s.doc_start.begin(), s.doc_start.begin() + length, 0);
  }
  check_forward(s, rule_of(6, momentum, false), true);
}

TEST_CASE("gradients of fast weights of lact", "[fast]") {
  const bool momentum = GENERATE(false, true), muon = GENERATE(false, true), accumulate = GENERATE(false, true);
  const LactCase s{40, 2, accumulate ? 7 : 10, accumulate ? 10 : 7, documents_of_two_rows(40)};
  check_backward(s, rule_of(9, momentum, muon), accumulate, accumulate);
}

TEST_CASE("gradients of fast weights of lact without and with larger updates than a tile", "[fast]") {
  const int64_t chunk = GENERATE(67, 200);
  check_backward({140, 1, 66, 70, std::vector<int64_t>(280)}, rule_of(chunk, true, false), false, true);
}

TEST_CASE("fast weights of lact with several updates in a tile", "[fast]") {
  // Weights change with tokens 16, 32, 48 and 64 of one row, and 16, 31 and 47 of the other.
  LactCase s{70, 1, 4, 3, std::vector<int64_t>(140)};
  std::fill(s.doc_start.begin() + 70 + 31, s.doc_start.end(), 31);
  check_forward(s, rule_of(16, true, false), false);
  check_backward(s, rule_of(16, true, false), false, true);
}

TEST_CASE("fast weights of lact by products in TF32", "[fast]") {
  const bool momentum = GENERATE(false, true), muon = GENERATE(false, true), is_wide = momentum != muon;
  const LactCase s{40, 2, is_wide ? 12 : 7, is_wide ? 8 : 10, documents_of_two_rows(40)};
  check_forward(s, rule_of(9, momentum, muon, true), momentum);
  check_backward(s, rule_of(muon ? 15 : 9, momentum, muon, true), muon, true);
}

TEST_CASE("fast weights of lact, larger than a tile, by products in TF32", "[fast]") {
  const LactCase s{140, 1, 68, 100, std::vector<int64_t>(280)};
  check_forward(s, rule_of(67, true, false, true), false);
  check_backward(s, rule_of(67, true, false, true), false, true);
}

// For the thread sanitizer: two updates, with all that they have.
TEST_CASE("fast weights of lact and their gradients do not race", "[threads]") {
  const bool tf32 = GENERATE(false, true);
  const LactCase s{5, 1, 3, 4, std::vector<int64_t>(10)};
  check_forward(s, rule_of(3, true, true, tf32), true);
  check_backward(s, rule_of(3, true, true, tf32), false, true);
}

TEST_CASE("keys of fast weights", "[fast]") {
  const int64_t column = GENERATE(0, 1);
  const bool accumulate = GENERATE(false, true), wanted = GENERATE(false, true);
  const Shape shape{37, 3, 41}, pairs{123, 2};
  check([=](Machine& m) {
    const Tensor x = m.input(shape, 3), scale = m.parameter(pairs), offset = m.parameter(pairs);
    m.run(LactKeysForward{.y = m.output(shape), .x = x, .scale = scale, .offset = offset, .column = column});
    m.run(LactKeysBackward{.d_x = wanted ? m.gradient(shape, accumulate) : Tensor{},
                           .d_scale = m.float_sum(pairs),
                           .d_offset = wanted ? m.float_sum(pairs) : Tensor{},
                           .d_y = m.input(shape),
                           .x = x,
                           .scale = scale,
                           .offset = offset,
                           .column = column,
                           .accumulate = accumulate});
  });
}

TEST_CASE("mixing of fast readings", "[fast]") {
  const bool accumulate = GENERATE(false, true), wanted = GENERATE(false, true);
  const Shape shape{9, 3, 41};
  check([=](Machine& m) {
    const Tensor x = m.input(shape), gate = m.input({9, 3}, 3);
    m.run(LactMixForward{.y = m.output(shape), .base = m.input(shape), .x = x, .gate = gate});
    m.run(LactMixBackward{.d_x = wanted ? m.gradient(shape, accumulate) : Tensor{},
                          .d_gate = m.gradient({9, 3}, accumulate),
                          .d_y = m.input(shape),
                          .x = x,
                          .gate = gate,
                          .accumulate_x = accumulate,
                          .accumulate_gate = accumulate});
  });
}

TEST_CASE("half identities", "[fast]") {
  const Shape shape = GENERATE(Shape{2, 5, 9}, Shape{2, 9, 5});
  check(DType::f32, [=](Machine& m) { m.run(HalfIdentity{m.float_output(shape)}); });
}

}  // namespace
