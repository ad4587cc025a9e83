// Values and keys of product-key memories that are rewritten while they are read, and their gradients, against their
// CPU twin.
#include "fwpkm_cases.h"

using namespace hebb_test;

namespace {

/// Slots of which the first has more readers than a block keeps in one piece.
std::vector<int64_t> crowded_slots(const Sizes& s) {
  std::vector<int64_t> slots;
  Numbers numbers(5);
  for (int64_t i = 0; i < s.slot_shape().numel(); ++i) {
    slots.push_back(numbers.below(s.tokens() > 100 ? 64 : 2) == 0 ? 7
                                                                  : numbers.below(static_cast<uint32_t>(s.n * s.n)));
  }
  return slots;
}

/// What reads and writes values of one chunk.
void check_chunk(const Twins& all, const Sizes& s, const Looked& looked, const Taught& taught, const Listed& listed,
                 int64_t c) {
  const FastChunk chunk = s.chunks().at(c);
  const Shape table{s.table(), s.dv}, values{s.tokens(), s.dv}, rows{s.capacity(c), s.dv};
  CAPTURE(c);
  Twins read = all;
  const Shape errors_of{chunk.tokens(), s.dv};  // in bf16 of readings as they were rounded: no numbers to compare
  const Twin reading = read.sum(values), error = read.is_bf16() ? read.scratch(errors_of) : read.float_sum(errors_of),
             from = read.parameter(table);
  read.check(
      [&](auto at) { return FastReadValues{at(reading), at(error), looked.at(at), at(from), chunk, taught.at(at)}; });
  Twins only = all;
  const Twin reading_only = only.sum(values), from_only = only.parameter(table);
  only.check([&](auto at) { return FastReadValues{at(reading_only), {}, looked.at(at), at(from_only), chunk, {}}; });
  for (const bool keep : {false, true}) {
    Twins write = all;
    const Twin written = write.float_sum(table), old = write.float_sum(rows),
               errors = write.parameter({chunk.tokens(), s.dv});
    write.check([&](auto at) {
      return FastWriteValues{at(written),
                             keep ? at(old) : Tensor{},
                             at(errors),
                             looked.at(at),
                             listed.of_chunk(at, c),
                             chunk,
                             taught.at(at),
                             0.8};
    });
  }
  Twins restore = all;
  const Twin back = restore.float_sum(table), kept = restore.parameter(rows);
  restore.check([&](auto at) { return FastRestoreRows{at(back), at(kept), listed.of_chunk(at, c)}; });
  Twins measure = all;
  const Twin sums = measure.double_sum({2}), moved = measure.parameter(table), before = measure.parameter(rows),
             vh = measure.input(values);
  measure.check([&](auto at) {
    return FastMeasureStep{at(sums), at(moved), at(before), at(vh), listed.of_chunk(at, c), chunk, taught.at(at)};
  });
}

void check_values(Twins& t, const Sizes& s, bool weighted, bool pairs_only, bool through, bool has_rows) {
  Looked looked{t, s};
  looked.slots = t.integers(s.slot_shape(), crowded_slots(s));
  const Taught taught{t, s, weighted, pairs_only};
  const Listed listed{t, s};
  const auto index = [&](auto at) {
    return FastIndexReaders{.out = listed.at(at),
                            .slots = at(looked.slots),
                            .chunks = s.chunks(),
                            .pairs = taught.at(at),
                            .table = s.table()};
  };
  t.check(index);
  t.prepare(index);
  for (int64_t c = 0; c < s.chunks().count(); c += 2) { check_chunk(t, s, looked, taught, listed, c); }
  const Shape values{s.tokens(), s.dv};
  const Twin d_weights = t.float_sum(s.slot_shape()), d_v = t.sum(values),
             d_w = weighted ? t.sum({s.tokens()}) : Twin{}, d_out = t.input(values), vh = t.input(values),
             rows = t.parameter({s.capacity(), s.dv}), table = t.parameter({s.table(), s.dv});
  const int64_t found = launches([&] {
    t.check(
        [&](auto at) {
          return FastValuesBackward{.d_weights = at(d_weights),
                                    .d_v = at(d_v),
                                    .d_w = at(d_w),
                                    .d_out = at(d_out),
                                    .vh = at(vh),
                                    .rows = has_rows ? at(rows) : Tensor{},
                                    .values = at(table),
                                    .lookup = looked.at(at),
                                    .readers = listed.at(at),
                                    .chunks = s.chunks(),
                                    .pairs = taught.at(at),
                                    .step = 0.8,
                                    .through = through};
        },
        1e-5);  // up to 100 readers of a slot, some with large weights of both signs
  });
  CHECK(found ==
        (through ? 2 : 1) * s.chunks().count());  // one for places, none for the adjoint before the first chunk
}

TEST_CASE("values of a fast memory and their gradients equal the CPU's", "[fast]") {
  constexpr Sizes kCrowded{{2, 21, 1, 19}, 8, 2, 3, 4, 4, 37};
  const bool weighted = GENERATE(false, true), through = GENERATE(false, true);
  CAPTURE(weighted, through);
  in_both_types([&](Twins& t) { check_values(t, kCrowded, weighted, false, through, weighted || through); });
}

TEST_CASE("values of a table with more slots than a row reads, and their gradients, equal the CPU's", "[fast]") {
  Twins t;
  check_values(t, kWide, true, false, true, true);
}

TEST_CASE("values of a chunk that reads thousands of slots, and their gradients, equal the CPU's") {
  Twins t;
  check_values(t, kMany, false, false, true, true);
}

TEST_CASE("readers of chunks that 31 bits cannot number together are found in parts", "[fast]") {
  constexpr Sizes kHuge{{1, 9, 0, 9}, 2, 1, 32000, 1, 3, 1};  // two chunks at once
  Twins t;
  const Taught taught{t, kHuge, false, false};
  const Listed listed{t, kHuge};
  const Twin slots = t.integers(kHuge.slot_shape(), crowded_slots(kHuge));
  t.check([&](auto at) {
    return FastIndexReaders{.out = listed.at(at),
                            .slots = at(slots),
                            .chunks = kHuge.chunks(),
                            .pairs = taught.at(at),
                            .table = kHuge.table()};
  });
}

TEST_CASE("readers without a pair are left out where only pairs count", "[fast]") {
  Twins t;
  const Taught taught{t, kWide, false, true};
  const Listed listed{t, kWide};
  Twins all = t;
  const Twin slots = all.integers(kWide.slot_shape(), crowded_slots(kWide));
  all.check([&](auto at) {
    return FastIndexReaders{.out = listed.at(at),
                            .slots = at(slots),
                            .chunks = kWide.chunks(),
                            .pairs = taught.at(at),
                            .table = kWide.table()};
  });
  Twins none = t;
  const Twin never = none.integers({kWide.tokens()}, std::vector<int64_t>(static_cast<size_t>(kWide.tokens()), -1)),
             any = none.integers(kWide.slot_shape(), crowded_slots(kWide));
  none.check([&](auto at) {
    return FastIndexReaders{.out = listed.at(at),
                            .slots = at(any),
                            .chunks = kWide.chunks(),
                            .pairs = {at(taught.v), {}, at(never), true},
                            .table = kWide.table()};
  });
}

/// Steps of one chunk, which is all of s.chunk.
void check_steps(Twins& t, const Sizes& s, const FastScore& score, const Looked& looked, bool weighted,
                 bool pairs_only) {
  const Taught taught{t, s, weighted, pairs_only};
  const Shape keys{s.heads, 2, s.n, s.half};
  Twins memory = t;
  const Twin moved = memory.float_output(keys), norms = memory.float_output({s.heads, 2, s.n}),
             vh = memory.input({s.tokens(), s.dv}), table = memory.parameter({s.table(), s.dv});
  memory.check(
      [&](auto at) {
        return FastMemoryStep{.next = at(moved),
                              .next_norms = at(norms),
                              .keys = at(looked.keys),
                              .q = at(looked.q),
                              .values = at(table),
                              .vh = at(vh),
                              .lookup = looked.at(at),
                              .chunk = s.chunk,
                              .pairs = taught.at(at),
                              .score = score,
                              .rate = 5.0,
                              .count = 7.0};
      },
      5e-6);
  const Twin next = t.float_output(keys), next_norms = t.float_output({s.heads, 2, s.n}),
             usage = t.float_output({2, s.n});
  const int64_t found = launches([&] {
    t.check(
        [&](auto at) {
          return FastEntropyStep{.next = at(next),
                                 .next_norms = at(next_norms),
                                 .usage = at(usage),
                                 .keys = at(looked.keys),
                                 .q = at(looked.q),
                                 .lookup = looked.at(at),
                                 .chunk = s.chunk,
                                 .pairs = taught.at(at),
                                 .score = score,
                                 .rate = 2.0,
                                 .count = 9.0};
        },
        5e-6);
  });
  CHECK(found == 2);
}

/// copies: keys of each chunk, or one copy.
void check_keys_backward(Twins& t, const Sizes& s, const FastScore& score, const Looked& looked, bool through,
                         bool accumulate, int64_t copies) {
  const Shape queries{s.tokens(), s.heads, 2, s.half};
  std::vector<double> used;
  Numbers numbers(9);
  for (int64_t i = 0; i < s.chunks().count() * 2 * s.n; ++i) {
    used.push_back(static_cast<float>(0.02 + 0.01 * numbers.next()));
  }
  const Twin usage = t.values({s.chunks().count(), 2, s.n}, used),
             keys = t.parameter({copies, s.heads, 2, s.n, s.half}), d_q = t.sum(queries),
             d_slots = t.parameter(s.slot_shape());
  const int64_t found = launches([&] {
    t.check(
        [&](auto at) {
          return FastKeysBackward{.d_q = at(d_q),
                                  .d_weights = at(d_slots),
                                  .usage = at(usage),
                                  .keys = at(keys),
                                  .q = at(looked.q),
                                  .lookup = looked.at(at),
                                  .chunks = s.chunks(),
                                  .score = score,
                                  .rate = 2.0,
                                  .through = through,
                                  .accumulate = accumulate};
        },
        1e-5);
  });
  CHECK(found ==
        (score.idw ? 3 : 2) + (through ? 2 + 4 * (s.chunks().count() - 1) : 0));  // of all chunks, and of each but one
}

void check_keys(Twins& t, const Sizes& s, const FastScore& score, bool weighted, bool pairs_only) {
  const Looked looked{t, s};
  t.prepare(looked.make(score));
  Looked selected = looked;
  selected.slots = t.integer_output(s.slot_shape());
  selected.weights = t.float_sum(s.slot_shape());
  t.prepare(selected.select());
  Twins steps = t;
  check_steps(steps, s, score, selected, weighted, pairs_only);
  check_keys_backward(t, s, score, selected, weighted || pairs_only, weighted,
                      weighted || pairs_only ? s.chunks().count() + 1 : 1);
}

TEST_CASE("steps of fast keys and their gradients equal the CPU's", "[fast]") {
  const FastScore score = GENERATE(FastScore{true, 1e-3}, FastScore{false, 1e-3});
  const bool weighted = GENERATE(false, true), pairs_only = GENERATE(false, true);
  CAPTURE(score.idw, weighted, pairs_only);
  Twins t(one_of_both_types(score.idw + weighted + pairs_only));
  check_keys(t, kWide, score, weighted, pairs_only);
}

TEST_CASE("product keys of many slots a token step as on the CPU", "[fast]") {
  Twins t;
  check_keys(t, kDeep, {true, 1e-3}, true, false);
}

TEST_CASE("product keys of many tokens and channels step as on the CPU", "[fast]") {
  Twins t;
  check_keys(t, kLong, {false, 1e-3}, true, true);
}

TEST_CASE("fast product keys do not race", "[threads]") {
  Twins values, keys;
  check_values(values, kSmall, true, false, true, true);
  check_keys(keys, kSmall, {true, 1e-3}, true, false);
}

}  // namespace
