// The core of kvm on given queries, keys and values: dense attention, sums, ties, order of rows.
#include "layers/kvm/op.h"
#include "tests/kernels/tensors.h"
#include "tests/layers/kvm_models.h"

namespace {

Values layer_norm(const Values& x, const Values& weight, const Values& bias) {
  double mean = 0, var = 0;
  const double n = static_cast<double>(x.size());
  for (const double a : x) { mean += a / n; }
  for (const double a : x) { var += (a - mean) * (a - mean) / n; }
  Values y;
  for (size_t i = 0; i < x.size(); ++i) { y.push_back((x[i] - mean) / std::sqrt(var + 1e-5) * weight[i] + bias[i]); }
  return y;
}

/// The op alone, one row, one kv head.
struct Core : Tensors {
  KvmRule rule;
  KvmBudget budget;
  int64_t heads, d, dv;
  Values q, k, v, gate, weight, bias, window_temp, state_temp;
  std::vector<int64_t> row, append;

  Core(int64_t heads, int64_t d, int64_t dv, int64_t chunk, int64_t window, int64_t sinks)
      : Tensors(DType::f64), heads(heads), d(d), dv(dv) {
    rule.chunk = chunk;
    rule.window = window;
    rule.sinks = sinks;
    rule.scale = 0.6;
    budget = {.mode = "fixed", .rows = chunk};
    weight.assign(static_cast<size_t>(d), 1.0);
    bias.assign(static_cast<size_t>(d), 0.0);
  }
  HeadSizes shape() const { return {heads, 1, d, dv}; }
  KvmState state() { return KvmState(arena, 1, shape(), rule.chunk, rule, DType::f64); }
  int64_t length() const { return static_cast<int64_t>(k.size()) / d; }

  void randomize(int64_t tokens) {
    q = random_values(tokens * heads * d, "q");
    k = random_values(tokens * d, "k");
    v = random_values(tokens * dv, "v");
    gate = random_values(tokens, "gate");
    weight = random_values(d, "weight");
    bias = random_values(d, "bias");
    window_temp = random_values(heads, "window_temp");
    state_temp = random_values(heads, "state_temp");
  }

  /// Tokens [begin, end) of the stream, continuing `state`, or from the start.
  Values run(KvmState* state = nullptr, int64_t begin = 0, int64_t end = -1) {
    end = end < 0 ? length() : end;
    const Rows rows = Rows::streams(stream, arena, 1, end - begin, begin);
    Tape tape(stream, arena, false);
    Pass pass{tape, rows};
    Inspector inspector;
    inspector.recording = true;
    pass.inspector = &inspector;
    const auto tensor = [&](const Values& values, Shape shape, int64_t from) {
      const auto begin = values.begin() + from;
      return tape.constant(make(shape, {begin, begin + shape.numel()}));
    };
    const int64_t n = end - begin;
    KvmVars in{tensor(q, {n, heads * d}, begin * heads * d),
               tensor(k, {n, d}, begin * d),
               tensor(v, {n, dv}, begin * dv),
               {},
               tensor(weight, {d}, 0),
               tensor(bias, {d}, 0),
               {},
               {}};
    if (!gate.empty()) { in.gate = tensor(gate, {n, 1}, begin); }
    if (!window_temp.empty()) {
      in.window_temp = tensor(window_temp, {heads}, 0);
      in.state_temp = tensor(state_temp, {heads}, 0);
    }
    const Var o = kvm_attention(pass, in, shape(), rule, budget, state, "x");
    if (state == nullptr) {
      row = inspector.records.at("x.row").integers;
      append = inspector.records.at("x.append").integers;
    }
    return read(tape.value(o));
  }

