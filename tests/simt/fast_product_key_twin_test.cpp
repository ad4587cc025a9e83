// Product-key memories that are rewritten while they are read, against their CPU twin.
#include "twins.h"

using namespace hebb_test;
using namespace hebb;

namespace {

struct Sizes {
  FastChunk chunk;
  int64_t heads, n, half, k, dv;

  int64_t tokens() const { return chunk.batch * chunk.length; }
  int64_t rows() const { return chunk.tokens(); }
  int64_t entries() const { return heads * k; }
  Shape book_shape() const { return {tokens(), heads, 2, k}; }
  Shape slot_shape() const { return {tokens(), heads, k}; }
};

// More than a tile of tokens (32) and of keys (64), and several groups of channels.
constexpr Sizes kWide{{2, 21, 3, 17}, 2, 67, 37, 3, 13};
// More slots per head than lanes.
constexpr Sizes kDeep{{1, 4, 0, 3}, 1, 41, 5, 35, 4};
// More entries than the emulator's workspace sorts at once.
constexpr Sizes kCut{{1, 60, 0, 60}, 2, 61, 3, 60, 3};
constexpr Sizes kSmall{{1, 5, 1, 3}, 1, 4, 3, 2, 5};
// More slots than a round of the scans over them holds (4,096).
constexpr Sizes kMany{{1, 601, 0, 600}, 2, 131, 2, 15, 2};

/// Lookups of a chunk; other tokens hold numbers that nobody may touch.
struct Looked {
  Twins& t;
  const Sizes& s;
  Twin entries = t.integer_output(s.book_shape()), scores = t.float_sum(s.book_shape()), probs = t.float_sum(s.book_shape()),
       slots = t.integer_output(s.slot_shape()), weights = t.float_sum(s.slot_shape()),
       q = t.input({s.tokens(), s.heads, 2, s.half}), keys = t.parameter({s.heads, 2, s.n, s.half}), norms = t.scratch({s.heads, 2, s.n});

  template <class At>
  FastLookup at(At&& at) const {
    return {at(entries), at(scores), at(probs), at(slots), at(weights)};
  }
  auto make(FastScore score, bool keep_entries = false, bool keep_slots = false) const {
    return [this, score, keep_entries, keep_slots](auto at_twin) {
      return FastLookupKeys{at(at_twin), at_twin(norms), at_twin(q), at_twin(keys), s.chunk, score, keep_entries, keep_slots};
    };
  }
};

/// v, w and targets of every token: one token later in its row; every fifth token has none.
struct Taught {
  Twins& t;
  const Sizes& s;
  bool weighted, pairs_only;
  Twin v = t.input({s.tokens(), s.dv}), w = weighted ? t.input({s.tokens()}) : Twin{}, targets = t.integers({s.tokens()}, list());

  std::vector<int64_t> list() const {
    std::vector<int64_t> out;
    for (int64_t i = 0; i < s.tokens(); ++i) {
      out.push_back(i % 5 == 2 || i % s.chunk.length + 1 == s.chunk.length ? -1 : i + 1);
    }
    return out;
  }
  template <class At>
  FastPairs at(At&& at) const {
    return {at(v), at(w), at(targets), pairs_only};
  }
};

struct Listed {
  Twins& t;
  const Sizes& s;
  int64_t capacity = std::min(s.n * s.n, s.rows() * s.entries());
  Twin slots = t.integer_output({capacity}), starts = t.integer_output({capacity + 1}),
       readers = t.integer_output({s.rows() * s.entries()}), local = t.integer_output({s.tokens() * s.entries()}),
       count = t.integer_output({1}), sorted = t.scratch({3 * s.rows() * s.entries() + 1024}, DType::i64);

