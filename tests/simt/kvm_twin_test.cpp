// State slots of kvm against their CPU twin: budgets, gates, value norms, temperatures, documents, segments, grouped
// heads.
#include "kernels/kvm/scratch.h"
#include "twins.h"

using namespace hebb_test;
using namespace hebb;

namespace {

// Sums of a few hundred products, norms of sums, and exponentials of sums.
constexpr double kKvmTolerance = 5e-5;

struct Case {
  const char* name;
  KvmRule rule;
  bool gated = true, temperatures = true;
  int64_t batch = 2, length = 43, heads = 4, kv_heads = 2, d = 19, dv = 37;
  std::vector<int64_t> doc_start = documents_of_two_rows(length);

  Shape q() const { return {batch, length, heads, d}; }
  Shape k() const { return {batch, length, kv_heads, d}; }
  Shape v() const { return {batch, length, kv_heads, dv}; }
  Shape o() const { return {batch, length, heads, dv}; }
  Shape gates() const { return {batch, length, kv_heads}; }
  Shape per_slot(int64_t slots, int64_t width) const { return {batch, kv_heads, slots, width}; }
  int64_t ring() const { return rule.chunk * rule.window; }
};

KvmRule rule_of(int64_t chunk, int64_t window, int64_t sinks, int64_t rotary, KvmValueNorm value_norm) {
  KvmRule rule;
  rule.chunk = chunk;
  rule.window = window;
  rule.sinks = sinks;
  rule.rotary = rotary;
  rule.value_norm = value_norm;
  rule.scale = 0.3;
  return rule;
}

/// Slots by chunk: a chunk's worth at first, then up to `more` a chunk.
std::vector<int64_t> sizes_of(const KvmRule& rule, int64_t chunks, int64_t more) {
  std::vector<int64_t> sizes;
  for (int64_t c = 0; c < chunks; ++c) {
    sizes.push_back(c < rule.window ? 0 : c == rule.window ? rule.chunk : sizes.back() + (c % 3 == 0 ? 0 : more));
  }
  return sizes;
}

std::vector<Case> cases() {
  std::vector<Case> all{{"radius, both gated", rule_of(6, 2, 1, 4, KvmValueNorm::radius)},
                        {"mean, gated appends", rule_of(5, 1, 0, 0, KvmValueNorm::mean)},
                        {"updates, keys gated", rule_of(7, 3, 2, 6, KvmValueNorm::updates), true, false},
                        {"no gate", rule_of(4, 2, 1, 2, KvmValueNorm::radius), false, true},
                        {"more than a tile of tokens and slots", rule_of(66, 1, 1, 2, KvmValueNorm::mean)}};
  all[0].rule.gate_keys = all[0].rule.gate_values = true;
  all[1].rule.gate_keys = all[1].rule.gate_values = all[1].rule.gate_appends = true;
  all[2].rule.gate_keys = true;
  all[4].rule.gate_values = true;
  Case& large = all[4];
  large.batch = large.kv_heads = large.heads = 1;
  large.length = 150;
  large.d = 7;
  large.dv = 5;
  large.doc_start.assign(150, 0);
  return all;
}

struct Slots {
  Twin keys, values, radii, counts, key_hats, value_hats;

  Slots(Twins& t, const Case& c, int64_t room)
      : keys(t.float_sum(c.per_slot(room, c.d))),
        values(t.float_sum(c.per_slot(room, c.dv))),
        radii(t.float_sum({c.batch, c.kv_heads, room})),
        counts(t.integers({c.batch, c.kv_heads, room},
                          std::vector<int64_t>(static_cast<size_t>(c.batch * c.kv_heads * room), 3), DType::i32, true)),
        key_hats(t.sum(c.per_slot(room, c.d))),
        value_hats(t.sum(c.per_slot(room, c.dv))) {}
  template <class At> KvmSlots operator()(At& at) const {
    return {at(keys), at(values), at(radii), at(counts), at(key_hats), at(value_hats)};
  }
};

struct Window {
  Twin k, v, gates;

  Window(Twins& t, const Case& c)
      : k(t.sum(c.per_slot(c.ring(), c.d))),
        v(t.sum(c.per_slot(c.ring(), c.dv))),
        gates(t.float_sum({c.batch, c.kv_heads, c.ring()})) {}
  template <class At> KvmWindow operator()(At& at) const { return {at(k), at(v), at(gates)}; }
};

/// Tokens and parameters.
struct Inputs {
  Twin q, k, v, gate, norm_weight, norm_bias, window_temp, state_temp, doc_start, sizes;