  Values key(int64_t t) const { return {k.begin() + t * d, k.begin() + (t + 1) * d}; }
  Values value(int64_t t) const { return {v.begin() + t * dv, v.begin() + (t + 1) * dv}; }
  Values memory_key(int64_t t) const {
    Values z = key(t);
    std::fill(z.begin(), z.begin() + rule.rotary, 0.0);
    return layer_norm(z, weight, bias);
  }
};

void set_tokens(Core& core, const std::vector<Values>& kinds, const std::vector<int>& sequence) {
  for (const int kind : sequence) {
    const Values& x = kinds[static_cast<size_t>(kind)];
    core.k.insert(core.k.end(), x.begin(), x.end());
    core.q.insert(core.q.end(), x.begin(), x.end());
    core.v.push_back(kind + 1);
  }
}

}  // namespace

TEST_CASE("without a gate kvm rows sum what left the window and sinks keep their bits", "[kvm][fast]") {
  Core core(1, 5, 4, 4, 2, 2);
  core.budget.rows = 7;
  core.randomize(31);
  core.gate.clear();
  KvmState state = core.state();
  core.run(&state, 0, 9);
  const auto host = [&](const Buffer& buffer) { return Tensors::read(buffer); };
  const Values early_keys = host(state.keys), early_values = host(state.values);
  core.run(&state, 9, 31);
  const Values keys = host(state.keys), values = host(state.values), radii = host(state.radii),
               hats = host(state.value_hats);
  Values key_sum(5), value_sum(4), left_keys(5), left_values(4);
  for (size_t r = 0; r < 7; ++r) {
    double norm = 0;
    for (size_t c = 0; c < 5; ++c) { key_sum[c] += keys[r * 5 + c]; }
    for (size_t c = 0; c < 4; ++c) {
      value_sum[c] += values[r * 4 + c];
      norm += hats[r * 4 + c] * hats[r * 4 + c];
    }
    CHECK(std::sqrt(norm) == Approx(radii[r]).epsilon(1e-12));
  }
  for (int64_t t = 0; t < 24; ++t) {  // chunk 7 is open: chunks 0 to 5 have left
    const Values key = core.memory_key(t), value = core.value(t);
    for (size_t c = 0; c < 5; ++c) { left_keys[c] += key[c]; }
    for (size_t c = 0; c < 4; ++c) { left_values[c] += value[c]; }
  }
  check_close("keys", key_sum, left_keys, 1e-12);
  check_close("values", value_sum, left_values, 1e-12);
  CHECK(std::equal(keys.begin(), keys.begin() + 10, early_keys.begin()));
  CHECK(std::equal(values.begin(), values.begin() + 8, early_values.begin()));
  CHECK(keys[2 * 5] != early_keys[2 * 5]);
}

TEST_CASE("kvm ties go to the earlier token and to the lowest row", "[kvm][fast]") {
  const std::vector<Values> kinds = {{1, 0, -2}, {0, 3, -1}, {2, 2, 0.5}};
  for (const auto& [sinks, joined] : {std::pair{0, 0}, std::pair{1, 2}}) {
    Core core(1, 3, 1, 2, 1, sinks);
    core.budget.rows = 3;
    set_tokens(core, kinds, {0, 1, 0, 0, 2});
    core.run();
    // Both tokens of chunk 1 equal row 0; the first founds row 2, the other joins the lowest equal row that takes
    // tokens.
    CHECK(core.row == std::vector<int64_t>{0, 1, 2, joined, -1});
    CHECK(core.append == std::vector<int64_t>{1, 1, 1, 0, 0});
  }
}

TEST_CASE("the least redundant tokens found kvm rows in the order of their positions", "[kvm][fast]") {
  // Unit directions orthogonal to (1, 1, 1, 1), which the norm leaves alone up to a factor.
  const std::vector<Values> kinds = {{1, -1, 0, 0}, {0, 0, 1, -1}, {1, 1, -1, -1}, {-1, 1, 0, 0}, {-1, -1, 1, 1}};
  Core core(1, 4, 1, 4, 1, 0);
  core.budget.rows = 6;
  // Rows of chunk 0: kinds 0, 1, 0, 1. Scores of chunk 1: kind 3 scores 0 (against kind 1), kinds 2 and 4 score 0.
  set_tokens(core, kinds, {0, 1, 0, 1, 0, 2, 1, 4, 0});
  core.run();
  CHECK(core.row == std::vector<int64_t>{0, 1, 2, 3, 0, 4, 1, 5, -1});
  CHECK(core.append == std::vector<int64_t>{1, 1, 1, 1, 0, 1, 0, 1, 0});
}

