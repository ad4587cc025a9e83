// Quantized keys and their linear form.
#include "kernels/vq/scratch.h"

#include <algorithm>

#include "tests/op_cases/machine.h"

using namespace hebb_test;

namespace {

// Sums of up to 23 keys that share a codeword, quotients of sums; log counts and running means of up to 70 values.
constexpr double kVqTolerance = 2e-5;

constexpr int64_t kBatch = 2, kLength = 70, kHeads = 4, kKvHeads = 2, kCodes = 75, kWidth = 19;
const Shape kKeys{kBatch, kLength, kKvHeads, kWidth}, kIds{kBatch, kKvHeads, kLength},
    kCodebook{kKvHeads, kCodes, kWidth};

std::vector<int64_t> some_ids(int64_t count, uint32_t limit) {
  std::vector<int64_t> ids;
  Numbers numbers(5);
  for (int64_t i = 0; i < count; ++i) { ids.push_back(numbers.below(i % 3 == 0 ? 2 : limit)); }
  return ids;
}

TEST_CASE("points of codebooks", "[fast]") {
  check(DType::f32, [](Machine& m) {
    const Shape segments{kKvHeads, kCodes - 1};
    const Tensor codes = m.input(kCodebook), idle = m.integers({kKvHeads, kCodes}, some_ids(kKvHeads * kCodes, 200));
    m.run(VqPoints{.points = {},
                   .bias = m.float_output({kKvHeads, kCodes}),
                   .codes = codes,
                   .dither = {},
                   .idle = idle,
                   .idle_bonus = 0.0025});
    m.run(VqPoints{.points = m.output({kKvHeads, kCodes - 1, kWidth}),
                   .bias = m.float_output(segments),
                   .codes = codes,
                   .dither = m.parameter(segments),
                   .idle = idle,
                   .idle_bonus = 0.0025},
          1e-5);
    m.run(VqStart{m.float_output({kKvHeads, 11, kWidth}), m.input(kKeys), 12});
  });
}

TEST_CASE("codewords, quantized keys and similarities", "[fast]") {
  check(DType::f32, [](Machine& m) {
    const Tensor points = m.input(kCodebook), k = m.input(kKeys), ids = m.integer_output(kIds);
    m.run(VqSelect{.ids = ids, .k = k, .points = points, .bias = m.parameter({kKvHeads, kCodes})});
    m.run(VqSelect{.ids = m.integer_output(kIds), .k = k, .points = points, .bias = {}});
    m.run(VqGather{m.output(kKeys), points, ids});
    m.run(VqSimilarity{.similarity = m.float_output(kIds), .k = k, .points = points, .ids = ids});
    // Of equal points the first is chosen.
    m.run(VqSelect{.ids = m.integer_output({1, 1, 5}),
                   .k = m.input({1, 5, 1, 1}),
                   .points = m.values({1, 80, 1}, Values(80, 0.5)),
                   .bias = {}});
  });
}

TEST_CASE("marks of used codewords and their disuse", "[fast]") {
  const bool segments = GENERATE(false, true);
  check(DType::f32, [=](Machine& m) {
    m.run(VqMark{m.integers({kKvHeads, kCodes}, std::vector<int64_t>(kKvHeads * kCodes), DType::i32, true),
                 m.integers(kIds, some_ids(kBatch * kKvHeads * kLength, kCodes - 1)), segments});
    for (const double applies : {0.0, 1.0}) {
      const Tensor idle = m.integers({2, 2}, {3, 0, 7, 0}, DType::i32, true);
      m.run(VqIdle{idle, m.integers({2, 2}, {1, 1, 0, 0}), m.double_values({1}, {applies})});
      m.expect(idle, applies == 0 ? Values{3, 0, 7, 0} : Values{0, 0, 8, 1});
    }
  });
}

VqKeysBackward keys_backward(Machine& m, const Tensor& k, const Tensor& codes, const Tensor& dither, const Tensor& ids,
                             VqMode mode, bool accumulate_k, bool accumulate_codes) {
  return {.d_k = m.gradient(k.shape, accumulate_k),
          .d_codes = m.gradient(codes.shape, accumulate_codes),
          .d_kq = m.input(k.shape),
          .k = k,
          .codes = codes,
          .dither = dither,
          .ids = ids,
          .mode = mode,
          .accumulate_k = accumulate_k,
          .accumulate_codes = accumulate_codes};
}

TEST_CASE("gradients of quantized keys", "[fast]") {
  const VqMode mode = GENERATE(VqMode::nearest, VqMode::diveq, VqMode::sf_diveq);
  const bool accumulate = GENERATE(false, true);
  CAPTURE(static_cast<int>(mode), accumulate);
  check(DType::f32, [=](Machine& m) {
    const Tensor k = m.input(kKeys), codes = m.input(kCodebook),
                 dither = mode == VqMode::sf_diveq ? m.parameter({kKvHeads, kCodes - 1}) : Tensor{},
                 ids = m.integers(kIds, some_ids(kIds.numel(), kCodes - 1));
    VqKeysBackward args = keys_backward(m, k, codes, dither, ids, mode, accumulate, accumulate);
    m.run(args, kVqTolerance);
    if (accumulate) {  // else nothing writes d_k
      args.d_k = {};
      m.run(args, kVqTolerance);
    }
  });
}

VqDictionary new_dictionary(Machine& m, int64_t batch, int64_t kv_heads, int64_t codes, int64_t width) {
  const Shape rows{batch, kv_heads, codes};
  return {m.integers(rows, std::vector<int64_t>(static_cast<size_t>(rows.numel())), DType::i32, true),
          m.float_sum(rows), m.float_sum({batch, kv_heads, codes, width})};
}

/// Reads in chunks that are no multiples of anything.
TEST_CASE("the linear form, also where a segment goes on", "[fast]") {
  const int64_t second = GENERATE(1, 30), dv = 37;
  CAPTURE(second);
  check(DType::f32, [=](Machine& m) {
    const Tensor points = m.input(kCodebook);
    const VqDictionary dictionary = new_dictionary(m, kBatch, kKvHeads, kCodes, dv);
    const auto segment = [&](int64_t length, const std::vector<int64_t>& starts) {
      m.run(VqRead{.o = m.output({kBatch, length, kHeads, dv}),
                   .dictionary = dictionary,
                   .q = m.input({kBatch, length, kHeads, kWidth}, 3),
                   .v = m.input({kBatch, length, kKvHeads, dv}),
                   .points = points,
                   .ids = m.integers({kBatch, kKvHeads, length}, some_ids(kBatch * kKvHeads * length, 40)),
                   .doc_start = m.integers({kBatch, length}, starts),
                   .chunk = std::min<int64_t>(17, length)},
            kVqTolerance);
    };
    segment(kLength, documents_of_two_rows());
    std::vector<int64_t> starts(static_cast<size_t>(2 * second), -3);
    for (int64_t i = second; i < 2 * second; ++i) { starts[static_cast<size_t>(i)] = i < second + 8 ? -5 : 8; }
    segment(second, starts);
  });
}

// For the thread sanitizer: several chunks, codewords that several keys share.
TEST_CASE("quantized keys, their gradients and the linear form do not race", "[threads]") {
  const Shape items{1, 5, 1, 2}, ids_shape{1, 1, 5};
  check(DType::f32, [=](Machine& m) {
    const Tensor points = m.input({1, 3, 2}), k = m.input(items), chosen = m.integer_output(ids_shape);
    m.run(VqSelect{.ids = chosen, .k = k, .points = points, .bias = {}});
    m.run(VqGather{m.output(items), points, chosen});
    const Tensor ids = m.integers(ids_shape, {0, 2, 0, 2, 0});
    m.run(VqRead{.o = m.output(items),
                 .dictionary = new_dictionary(m, 1, 1, 3, 2),
                 .q = m.input(items),
                 .v = k,
                 .points = points,
                 .ids = ids,
                 .doc_start = m.integers({1, 5}, std::vector<int64_t>(5)),
                 .chunk = 2},
          kVqTolerance);
    m.run(keys_backward(m, k, points, {}, ids, VqMode::diveq, false, true), kVqTolerance);
  });
}

}  // namespace
