// Dictionaries of ovq against their CPU twin: growth, founders, step sizes, norms, documents, segments, grouped heads.
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
  std::vector<std::pair<const char*, OvqRule>> all{{"plateau", rule_of(7, 40)}, {"more than a tile of keys and rows", rule_of(66, 90)}};
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
  Twin keys, values, log_counts, counts;

  Dictionary(Twins& t, const Sizes& n, int64_t room)
      : keys(t.float_sum(n.per_row(room, n.d))), values(t.float_sum(n.per_row(room, n.dv))), log_counts(t.float_sum({n.batch, n.kv_heads, room})),
        counts(t.integers({n.batch, n.kv_heads, room}, std::vector<int64_t>(static_cast<size_t>(n.batch * n.kv_heads * room), 3), DType::i32, true)) {}
  template <class At>
  OvqDictionary operator()(At& at) const {
    return {at(keys), at(values), at(log_counts), at(counts)};
  }
};

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
  const int64_t room = rule.size(n.length / rule.chunk * rule.chunk) + 1, width = room + rule.chunk;
  const int64_t work_count = ovq_work(n.q(), n.v(), rule, room);
  Twins t;
  const Twin o = t.output(n.o()), lse = t.float_output({n.batch, n.length, n.heads}), ids = t.integer_output({n.batch, n.kv_heads, n.length}),
             pending_k = t.scratch(n.per_row(rule.chunk, n.d)), pending_v = t.scratch(n.per_row(rule.chunk, n.dv)),
             scratch = t.scratch(n.per_row(kOvqTile, width)), work = t.scratch({work_count}), q = t.input(n.q(), 2), k = t.input(n.k()),
             v = t.input(n.v()), doc_start = t.integers({n.batch, n.length}, n.doc_start);
  const Dictionary book(t, n, room);
  bool forced = false;
  const auto forward = [&](auto at) {
    return OvqForward{at(o), at(lse), at(ids), book(at), at(pending_k), at(pending_v), at(scratch), at(work),
                      at(q), at(k),   at(v),   at(doc_start), rule, forced};
  };
  t.check(forward, kOvqTolerance);
  t.prepare(forward);
  forced = true;
  Twins replay = t;
  const Twin again = replay.output(n.o());
  replay.check([&](auto at) {
    return OvqForward{at(again), {}, at(ids), book(at), at(pending_k), at(pending_v), at(scratch), at(work),
                      at(q),     at(k), at(v), at(doc_start), rule, true};
  }, kOvqTolerance);
  const Twin d_q = t.sum(n.q()), d_k = t.output(n.k()), d_v = t.sum(n.v()), d_o = t.input(n.o()), d_keys = t.scratch(n.per_row(room, n.d)),
             d_values = t.scratch(n.per_row(room, n.dv)), versions = t.scratch(n.per_row(n.length, n.d + n.dv)),
             norms = t.scratch(n.per_row(n.length, 2)), previous = t.scratch({n.batch, n.kv_heads, n.length}, DType::i32),
             latest = t.scratch({n.batch, n.kv_heads, room}, DType::i32), two = t.scratch({n.batch, n.kv_heads, 2, kOvqTile, width});
  t.check([&](auto at) {
    return OvqBackward{at(d_q), at(d_k), at(d_v), book(at), OvqDictionary{at(d_keys), at(d_values), {}, {}}, at(versions), at(norms),
                       at(previous), at(latest), at(two), at(work), at(d_o), at(o), at(lse), at(ids), at(q), at(k), at(v),
                       at(doc_start), rule, true, false, true};
  }, kOvqTolerance);
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
  const Twin pending_k = t.float_sum(first.per_row(rule.chunk, first.d)), pending_v = t.float_sum(first.per_row(rule.chunk, first.dv)),
             scratch = t.scratch(first.per_row(kOvqTile, room + rule.chunk));
  const auto segment = [&](const Sizes& s, bool last) {
    const Twin o = t.output(s.o()), work = t.scratch({ovq_work(s.q(), s.v(), rule, room)}), q = t.input(s.q()), k = t.input(s.k()),
               v = t.input(s.v()), doc_start = t.integers({s.batch, s.length}, s.doc_start);
    const auto make = [&](auto at) {
      return OvqForward{at(o), {}, {}, book(at), at(pending_k), at(pending_v), at(scratch), at(work),
                        at(q), at(k), at(v), at(doc_start), rule, false};
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

}  // namespace
