// Product-key memories that are rewritten while they are read: lookups, values, keys, and their gradients.
#include "kernels/fwpkm/scratch.h"
#include "tests/op_cases/machine.h"

using namespace hebb_test;

namespace {

struct FwpkmCase {
  FastChunk chunk;
  int64_t size;  // of the chunks into which it is cut, where it is
  int64_t heads, n, half, k, dv;

  FastChunks chunks() const { return {chunk, size}; }
  int64_t tokens() const { return chunk.batch * chunk.length; }
  int64_t rows() const { return chunk.tokens(); }
  int64_t entries() const { return heads * k; }
  int64_t slots() const { return n * n; }
  Shape per_codebook() const { return {tokens(), heads, 2, k}; }
  Shape per_slot() const { return {tokens(), heads, k}; }
  Shape keys() const { return {heads, 2, n, half}; }
  Shape norms() const { return {heads, 2, n}; }
  Shape queries() const { return {tokens(), heads, 2, half}; }
  Shape values() const { return {tokens(), dv}; }
  Shape table() const { return {slots(), dv}; }
  /// Distinct slots of chunk c, and of all, at most.
  int64_t capacity(int64_t c) const { return fwpkm_capacity(chunks().at(c).tokens() * entries(), slots()); }
  int64_t capacity() const {
    int64_t sum = 0;
    for (int64_t c = 0; c < chunks().count(); ++c) { sum += capacity(c); }
    return sum;
  }
};

// More than a tile of tokens (32), two groups of keys (64) and several groups of channels; three chunks, the last one
// shorter.
constexpr FwpkmCase kWide{{2, 21, 3, 17}, 7, 2, 67, 37, 3, 13};
// More slots per head than lanes.
constexpr FwpkmCase kDeep{{1, 4, 0, 3}, 2, 1, 41, 5, 35, 4};
// More tokens than a row of the batch has a warp's entries for, more channels than a block's sum takes at once.
constexpr FwpkmCase kLong{{3, 60, 0, 60}, 23, 1, 61, 133, 5, 3};
constexpr FwpkmCase kSmall{{1, 5, 1, 3}, 2, 1, 4, 3, 2, 5};
// More slots than a round of the scans over them holds (4,096).
constexpr FwpkmCase kMany{{1, 601, 0, 600}, 400, 2, 131, 2, 15, 2};

/// Lookups of a chunk; other tokens hold numbers that nobody may touch.
FwpkmLookup lookup_of(Machine& m, const FwpkmCase& s) {
  return {m.integer_output(s.per_codebook()), m.float_sum(s.per_codebook()), m.float_sum(s.per_codebook()),
          m.integer_output(s.per_slot()), m.float_sum(s.per_slot())};
}

FwpkmLookupKeys keys_of(Machine& m, const FwpkmCase& s, FwpkmScore score) {
  return {.out = lookup_of(m, s),
          .key_norms = m.scratch(s.norms()),
          .q = m.input(s.queries()),
          .keys = m.parameter(s.keys()),
          .chunk = s.chunk,
          .score = score,
          .keep_norms = false,
          .keep_entries = false,
          .keep_slots = false};
}

/// The same lookup with slots and weights that are yet to come.
FwpkmSelectSlots select_of(Machine& m, const FwpkmCase& s, FwpkmLookup out, bool keep_slots = false) {
  if (!keep_slots) { out.slots = m.integer_output(s.per_slot()); }
  out.weights = m.float_sum(s.per_slot());
  return {out, s.chunk, s.n, keep_slots};
}

/// v, w and targets of every token: one token later in its row; every fifth token has none.
FwpkmPairs pairs_of(Machine& m, const FwpkmCase& s, bool weighted, bool pairs_only) {
  std::vector<int64_t> targets;
  for (int64_t i = 0; i < s.tokens(); ++i) {
    targets.push_back(i % 5 == 2 || i % s.chunk.length + 1 == s.chunk.length ? -1 : i + 1);
  }
  return {m.input(s.values()), weighted ? m.input({s.tokens()}) : Tensor{}, m.integers({s.tokens()}, targets),
          pairs_only};
}

FwpkmReaders readers_of_all(Machine& m, const FwpkmCase& s) {
  return {m.integer_output({s.capacity()}), m.integer_output({s.capacity() + s.chunks().count()}),
          m.integer_output({s.rows() * s.entries()}), m.integer_output({s.tokens() * s.entries()}),
          m.integer_output({s.chunks().count()})};
}

FwpkmScore either_score() { return GENERATE(FwpkmScore{true, 1e-3}, FwpkmScore{false, 1e-3}); }

TEST_CASE("fast lookups", "[fast]") {
  const FwpkmScore score = either_score();
  const FwpkmCase& s = GENERATE(0, 1) == 0 ? kWide : kDeep;
  CAPTURE(score.idw, s.k);
  check([&](Machine& m) {
    const FwpkmLookupKeys keys = keys_of(m, s, score);
    m.run(keys);
    m.run(select_of(m, s, keys.out));
  });
}

TEST_CASE("fast lookups of bf16 queries rank on tensor cores, where the keys fit beside a tile", "[fast]") {
  // More than a tile of tokens (64), of keys (256) and of channels (32), one of a single token and few keys, and one
  // with too many keys.
  constexpr FwpkmCase kTiles{{2, 40, 1, 34}, 34, 1, 275, 40, 5, 1}, kFew{{1, 2, 1, 1}, 1, 2, 5, 8, 2, 1},
      kMost{{1, 2, 0, 2}, 2, 1, 2300, 8, 3, 1};
  const FwpkmScore score = either_score();
  for (const FwpkmCase& s : {kTiles, kFew, kMost}) {
    CAPTURE(score.idw, s.n);
    check(DType::bf16, [&](Machine& m) {
      m.run(keys_of(m, s, score), kSingle, {"fwpkm_entries_mma", s.n != kMost.n});
    });
  }
}

TEST_CASE("fast lookups on tensor cores tell keys apart that differ in their last bits", "[fast]") {
  constexpr FwpkmCase s{{1, 3, 0, 3}, 3, 1, 33, 16, 4, 1};
  Values keys, queries(static_cast<size_t>(s.queries().numel()), 0.0);
  for (size_t i = 0; i < queries.size(); i += 16) {
    queries[i] = 1;  // one channel decides
  }
  for (int64_t i = 0; i < s.keys().numel(); ++i) {
    const int64_t key = i / s.half % s.n;
    keys.push_back(i % s.half == 0 ? 1 + static_cast<double>(key * 7 % s.n) / (1 << 22)
                                   : 0.0);  // 2^-22: four of fp32's last bits
  }
  check(DType::bf16, [&](Machine& m) {
    FwpkmLookupKeys lookup = keys_of(m, s, {false, 1e-3});
    lookup.q = m.activations(s.queries(), queries);
    lookup.keys = m.values(s.keys(), keys);
    m.run(lookup);
  });
}

TEST_CASE("fast lookups take norms of keys that are given", "[fast]") {
  check(DType::f32, [](Machine& m) {
    FwpkmLookupKeys lookup = keys_of(m, kWide, {true, 1e-3});
    lookup.key_norms = m.parameter(kWide.norms(), 3);  // of no keys: they decide what is chosen
    lookup.keep_norms = true;
    m.run(lookup);
  });
}

TEST_CASE("fast lookups with given entries and slots", "[fast]") {
  const FwpkmScore score = either_score();
  const bool keep_entries = GENERATE(false, true), keep_slots = GENERATE(false, true);
  CAPTURE(score.idw, keep_entries, keep_slots);
  std::vector<int64_t> entries, slots;
  Numbers numbers(4);
  for (int64_t i = 0; i < kWide.per_codebook().numel(); ++i) {
    entries.push_back((numbers.below(20) * 3 + i % 3) % 67);  // distinct within a codebook, in no order
  }
  for (int64_t i = 0; i < kWide.per_slot().numel(); ++i) { slots.push_back(numbers.below(67 * 67)); }
  check(DType::f32, [&](Machine& m) {
    FwpkmLookupKeys lookup = keys_of(m, kWide, score);
    lookup.out.entries = m.integers(kWide.per_codebook(), entries, DType::i32, true);
    lookup.out.slots = m.integers(kWide.per_slot(), slots, DType::i32, true);
    lookup.keep_entries = keep_entries;
    lookup.keep_slots = keep_slots;
    m.run(lookup);
    lookup.out.slots = m.integers(kWide.per_slot(), slots, DType::i32, true);
    m.run(select_of(m, kWide, lookup.out, keep_slots));
  });
}

TEST_CASE("fast lookups do not race", "[threads]") {
  check(DType::f32, [](Machine& m) { m.run(keys_of(m, kSmall, {true, 1e-3})); });
  constexpr FwpkmCase kNarrow{{1, 3, 0, 3}, 3, 1, 5, 8, 2, 1};
  check(DType::bf16, [&](Machine& m) { m.run(keys_of(m, kNarrow, {true, 1e-3})); });
}

/// Slots of which the first has more readers than a block keeps in one piece.
std::vector<int64_t> crowded_slots(const FwpkmCase& s) {
  std::vector<int64_t> slots;
  Numbers numbers(5);
  for (int64_t i = 0; i < s.per_slot().numel(); ++i) {
    slots.push_back(numbers.below(s.tokens() > 100 ? 64 : 2) == 0 ? 7
                                                                  : numbers.below(static_cast<uint32_t>(s.slots())));
  }
  return slots;
}

FwpkmIndexReaders index_of(const FwpkmCase& s, const FwpkmReaders& out, const Tensor& slots, const FwpkmPairs& pairs) {
  return {.out = out, .slots = slots, .chunks = s.chunks(), .pairs = pairs, .table = s.slots()};
}

/// What reads and writes values of chunk c.
void run_chunk(Machine& m, const FwpkmCase& s, const FwpkmLookup& lookup, const FwpkmPairs& pairs,
               const FwpkmReaders& all, int64_t c) {
  CAPTURE(c);
  const FastChunk chunk = s.chunks().at(c);
  const FwpkmReaders readers = readers_of(all, s.chunks(), c, s.entries(), s.slots());
  const Shape changed{s.capacity(c), s.dv}, errors{chunk.tokens(), s.dv};
  // In bf16 of readings as they were rounded: no numbers to compare.
  const Tensor error = m.is_bf16() ? m.scratch(errors) : m.float_sum(errors);
  m.run(FwpkmReadValues{.vh = m.sum(s.values()),
                        .error = error,
                        .lookup = lookup,
                        .values = m.parameter(s.table()),
                        .chunk = chunk,
                        .pairs = pairs});
  m.run(FwpkmReadValues{.vh = m.sum(s.values()),
                        .error = {},
                        .lookup = lookup,
                        .values = m.parameter(s.table()),
                        .chunk = chunk,
                        .pairs = {}});
  for (const bool keep : {false, true}) {
    m.run(FwpkmWriteValues{.values = m.float_sum(s.table()),
                           .before = keep ? m.float_sum(changed) : Tensor{},
                           .error = m.parameter(errors),
                           .lookup = lookup,
                           .readers = readers,
                           .chunk = chunk,
                           .pairs = pairs,
                           .step = 0.8});
  }
  m.run(FwpkmRestoreValues{m.float_sum(s.table()), m.parameter(changed), readers});
  m.run(FwpkmMeasureStep{.sums = m.double_sum({2}),
                         .values = m.parameter(s.table()),
                         .before = m.parameter(changed),
                         .vh = m.input(s.values()),
                         .readers = readers,
                         .chunk = chunk,
                         .pairs = pairs});
}

void run_values(Machine& m, const FwpkmCase& s, bool weighted, bool pairs_only, bool through, bool has_before) {
  FwpkmLookup lookup = lookup_of(m, s);
  lookup.slots = m.integers(s.per_slot(), crowded_slots(s));
  const FwpkmPairs pairs = pairs_of(m, s, weighted, pairs_only);
  const FwpkmReaders readers = readers_of_all(m, s);
  m.run(index_of(s, readers, lookup.slots, pairs));
  for (int64_t c = 0; c < s.chunks().count(); c += 2) { run_chunk(m, s, lookup, pairs, readers, c); }
  m.run(FwpkmValuesBackward{.d_weights = m.float_sum(s.per_slot()),
                            .d_v = m.sum(s.values()),
                            .d_w = weighted ? m.sum({s.tokens()}) : Tensor{},
                            .d_out = m.input(s.values()),
                            .vh = m.input(s.values()),
                            .before = has_before ? m.parameter({s.capacity(), s.dv}) : Tensor{},
                            .values = m.parameter(s.table()),
                            .lookup = lookup,
                            .readers = readers,
                            .chunks = s.chunks(),
                            .pairs = pairs,
                            .step = 0.8,
                            .through = through},
        1e-5);  // up to 100 readers of a slot, some with large weights of both signs
}

TEST_CASE("values of a fast memory and their gradients", "[fast]") {
  constexpr FwpkmCase kCrowded{{2, 21, 1, 19}, 8, 2, 3, 4, 4, 37};
  const bool weighted = GENERATE(false, true), through = GENERATE(false, true);
  CAPTURE(weighted, through);
  check([&](Machine& m) { run_values(m, kCrowded, weighted, false, through, weighted || through); });
}

TEST_CASE("values of a table with more slots than a row reads, and their gradients", "[fast]") {
  check(DType::f32, [](Machine& m) { run_values(m, kWide, true, false, true, true); });
}

TEST_CASE("values of a chunk that reads thousands of slots, and their gradients") {
  check(DType::f32, [](Machine& m) { run_values(m, kMany, false, false, true, true); });
}

TEST_CASE("readers of chunks that 31 bits cannot number together are found in parts", "[fast]") {
  constexpr FwpkmCase kHuge{{1, 9, 0, 9}, 2, 1, 32000, 1, 3, 1};  // two chunks at once
  check(DType::f32, [&](Machine& m) {
    const Tensor slots = m.integers(kHuge.per_slot(), crowded_slots(kHuge));
    m.run(index_of(kHuge, readers_of_all(m, kHuge), slots, pairs_of(m, kHuge, false, false)));
  });
}

TEST_CASE("readers without a pair are left out where only pairs count", "[fast]") {
  const bool any = GENERATE(true, false);
  check(DType::f32, [=](Machine& m) {
    FwpkmPairs pairs = pairs_of(m, kWide, false, true);
    if (!any) {
      pairs.targets = m.integers({kWide.tokens()}, std::vector<int64_t>(static_cast<size_t>(kWide.tokens()), -1));
    }
    m.run(index_of(kWide, readers_of_all(m, kWide), m.integers(kWide.per_slot(), crowded_slots(kWide)), pairs));
  });
}

/// Steps of one chunk, which is all of s.chunk, and gradients of keys.
void run_keys(Machine& m, const FwpkmCase& s, const FwpkmScore& score, bool weighted, bool pairs_only) {
  constexpr double kSteps = 5e-6, kGradients = 1e-5;
  const FwpkmLookupKeys keys = keys_of(m, s, score);
  m.given(keys);
  const FwpkmSelectSlots selected = select_of(m, s, keys.out);
  m.given(selected);
  const FwpkmPairs pairs = pairs_of(m, s, weighted, pairs_only);
  m.run(FwpkmMemoryStep{.next = m.float_output(s.keys()),
                        .next_norms = m.float_output(s.norms()),
                        .keys = keys.keys,
                        .q = keys.q,
                        .values = m.parameter(s.table()),
                        .vh = m.input(s.values()),
                        .lookup = selected.out,
                        .chunk = s.chunk,
                        .pairs = pairs,
                        .score = score,
                        .rate = 5.0,
                        .count = 7.0},
        kSteps);
  m.run(FwpkmEntropyStep{.next = m.float_output(s.keys()),
                         .next_norms = m.float_output(s.norms()),
                         .usage = m.float_output({2, s.n}),
                         .keys = keys.keys,
                         .q = keys.q,
                         .lookup = selected.out,
                         .chunk = s.chunk,
                         .pairs = pairs,
                         .score = score,
                         .rate = 2.0,
                         .count = 9.0},
        kSteps);
  const bool through = weighted || pairs_only;
  const Shape usage{s.chunks().count(), 2, s.n};
  Values used = as_double(random_values<float>(usage.numel(), 9, 0.01));
  for (double& x : used) { x += 0.02; }
  m.run(FwpkmKeysBackward{.d_q = m.sum(s.queries()),
                          .d_weights = m.parameter(s.per_slot()),
                          .usage = m.values(usage, used),
                          // Of each chunk, or one copy.
                          .keys = m.parameter({through ? s.chunks().count() + 1 : 1, s.heads, 2, s.n, s.half}),
                          .q = keys.q,
                          .lookup = selected.out,
                          .chunks = s.chunks(),
                          .score = score,
                          .rate = 2.0,
                          .through = through,
                          .accumulate = weighted},
        kGradients);
}

TEST_CASE("steps of fast keys and their gradients", "[fast]") {
  const FwpkmScore score = either_score();
  const bool weighted = GENERATE(false, true), pairs_only = GENERATE(false, true);
  CAPTURE(score.idw, weighted, pairs_only);
  check(one_of_both_types(score.idw + weighted + pairs_only),
        [&](Machine& m) { run_keys(m, kWide, score, weighted, pairs_only); });
}

TEST_CASE("steps of fast keys of many slots a token, and of many tokens and channels", "[fast]") {
  check(DType::f32, [](Machine& m) { run_keys(m, kDeep, {true, 1e-3}, true, false); });
  check(DType::f32, [](Machine& m) { run_keys(m, kLong, {false, 1e-3}, true, true); });
}

TEST_CASE("fast product keys do not race", "[threads]") {
  check(DType::f32, [](Machine& m) { run_values(m, kSmall, true, false, true, true); });
  check(DType::f32, [](Machine& m) { run_keys(m, kSmall, {true, 1e-3}, true, false); });
}

}  // namespace
