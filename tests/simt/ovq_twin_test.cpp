// Dictionaries of ovq against their CPU twin: growth, founders, step sizes, norms, documents, segments, grouped heads.
#include <algorithm>

#include "kernels/ovq/scratch.h"
#include "twins.h"

using namespace hebb_test;
using namespace hebb;

namespace {

// Sums of a few hundred products, exponentials of sums, and running means of means.
constexpr double kOvqTolerance = 2e-5;

struct Sizes {
  int64_t batch = 2, length = 41, heads = 4, kv_heads = 2, d = 19, dv = 37;
  std::vector<int64_t> doc_start = documents_of_two_rows(length);

  Shape q() const { return {batch, length, heads, d}; }
  Shape k() const { return {batch, length, kv_heads, d}; }
  Shape v() const { return {batch, length, kv_heads, dv}; }
  Shape o() const { return {batch, length, heads, dv}; }
  Shape per_row(int64_t rows, int64_t width) const { return {batch, kv_heads, rows, width}; }
};

OvqRule rule_of(int64_t chunk, int64_t max_centroids) {
  OvqRule rule;
  rule.chunk = chunk;
  rule.max_centroids = max_centroids;
  return rule;
}

std::vector<std::pair<const char*, OvqRule>> rules() {
  std::vector<std::pair<const char*, OvqRule>> all{{"plateau", rule_of(7, 40)},
                                                   {"more than a tile of keys and rows", rule_of(66, 90)}};
  OvqRule rule = rule_of(7, 29);
  rule.growth = OvqGrowth::linear;
  rule.growth_length = 50;
  rule.rate = 0.3;
  rule.normalize_keys = true;
  rule.second_founds = true;
  all.push_back({"linear, constant steps, unit keys, second founds", rule});
  rule = rule_of(5, 200);
  rule.growth = OvqGrowth::full;
  all.push_back({"full", rule});
  rule = rule_of(7, 12);
  rule.random = true;
  rule.layer = 3;
  rule.normalize_keys = rule.normalize_values = true;
  all.push_back({"random founders, unit keys and values", rule});
  all.push_back({"chunks of one token", rule_of(1, 5)});
  return all;
}

struct Dictionary {
  Twin keys, values, log_counts, counts, key_copies, value_copies;

