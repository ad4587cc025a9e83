// Attention on the CPU against the formula, in more shapes than tests/op_cases/attention.cpp has for all devices.
#include "tests/op_cases/attention.h"

using namespace hebb_test;

namespace {

constexpr double kSingleTolerance = 1e-5;  // the pages' fp32 tolerance

/// Token t of every row sees keys t - window + 1 .. t of its document (window 0: all of it), which start `shift`
/// further on; documents start at multiples of `document` (0: one).
Attention causal_of(Attention c, int64_t window, int64_t document, int64_t shift) {
  for (int64_t i = 0; i < c.batch * c.length; ++i) {
    const int64_t t = i % c.length, from = document > 0 ? t / document * document + shift : 0;
    c.lo.push_back(window > 0 ? std::max(from, t + shift - window + 1) : from);
    c.hi.push_back(t + shift + 1);
  }
  return c;
}

/// A staircase with empty intervals: every third key belongs to a token.
Attention staircase(Attention c) {
  for (int64_t i = 0; i < c.batch * c.length; ++i) {
    const int64_t t = c.spaces == 1 ? i : i % c.length;
    c.hi.push_back(std::min(c.keys, t / 3));
    c.lo.push_back(std::min(c.keys, t / 45 * 15));
  }
  return c;
}

/// Gradients that overwrite and gradients that add, of each tensor.
void check_both(const Attention& c) {
  for (const bool flipped : {false, true}) {
    check(DType::f32, [&](Machine& m) { attention_passes(m, c, kSingleTolerance, kSingleTolerance, flipped); });
  }
}

TEST_CASE("attention over intervals equals the direct computation, outputs and gradients", "[fast]") {
  //   B, T, H, K, D, Dv, spaces, keys, lo, hi, biased
  const Attention c =
      GENERATE(causal_of({"one token", 2, 1, 3, 1, 5, 7, 2, 1, {}, {}}, 0, 0, 0),
               causal_of({"a tile less one", 1, 63, 2, 2, 16, 16, 1, 63, {}, {}}, 0, 0, 0),
               causal_of({"a tile and one", 2, 65, 6, 2, 20, 9, 2, 65, {}, {}}, 0, 0, 0),
               causal_of({"tiles", 1, 200, 2, 1, 64, 48, 1, 200, {}, {}}, 0, 0, 0),
               causal_of({"window", 1, 200, 1, 1, 33, 40, 1, 200, {}, {}}, 17, 0, 0),
               causal_of({"documents", 2, 150, 4, 2, 8, 8, 2, 150, {}, {}}, 64, 37, 0),
               causal_of({"lone keys", 1, 130, 2, 2, 24, 24, 1, 130, {}, {}, true}, 0, 1, 0),
               causal_of({"behind a prefix", 1, 70, 4, 4, 12, 12, 1, 141, {}, {}, true}, 0, 0, 71),
               causal_of({"decoding", 2, 1, 2, 2, 19, 21, 2, 700, {}, {}}, 0, 0, 600),
               causal_of({"decoding in a window", 3, 1, 4, 2, 19, 21, 3, 300, {}, {}, true}, 300, 0, 299),
               staircase({"one staircase", 2, 100, 3, 3, 10, 6, 1, 67, {}, {}, true}),
               staircase({"staircases", 2, 100, 3, 3, 10, 6, 2, 67, {}, {}}),
               causal_of({"unseen keys, one query", 1, 1, 2, 2, 16, 16, 1, 400, {}, {}}, 30, 0, 200),
               causal_of({"unseen keys", 1, 40, 2, 2, 16, 16, 1, 400, {}, {}}, 30, 0, 200),
               causal_of({"hidden keys, all of some queries", 1, 70, 1, 1, 8, 8, 1, 70, {}, {}, true, 0, {0, 1, 2, 30}},
                         0, 0, 0));
  CAPTURE(c.name);
  check_both(c);
}

TEST_CASE("the score of a lone visible key has a gradient of exactly zero", "[fast]") {
  Attention c = lone_keys(70, 4, 2, 12, 9);
  c.biased = true;
  for (const DType dtype : {DType::f64, DType::f32}) {
    const std::unique_ptr<Memory> memory = host_memory();
    Machine m(*memory, {.activations = DType::f32, .reals = dtype});
    const AttentionBackward back = attention_passes(m, c, 0, 0, false);
    const Values d_q = m.read(back.d_q);
    CHECK(std::all_of(d_q.begin(), d_q.end(), [](double g) { return g == 0; }));
  }
  check_both(c);
}

TEST_CASE("attention gives the same bits on one thread and on three", "[fast][threads]") {
  // Few heads: on three threads the backward pass shares one head by ranges of keys and tiles of rows.
  for (const int64_t heads : {1, 2, 5}) {
    check_both(causal_of({"", 1, 333, 2 * heads, heads, 32, 32, 1, 333, {}, {}, true}, 0, 150, 0));
  }
}

TEST_CASE("a huge logit gives finite outputs and gradients", "[fast]") {
  for (const double sign : {1.0, -1.0}) {
    Attention c = causal(90, 1, 1, 4, 4);
    c.scale = 1;
    c.q_values = as_double(random_values<float>(90 * 4, 1));
    c.k_values = as_double(random_values<float>(90 * 4, 2));
    for (size_t t = 0; t < 90; ++t) { c.q_values[t * 4] = 100; }
    c.k_values[20 * 4] = sign * 100;  // logits of +-1e4 at key 20, which fp32 rounds to 1e-3
    Values o[2];
    for (const DType dtype : {DType::f64, DType::f32}) {
      const std::unique_ptr<Memory> memory = host_memory();
      Machine m(*memory, {.activations = DType::f32, .reals = dtype, .formulas = dtype == DType::f64});
      const AttentionBackward back = attention_passes(m, c, 0, 0, false, {}, 1e-10);
      o[dtype == DType::f32] = m.read(back.o);
      for (const Tensor& gradient : {back.d_q, back.d_k, back.d_v}) {
        for (const double g : m.read(gradient)) { REQUIRE(std::isfinite(g)); }
      }
    }
    for (size_t i = 0; i < o[0].size(); ++i) { CHECK(o[1][i] == Catch::Approx(o[0][i]).margin(1e-3)); }
  }
}

}  // namespace
