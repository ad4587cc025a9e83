// Attention: documents, windows, prefixes, packed keys, biases, grouped heads, odd sizes.
#include "tests/op_cases/attention.h"

using namespace hebb_test;

namespace {

// Sums of a few hundred fp32 products and exponentials of sums.
constexpr double kAttentionTolerance = 1e-5;
// Of sums over probabilities, or gradients at scores, that were rounded to 8 bits: 2^-9 of each.
constexpr double kRoundedTolerance = 8e-3;

Attention documents(int64_t d = 19, int64_t dv = 37) {
  Attention c{"documents", 2, 70, 4, 2, d, dv, 2, 70, documents_of_two_rows(), {}};
  for (int64_t i = 0; i < 140; ++i) { c.hi.push_back(i % 70 + 1); }
  return c;
}

Attention window_behind_prefix(int64_t d = 33, int64_t dv = 5) {
  Attention c{"window behind a prefix", 1, 67, 1, 1, d, dv, 1, 76, {}, {}, true, 0, {5}};
  for (int64_t t = 0; t < 67; ++t) {
    c.lo.push_back(std::max<int64_t>(0, t + 9 - 12));
    c.hi.push_back(t + 10);
  }
  return c;
}

/// Keys of all rows in one space; some queries see none, some keys are seen by none.
Attention packed(int64_t d = 8, int64_t dv = 9) {
  Attention c{"packed", 2, 35, 3, 1, d, dv, 1, 150, {}, {}, true, 0, {5}};
  for (int64_t i = 0; i < 70; ++i) {
    c.lo.push_back(i < 10 ? 0 : i < 20 ? 60 : 100);
    c.hi.push_back(i < 5 ? 0 : i < 10 ? 7 : i < 20 ? 60 + i % 20 : 149);
  }
  return c;
}

Attention few_queries(int64_t d = 24, int64_t dv = 24) {
  return {"few queries", 2, 1, 6, 2, d, dv, 2, 200, {3, 0}, {200, 130}};
}

/// Fewer than a tile of queries, and keys of several blocks: a window, a query that sees no key, a hidden key.
Attention blocks_of_keys(int64_t length, int64_t heads, int64_t kv_heads, int64_t d, int64_t dv) {
  Attention c{"blocks of keys", 2, length, heads, kv_heads, d, dv, 2, 300, {}, {}, true, 0, {270 * kv_heads}};
  for (int64_t i = 0; i < 2 * length; ++i) {
    const int64_t t = i % length;
    c.lo.push_back(i < length ? 0 : 130);
    c.hi.push_back(i < length ? 258 + t : length > 1 && t == 0 ? 130 : 290 - length + t);
  }
  return c;
}

/// More channels than one slice of the grid holds.
Attention wide() { return {"wide", 1, 3, 2, 1, 130, 270, 1, 5, {0, 0, 1}, {2, 3, 5}}; }

Attention without_keys() {
  Attention c = causal(70, 2, 1);
  c.name = "no query sees a key";
  c.hi.assign(70, 0);
  return c;
}

TEST_CASE("attention", "[fast]") {
  const Attention c =
      GENERATE(documents(), window_behind_prefix(), packed(), few_queries(), wide(), causal(9, 2, 1, 12, 7));
  CAPTURE(c.name);
  check(DType::f32, [&](Machine& m) { attention_passes(m, c, kAttentionTolerance, kAttentionTolerance); });
}

TEST_CASE("attention in bf16 on plain cores", "[fast]") {
  const Attention c = causal(9, 2, 1, 12, 7);
  check(DType::bf16, [&](Machine& m) {
    attention_passes(m, c, kAttentionTolerance, kSingle, false, {"attention_mma", false});
  });
}

TEST_CASE("attention on tensor cores", "[fast]") {
  const Attention c =
      GENERATE(causal(211, 1, 1), causal(45, 3, 1),  // three rows a token: tiles end within tokens
               causal(33, 4, 1, 128, 128), documents(32, 48), documents(80, 96), window_behind_prefix(128, 112),
               window_behind_prefix(16, 32), packed(64, 16), packed(96, 128), few_queries(64, 64), without_keys(),
               lone_keys(70, 2, 1, 64, 64));  // the largest expected gradient of a query is 0, and so is the tolerance
  const bool flipped = c.d == 80 || c.d == 16 || c.d == 96 || std::string(c.name) == "lone keys";
  CAPTURE(c.name, c.d, c.dv);
  check(DType::bf16, [&](Machine& m) {
    attention_passes(m, c, kAttentionTolerance, kRoundedTolerance, flipped, {"attention_mma", true});
  });
}

TEST_CASE("attention of few queries divides their keys", "[fast]") {
  const Attention c =
      GENERATE(blocks_of_keys(1, 2, 2, 32, 16), blocks_of_keys(1, 3, 1, 16, 136), blocks_of_keys(2, 7, 1, 9, 5));
  CAPTURE(c.heads, c.d, c.dv);
  check(DType::f32, [&](Machine& m) { attention_passes(m, c, kAttentionTolerance, kAttentionTolerance); });
  check(DType::bf16, [&](Machine& m) { attention_passes(m, c, kAttentionTolerance, kRoundedTolerance); });
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

TEST_CASE("attention does not race", "[threads]") {
  check(DType::f32,
        [](Machine& m) { attention_passes(m, causal(5, 2, 1, 7, 3), kAttentionTolerance, kAttentionTolerance); });
  // Three tiles of queries and of keys, and keys that nobody sees in between.
  Attention c{"gap", 1, 140, 1, 1, 32, 32, 1, 150, {}, {}, true};
  for (int64_t t = 0; t < 140; ++t) {
    c.lo.push_back(t < 60 ? 0 : 50);
    c.hi.push_back(t < 60 ? 31 : t + 10);
  }
  check(DType::bf16, [&](Machine& m) { attention_passes(m, c, kAttentionTolerance, kRoundedTolerance); });
}

}  // namespace
