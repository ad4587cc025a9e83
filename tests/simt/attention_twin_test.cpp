// Attention forward and backward against its CPU twin: documents, windows, prefixes, packed keys, biases, grouped
// heads, odd sizes.
#include "twins.h"

using namespace hebb_test;
using namespace hebb;

namespace {

// Sums of a few hundred fp32 products and exponentials of sums.
constexpr double kAttentionTolerance = 1e-5;
// Of sums over probabilities, or gradients at scores, that were rounded to 8 bits: 2^-9 of each.
constexpr double kRoundedTolerance = 8e-3;

struct Case {
  const char* name;
  int64_t batch, length, heads, kv_heads, d, dv, spaces, keys;
  std::vector<int64_t> lo, hi;
  bool biased = false;
};

Case documents() {
  Case c{"documents", 2, 70, 4, 2, 19, 37, 2, 70, documents_of_two_rows(), {}};
  for (int64_t i = 0; i < 140; ++i) { c.hi.push_back(i % 70 + 1); }
  return c;
}

Case window_behind_prefix() {
  Case c{"window behind a prefix", 1, 67, 1, 1, 33, 5, 1, 76, {}, {}, true};
  for (int64_t t = 0; t < 67; ++t) {
    c.lo.push_back(std::max<int64_t>(0, t + 9 - 12));
    c.hi.push_back(t + 10);
  }
  return c;
}

/// Keys of all rows in one space; some queries see none, some keys are seen by none.
Case packed() {
  Case c{"packed", 2, 35, 3, 1, 8, 9, 1, 150, {}, {}, true};
  for (int64_t i = 0; i < 70; ++i) {
    c.lo.push_back(i < 10 ? 0 : i < 20 ? 60 : 100);
    c.hi.push_back(i < 5 ? 0 : i < 10 ? 7 : i < 20 ? 60 + i % 20 : 149);
  }
  return c;
}

Case few_queries() { return {"few queries", 2, 1, 6, 2, 24, 24, 2, 200, {3, 0}, {200, 130}}; }

/// More channels than one slice of the grid holds.
Case wide() { return {"wide", 1, 3, 2, 1, 130, 270, 1, 5, {0, 0, 1}, {2, 3, 5}}; }

/// Values of keys, NaN where no query looks: those must not be read.
std::vector<double> keys_of(const Case& c, int64_t width, uint32_t seed) {
  const std::vector<float> numbers = random_values<float>(c.spaces * c.keys * c.kv_heads * width, seed);
  std::vector<double> values(numbers.begin(), numbers.end());
  for (int64_t key = 0; key < c.spaces * c.keys; ++key) {
    bool seen = false;
    for (int64_t i = 0; i < c.batch * c.length; ++i) {
      const int64_t space = c.spaces == 1 ? 0 : i / c.length, j = key - space * c.keys;
      seen = seen || (c.lo[static_cast<size_t>(i)] <= j && j < c.hi[static_cast<size_t>(i)]);
    }
    for (int64_t at = key * c.kv_heads * width; !seen && at < (key + 1) * c.kv_heads * width; ++at) {
      values[static_cast<size_t>(at)] = std::nan("");
    }
  }
  return values;
}

/// Gradients of queries and values are overwritten and the others added to, or, `flipped`, the other way round.
void check_case(const Case& c, DType dtype = DType::f32, bool flipped = false) {
  CAPTURE(c.name, dtype_name(dtype));
  const Shape q_shape{c.batch, c.length, c.heads, c.d}, o_shape{c.batch, c.length, c.heads, c.dv};
  const Shape k_shape{c.spaces, c.keys, c.kv_heads, c.d}, v_shape{c.spaces, c.keys, c.kv_heads, c.dv};
  const Shape lse_shape{c.batch, c.length, c.heads}, bias_shape{c.spaces, c.keys, c.kv_heads};
  const double scale = 1.7 / std::sqrt(static_cast<double>(c.d));
  Twins t(dtype);
  const Twin q = t.input(q_shape, 2), k = t.activations(k_shape, keys_of(c, c.d, 3)),
             v = t.activations(v_shape, keys_of(c, c.dv, 4));
  const Twin lo = t.integers({c.batch, c.length}, c.lo), hi = t.integers({c.batch, c.length}, c.hi);
  Twin bias;
  if (c.biased) {
    std::vector<double> biases = keys_of(c, 1, 5);
    biases[5] = -HUGE_VAL;
    bias = t.values(bias_shape, biases);
  }
  const Twin o = t.output(o_shape), lse = t.float_output(lse_shape);
  const auto forward = [&](auto at) {
    return AttentionForward{.o = at(o),
                            .lse = at(lse),
                            .q = at(q),
                            .k = at(k),
                            .v = at(v),
                            .lo = at(lo),
                            .hi = at(hi),
                            .bias = at(bias),
                            .scale = scale};
  };
  t.check(forward, kAttentionTolerance);

  t.prepare(forward);
  const auto gradient = [&](Shape shape, bool adds) { return adds ? t.sum(shape) : t.output(shape); };
  const Twin d_o = t.input(o_shape), d_q = gradient(q_shape, flipped), d_k = gradient(k_shape, !flipped),
             d_v = gradient(v_shape, flipped);
  Twin d_bias;
  if (c.biased) { d_bias = flipped ? t.float_output(bias_shape) : t.float_sum(bias_shape); }
  t.check(
      [&](auto at) {
        return AttentionBackward{.d_q = at(d_q),
                                 .d_k = at(d_k),
                                 .d_v = at(d_v),
                                 .d_bias = at(d_bias),
                                 .d_o = at(d_o),
                                 .q = at(q),
                                 .k = at(k),
                                 .v = at(v),
                                 .o = at(o),
                                 .lse = at(lse),
                                 .lo = at(lo),
                                 .hi = at(hi),
                                 .bias = at(bias),
                                 .scale = scale,
                                 .accumulate_q = flipped,
                                 .accumulate_k = !flipped,
                                 .accumulate_v = flipped,
                                 .accumulate_bias = !flipped};
      },
      dtype == DType::bf16 ? kRoundedTolerance : kAttentionTolerance);
}

Case with_heads_of(Case c, int64_t d, int64_t dv) {
  c.d = d;
  c.dv = dv;
  return c;
}

Case causal(int64_t length, int64_t heads, int64_t kv_heads) {
  Case c{"causal", 1, length, heads, kv_heads, 64, 64, 1, length, std::vector<int64_t>(static_cast<size_t>(length)),
         {}};
  for (int64_t t = 0; t < length; ++t) { c.hi.push_back(t + 1); }
  return c;
}

TEST_CASE("attention equals the CPU's", "[fast]") {
  check_case(documents());
  check_case(window_behind_prefix());
  check_case(packed());
  check_case(few_queries());
  check_case(wide());
}

TEST_CASE("attention on tensor cores equals the CPU's", "[fast]") {
  const Case biased = window_behind_prefix();
  const auto check = [](const Case& c, bool flipped = false) {
    const int64_t forward = simt::runs_of("attention_mma_forward"), queries = simt::runs_of("attention_mma_queries"),
                  keys = simt::runs_of("attention_mma_keys");
    check_case(c, DType::bf16, flipped);
    CHECK(simt::runs_of("attention_mma_forward") == forward + 2);  // forward and in reverse
    CHECK(simt::runs_of("attention_mma_queries") == queries + 2);
    CHECK(simt::runs_of("attention_mma_keys") == keys + 2);
  };
  check(causal(211, 1, 1));
  check(causal(45, 3, 1));  // three rows a token: tiles end within tokens
  check(with_heads_of(causal(33, 4, 1), 128, 128));
  check(with_heads_of(documents(), 32, 48));
  check(with_heads_of(documents(), 80, 96), true);
  check(with_heads_of(biased, 128, 112));
  check(with_heads_of(biased, 16, 32), true);
  check(with_heads_of(packed(), 64, 16));
  check(with_heads_of(packed(), 96, 128), true);
  check(with_heads_of(few_queries(), 64, 64));
}

TEST_CASE("the score of a lone visible key has a gradient of exactly zero on tensor cores", "[fast]") {
  Case c = causal(70, 2, 1);
  for (size_t t = 0; t < 70; ++t) { c.lo[t] = static_cast<int64_t>(t); }
  check_case(c, DType::bf16, true);  // the largest expected gradient of a query is 0, and so is the tolerance
}

TEST_CASE("attention without a query that sees a key gives zeros", "[fast]") {
  Case c = causal(70, 2, 1);
  c.hi.assign(70, 0);
  check_case(c, DType::bf16);
}

TEST_CASE("only bf16 heads of multiples of 16 up to 128 go to tensor cores", "[fast]") {
  const auto goes = [](DType dtype, int64_t d, int64_t dv) {
    return attention_on_tensor_cores(dtype, {1, 1, 1, d}, {1, 1, 1, dv});
  };
  CHECK(goes(DType::bf16, 64, 128));
  CHECK(goes(DType::bf16, 16, 80));
  CHECK_FALSE(goes(DType::f32, 64, 64));
  CHECK_FALSE(goes(DType::bf16, 64, 24));
  CHECK_FALSE(goes(DType::bf16, 256, 64));
  CHECK_FALSE(goes(DType::bf16, 64, 144));
}

TEST_CASE("attention takes bf16", "[fast]") {
  Twins t(DType::bf16);
  const Twin q = t.input({1, 9, 2, 12}), k = t.input({1, 9, 1, 12}), v = t.input({1, 9, 1, 7}),
             lo = t.integers({1, 9}, std::vector<int64_t>(9)), hi = t.integers({1, 9}, {1, 2, 3, 4, 5, 6, 7, 8, 9}),
             o = t.output({1, 9, 2, 7}), lse = t.float_output({1, 9, 2});
  const auto forward = [&](auto at) {
    return AttentionForward{.o = at(o),
                            .lse = at(lse),
                            .q = at(q),
                            .k = at(k),
                            .v = at(v),
                            .lo = at(lo),
                            .hi = at(hi),
                            .bias = {},
                            .scale = 0.3};
  };
  t.check(forward, kAttentionTolerance);
  t.prepare(forward);
  const Twin d_o = t.input({1, 9, 2, 7}), d_q = t.output({1, 9, 2, 12}), d_k = t.output({1, 9, 1, 12}),
             d_v = t.output({1, 9, 1, 7});
  t.check([&](auto at) {
    return AttentionBackward{.d_q = at(d_q),
                             .d_k = at(d_k),
                             .d_v = at(d_v),
                             .d_bias = {},
                             .d_o = at(d_o),
                             .q = at(q),
                             .k = at(k),
                             .v = at(v),
                             .o = at(o),
                             .lse = at(lse),
                             .lo = at(lo),
                             .hi = at(hi),
                             .bias = {},
                             .scale = 0.3,
                             .accumulate_q = false,
                             .accumulate_k = false,
                             .accumulate_v = false,
                             .accumulate_bias = false};
  });
}

TEST_CASE("attention on CUDA cores does not race", "[threads]") { check_case(with_heads_of(causal(5, 2, 1), 7, 3)); }

}  // namespace