  Dictionary(Twins& t, const Sizes& n, int64_t room)
      : keys(t.float_sum(n.per_row(room, n.d))),
        values(t.float_sum(n.per_row(room, n.dv))),
        log_counts(t.float_sum({n.batch, n.kv_heads, room})),
        counts(t.integers({n.batch, n.kv_heads, room},
                          std::vector<int64_t>(static_cast<size_t>(n.batch * n.kv_heads * room), 3), DType::i32,
                          true)) {
    if (t.is_bf16()) {
      key_copies = t.scratch(n.per_row(room, n.d), DType::bf16);
      value_copies = t.scratch(n.per_row(room, n.dv), DType::bf16);
    }
  }
  template <class At> OvqDictionary operator()(At& at) const {
    return {at(keys), at(values), at(log_counts), at(counts), at(key_copies), at(value_copies)};
  }
};

/// What the backward pass takes of a forward pass.
struct Kept {
  Twin o, lse, ids, q, k, v, doc_start;
};

void check_backward(Twins& t, const Sizes& n, const OvqRule& rule, int64_t room, const Kept& p, double tolerance) {
  const Twin d_q = t.sum(n.q()), d_k = t.output(n.k()), d_v = t.sum(n.v()), d_o = t.input(n.o());
  t.check(
      [&](auto at) {
        return OvqBackward{.d_q = at(d_q),
                           .d_k = at(d_k),
                           .d_v = at(d_v),
                           .d_o = at(d_o),
                           .o = at(p.o),
                           .lse = at(p.lse),
                           .ids = at(p.ids),
                           .q = at(p.q),
                           .k = at(p.k),
                           .v = at(p.v),
                           .doc_start = at(p.doc_start),
                           .rule = rule,
                           .room = room,
                           .accumulate_q = true,
                           .accumulate_k = false,
                           .accumulate_v = true};
      },
      tolerance);
}

TEST_CASE("ovq and its gradients equal the CPU's", "[fast]") {
  const auto all = rules();
  const size_t index = GENERATE(range(size_t{0}, size_t{6}));
  const OvqRule rule = all[index].second;
  CAPTURE(all[index].first);
  Sizes n;
  if (rule.chunk > n.length) {
    n.length = 70;
    n.doc_start = documents_of_two_rows();
  }
  const int64_t room = rule.size(n.length / rule.chunk * rule.chunk) + 1;
  Twins t;
  const Twin o = t.output(n.o()), lse = t.float_output({n.batch, n.length, n.heads}),
             ids = t.integer_output({n.batch, n.kv_heads, n.length}), pending_k = t.scratch(n.per_row(rule.chunk, n.d)),
             pending_v = t.scratch(n.per_row(rule.chunk, n.dv)), q = t.input(n.q(), 2), k = t.input(n.k()),
             v = t.input(n.v()), doc_start = t.integers({n.batch, n.length}, n.doc_start);
  const Dictionary book(t, n, room);
  bool forced = false;
  const auto forward = [&](auto at) {
    return OvqForward{.o = at(o),
                      .lse = at(lse),
                      .ids = at(ids),
                      .dictionary = book(at),
                      .pending_k = at(pending_k),
                      .pending_v = at(pending_v),
                      .q = at(q),
                      .k = at(k),
                      .v = at(v),
                      .doc_start = at(doc_start),
                      .rule = rule,
                      .forced = forced};
  };
  t.check(forward, kOvqTolerance);
  t.prepare(forward);
  forced = true;
  Twins replay = t;
  const Twin again = replay.output(n.o());
  replay.check(
      [&](auto at) {
        return OvqForward{.o = at(again),
                          .lse = {},
                          .ids = at(ids),
                          .dictionary = book(at),
                          .pending_k = at(pending_k),
                          .pending_v = at(pending_v),
                          .q = at(q),
                          .k = at(k),
                          .v = at(v),
                          .doc_start = at(doc_start),
                          .rule = rule,
                          .forced = true};
      },
      kOvqTolerance);
  check_backward(t, n, rule, room, {o, lse, ids, q, k, v, doc_start}, kOvqTolerance);
}

/// Segments of documents that go on, as first tokens: a fresh start, then what continues.
TEST_CASE("ovq goes on where a segment ended as the CPU does", "[fast]") {
  const int64_t second = GENERATE(1, 3, 19);
  CAPTURE(second);
  OvqRule rule = rule_of(6, 14);
  const int64_t room = 15;
  Twins t;
  Sizes first;
  first.length = 15;
  first.doc_start.assign(30, 0);
  for (size_t i = 27; i < 30; ++i) { first.doc_start[i] = 12; }
  Sizes n = first;
  n.length = second;
  n.doc_start.assign(static_cast<size_t>(2 * second), -15);
  for (int64_t i = second; i < 2 * second; ++i) { n.doc_start[static_cast<size_t>(i)] = i < second + 8 ? -3 : 8; }
  const Dictionary book(t, first, room);
  const Twin pending_k = t.float_sum(first.per_row(rule.chunk, first.d)),
             pending_v = t.float_sum(first.per_row(rule.chunk, first.dv));
  const auto segment = [&](const Sizes& s, bool last) {
    const Twin o = t.output(s.o()), q = t.input(s.q()), k = t.input(s.k()), v = t.input(s.v()),
               doc_start = t.integers({s.batch, s.length}, s.doc_start);
    const auto make = [&](auto at) {
      return OvqForward{.o = at(o),
                        .lse = {},
                        .ids = {},
                        .dictionary = book(at),
                        .pending_k = at(pending_k),
                        .pending_v = at(pending_v),
                        .q = at(q),
                        .k = at(k),
                        .v = at(v),
                        .doc_start = at(doc_start),
                        .rule = rule,
                        .forced = false};
    };
    if (last) {
      t.check(make, kOvqTolerance);
    } else {
      t.prepare(make);
    }
  };
  segment(first, false);
  segment(n, true);
}

struct Bf16Case {
  const char* name;
  OvqRule rule;
  int64_t batch, length, heads, kv_heads, d, dv;
  bool on_tensor_cores = true;
};

std::vector<Bf16Case> bf16_cases() {
  std::vector<Bf16Case> all{{"grouped heads of 64, chunks shorter than a tile", rule_of(13, 400), 2, 70, 4, 2, 64, 64},
                            {"chunks and dictionaries of several tiles", rule_of(150, 4000), 1, 463, 1, 1, 128, 128},
                            {"unequal sizes, padded", rule_of(17, 90), 2, 70, 3, 1, 80, 48},
                            {"two heads in one tile of queries", rule_of(70, 99), 1, 211, 2, 1, 32, 16},
                            {"many rows for few queries", rule_of(3, 300), 1, 158, 1, 1, 16, 32},
                            {"documents in several groups of steps", rule_of(2, 60), 2, 95, 2, 1, 32, 32},
                            {"a size for the plain cores", rule_of(13, 40), 2, 70, 4, 2, 36, 72, false}};
  all[0].rule.growth = OvqGrowth::full;
  all[2].rule.normalize_keys = all[2].rule.second_founds = true;
  all[4].rule.growth = OvqGrowth::full;
  return all;
}

/// Twins that round what the device rounds differ by a few roundings of 2^-9 of the terms; sums over queries average
/// them.
constexpr double kBf16Tolerance = 8e-3;

TEST_CASE("ovq in bf16 equals the CPU's with its assignments, on tensor cores where the sizes allow", "[fast]") {
  const size_t index = GENERATE(range(size_t{0}, size_t{7}));
  const Bf16Case c = bf16_cases()[index];
  CAPTURE(c.name);
  Sizes n{c.batch, c.length, c.heads, c.kv_heads, c.d, c.dv, {}};
  n.doc_start = c.batch == 2 ? documents_of_two_rows(c.length) : std::vector<int64_t>(static_cast<size_t>(c.length), 0);
  const OvqRule& rule = c.rule;
  const int64_t room = rule.size(n.length / rule.chunk * rule.chunk) + 1;
  Twins t(DType::bf16);
  const Twin o = t.output(n.o()), lse = t.float_output({n.batch, n.length, n.heads}),
             ids = t.integer_output({n.batch, n.kv_heads, n.length}),
             pending_k = t.scratch(n.per_row(rule.chunk, n.d), DType::bf16),
             pending_v = t.scratch(n.per_row(rule.chunk, n.dv), DType::bf16),
             q = t.input(n.q(), 3 / std::sqrt(static_cast<double>(n.d))), k = t.input(n.k()), v = t.input(n.v()),
             doc_start = t.integers({n.batch, n.length}, n.doc_start);
  const Dictionary book(t, n, room);
  const auto forward = [&](Twin out, Twin sums, bool forced) {
    return [&, out, sums, forced](auto at) {
      return OvqForward{.o = at(out),
                        .lse = at(sums),
                        .ids = at(ids),
                        .dictionary = book(at),
                        .pending_k = at(pending_k),
                        .pending_v = at(pending_v),
                        .q = at(q),
                        .k = at(k),
                        .v = at(v),
                        .doc_start = at(doc_start),
                        .rule = rule,
                        .forced = forced};
    };
  };
  t.prepare(forward(o, lse, false));
  const auto runs = [] {
    return simt::runs_of("read_slots_mma") + simt::runs_of("slot_queries_mma") + simt::runs_of("slot_gradients_mma");
  };
  const int64_t steps = (c.length - 1 + rule.chunk - 1) / rule.chunk + 1;
  const int64_t before = runs(), group = ovq_group(c.length, rule.chunk),
                groups = 2 * ((steps + group - 1) / group);  // both orders
  Twins replay = t;
  replay.check(forward(replay.output(n.o()), replay.float_output({n.batch, n.length, n.heads}), true), kBf16Tolerance);
  CHECK(runs() - before == (c.on_tensor_cores ? groups : 0));
  check_backward(t, n, rule, room, {o, lse, ids, q, k, v, doc_start}, kBf16Tolerance);
  CHECK(runs() - before == (c.on_tensor_cores ? 3 * groups : 0));
}

TEST_CASE("ovq in bf16 assigns as the CPU does where keys are far apart, and the same way twice", "[fast]") {
  const int64_t d = GENERATE(64, 36);
  OvqRule rule = rule_of(21, 40);
  Sizes n{1, 129, 2, 1, d, d, std::vector<int64_t>(129, 0)};
  const int64_t room = rule.size(n.length / rule.chunk * rule.chunk);
  // Keys are multiples of unit vectors: similarities are sums of few products, exact in bf16 but for the means of a
  // row.
  std::vector<double> keys(static_cast<size_t>(n.k().numel()));
  for (int64_t i = 0; i < n.length; ++i) {
    const double size = (1 + static_cast<double>(i * 37 % 11)) / 16;
    keys[static_cast<size_t>(i * d + i * 7 % 29)] = size;
    keys[static_cast<size_t>(i * d + 29 + i % 5)] = 0.25 * size;
  }
  Twins t(DType::bf16);
  const Twin o = t.output(n.o()), ids = t.integer_output({1, 1, n.length}),
             pending_k = t.scratch(n.per_row(rule.chunk, d), DType::bf16),
             pending_v = t.scratch(n.per_row(rule.chunk, d), DType::bf16), q = t.input(n.q(), 0.3),
             k = t.activations(n.k(), keys), v = t.input(n.v()), doc_start = t.integers({1, n.length}, n.doc_start);
  const Dictionary book(t, n, room);
  const int64_t before = simt::runs_of("compare_slots_mma");
  t.check(
      [&](auto at) {
        return OvqForward{.o = at(o),
                          .lse = {},
                          .ids = at(ids),
                          .dictionary = book(at),
                          .pending_k = at(pending_k),
                          .pending_v = at(pending_v),
                          .q = at(q),
                          .k = at(k),
                          .v = at(v),
                          .doc_start = at(doc_start),
                          .rule = rule,
                          .forced = false};
      },
      kBf16Tolerance);
  CHECK((simt::runs_of("compare_slots_mma") > before) == (d == 64));
}

TEST_CASE("ovq in bf16 reads centroids and keys of an earlier segment as the CPU does", "[fast]") {
  const auto [second, d] = GENERATE(table<int64_t, int64_t>({{1, 64}, {3, 48}, {3, 36}, {157, 32}}));
  CAPTURE(second, d);
  OvqRule rule = rule_of(70, 90);
  const int64_t room = rule.size(280);
  Twins t(DType::bf16);
  Sizes first{1, 207, 4, 2, d, d, std::vector<int64_t>(207, 0)};  // two chunks and 67 keys
  Sizes n = first;
  n.length = second;
  n.doc_start.assign(static_cast<size_t>(second), -207);
  std::fill(n.doc_start.begin() + std::min<int64_t>(second, 80), n.doc_start.end(),
            80);  // rows of the earlier document give way
  Dictionary book(t, first, room);
  const Twin pending_k = t.sum(first.per_row(rule.chunk, d)), pending_v = t.sum(first.per_row(rule.chunk, d));
  const auto segment = [&](const Sizes& s) {
    const Twin o = t.output(s.o()), q = t.input(s.q(), 0.5), k = t.input(s.k()), v = t.input(s.v()),
               doc_start = t.integers({s.batch, s.length}, s.doc_start);
    return [=, &rule](auto at) {
      return OvqForward{.o = at(o),
                        .lse = {},
                        .ids = {},
                        .dictionary = book(at),
                        .pending_k = at(pending_k),
                        .pending_v = at(pending_v),
                        .q = at(q),
                        .k = at(k),
                        .v = at(v),
                        .doc_start = at(doc_start),
                        .rule = rule,
                        .forced = false};
    };
  };
  t.prepare(segment(first));
  book.key_copies = t.activations(first.per_row(room, d), t.result(book.keys));
  book.value_copies = t.activations(first.per_row(room, d), t.result(book.values));
  const int64_t before = simt::runs_of("read_slots_mma");
  t.check(segment(n), kBf16Tolerance);
  CHECK((simt::runs_of("read_slots_mma") > before) == (d != 36));
}

}  // namespace
