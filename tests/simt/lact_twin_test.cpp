// The fast weights of lact against their CPU twin.
#include "kernels/lact/scratch.h"
#include "twins.h"

using namespace hebb_test;
using namespace hebb;

namespace {

// Muon multiplies what rounding does to small singular values by up to 493: as in models, in fp64 or with products in
// TF32.
DType type_of(const LactRule& rule) { return rule.muon && !rule.tf32 ? DType::f64 : DType::f32; }

// A chain of updates that normalise what they sum. In TF32 operands are off by 2^-11 (5e-4), and Muon multiplies what
// that does to the small singular values of such small sums.
double tolerance(const LactRule& rule) {
  return rule.tf32 ? (rule.muon ? 0.12 : 4e-3) : type_of(rule) == DType::f64 ? 1e-11 : 2e-5;
}

struct Sizes {
  int64_t length, heads, dim, fast;
  std::vector<int64_t> doc_start;

  Shape tokens(int64_t channels) const { return {2, length, heads, channels}; }
  Shape states() const { return {2, heads, 3 * dim * fast}; }
};

struct Operands {
  Twin q, k, v, rates, mix, w0, w1, w2, doc_start;

  Operands(Twins& t, const Sizes& s, const LactRule& rule)
      : q(t.input(s.tokens(s.dim))),
        k(t.input(s.tokens(s.dim))),
        v(t.input(s.tokens(s.dim))),
        rates(t.input(s.tokens(3), 2)),
        mix(rule.momentum ? t.input(s.tokens(1), 2) : Twin{}),
        w0(t.input({s.heads, s.fast, s.dim})),
        w1(t.input({s.heads, s.dim, s.fast})),
        w2(t.input({s.heads, s.fast, s.dim})),
        doc_start(t.integers({2, s.length}, s.doc_start)) {}
};

void check_forward(const Sizes& s, const LactRule& rule, bool carried) {
  Twins t(type_of(rule));
  const Operands in(t, s, rule);
  const auto state = [&](Shape shape) { return carried ? t.sum(shape) : Twin{}; };
  const Twin y = t.output(s.tokens(s.dim)), weights = state(s.states()), momentum = state(s.states()),
             sums = state(s.states()), mix_sums = state({2, s.heads});
  t.check(
      [&](auto at) {
        return LactForward{.y = at(y),
                           .weights = at(weights),
                           .momentum = at(momentum),
                           .sums = at(sums),
                           .mix_sums = at(mix_sums),
                           .q = at(in.q),
                           .k = at(in.k),
                           .v = at(in.v),
                           .rates = at(in.rates),
                           .mix = at(in.mix),
                           .w0 = at(in.w0),
                           .w1 = at(in.w1),
                           .w2 = at(in.w2),
                           .doc_start = at(in.doc_start),
                           .rule = rule};
      },
      tolerance(rule));
}

void check_backward(const Sizes& s, const LactRule& rule, bool accumulate, bool wanted) {
  Twins t(type_of(rule));
  const Operands in(t, s, rule);
  const auto gradient = [&](int64_t channels) {
    return accumulate ? t.sum(s.tokens(channels)) : t.output(s.tokens(channels));
  };
  const auto optional = [&](int64_t channels) { return wanted ? gradient(channels) : Twin{}; };
  const Twin d_y = t.input(s.tokens(s.dim)), d_q = optional(s.dim), d_k = gradient(s.dim), d_v = optional(s.dim),
             d_rates = gradient(3), d_mix = rule.momentum ? gradient(1) : Twin{},
             d_w0 = t.sum({s.heads, s.fast, s.dim}), d_w1 = wanted ? t.sum({s.heads, s.dim, s.fast}) : Twin{},
             d_w2 = t.sum({s.heads, s.fast, s.dim});
  t.check(
      [&](auto at) {
        return LactBackward{.d_q = at(d_q),
                            .d_k = at(d_k),
                            .d_v = at(d_v),
                            .d_rates = at(d_rates),
                            .d_mix = at(d_mix),
                            .d_w0 = at(d_w0),
                            .d_w1 = at(d_w1),
                            .d_w2 = at(d_w2),
                            .d_y = at(d_y),
                            .q = at(in.q),
                            .k = at(in.k),
                            .v = at(in.v),
                            .rates = at(in.rates),
                            .mix = at(in.mix),
                            .w0 = at(in.w0),
                            .w1 = at(in.w1),
                            .w2 = at(in.w2),
                            .doc_start = at(in.doc_start),
                            .rule = rule,
                            .accumulate_q = accumulate,
                            .accumulate_k = accumulate,
                            .accumulate_v = accumulate,
                            .accumulate_rates = accumulate,
                            .accumulate_mix = accumulate};
      },
      tolerance(rule));
}

LactRule rule_of(int64_t chunk, bool momentum, bool muon, bool tf32 = false) {
  return {chunk, momentum, muon, -1.0, tf32};
}

TEST_CASE("fast weights read and move as the CPU's do", "[fast]") {
  const bool momentum = GENERATE(false, true), muon = GENERATE(false, true), stands = GENERATE(false, true);
  const Sizes s{34, 2, stands ? 7 : 10, stands ? 10 : 7, documents_of_two_rows(34)};  // three updates in a document
  check_forward(s, rule_of(9, momentum, muon), false);
}

TEST_CASE("fast weights larger than a tile read and move as the CPU's do", "[fast]") {
  check_forward({140, 1, 66, 70, std::vector<int64_t>(280)}, rule_of(67, true, false), false);
}

TEST_CASE("fast weights are carried as the CPU's are", "[fast]") {
  // Chunks of 6: in progress, complete, and in progress with tokens left in it behind the pass.
  const int64_t before = GENERATE(4, 6, 13), length = GENERATE(1, 2, 17);
  const bool momentum = GENERATE(false, true);
  Sizes s{length, 2, 5, 7, std::vector<int64_t>(static_cast<size_t>(2 * length), -before)};
  if (length > 10) {
    std::fill(s.doc_start.begin() + 3, s.doc_start.begin() + length, 3);
  } else {
    std::fill(s.doc_start.begin(), s.doc_start.begin() + length, 0);
  }
  check_forward(s, rule_of(6, momentum, false), true);
}

TEST_CASE("gradients of fast weights equal the CPU's", "[fast]") {
  const bool momentum = GENERATE(false, true), muon = GENERATE(false, true), accumulate = GENERATE(false, true);
  const Sizes s{40, 2, accumulate ? 7 : 10, accumulate ? 10 : 7, documents_of_two_rows(40)};
  check_backward(s, rule_of(9, momentum, muon), accumulate, accumulate);
}

TEST_CASE("gradients of fast weights without and with larger updates than a tile equal the CPU's", "[fast]") {
  const int64_t chunk = GENERATE(67, 200);
  check_backward({140, 1, 66, 70, std::vector<int64_t>(280)}, rule_of(chunk, true, false), false, true);
}

TEST_CASE("fast weights by products in TF32 equal the CPU's within the rounding of operands", "[fast]") {
  const bool momentum = GENERATE(false, true), muon = GENERATE(false, true);
  const auto [dim, fast] = GENERATE(std::pair{12, 8}, std::pair{7, 10});
  const Sizes s{40, 2, dim, fast, documents_of_two_rows(40)};
  check_forward(s, rule_of(9, momentum, muon, true), momentum);
  check_backward(s, rule_of(muon ? 15 : 9, momentum, muon, true), muon, true);
}

TEST_CASE("fast weights larger than a tile by products in TF32 equal the CPU's within the rounding of operands",
          "[fast]") {
  const Sizes s{140, 1, 68, 100, std::vector<int64_t>(280)};
  check_forward(s, rule_of(67, true, false, true), false);
  check_backward(s, rule_of(67, true, false, true), false, true);
}

// For the thread sanitizer: two updates, with all that they have.
TEST_CASE("fast weights and their gradients do not race", "[threads]") {
  const bool tf32 = GENERATE(false, true);
  const Sizes s{5, 1, 3, 4, std::vector<int64_t>(10)};
  check_forward(s, rule_of(3, true, true, tf32), true);
  check_backward(s, rule_of(3, true, true, tf32), false, true);
}

}  // namespace
