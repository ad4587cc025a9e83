// Dictionaries of ovq: growth, founders, step sizes, norms, documents, segments, grouped heads.
#include "kernels/ovq/scratch.h"

#include <algorithm>

#include "tests/op_cases/machine.h"

using namespace hebb_test;

namespace {

// Sums of a few hundred products, exponentials of sums, and running means of means. In bf16 both sides round operands:
// they differ by a few roundings of 2^-9 of the terms, and sums over queries average them.
double tolerance(const Machine& m) { return m.is_bf16() ? kHalf : 2e-5; }

struct OvqCase {
  const char* name;
  OvqRule rule;
  int64_t batch = 2, length = 41, heads = 4, kv_heads = 2, d = 19, dv = 37;
  bool on_tensor_cores = false;
  std::vector<int64_t> doc_start = {};  // empty: documents of two rows, or one of one row

  Shape q() const { return {batch, length, heads, d}; }
  Shape k() const { return {batch, length, kv_heads, d}; }
  Shape v() const { return {batch, length, kv_heads, dv}; }
  Shape o() const { return {batch, length, heads, dv}; }
  Shape per_row(int64_t rows, int64_t width) const { return {batch, kv_heads, rows, width}; }
  int64_t room() const { return rule.size(length / rule.chunk * rule.chunk) + 1; }
  std::vector<int64_t> starts() const {
    return !doc_start.empty() ? doc_start
           : batch == 2       ? documents_of_two_rows(length)
                              : std::vector<int64_t>(static_cast<size_t>(length));
  }
};

OvqRule rule_of(int64_t chunk, int64_t max_centroids, OvqGrowth growth = OvqGrowth::plateau) {
  OvqRule rule;
  rule.chunk = chunk;
  rule.max_centroids = max_centroids;
  rule.growth = growth;
  return rule;
}

OvqDictionary new_dictionary(Machine& m, const OvqCase& s, int64_t room) {
  const Shape rows{s.batch, s.kv_heads, room};
  const std::vector<int64_t> counts(static_cast<size_t>(rows.numel()), 3);
  OvqDictionary dictionary{m.float_sum(s.per_row(room, s.d)), m.float_sum(s.per_row(room, s.dv)), m.float_sum(rows),
                           m.integers(rows, counts, DType::i32, true)};
  if (m.is_bf16()) {
    dictionary.key_copies = m.activation_scratch(s.per_row(room, s.d));
    dictionary.value_copies = m.activation_scratch(s.per_row(room, s.dv));
  }
  return dictionary;
}

/// Tokens and what is carried; without o, lse and ids.
OvqForward inputs_of(Machine& m, const OvqCase& s, const OvqDictionary& dictionary, const Tensor& pending_k,
                     const Tensor& pending_v, double query_scale) {
  return {.o = {},
          .lse = {},
          .ids = {},
          .dictionary = dictionary,
          .pending_k = pending_k,
          .pending_v = pending_v,
          .q = m.input(s.q(), query_scale),
          .k = m.input(s.k()),
          .v = m.input(s.v()),
          .doc_start = m.integers({s.batch, s.length}, s.starts()),
          .rule = s.rule,
          .forced = false};
}

/// Forward, its replay from the assignments, and backward. In bf16 the replay decides nothing by itself.
void check_passes(Machine& m, const OvqCase& s) {
  const Shape sums{s.batch, s.length, s.heads};
  const Tensor pending_k = m.activation_scratch(s.per_row(s.rule.chunk, s.d)),
               pending_v = m.activation_scratch(s.per_row(s.rule.chunk, s.dv));
  OvqForward f = inputs_of(m, s, new_dictionary(m, s, s.room()), pending_k, pending_v,
                           m.is_bf16() ? 3 / std::sqrt(static_cast<double>(s.d)) : 2);
  const Tensor o = f.o = m.output(s.o()), lse = f.lse = m.float_output(sums);
  f.ids = m.integer_output({s.batch, s.kv_heads, s.length});
  m.is_bf16() ? m.given(f) : m.run(f, tolerance(m));
  f.o = m.output(s.o());
  f.lse = m.is_bf16() ? m.float_output(sums) : Tensor{};
  f.forced = true;
  m.run(f, tolerance(m), {"read_slots_mma", s.on_tensor_cores});
  m.run(OvqBackward{.d_q = m.sum(s.q()),
                    .d_k = m.output(s.k()),
                    .d_v = m.sum(s.v()),
                    .d_o = m.input(s.o()),
                    .o = o,
                    .lse = lse,
                    .ids = f.ids,
                    .q = f.q,
                    .k = f.k,
                    .v = f.v,
                    .doc_start = f.doc_start,
                    .rule = s.rule,
                    .room = s.room(),
                    .accumulate_q = true,
                    .accumulate_k = false,
                    .accumulate_v = true},
        tolerance(m), {"slot_gradients_mma", s.on_tensor_cores});
}

TEST_CASE("ovq and its gradients", "[fast]") {
  OvqRule linear = rule_of(7, 29, OvqGrowth::linear), random = rule_of(7, 12);
  linear.growth_length = 50;
  linear.rate = 0.3;
  linear.normalize_keys = linear.second_founds = true;
  random.random = random.normalize_keys = random.normalize_values = true;
  random.layer = 3;
  const OvqCase s = GENERATE_COPY(
      OvqCase{"plateau", rule_of(7, 40)}, OvqCase{"more than a tile of keys and rows", rule_of(66, 90), 2, 70},
      OvqCase{"linear, constant steps, unit keys, second founds", linear},
      OvqCase{"full", rule_of(5, 200, OvqGrowth::full)}, OvqCase{"random founders, unit keys and values", random},
      OvqCase{"chunks of one token", rule_of(1, 5)});
  CAPTURE(s.name);
  check(DType::f32, [&](Machine& m) { check_passes(m, s); });
}

TEST_CASE("ovq in bf16, on tensor cores where the sizes allow", "[fast]") {
  OvqRule founds = rule_of(17, 90);
  founds.normalize_keys = founds.second_founds = true;
  const OvqCase s = GENERATE_COPY(
      OvqCase{"grouped heads of 64, chunks shorter than a tile", rule_of(13, 400, OvqGrowth::full), 2, 70, 4, 2, 64, 64,
              true},
      OvqCase{"chunks and dictionaries of several tiles", rule_of(150, 4000), 1, 463, 1, 1, 128, 128, true},
      OvqCase{"unequal sizes, padded", founds, 2, 70, 3, 1, 80, 48, true},
      OvqCase{"two heads in one tile of queries", rule_of(70, 99), 1, 211, 2, 1, 32, 16, true},
      OvqCase{"many rows for few queries", rule_of(3, 300, OvqGrowth::full), 1, 158, 1, 1, 16, 32, true},
      OvqCase{"documents in several groups of steps", rule_of(2, 60), 2, 95, 2, 1, 32, 32, true},
      OvqCase{"a size for the plain cores", rule_of(13, 40), 2, 70, 4, 2, 36, 72});
  CAPTURE(s.name);
  check(DType::bf16, [&](Machine& m) { check_passes(m, s); });
}

TEST_CASE("ovq in bf16 assigns by itself where keys are far apart", "[fast]") {
  const int64_t d = GENERATE(64, 36);
  const OvqCase s{"", rule_of(21, 40), 1, 129, 2, 1, d, d};
  // Keys are multiples of unit vectors: similarities are sums of few products, exact in bf16 but for the means of a
  // row.
  Values keys(static_cast<size_t>(s.k().numel()));
  for (int64_t i = 0; i < s.length; ++i) {
    const double size = (1 + static_cast<double>(i * 37 % 11)) / 16;
    keys[static_cast<size_t>(i * d + i * 7 % 29)] = size;
    keys[static_cast<size_t>(i * d + 29 + i % 5)] = 0.25 * size;
  }
  check(DType::bf16, [&](Machine& m) {
    const Tensor pending_k = m.activation_scratch(s.per_row(s.rule.chunk, d)),
                 pending_v = m.activation_scratch(s.per_row(s.rule.chunk, d));
    OvqForward f = inputs_of(m, s, new_dictionary(m, s, s.room() - 1), pending_k, pending_v, 0.3);
    f.k = m.activations(s.k(), keys);
    f.o = m.output(s.o());
    f.ids = m.integer_output({1, 1, s.length});
    m.run(f, tolerance(m), {"compare_slots_mma", d == 64});
  });
}

/// Forward over `first`, then over `next` from what the first left.
void check_segments(Machine& m, const OvqCase& first, const OvqCase& next, int64_t room, double query_scale) {
  OvqDictionary dictionary = new_dictionary(m, first, room);
  const Tensor pending_k = m.carried(first.per_row(first.rule.chunk, first.d)),
               pending_v = m.carried(first.per_row(first.rule.chunk, first.dv));
  OvqForward f = inputs_of(m, first, dictionary, pending_k, pending_v, query_scale);
  f.o = m.output(first.o());
  m.given(f);
  if (m.is_bf16()) {
    dictionary.key_copies = m.activations(first.per_row(room, first.d), m.read(dictionary.keys));
    dictionary.value_copies = m.activations(first.per_row(room, first.dv), m.read(dictionary.values));
  }
  f = inputs_of(m, next, dictionary, pending_k, pending_v, query_scale);
  f.o = m.output(next.o());
  m.run(f, tolerance(m), {"read_slots_mma", first.on_tensor_cores});
}

/// Segments of documents that go on, as first tokens: a fresh start, then what continues.
TEST_CASE("ovq goes on where a segment ended", "[fast]") {
  const int64_t second = GENERATE(1, 3, 19);
  CAPTURE(second);
  OvqCase first{"", rule_of(6, 14)};
  first.length = 15;
  first.doc_start.assign(30, 0);
  for (size_t i = 27; i < 30; ++i) { first.doc_start[i] = 12; }
  OvqCase next = first;
  next.length = second;
  next.doc_start.assign(static_cast<size_t>(2 * second), -15);
  for (int64_t i = second; i < 2 * second; ++i) { next.doc_start[static_cast<size_t>(i)] = i < second + 8 ? -3 : 8; }
  check(DType::f32, [&](Machine& m) { check_segments(m, first, next, 15, 1); });
}

TEST_CASE("ovq in bf16 reads centroids and keys of an earlier segment", "[fast]") {
  const auto [second, d] = GENERATE(table<int64_t, int64_t>({{1, 64}, {3, 48}, {3, 36}, {157, 32}}));
  CAPTURE(second, d);
  const OvqCase first{"", rule_of(70, 90), 1, 207, 4, 2, d, d, d != 36};  // two chunks and 67 keys
  OvqCase next = first;
  next.length = second;
  next.doc_start.assign(static_cast<size_t>(second), -207);
  std::fill(next.doc_start.begin() + std::min<int64_t>(second, 80), next.doc_start.end(),
            80);  // rows of the earlier document give way
  check(DType::bf16, [&](Machine& m) { check_segments(m, first, next, first.rule.size(280), 0.5); });
}

TEST_CASE("ovq does not race", "[threads]") {
  check(DType::f32, [](Machine& m) { check_passes(m, {"", rule_of(2, 3), 1, 5, 1, 1, 2, 2}); });
}

TEST_CASE("ovq on tensor cores does not race", "[threads]") {
  // Of the last steps two tiles of rows, in two parts.
  const OvqCase s{"", rule_of(2, 90, OvqGrowth::full), 1, 73, 1, 1, 16, 16, true};
  check(DType::bf16, [&](Machine& m) { check_passes(m, s); });
}

}  // namespace
