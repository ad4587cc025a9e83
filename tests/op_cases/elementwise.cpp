// Biases, rotations, shifts, gates, skips and residuals.
#include "kernels/bias/bias.h"
#include "kernels/channel_skip/scratch.h"
#include "kernels/pair_shift/scratch.h"
#include "kernels/rope/rope.h"
#include "kernels/sigmoid_gate/sigmoid_gate.h"
#include "kernels/token_shift/scratch.h"
#include "kernels/value_residual/scratch.h"
#include "tests/op_cases/machine.h"

using namespace hebb_test;

namespace {

constexpr int64_t kRows = 2, kLength = 70;
constexpr int64_t kWidths[] = {37, 40};  // elements; packs of either type

TEST_CASE("bias and column sums", "[fast]") {
  for (const int64_t width : kWidths) {
    check([=](Machine& m) { m.run(AddBias{m.sum({5, width}), m.parameter({width})}); });
  }
  for (const int64_t rows : {1, 70, 600}) {  // 600 rows: two stages
    check([=](Machine& m) { m.run(ColumnSums{m.float_sum({37}), m.input({rows, 37})}); });
  }
}

TEST_CASE("rotary tables", "[fast]") {
  check(DType::f32, [](Machine& m) {
    m.run(RopeTable{
        .table = m.float_output({9, 2, 3}), .doc_start = {}, .first = 1000, .spec = {.theta = 500.0, .dims = 6}});
    const RopeSpec two_launches{
        .theta = 1e6, .dims = 1030, .yarn = true, .factor = 4, .original = 64, .attention_factor = 1.3};
    m.run(RopeTable{.table = m.float_output({4, 2, 515}),
                    .doc_start = m.integers({2, 2}, {0, 1, -7000, -7000}),
                    .first = 0,
                    .spec = two_launches});
  });
}

TEST_CASE("rotations", "[fast]") {
  const bool by_position = GENERATE(false, true), back = GENERATE(false, true);
  for (const auto& [width, pairs] : {std::pair<int64_t, int64_t>{9, 3}, {40, 16}}) {  // in packs: 40
    check([=, width = width, pairs = pairs](Machine& m) {
      const Shape shape{2, 3, 2, width};
      m.run(Rope{.y = m.gradient(shape, back),
                 .x = m.input(shape),
                 .table = m.parameter({6, 2, pairs}),
                 .doc_start = m.integers({2, 3}, {0, 1, 1, -1, -1, 2}),
                 .first = by_position ? -1 : 0,
                 .by_token = !by_position,
                 .inverse = back,
                 .accumulate = back});
    });
  }
}

TEST_CASE("token shifts", "[fast]") {
  const bool zero_start = GENERATE(false, true);
  const int64_t width = zero_start ? 40 : 37;
  check([=](Machine& m) {
    const Shape shape{kRows, kLength, width}, more{6, 59, width};  // more: two blocks, the second not of whole fours
    m.run(TokenShiftForward{.y = m.output(shape),
                            .x = m.input(shape),
                            .mu = m.parameter({width}),
                            .previous = {},
                            .doc_start = m.integers({kRows, kLength}, documents_of_two_rows()),
                            .zero_start = zero_start});
    std::vector<int64_t> starts(354);
    for (size_t i = 0; i < starts.size(); ++i) { starts[i] = static_cast<int64_t>(i % 59 / 7 * 7); }
    m.run(TokenShiftBackward{.d_x = m.sum(more),
                             .d_mu = m.float_sum({width}),
                             .d_y = m.input(more),
                             .x = m.input(more),
                             .mu = m.parameter({width}),
                             .doc_start = m.integers({6, 59}, starts),
                             .zero_start = zero_start,
                             .accumulate = true});
  });
}

TEST_CASE("token and pair shifts of rows that continue", "[fast]") {
  check(DType::f32, [](Machine& m) {
    m.run(TokenShiftForward{.y = m.output({2, 1, 8}),
                            .x = m.input({2, 1, 8}),
                            .mu = m.parameter({8}),
                            .previous = m.input({2, 8}),
                            .doc_start = m.integers({2, 1}, {-3, 0}),
                            .zero_start = true});
    m.run(PairShiftForward{.k_out = m.output({2, 1, 3}),
                           .v_out = m.output({2, 1, 4}),
                           .k = m.input({2, 1, 3}),
                           .v = m.input({2, 1, 4}),
                           .shift = m.parameter({1}),
                           .previous_k = m.input({2, 3}),
                           .previous_v = m.input({2, 4}),
                           .doc_start = m.integers({2, 1}, {0, -2})});
  });
}

TEST_CASE("pair shifts", "[fast]") {
  for (const auto& [of_keys, of_values] : {std::pair<int64_t, int64_t>{5, 37}, {8, 40}}) {
    const Shape keys{kRows, kLength, of_keys}, values{kRows, kLength, of_values};
    check([=](Machine& m) {
      const Tensor documents = m.integers({kRows, kLength}, documents_of_two_rows()), shift = m.parameter({1});
      m.run(PairShiftForward{.k_out = m.output(keys),
                             .v_out = m.output(values),
                             .k = m.input(keys),
                             .v = m.input(values),
                             .shift = shift,
                             .previous_k = {},
                             .previous_v = {},
                             .doc_start = documents});
      m.run(PairShiftBackward{.d_k = m.output(keys),
                              .d_v = m.sum(values),
                              .d_shift = m.float_sum({1}),
                              .d_k_out = m.input(keys),
                              .d_v_out = m.input(values),
                              .v = m.input(values),
                              .shift = shift,
                              .doc_start = documents,
                              .accumulate_k = false,
                              .accumulate_v = true});
    });
  }
}

TEST_CASE("sigmoid gates", "[fast]") {
  for (const auto& [of_head, width] : {std::pair<bool, int64_t>{false, 37}, {false, 40}, {true, 37}, {true, 264}}) {
    const bool by_head = of_head;
    const Shape shape{5, 3, width}, gates = by_head ? Shape{5, 3} : shape;
    check([=](Machine& m) {
      m.run(SigmoidGateForward{m.output(shape), m.input(shape), m.input(gates)});
      m.run(SigmoidGateBackward{.d_x = m.sum(shape),
                                .d_gate = m.gradient(gates, !by_head),
                                .d_y = m.input(shape),
                                .x = m.input(shape),
                                .gate = m.input(gates),
                                .accumulate_x = true,
                                .accumulate_gate = !by_head});
    });
  }
}

TEST_CASE("channel skips", "[fast]") {
  for (const auto& [count, channels] : {std::pair<int64_t, int64_t>{6, 36}, {36, 36}, {5, 40}}) {
    const Shape shape{70, channels}, scales{count};
    check([=](Machine& m) {
      m.run(ChannelSkipForward{m.sum(shape), m.input(shape), m.parameter(scales)});
      m.run(ChannelSkipBackward{.d_x = m.sum(shape),
                                .d_scale = m.float_sum(scales),
                                .d_y = m.input(shape),
                                .x = m.input(shape),
                                .scale = m.parameter(scales)});
      if (m.is_bf16()) {  // sums in fp32, x in bf16
        m.run(ChannelSkipForward{m.float_sum(shape), m.input(shape), m.parameter(scales)});
        m.run(ChannelSkipBackward{.d_x = m.sum(shape),
                                  .d_scale = m.float_sum(scales),
                                  .d_y = m.parameter(shape),
                                  .x = m.input(shape),
                                  .scale = m.parameter(scales)});
      }
    });
  }
}

TEST_CASE("value residuals", "[fast]") {
  const bool gated = GENERATE(false, true);
  for (const int64_t width : kWidths) {
    const Shape shape{70, width};
    check([=](Machine& m) {
      const auto mix = [&] { return gated ? m.input(shape) : m.parameter({width}); };
      m.run(ValueResidualForward{
          .y = m.output(shape), .v = m.input(shape), .first = m.input(shape), .mix = mix(), .gated = gated});
      m.run(ValueResidualBackward{.d_v = m.sum(shape),
                                  .d_first = m.output(shape),
                                  .d_mix = gated ? m.sum(shape) : m.float_sum({width}),
                                  .d_y = m.input(shape),
                                  .v = m.input(shape),
                                  .first = m.input(shape),
                                  .mix = mix(),
                                  .gated = gated,
                                  .accumulate_v = true,
                                  .accumulate_first = false,
                                  .accumulate_mix = true});
    });
  }
}

}  // namespace