  template <class At>
  FastReaders at(At&& at) const {
    return {at(slots), at(starts), at(readers), at(local), at(count)};
  }
};

TEST_CASE("fast lookups equal the CPU's", "[fast]") {
  const FastScore score = GENERATE(FastScore{true, 1e-3}, FastScore{false, 1e-3});
  const Sizes& sizes = GENERATE(0, 1) == 0 ? kWide : kDeep;
  CAPTURE(score.idw, sizes.k);
  in_both_types([&](Twins& t) {
    const Looked looked{t, sizes};
    t.check(looked.make(score));
  });
}

TEST_CASE("fast lookups with given entries and slots equal the CPU's", "[fast]") {
  const FastScore score = GENERATE(FastScore{true, 1e-3}, FastScore{false, 1e-3});
  const bool keep_entries = GENERATE(false, true), keep_slots = GENERATE(false, true);
  CAPTURE(score.idw, keep_entries, keep_slots);
  Twins t;
  Looked looked{t, kWide};
  std::vector<int64_t> entries, slots;
  Numbers numbers(4);
  for (int64_t i = 0; i < kWide.book_shape().numel(); ++i) {
    entries.push_back((numbers.below(20) * 3 + i % 3) % 67);  // distinct within a codebook, in no order
  }
  for (int64_t i = 0; i < kWide.slot_shape().numel(); ++i) {
    slots.push_back(numbers.below(67 * 67));
  }
  looked.entries = t.integers(kWide.book_shape(), entries, DType::i32, true);
  looked.slots = t.integers(kWide.slot_shape(), slots, DType::i32, true);
  t.check(looked.make(score, keep_entries, keep_slots));
}

/// Slots of which the first has more readers than a block keeps in one piece.
std::vector<int64_t> crowded_slots(const Sizes& s) {
  std::vector<int64_t> slots;
  Numbers numbers(5);
  for (int64_t i = 0; i < s.slot_shape().numel(); ++i) {
    slots.push_back(numbers.below(s.tokens() > 100 ? 64 : 2) == 0 ? 7 : numbers.below(static_cast<uint32_t>(s.n * s.n)));
  }
  return slots;
}

void check_values(Twins& t, const Sizes& s, bool weighted, bool pairs_only, bool through, bool earlier, bool has_rows) {
  Looked looked{t, s};
  looked.slots = t.integers(s.slot_shape(), crowded_slots(s));
  const Taught taught{t, s, weighted, pairs_only};
  const Listed listed{t, s};
  const auto index = [&](auto at) {
    return FastIndexReaders{listed.at(at), at(listed.sorted), at(looked.slots), s.chunk, taught.at(at), s.n * s.n};
  };
  t.check(index);
  t.prepare(index);
  const Shape table{s.n * s.n, s.dv}, values{s.tokens(), s.dv};
  const Twin before = t.parameter(table), rows = t.float_sum({listed.capacity, s.dv}), vh = t.input(values), error = t.scratch({s.rows(), s.dv});
  const auto keep = [&](auto at) { return FastKeepRows{at(rows), at(before), listed.at(at), false}; };
  t.check(keep);
  t.prepare(keep);
  {
    Twins more = t;
    const Twin reading = more.sum(values);
    more.check([&](auto at) { return FastReadValues{at(reading), looked.at(at), at(before), s.chunk}; });
    Twins restore = t;
    const Twin back = restore.float_sum(table);
    restore.check([&](auto at) { return FastKeepRows{at(rows), at(back), listed.at(at), true}; });
    Twins write = t;
    const Twin written = write.float_sum(table);
    write.check([&](auto at) {
      return FastWriteValues{at(written), at(error), at(vh), looked.at(at), listed.at(at), s.chunk, taught.at(at), 0.8};
    });
    Twins measure = t;
    const Twin sums = measure.double_sum({2}), moved = measure.parameter(table);
    measure.check([&](auto at) {
      return FastMeasureStep{at(sums), at(moved), at(rows), at(vh), listed.at(at), s.chunk, taught.at(at)};
    });
  }
  std::vector<int64_t> places(static_cast<size_t>(s.n * s.n));
  places[7] = 2;  // read by a later chunk, too
  places[1] = 1;
  const Twin d_weights = t.float_sum(s.slot_shape()), d_v = t.sum(values), d_w = weighted ? t.sum({s.tokens()}) : Twin{},
             adjoint = t.float_sum(table), place = t.integers({s.n * s.n}, places, DType::i32, true),
             used = t.integers({1}, {2}, DType::i32, true), d_vh = t.scratch({s.rows(), s.dv}),
             at_places = t.scratch({listed.capacity}, DType::i32), d_out = t.input(values);
  t.check([&](auto at) {
    return FastValuesBackward{at(d_weights), at(d_v), at(d_w), at(adjoint), at(place), at(used), at(d_vh), at(at_places), at(d_out),
                              at(vh), has_rows ? at(rows) : Tensor{}, at(before), looked.at(at), listed.at(at), s.chunk, taught.at(at),
                              0.8, through, earlier};
  }, 1e-5);  // up to 100 readers of a slot, some with large weights of both signs
}

TEST_CASE("values of a fast memory and their gradients equal the CPU's", "[fast]") {
  constexpr Sizes kCrowded{{2, 19, 1, 17}, 2, 3, 4, 3, 37};
  const bool weighted = GENERATE(false, true), through = GENERATE(false, true);
  CAPTURE(weighted, through);
  in_both_types([&](Twins& t) { check_values(t, kCrowded, weighted, false, through, through && weighted, weighted || through); });
}

TEST_CASE("values of a chunk that reads thousands of slots, and their gradients, equal the CPU's") {
  Twins t;
  check_values(t, kMany, false, false, true, true, true);
}

TEST_CASE("readers without a pair are left out where only pairs count", "[fast]") {
  Twins t;
  const Taught taught{t, kWide, false, true};
  const Listed listed{t, kWide};
  Twins all = t;
  const Twin slots = all.integers(kWide.slot_shape(), crowded_slots(kWide));
  all.check([&](auto at) {
    return FastIndexReaders{listed.at(at), at(listed.sorted), at(slots), kWide.chunk, taught.at(at), kWide.n * kWide.n};
  });
  Twins none = t;
  const Twin never = none.integers({kWide.tokens()}, std::vector<int64_t>(static_cast<size_t>(kWide.tokens()), -1)),
             any = none.integers(kWide.slot_shape(), crowded_slots(kWide));
  none.check([&](auto at) {
    return FastIndexReaders{listed.at(at), at(listed.sorted), at(any), kWide.chunk, {at(taught.v), {}, at(never), true},
                            kWide.n * kWide.n};
  });
}

void check_keys(Twins& t, const Sizes& s, const FastScore& score, bool weighted, bool pairs_only) {
  const Looked looked{t, s};
  const Taught taught{t, s, weighted, pairs_only};
  t.prepare(looked.make(score));
  const Shape keys{s.heads, 2, s.n, s.half}, values{s.tokens(), s.dv};
  const Twin gamma = t.scratch(s.book_shape()), index = t.scratch(s.book_shape(), DType::i32), vh = t.input(values),
             table = t.parameter({s.n * s.n, s.dv});
  {
    Twins memory = t;
    const Twin next = memory.float_output(keys), d_weights = memory.scratch(s.slot_shape());
    memory.check([&](auto at) {
      return FastMemoryStep{at(next), at(index), at(gamma), at(d_weights), at(looked.keys), at(looked.q), at(table), at(vh),
                            looked.at(at), s.chunk, taught.at(at), score, 5.0, 7.0};
    }, 5e-6);
    Twins back = t;
    const Twin d_q = back.sum({s.tokens(), s.heads, 2, s.half}), d_keys = weighted ? back.float_sum(keys) : Twin{},
               d_slots = back.parameter(s.slot_shape());
    back.check([&](auto at) {
      return FastLookupBackward{at(d_q), at(d_keys), at(index), at(gamma), at(d_slots), at(looked.q), at(looked.keys), looked.at(at),
                                s.chunk, score, weighted};
    }, 1e-5);
  }
  const Twin next = t.float_output(keys), usage = t.float_output({2, s.n});
  const auto step = [&](auto at) {
    return FastEntropyStep{at(next), at(usage), at(gamma), at(looked.keys), at(looked.q), looked.at(at), s.chunk, taught.at(at), score,
                           2.0, 9.0};
  };
  t.check(step, 5e-6);
  t.prepare(step);
  const Twin d_q = t.sum({s.tokens(), s.heads, 2, s.half}), d_keys = weighted ? t.float_sum(keys) : Twin{}, mean = t.scratch({2, s.n}),
             beta = t.scratch(s.book_shape()), d_next = t.parameter(keys);
  t.check([&](auto at) {
    return FastEntropyBackward{at(d_q), at(d_keys), at(mean), at(gamma), at(beta), at(d_next), at(usage), at(looked.keys), at(looked.q),
                               looked.at(at), s.chunk, score, 2.0};
  }, 1e-5);
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

TEST_CASE("product keys of a chunk that is sorted in runs step as on the CPU", "[fast]") {
  Twins t;
  check_keys(t, kCut, {false, 1e-3}, true, true);
}

TEST_CASE("fast product keys do not race", "[threads]") {
  Twins lookup, values, keys;
  const Looked looked{lookup, kSmall};
  lookup.check(looked.make({true, 1e-3}));
  check_values(values, kSmall, true, false, true, true, true);
  check_keys(keys, kSmall, {true, 1e-3}, true, false);
}

}  // namespace