  Inputs(Twins& t, const Case& c, const std::vector<int64_t>& slots)
      : q(t.input(c.q(), 3)),
        k(t.input(c.k(), 2)),
        v(t.input(c.v())),
        gate(c.gated ? t.parameter(c.gates(), 2) : Twin{}),
        norm_weight(t.parameter({c.d})),
        norm_bias(t.parameter({c.d})),
        window_temp(c.temperatures ? t.parameter({c.heads}) : Twin{}),
        state_temp(c.temperatures ? t.parameter({c.heads}, 2) : Twin{}),
        doc_start(t.integers({c.batch, c.length}, c.doc_start)),
        sizes(t.integers({static_cast<int64_t>(slots.size())}, slots)) {}
};

/// Forward, its replay from the routes, and backward. `routes_too`: the first pass decides by itself.
void check_case(const Case& c, int64_t more, DType dtype, bool routes_too, double tolerance) {
  CAPTURE(c.name, dtype_name(dtype));
  const std::vector<int64_t> sizes = sizes_of(c.rule, (c.length - 1) / c.rule.chunk + 1, more);
  const int64_t room = sizes.back() + 1;
  Twins t(dtype);
  const Twin o = t.output(c.o()), lse = t.float_output({c.batch, c.length, c.heads}),
             routes = t.integer_output({c.batch, c.kv_heads, c.length}),
             ring_k = t.scratch(c.per_slot(c.ring(), c.d), dtype),
             ring_v = t.scratch(c.per_slot(c.ring(), c.dv), dtype),
             ring_gates = t.scratch({c.batch, c.kv_heads, c.ring()});
  const Slots slots(t, c, room);
  const Inputs in(t, c, sizes);
  const auto forward = [&](Twin out, Twin sums, bool forced) {
    return [&, out, sums, forced](auto at) {
      return KvmForward{.o = at(out),
                        .lse = at(sums),
                        .routes = at(routes),
                        .slots = slots(at),
                        .window = KvmWindow{at(ring_k), at(ring_v), at(ring_gates)},
                        .q = at(in.q),
                        .k = at(in.k),
                        .v = at(in.v),
                        .gate = at(in.gate),
                        .norm_weight = at(in.norm_weight),
                        .norm_bias = at(in.norm_bias),
                        .window_temp = at(in.window_temp),
                        .state_temp = at(in.state_temp),
                        .doc_start = at(in.doc_start),
                        .sizes = at(in.sizes),
                        .rule = c.rule,
                        .forced = forced};
    };
  };
  if (routes_too) { t.check(forward(o, lse, false), tolerance); }
  t.prepare(forward(o, lse, false));
  Twins replay = t;
  replay.check(forward(replay.output(c.o()), {}, true), tolerance);
  const Twin d_q = t.sum(c.q()), d_k = t.output(c.k()), d_v = t.sum(c.v()),
             d_gate = c.gated ? t.float_output(c.gates()) : Twin{}, d_weight = t.float_sum({c.d}),
             d_bias = t.float_sum({c.d}), d_window = c.temperatures ? t.float_sum({c.heads}) : Twin{},
             d_state = c.temperatures ? t.float_sum({c.heads}) : Twin{}, d_o = t.input(c.o());
  t.check(
      [&](auto at) {
        return KvmBackward{.d_q = at(d_q),
                           .d_k = at(d_k),
                           .d_v = at(d_v),
                           .d_gate = at(d_gate),
                           .d_norm_weight = at(d_weight),
                           .d_norm_bias = at(d_bias),
                           .d_window_temp = at(d_window),
                           .d_state_temp = at(d_state),
                           .d_o = at(d_o),
                           .o = at(o),
                           .lse = at(lse),
                           .routes = at(routes),
                           .q = at(in.q),
                           .k = at(in.k),
                           .v = at(in.v),
                           .gate = at(in.gate),
                           .norm_weight = at(in.norm_weight),
                           .norm_bias = at(in.norm_bias),
                           .window_temp = at(in.window_temp),
                           .state_temp = at(in.state_temp),
                           .doc_start = at(in.doc_start),
                           .sizes = at(in.sizes),
                           .rule = c.rule,
                           .room = room,
                           .accumulate_q = true,
                           .accumulate_k = false,
                           .accumulate_v = true,
                           .accumulate_gate = false};
      },
      tolerance);
}

TEST_CASE("kvm and its gradients equal the CPU's", "[fast]") {
  const size_t index = GENERATE(range(size_t{0}, size_t{5}));
  check_case(cases()[index], index == 4 ? 9 : 3, DType::f32, true, kKvmTolerance);
}

/// Heads of 16 to 128 channels, and one size for the plain cores.
std::vector<Case> bf16_cases() {
  std::vector<Case> all{{"grouped heads of 64, both gated", rule_of(6, 2, 1, 16, KvmValueNorm::radius)},
                        {"chunks and states of several tiles", rule_of(140, 1, 1, 2, KvmValueNorm::mean), true, false},
                        {"unequal sizes, padded, gated appends", rule_of(5, 1, 0, 0, KvmValueNorm::mean)},
                        {"two heads in one tile of queries", rule_of(70, 1, 1, 6, KvmValueNorm::updates)},
                        {"a size for the plain cores", rule_of(7, 3, 2, 6, KvmValueNorm::updates), true, true}};
  for (Case& c : all) {
    c.rule.gate_keys = c.rule.gate_values = true;
    c.d = c.dv = 64;
    c.rule.scale = 0.05;  // answers of many keys: where few matter, a rounding of a score is all
  }
  Case& large = all[1];
  large.batch = large.kv_heads = large.heads = 1;
  large.length = 601;
  large.d = large.dv = 128;
  large.doc_start.assign(601, 0);
  all[2].rule.gate_appends = true;
  all[2].heads = 3;
  all[2].kv_heads = 1;
  all[2].d = 80;
  all[2].dv = 48;
  Case& grouped = all[3];
  grouped.batch = grouped.kv_heads = 1;
  grouped.heads = 2;
  grouped.length = 303;
  grouped.rule.scale = 0.2;
  grouped.d = 32;
  grouped.dv = 16;
  grouped.doc_start.assign(303, 0);
  all[4].d = 36;
  all[4].dv = 72;
  return all;
}

/// Rounding of what is multiplied, which sums over few terms show.
constexpr double kBf16Tolerance = 2e-2;

TEST_CASE("kvm in bf16 equals the CPU's with its routes, on tensor cores where the sizes allow", "[fast]") {
  const size_t index = GENERATE(range(size_t{0}, size_t{5}));
  const Case c = bf16_cases()[index];
  const auto runs = [] {
    return simt::runs_of("read_slots_mma") + simt::runs_of("slot_queries_mma") + simt::runs_of("slot_gradients_mma");
  };
  const int64_t before = runs(), steps = (c.length - 1 + c.rule.chunk - 1) / c.rule.chunk + 1;
  const int64_t group = kvm_group(c.q(), c.v(), c.rule, DType::bf16), reads = (steps + group - 1) / group + 2 * steps;
  check_case(c, index == 1 ? 70 : 3, DType::bf16, false, kBf16Tolerance);
  CHECK(runs() - before == (index == 4 ? 0 : 2 * reads));  // forward and in reverse
}

TEST_CASE("kvm in bf16 routes as the CPU does where keys have little in common", "[fast]") {
  // Scores of 64 channels differ by about 8, their roundings by 0.05.
  Case c{"",
         rule_of(9, 1, 1, 0, KvmValueNorm::radius),
         false,
         false,
         1,
         61,
         2,
         1,
         GENERATE(64, 36),
         16,
         std::vector<int64_t>(61, 0)};
  c.rule.scale = 0.05;
  const int64_t before = simt::runs_of("compare_slots_mma");
  check_case(c, 4, DType::bf16, true, kBf16Tolerance);
  CHECK((simt::runs_of("compare_slots_mma") > before) == (c.d == 64));
}

TEST_CASE("kvm goes on where a segment ended as the CPU does", "[fast]") {
  const auto [second, dtype] = GENERATE(
      table<int64_t, DType>({{1, DType::f32}, {4, DType::f32}, {23, DType::f32}, {1, DType::bf16}, {4, DType::bf16}}));
  CAPTURE(second, dtype_name(dtype));
  Case first{"", rule_of(5, 2, 1, 4, KvmValueNorm::radius)};
  first.rule.gate_keys = first.rule.gate_values = true;
  if (dtype == DType::bf16) {
    first.d = 32;
    first.dv = 48;
  }
  first.length = 20;
  first.doc_start.assign(40, 0);
  for (size_t i = 36; i < 40; ++i) { first.doc_start[i] = 16; }
  Case next = first;
  next.length = second;
  next.doc_start.assign(static_cast<size_t>(2 * second), -20);
  for (int64_t i = second; i < 2 * second; ++i) { next.doc_start[static_cast<size_t>(i)] = i < second + 9 ? -4 : 9; }
  const std::vector<int64_t> sizes = sizes_of(first.rule, 9, 3);
  const int64_t room = sizes.back() + 1;
  Twins t(dtype);
  const Slots slots(t, first, room);
  const Window window(t, first);
  const auto segment = [&, dtype = dtype](const Case& c, bool last) {
    const Inputs in(t, c, sizes);
    const Twin o = t.output(c.o());
    const auto make = [&](auto at) {
      return KvmForward{.o = at(o),
                        .lse = {},
                        .routes = {},
                        .slots = slots(at),
                        .window = window(at),
                        .q = at(in.q),
                        .k = at(in.k),
                        .v = at(in.v),
                        .gate = at(in.gate),
                        .norm_weight = at(in.norm_weight),
                        .norm_bias = at(in.norm_bias),
                        .window_temp = at(in.window_temp),
                        .state_temp = at(in.state_temp),
                        .doc_start = at(in.doc_start),
                        .sizes = at(in.sizes),
                        .rule = c.rule,
                        .forced = false};
    };
    if (last) {
      const int64_t before = simt::runs_of("read_slots_mma");
      t.check(make, dtype == DType::bf16 ? kBf16Tolerance : kKvmTolerance);
      CHECK((simt::runs_of("read_slots_mma") > before) == (dtype == DType::bf16));
    } else {
      t.prepare(make);
    }
  };
  segment(first, false);
  segment(next, true);
}

}  // namespace
