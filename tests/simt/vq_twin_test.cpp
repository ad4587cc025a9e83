// Quantized keys and their linear form against the CPU twin.
#include "kernels/vq/scratch.h"
#include "twins.h"

using namespace hebb_test;
using namespace hebb;

namespace {

constexpr int64_t kBatch = 2, kLength = 70, kHeads = 4, kKvHeads = 2, kCodes = 75, kWidth = 19;
const Shape kKeys{kBatch, kLength, kKvHeads, kWidth}, kIds{kBatch, kKvHeads, kLength};

std::vector<int64_t> some_ids(int64_t count, uint32_t limit) {
  std::vector<int64_t> ids;
  Numbers numbers(5);
  for (int64_t i = 0; i < count; ++i) { ids.push_back(numbers.below(i % 3 == 0 ? 2 : limit)); }
  return ids;
}

TEST_CASE("points to select from equal the CPU's", "[fast]") {
  Twins t;
  const Twin codes = t.input({kKvHeads, kCodes, kWidth}),
             idle = t.integers({kKvHeads, kCodes}, some_ids(kKvHeads * kCodes, 200));
  Twins plain = t;
  const Twin plain_bias = plain.float_output({kKvHeads, kCodes});
  plain.check([&](auto at) { return VqPoints{{}, at(plain_bias), at(codes), {}, at(idle), 0.0025}; });
  const Twin points = t.output({kKvHeads, kCodes - 1, kWidth}), bias = t.float_output({kKvHeads, kCodes - 1}),
             dither = t.parameter({kKvHeads, kCodes - 1});
  t.check([&](auto at) { return VqPoints{at(points), at(bias), at(codes), at(dither), at(idle), 0.0025}; }, 1e-5);
}

TEST_CASE("selection, quantized keys and similarities equal the CPU's", "[fast]") {
  Twins t;
  const Twin points = t.input({kKvHeads, kCodes, kWidth}), bias = t.parameter({kKvHeads, kCodes}), k = t.input(kKeys),
             ids = t.integer_output(kIds);
  const auto select = [&](auto at) { return VqSelect{at(ids), at(k), at(points), at(bias)}; };
  t.check(select);
  Twins nearest = t;
  nearest.check([&](auto at) { return VqSelect{at(ids), at(k), at(points), {}}; });
  t.prepare(select);
  Twins gather = t, compare = t;
  const Twin kq = gather.output(kKeys);
  gather.check([&](auto at) { return VqGather{at(kq), at(points), at(ids)}; });
  const Twin similarity = compare.float_output(kIds);
  compare.check([&](auto at) { return VqSimilarity{at(similarity), at(k), at(points), at(ids)}; });
}

TEST_CASE("a codebook that starts from keys equals the CPU's", "[fast]") {
  Twins t;
  const Twin k = t.input(kKeys), codebook = t.float_output({kKvHeads, 11, kWidth});
  t.check([&](auto at) { return VqStart{at(codebook), at(k), 12}; });
}

TEST_CASE("marks of used codewords and their disuse equal the CPU's", "[fast]") {
  const bool segments = GENERATE(false, true);
  Twins t;
  const Twin ids = t.integers(kIds, some_ids(kBatch * kKvHeads * kLength, kCodes - 1)),
             used = t.integers({kKvHeads, kCodes}, std::vector<int64_t>(kKvHeads * kCodes), DType::i32, true);
  t.check([&](auto at) { return VqMark{at(used), at(ids), segments}; });
  for (const double applies : {0.0, 1.0}) {
    both_ways([&] {
      TestStream stream;
      DeviceArray<int32_t> idle(std::vector<int32_t>{3, 0, 7, 0}), was_used(std::vector<int32_t>{1, 1, 0, 0});
      DeviceArray<double> decided(std::vector<double>{applies});
      device::run(stream, VqIdle{idle.tensor({2, 2}), was_used.tensor({2, 2}), decided.tensor()});
      CHECK(idle.host() == (applies == 0 ? std::vector<int32_t>{3, 0, 7, 0} : std::vector<int32_t>{0, 0, 8, 1}));
    });
  }
}

TEST_CASE("of equal points the first is chosen", "[fast]") {
  Twins t;
  const Twin points = t.values({1, 80, 1}, std::vector<double>(80, 0.5)), k = t.input({1, 5, 1, 1}),
             ids = t.integer_output({1, 1, 5});
  t.check([&](auto at) { return VqSelect{at(ids), at(k), at(points), {}}; });
}

TEST_CASE("gradients of quantized keys equal the CPU's", "[fast]") {
  const VqMode mode = GENERATE(VqMode::nearest, VqMode::diveq, VqMode::sf_diveq);
  const bool accumulate = GENERATE(false, true);
  CAPTURE(static_cast<int>(mode), accumulate);
  const Shape codes_shape{kKvHeads, kCodes, kWidth};
  Twins t;
  const bool is_segment = mode == VqMode::sf_diveq;
  const Twin d_k = accumulate ? t.sum(kKeys) : t.output(kKeys),
             d_codes = accumulate ? t.sum(codes_shape) : t.output(codes_shape), d_kq = t.input(kKeys),
             k = t.input(kKeys), codes = t.input(codes_shape),
             dither = is_segment ? t.parameter({kKvHeads, kCodes - 1}) : Twin{},
             ids = t.integers(kIds, some_ids(kIds.numel(), kCodes - 1));
  t.check(
      [&](auto at) {
        return VqKeysBackward{.d_k = at(d_k),
                              .d_codes = at(d_codes),
                              .d_kq = at(d_kq),
                              .k = at(k),
                              .codes = at(codes),
                              .dither = at(dither),
                              .ids = at(ids),
                              .mode = mode,
                              .accumulate_k = accumulate,
                              .accumulate_codes = accumulate};
      },
      2e-5);         // sums of up to 23 keys that share a codeword, quotients of sums
  if (accumulate) {  // else nothing writes d_k
    t.check(
        [&](auto at) {
          return VqKeysBackward{.d_k = {},
                                .d_codes = at(d_codes),
                                .d_kq = at(d_kq),
                                .k = at(k),
                                .codes = at(codes),
                                .dither = at(dither),
                                .ids = at(ids),
                                .mode = mode,
                                .accumulate_k = true,
                                .accumulate_codes = true};
        },
        2e-5);
  }
}

/// Rows of `length` tokens after `first` ones: reads in chunks that are no multiples of anything.
TEST_CASE("the linear form equals the CPU's, also where a segment goes on", "[fast]") {
  const int64_t second = GENERATE(1, 30), dv = 37;
  CAPTURE(second);
  Twins t;
  const Twin points = t.input({kKvHeads, kCodes, kWidth}),
             counts = t.integers({kBatch, kKvHeads, kCodes}, std::vector<int64_t>(kBatch * kKvHeads * kCodes),
                                 DType::i32, true),
             log_counts = t.float_sum({kBatch, kKvHeads, kCodes}), means = t.float_sum({kBatch, kKvHeads, kCodes, dv});
  const auto segment = [&](int64_t length, const std::vector<int64_t>& starts, bool last) {
    const int64_t chunk = std::min<int64_t>(17, length);
    const Shape queries{kBatch, length, kHeads, kWidth}, values{kBatch, length, kKvHeads, dv};
    const Twin o = t.output({kBatch, length, kHeads, dv}), q = t.input(queries, 3), v = t.input(values),
               ids = t.integers({kBatch, kKvHeads, length}, some_ids(kBatch * kKvHeads * length, 40)),
               doc_start = t.integers({kBatch, length}, starts);
    const auto read = [&](auto at) {
      return VqRead{.o = at(o),
                    .dictionary = {at(counts), at(log_counts), at(means)},
                    .q = at(q),
                    .v = at(v),
                    .points = at(points),
                    .ids = at(ids),
                    .doc_start = at(doc_start),
                    .chunk = chunk};
    };
    // The rounding of log counts and running means of up to 70 values.
    if (!last) {
      Twins alone = t;
      alone.check(read, 2e-5);
    }
    last ? t.check(read, 2e-5) : t.prepare(read);
  };
  segment(kLength, documents_of_two_rows(), false);
  std::vector<int64_t> starts(static_cast<size_t>(2 * second), -3);
  for (int64_t i = second; i < 2 * second; ++i) { starts[static_cast<size_t>(i)] = i < second + 8 ? -5 : 8; }
  segment(second, starts, true);
}

// For the thread sanitizer: several chunks, codewords that several keys share.
TEST_CASE("the linear form and the gradients of quantized keys do not race", "[threads]") {
  const int64_t length = 5, codes = 3, d = 2;
  const Shape items{1, length, 1, d}, ids_shape{1, 1, length}, codes_shape{1, codes, d}, room{1, 1, codes};
  Twins t;
  const Twin points = t.input(codes_shape), q = t.input(items), k = t.input(items),
             ids = t.integers(ids_shape, {0, 2, 0, 2, 0});
  Twins forward = t;
  const Twin o = forward.output(items), counts = forward.integers(room, std::vector<int64_t>(codes), DType::i32, true),
             log_counts = forward.float_sum(room), means = forward.float_sum({1, 1, codes, d}),
             doc_start = forward.integers({1, length}, std::vector<int64_t>(length));
  forward.check(
      [&](auto at) {
        return VqRead{.o = at(o),
                      .dictionary = {at(counts), at(log_counts), at(means)},
                      .q = at(q),
                      .v = at(k),
                      .points = at(points),
                      .ids = at(ids),
                      .doc_start = at(doc_start),
                      .chunk = 2};
      },
      2e-5);
  const Twin d_k = t.output(items), d_codes = t.sum(codes_shape), d_kq = t.input(items);
  t.check(
      [&](auto at) {
        return VqKeysBackward{.d_k = at(d_k),
                              .d_codes = at(d_codes),
                              .d_kq = at(d_kq),
                              .k = at(k),
                              .codes = at(points),
                              .dither = {},
                              .ids = at(ids),
                              .mode = VqMode::diveq,
                              .accumulate_k = false,
                              .accumulate_codes = true};
      },
      2e-5);
}

}  // namespace