TEST_CASE("a token may join a row that the same update founds", "[kvm][fast]") {
  const std::vector<Values> kinds = {{1, -1, 0, 0}, {0, 0, 1, -1}, {1, 1, -1, -1}};
  Core core(1, 4, 1, 2, 1, 0);
  core.budget.rows = 3;
  set_tokens(core, kinds, {0, 1, 2, 2, 0});
  core.run();
  CHECK(core.row == std::vector<int64_t>{0, 1, 2, 2, -1});
  CHECK(core.append == std::vector<int64_t>{1, 1, 1, 0, 0});
}

TEST_CASE("permuting kvm rows leaves the readout unchanged", "[kvm][fast]") {
  Core core(2, 5, 4, 6, 2, 2);
  core.budget.rows = 8;
  core.randomize(30);
  const auto permute = [&](Buffer& buffer, const std::vector<size_t>& order) {
    const Values old = Tensors::read(buffer);
    const size_t width = old.size() / static_cast<size_t>(buffer.tensor().size(2));
    Values now = old;
    for (size_t r = 0; r < order.size(); ++r) {
      std::copy_n(old.begin() + static_cast<std::ptrdiff_t>(order[r] * width), width,
                  now.begin() + static_cast<std::ptrdiff_t>(r * width));
    }
    copy_to_device(core.stream, buffer, now.data());
  };
  KvmState plain = core.state(), mixed = core.state(), again = core.state();
  const Values first = core.run(&plain, 0, 25);
  CHECK(core.run(&mixed, 0, 25) == first);
  CHECK(core.run(&again, 0, 25) == first);
  for (Buffer* buffer : {&mixed.keys, &mixed.values, &mixed.radii, &mixed.key_hats, &mixed.value_hats}) {
    permute(*buffer, {0, 1, 5, 7, 2, 4, 3, 6});
  }
  const Values rest = core.run(&plain, 25, 30);
  check_close("readout", core.run(&mixed, 25, 30), rest, 1e-13);
  CHECK(core.run(&again, 25, 30) == rest);
}

TEST_CASE("a kvm state with room for every token is dense attention over memory keys", "[kvm][fast]") {
  Core core(3, 5, 4, 3, 2, 1);
  core.rule.rotary = 2;
  core.budget = {.mode = "power", .factor = 1.0, .exponent = 1.0};
  core.randomize(20);
  const Values o = core.run();
  Values expected;
  for (int64_t t = 0; t < 20; ++t) {
    const int64_t window = std::max<int64_t>(0, (t / 3 - 1) * 3);
    for (int64_t h = 0; h < 3; ++h) {
      Values p;
      double sum = 0;
      for (int64_t j = 0; j <= t; ++j) {
        const bool in_state = j < window;
        const Values key = in_state ? layer_norm(core.memory_key(j), core.weight, core.bias) : core.key(j);
        double logit = 0;
        for (size_t c = 0; c < 5; ++c) { logit += core.q[static_cast<size_t>((t * 3 + h) * 5) + c] * key[c]; }
        const size_t head = static_cast<size_t>(h);
        p.push_back(std::exp(0.6 * logit * (in_state ? core.state_temp[head] : core.window_temp[head])));
        sum += p.back();
      }
      for (size_t c = 0; c < 4; ++c) {
        double y = 0;
        for (int64_t j = 0; j <= t; ++j) { y += p[static_cast<size_t>(j)] / sum * core.value(j)[c]; }
        expected.push_back(y);
      }
    }
  }
  check_close("o", o, expected, 1e-12);
  for (int64_t t = 0; t < 15; ++t) { CHECK(core.append[static_cast<size_t>(t)] == 1); }
}
