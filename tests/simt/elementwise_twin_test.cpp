// Elementwise kernels, shifts and gates against their CPU twins.
#include "twins.h"

using namespace hebb_test;
using namespace hebb;

namespace {

constexpr int64_t kRows = 2, kLength = 70;
constexpr int64_t kWidths[] = {37, 40};  // elements; packs of either type

TEST_CASE("bias and column sums equal the CPU's", "[fast]") {
  for (const int64_t width : kWidths) {
    in_both_types([width](Twins& t) {
      const Twin y = t.sum({5, width}), bias = t.parameter({width});
      t.check([&](auto at) { return AddBias{at(y), at(bias)}; });
    });
  }
  for (const int64_t rows : {1, 70, 600}) {  // 600 rows: two stages
    in_both_types([rows](Twins& t) {
      const Twin out = t.float_sum({37}), x = t.input({rows, 37});
      t.check([&](auto at) { return ColumnSums{at(out), at(x)}; });
    });
  }
}

TEST_CASE("rotary tables and rotations equal the CPU's", "[fast]") {
  RopeSpec spec{.theta = 500.0, .dims = 6};
  Twins table;
  const Twin out = table.float_output({9, 2, 3});
  table.check([&](auto at) { return RopeTable{at(out), Tensor{}, 1000, spec}; });
  spec = {
      .theta = 1e6, .dims = 1030, .yarn = true, .factor = 4, .original = 64, .attention_factor = 1.3};  // two launches
  Twins by_token;
  const Twin wide = by_token.float_output({4, 2, 515}), starts = by_token.integers({2, 2}, {0, 1, -7000, -7000});
  by_token.check([&](auto at) { return RopeTable{at(wide), at(starts), 0, spec}; });

  for (const bool by_position : {false, true}) {
    for (const bool back : {false, true}) {
      in_both_types([&](Twins& t) {
        const Twin x = t.input({2, 3, 2, 9}), doc_start = t.integers({2, 3}, {0, 1, 1, -1, -1, 2}),
                   angles = t.parameter({6, 2, 3});
        const Twin y = back ? t.sum({2, 3, 2, 9}) : t.output({2, 3, 2, 9});
        t.check([&](auto at) {
          return Rope{at(y), at(x), at(angles), at(doc_start), by_position ? -1 : 0, !by_position, back, back};
        });
      });
      in_both_types([&](Twins& t) {  // in packs
        const Shape shape{2, 3, 2, 40};
        const Twin x = t.input(shape), doc_start = t.integers({2, 3}, {0, 1, 1, -1, -1, 2}),
                   angles = t.parameter({6, 2, 16});
        const Twin y = back ? t.sum(shape) : t.output(shape);
        t.check([&](auto at) {
          return Rope{at(y), at(x), at(angles), at(doc_start), by_position ? -1 : 0, !by_position, back, back};
        });
      });
    }
  }
}

TEST_CASE("token shifts equal the CPU's", "[fast]") {
  for (const bool zero_start : {false, true}) {
    const int64_t width = zero_start ? 40 : 37;
    in_both_types([&](Twins& t) {
      const Shape shape{kRows, kLength, width};
      const Twin x = t.input(shape), mu = t.parameter({width}),
                 doc = t.integers({kRows, kLength}, documents_of_two_rows());
      const Twin y = t.output(shape);
      t.check([&](auto at) { return TokenShiftForward{at(y), at(x), at(mu), Tensor{}, at(doc), zero_start}; });
      Twins back(t.is_bf16() ? DType::bf16 : DType::f32);
      const Twin d_y = back.input({6, 60, width}), in = back.input({6, 60, width}), m = back.parameter({width}),
                 d_x = back.sum({6, 60, width}), d_mu = back.float_sum({width});
      std::vector<int64_t> starts(360);
      for (size_t i = 0; i < starts.size(); ++i) { starts[i] = static_cast<int64_t>(i % 60 / 7 * 7); }
      const Twin doc_start = back.integers({6, 60}, starts);
      back.check([&](auto at) {
        return TokenShiftBackward{at(d_x), at(d_mu), at(d_y), at(in), at(m), at(doc_start), zero_start, true};
      });
    });
  }
  Twins t;  // a row that continues
  const Twin y = t.output({2, 1, 8}), x = t.input({2, 1, 8}), mu = t.parameter({8}), previous = t.input({2, 8}),
             doc = t.integers({2, 1}, {-3, 0});
  t.check([&](auto at) { return TokenShiftForward{at(y), at(x), at(mu), at(previous), at(doc), true}; });
}

TEST_CASE("pair shifts equal the CPU's", "[fast]") {
  for (const auto& [of_keys, of_values] : {std::pair<int64_t, int64_t>{5, 37}, {8, 40}}) {
    const int64_t keys = of_keys, values = of_values;
    in_both_types([=](Twins& t) {
      const Twin k = t.input({kRows, kLength, keys}), v = t.input({kRows, kLength, values}), shift = t.parameter({1}),
                 doc = t.integers({kRows, kLength}, documents_of_two_rows());
      const Twin k_out = t.output({kRows, kLength, keys}), v_out = t.output({kRows, kLength, values});
      t.check([&](auto at) {
        return PairShiftForward{at(k_out), at(v_out), at(k), at(v), at(shift), Tensor{}, Tensor{}, at(doc)};
      });
    });
    in_both_types([=](Twins& t) {
      const Twin d_k_out = t.input({kRows, kLength, keys}), d_v_out = t.input({kRows, kLength, values}),
                 v = t.input({kRows, kLength, values}), shift = t.parameter({1}),
                 doc = t.integers({kRows, kLength}, documents_of_two_rows());
      const Twin d_k = t.output({kRows, kLength, keys}), d_v = t.sum({kRows, kLength, values}),
                 d_shift = t.float_sum({1});
      t.check([&](auto at) {
        return PairShiftBackward{at(d_k), at(d_v),   at(d_shift), at(d_k_out), at(d_v_out),
                                 at(v),   at(shift), at(doc),     false,       true};
      });
    });
  }
  Twins t;
  const Twin k = t.input({2, 1, 3}), v = t.input({2, 1, 4}), shift = t.parameter({1}), old_k = t.input({2, 3}),
             old_v = t.input({2, 4}), doc = t.integers({2, 1}, {0, -2}), k_out = t.output({2, 1, 3}),
             v_out = t.output({2, 1, 4});
  t.check([&](auto at) {
    return PairShiftForward{at(k_out), at(v_out), at(k), at(v), at(shift), at(old_k), at(old_v), at(doc)};
  });
}

TEST_CASE("sigmoid gates equal the CPU's", "[fast]") {
  for (const auto& [of_head, width] : {std::pair<bool, int64_t>{false, 37}, {false, 40}, {true, 37}, {true, 264}}) {
    const bool by_head = of_head;
    in_both_types([by_head, width = width](Twins& t) {
      const Shape shape{5, 3, width}, gates = by_head ? Shape{5, 3} : shape;
      const Twin y = t.output(shape), x = t.input(shape), gate = t.input(gates);
      t.check([&](auto at) { return SigmoidGateForward{at(y), at(x), at(gate)}; });
      Twins back(t.is_bf16() ? DType::bf16 : DType::f32);
      const Twin d_y = back.input(shape), in = back.input(shape), g = back.input(gates), d_x = back.sum(shape),
                 d_gate = by_head ? back.output(gates) : back.sum(gates);
      back.check(
          [&](auto at) { return SigmoidGateBackward{at(d_x), at(d_gate), at(d_y), at(in), at(g), true, !by_head}; });
    });
  }
}

TEST_CASE("channel skips equal the CPU's", "[fast]") {
  for (const auto& [count, channels] : {std::pair<int64_t, int64_t>{6, 36}, {36, 36}, {5, 40}}) {
    in_both_types([scales = count, channels = channels](Twins& t) {
      const Twin y = t.sum({70, channels}), x = t.input({70, channels}), scale = t.parameter({scales});
      t.check([&](auto at) { return ChannelSkipForward{at(y), at(x), at(scale)}; });
      Twins back(t.is_bf16() ? DType::bf16 : DType::f32);
      const Twin d_x = back.sum({70, channels}), d_scale = back.float_sum({scales}), d_y = back.input({70, channels}),
                 in = back.input({70, channels}), s = back.parameter({scales});
      back.check([&](auto at) { return ChannelSkipBackward{at(d_x), at(d_scale), at(d_y), at(in), at(s)}; });
    });
  }
}

TEST_CASE("value residuals equal the CPU's", "[fast]") {
  for (const auto& [is_gated, width] : {std::pair<bool, int64_t>{false, 37}, {true, 37}, {false, 40}, {true, 40}}) {
    const bool gated = is_gated;
    in_both_types([gated, width = width](Twins& t) {
      const Shape shape{70, width};
      const Twin y = t.output(shape), v = t.input(shape), first = t.input(shape),
                 mix = gated ? t.input(shape) : t.parameter({width});
      t.check([&](auto at) { return ValueResidualForward{at(y), at(v), at(first), at(mix), gated}; });
      Twins back(t.is_bf16() ? DType::bf16 : DType::f32);
      const Twin d_y = back.input(shape), in = back.input(shape), old = back.input(shape),
                 m = gated ? back.input(shape) : back.parameter({width}), d_v = back.sum(shape),
                 d_first = back.output(shape), d_mix = gated ? back.sum(shape) : back.float_sum({width});
      back.check([&](auto at) {
        return ValueResidualBackward{at(d_v), at(d_first), at(d_mix), at(d_y), at(in), at(old),
                                     at(m),   gated,       true,      false,   true};
      });
    });
  }
}

}  // namespace
