// State slots of kvm: budgets, gates, value norms, temperatures, documents, segments, grouped heads.
#include "kernels/kvm/scratch.h"
#include "tests/op_cases/machine.h"

using namespace hebb_test;

namespace {

// Sums of a few hundred products, norms of sums, and exponentials of sums; in bf16 rounding of what is multiplied,
// which sums over few terms show.
double tolerance(const Machine& m) { return m.is_bf16() ? 2e-2 : 5e-5; }

struct KvmCase {
  const char* name;
  KvmRule rule;
  int64_t more = 3;  // slots that a chunk may add
  bool gated = true, temperatures = true;
  int64_t batch = 2, length = 43, heads = 4, kv_heads = 2, d = 19, dv = 37;
  bool on_tensor_cores = false;
  std::vector<int64_t> doc_start = {};  // empty: documents of two rows, or one of one row

  Shape q() const { return {batch, length, heads, d}; }
  Shape k() const { return {batch, length, kv_heads, d}; }
  Shape v() const { return {batch, length, kv_heads, dv}; }
  Shape o() const { return {batch, length, heads, dv}; }
  Shape per_token(int64_t count) const { return {batch, length, count}; }
  Shape per_slot(int64_t slots, int64_t width) const { return {batch, kv_heads, slots, width}; }
  Shape per_slot(int64_t slots) const { return {batch, kv_heads, slots}; }
  int64_t ring() const { return rule.chunk * rule.window; }
  std::vector<int64_t> starts() const {
    return !doc_start.empty() ? doc_start
           : batch == 2       ? documents_of_two_rows(length)
                              : std::vector<int64_t>(static_cast<size_t>(length));
  }
  /// Slots by chunk: a chunk's worth at first, then up to `more` a chunk.
  std::vector<int64_t> slots(int64_t chunks) const {
    std::vector<int64_t> sizes;
    for (int64_t c = 0; c < chunks; ++c) {
      sizes.push_back(c < rule.window ? 0 : c == rule.window ? rule.chunk : sizes.back() + (c % 3 == 0 ? 0 : more));
    }
    return sizes;
  }
  std::vector<int64_t> slots() const { return slots((length - 1) / rule.chunk + 1); }
};

enum Gated { nothing = 0, keys = 1, values = 2, appends = 4 };

KvmRule rule_of(int64_t chunk, int64_t window, int64_t sinks, int64_t rotary, KvmValueNorm value_norm, int gated,
                double scale = 0.3) {
  KvmRule rule;
  rule.chunk = chunk;
  rule.window = window;
  rule.sinks = sinks;
  rule.rotary = rotary;
  rule.value_norm = value_norm;
  rule.gate_keys = (gated & keys) != 0;
  rule.gate_values = (gated & values) != 0;
  rule.gate_appends = (gated & appends) != 0;
  rule.scale = scale;
  return rule;
}

KvmSlots slots_of(Machine& m, const KvmCase& s, int64_t room) {
  const std::vector<int64_t> counts(static_cast<size_t>(s.per_slot(room).numel()), 3);
  return {m.float_sum(s.per_slot(room, s.d)), m.float_sum(s.per_slot(room, s.dv)),
          m.float_sum(s.per_slot(room)),      m.integers(s.per_slot(room), counts, DType::i32, true),
          m.sum(s.per_slot(room, s.d)),       m.sum(s.per_slot(room, s.dv))};
}

/// Tokens, parameters and what is carried; without o, lse and routes.
KvmForward inputs_of(Machine& m, const KvmCase& s, const std::vector<int64_t>& sizes, const KvmSlots& slots,
                     const KvmWindow& window) {
  return {.o = {},
          .lse = {},
          .routes = {},
          .slots = slots,
          .window = window,
          .q = m.input(s.q(), 3),
          .k = m.input(s.k(), 2),
          .v = m.input(s.v()),
          .gate = s.gated ? m.parameter(s.per_token(s.kv_heads), 2) : Tensor{},
          .norm_weight = m.parameter({s.d}),
          .norm_bias = m.parameter({s.d}),
          .window_temp = s.temperatures ? m.parameter({s.heads}) : Tensor{},
          .state_temp = s.temperatures ? m.parameter({s.heads}, 2) : Tensor{},
          .doc_start = m.integers({s.batch, s.length}, s.starts()),
          .sizes = m.integers({static_cast<int64_t>(sizes.size())}, sizes),
          .rule = s.rule,
          .forced = false};
}

/// Forward, its replay from the routes, and backward. `routes_too`: the first pass decides by itself.
void check_passes(Machine& m, const KvmCase& s, bool routes_too, const Launches& compares = {}) {
  const int64_t room = s.slots().back() + 1;
  const KvmWindow window{m.activation_scratch(s.per_slot(s.ring(), s.d)),
                         m.activation_scratch(s.per_slot(s.ring(), s.dv)), m.scratch(s.per_slot(s.ring()))};
  KvmForward f = inputs_of(m, s, s.slots(), slots_of(m, s, room), window);
  const Tensor o = f.o = m.output(s.o()), lse = f.lse = m.float_output(s.per_token(s.heads));
  f.routes = m.integer_output({s.batch, s.kv_heads, s.length});
  routes_too ? m.run(f, tolerance(m), compares) : m.given(f);
  f.o = m.output(s.o());
  f.lse = {};
  f.forced = true;
  m.run(f, tolerance(m), {"read_slots_mma", s.on_tensor_cores});
  m.run(KvmBackward{.d_q = m.sum(s.q()),
                    .d_k = m.output(s.k()),
                    .d_v = m.sum(s.v()),
                    .d_gate = s.gated ? m.float_output(s.per_token(s.kv_heads)) : Tensor{},
                    .d_norm_weight = m.float_sum({s.d}),
                    .d_norm_bias = m.float_sum({s.d}),
                    .d_window_temp = s.temperatures ? m.float_sum({s.heads}) : Tensor{},
                    .d_state_temp = s.temperatures ? m.float_sum({s.heads}) : Tensor{},
                    .d_o = m.input(s.o()),
                    .o = o,
                    .lse = lse,
                    .routes = f.routes,
                    .q = f.q,
                    .k = f.k,
                    .v = f.v,
                    .gate = f.gate,
                    .norm_weight = f.norm_weight,
                    .norm_bias = f.norm_bias,
                    .window_temp = f.window_temp,
                    .state_temp = f.state_temp,
                    .doc_start = f.doc_start,
                    .sizes = f.sizes,
                    .rule = s.rule,
                    .room = room,
                    .accumulate_q = true,
                    .accumulate_k = false,
                    .accumulate_v = true,
                    .accumulate_gate = false},
        tolerance(m), {"slot_gradients_mma", s.on_tensor_cores});
}

TEST_CASE("kvm and its gradients", "[fast]") {
  const KvmCase s =
      GENERATE(KvmCase{"radius, both gated", rule_of(6, 2, 1, 4, KvmValueNorm::radius, keys | values)},
               KvmCase{"mean, gated appends", rule_of(5, 1, 0, 0, KvmValueNorm::mean, keys | values | appends)},
               KvmCase{"updates, keys gated", rule_of(7, 3, 2, 6, KvmValueNorm::updates, keys), 3, true, false},
               KvmCase{"no gate", rule_of(4, 2, 1, 2, KvmValueNorm::radius, nothing), 3, false},
               KvmCase{"more than a tile of tokens and slots", rule_of(66, 1, 1, 2, KvmValueNorm::mean, values), 9,
                       true, true, 1, 150, 1, 1, 7, 5});
  CAPTURE(s.name);
  check(DType::f32, [&](Machine& m) { check_passes(m, s, true); });
}

TEST_CASE("kvm in bf16, on tensor cores where the sizes allow", "[fast]") {
  // Answers of many keys: where few matter, a rounding of a score is all.
  const KvmCase s = GENERATE(
      KvmCase{"grouped heads of 64", rule_of(6, 2, 1, 16, KvmValueNorm::radius, keys | values, 0.05), 3, true, true, 2,
              43, 4, 2, 64, 64, true},
      KvmCase{"chunks and states of several tiles", rule_of(140, 1, 1, 2, KvmValueNorm::mean, keys | values, 0.05), 70,
              true, false, 1, 601, 1, 1, 128, 128, true},
      KvmCase{"unequal sizes, padded", rule_of(5, 1, 0, 0, KvmValueNorm::mean, keys | values | appends, 0.05), 3, true,
              true, 2, 43, 3, 1, 80, 48, true},
      KvmCase{"two heads in one tile of queries", rule_of(70, 1, 1, 6, KvmValueNorm::updates, keys | values, 0.2), 3,
              true, true, 1, 303, 2, 1, 32, 16, true},
      KvmCase{"a size for the plain cores", rule_of(7, 3, 2, 6, KvmValueNorm::updates, keys | values, 0.05), 3, true,
              true, 2, 43, 4, 2, 36, 72});
  CAPTURE(s.name);
  check(DType::bf16, [&](Machine& m) { check_passes(m, s, false); });
}

TEST_CASE("kvm in bf16 routes by itself where keys have little in common", "[fast]") {
  // Scores of 64 channels differ by about 8, their roundings by 0.05.
  const int64_t d = GENERATE(64, 36);
  const KvmCase s{"",     rule_of(9, 1, 1, 0, KvmValueNorm::radius, nothing, 0.05), 4, false, false, 1, 61, 2, 1, d, 16,
                  d == 64};
  check(DType::bf16, [&](Machine& m) { check_passes(m, s, true, {"compare_slots_mma", d == 64}); });
}

TEST_CASE("kvm in bf16 routes by itself among slots of a whole tile and a part", "[fast]") {
  const KvmCase s{
      "",  rule_of(40, 1, 3, 0, KvmValueNorm::radius, nothing, 0.05), 30, false, false, 1, 145, 1, 1, 64, 16,
      true};  // 70 slots at last, three of them sinks
  check(DType::bf16, [&](Machine& m) { check_passes(m, s, true, {"compare_slots_mma", true}); });
}

TEST_CASE("kvm goes on where a segment ended", "[fast]") {
  const auto [second, dtype] = GENERATE(
      table<int64_t, DType>({{1, DType::f32}, {4, DType::f32}, {23, DType::f32}, {1, DType::bf16}, {4, DType::bf16}}));
  CAPTURE(second);
  KvmCase first{"", rule_of(5, 2, 1, 4, KvmValueNorm::radius, keys | values)};
  if (dtype == DType::bf16) {
    first.d = 32;
    first.dv = 48;
  }
  first.length = 20;
  first.doc_start.assign(40, 0);
  for (size_t i = 36; i < 40; ++i) { first.doc_start[i] = 16; }
  KvmCase next = first;
  next.length = second;
  next.doc_start.assign(static_cast<size_t>(2 * second), -20);
  for (int64_t i = second; i < 2 * second; ++i) { next.doc_start[static_cast<size_t>(i)] = i < second + 9 ? -4 : 9; }
  const std::vector<int64_t> sizes = first.slots(9);
  check(dtype, [&](Machine& m) {
    const KvmSlots slots = slots_of(m, first, sizes.back() + 1);
    const KvmWindow window{m.sum(first.per_slot(first.ring(), first.d)), m.sum(first.per_slot(first.ring(), first.dv)),
                           m.float_sum(first.per_slot(first.ring()))};
    KvmForward f = inputs_of(m, first, sizes, slots, window);
    f.o = m.output(first.o());
    m.given(f);
    f = inputs_of(m, next, sizes, slots, window);
    f.o = m.output(next.o());
    m.run(f, tolerance(m), {"read_slots_mma", m.is_bf16()});
  });
}

TEST_CASE("kvm does not race", "[threads]") {
  const KvmCase s{"", rule_of(2, 1, 0, 0, KvmValueNorm::radius, nothing), 1, false, false, 1, 5, 1, 1, 2, 2};
  check(DType::f32, [&](Machine& m) { check_passes(m, s, true); });
}

}  // namespace
