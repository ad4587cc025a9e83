// What HAM adds to attention and the delta rule.
#include "kernels/ham/ham.h"
#include "tests/op_cases/machine.h"

using namespace hebb_test;

namespace {

TEST_CASE("scores of predictions", "[fast]") {
  const bool takes_max = GENERATE(false, true);
  check([=](Machine& m) {
    m.run(PredictionScore{
        .score = m.float_output({7}), .p = m.input({7, 3, 37}), .v = m.input({7, 3, 37}), .takes_max = takes_max});
  });
}

TEST_CASE("router inputs and gelu", "[fast]") {
  const bool accumulate = GENERATE(false, true);
  const Shape heads{5, 3, 9}, x{5, 41}, y{5, 3, 59}, hidden{3, 301};
  check([=](Machine& m) {
    m.run(RouterInput{.y = m.output(y), .p = m.input(heads), .v = m.input(heads), .x = m.input(x)});
    m.run(RouterInputBackward{m.gradient(x, accumulate), m.input(y), accumulate});
    m.run(Gelu{m.output(hidden), m.input(hidden, 4)});
    m.run(GeluBackward{.d_x = m.gradient(hidden, accumulate),
                       .d_y = m.input(hidden),
                       .x = m.input(hidden, 4),
                       .accumulate = accumulate});
  });
}

TEST_CASE("router scores", "[fast]") {
  const bool takes_max = GENERATE(false, true), averages = GENERATE(false, true);
  check([=](Machine& m) {
    const Tensor previous = averages ? m.parameter({37}) : Tensor{}, eda = averages ? m.parameter({1}) : Tensor{};
    m.run(RouterScore{.score = m.float_output({37}),
                      .own = m.float_output({37}),
                      .winner = m.integer_output({37}),
                      .logits = m.input({37, 5}, 3),
                      .previous = previous,
                      .eda_logit = eda,
                      .takes_max = takes_max});
  });
}

void run_score_gradient(Machine& m, bool averages, bool logits_wanted, bool accumulate) {
  std::vector<int64_t> heads;
  for (int64_t n = 0; n < 37; ++n) { heads.push_back(n % 5); }
  const Shape tokens{37};
  m.run(RouterScoreBackward{.d_logits = logits_wanted ? m.gradient({37, 5}, accumulate) : Tensor{},
                            .d_previous = averages ? m.float_gradient(tokens, accumulate) : Tensor{},
                            .d_eda_logit = averages ? m.float_sum({1}) : Tensor{},
                            .d_score = m.parameter(tokens),
                            .own = m.parameter(tokens),
                            .winner = m.integers(tokens, heads),
                            .previous = averages ? m.parameter(tokens) : Tensor{},
                            .eda_logit = averages ? m.parameter({1}) : Tensor{},
                            .accumulate_logits = accumulate,
                            .accumulate_previous = accumulate});
}

TEST_CASE("gradients of router scores", "[fast]") {
  const bool averages = GENERATE(false, true), logits_wanted = GENERATE(false, true),
             accumulate = GENERATE(false, true);
  if (averages || logits_wanted) {
    check([=](Machine& m) { run_score_gradient(m, averages, logits_wanted, accumulate); });
  }
}

struct Selection {
  Selecting selecting;
  bool threshold, forced, held;
};

/// Documents of 1, 3 and more tokens.
void run_selection(Machine& m, const Selection& s, int64_t rows, int64_t length) {
  const Shape shape{rows, length};
  std::vector<int64_t> mask, starts;
  for (int64_t i = 0; i < rows * length; ++i) {
    const int64_t t = i % length;
    mask.push_back(i % 7 < 3 ? 1 : 0);
    starts.push_back(t < 5 ? (s.held ? -9 : 0) : t == 5 ? 5 : t < 9 ? 6 : t < 650 ? 9 : 650);
  }
  m.run(SelectTokens{.slot = m.integer_output(shape),
                     .lo = m.integer_output(shape),
                     .hi = m.integer_output(shape),
                     .selected = m.integer_output({rows}),
                     .score = s.selecting == Selecting::threshold ? m.parameter(shape) : Tensor{},
                     .threshold = s.threshold ? m.parameter({1}) : Tensor{},
                     .forced = s.forced ? m.integers(shape, mask) : Tensor{},
                     .held = s.held ? m.integers({rows, 2}, {2, 9, 0, 4}) : Tensor{},
                     .doc_start = m.integers(shape, starts),
                     .selecting = s.selecting,
                     .range = 1.5,
                     .tau = 0.25});
}

TEST_CASE("selections of tokens", "[fast]") {
  const Selection s =
      GENERATE(Selection{Selecting::threshold, true, false, false}, Selection{Selecting::threshold, false, false, true},
               Selection{Selecting::all, false, false, true}, Selection{Selecting::none, false, false, false},
               Selection{Selecting::none, false, true, false}, Selection{Selecting::threshold, true, true, false});
  check(DType::f32, [&](Machine& m) { run_selection(m, s, 2, 700); });  // more than a block holds at once
}

TEST_CASE("counts of selected tokens and the gradients of thresholds", "[fast]") {
  const double gain = GENERATE(0.5, 9.0, -9.0);  // within the limits and beyond
  check(DType::f32, [=](Machine& m) {
    m.run(CountSelected{m.integers({2}, {1000, 2000}, DType::i64, true), m.integers({3}, {5, 0, 31}), 96});
    m.run(ThresholdGradient{.gradient = m.float_output({1}),
                            .counters = m.integers({3, 2}, {30, 96, 17, 96, 0, 96}, DType::i64),
                            .target = 0.4,
                            .gain = gain,
                            .clip = 0.25});
  });
}

// For the thread sanitizer: a selection of two rounds, and the sum over all tokens.
TEST_CASE("selections and the gradient of score averages do not race", "[threads]") {
  check(DType::f32, [](Machine& m) {
    run_selection(m, {Selecting::threshold, true, false, false}, 1, 1030);
    run_score_gradient(m, true, false, false);
  });
}

TEST_CASE("packing of selected tokens", "[fast]") {
  const bool own_lists = GENERATE(false, true), scales = GENERATE(false, true);
  check([=](Machine& m) {
    m.run(PackTokens{.list = m.sum(own_lists ? Shape{2, 7, 37} : Shape{1, 10, 37}),
                     .x = m.input({2, 5, 37}),
                     .slot = m.integers({2, 5}, own_lists ? std::vector<int64_t>{3, -1, 4, 5, -1, 0, 1, -1, 2, 6}
                                                          : std::vector<int64_t>{0, -1, 1, 2, -1, 3, 4, -1, 5, 6}),
                     .factor = scales ? m.parameter({2, 5}) : Tensor{}});
  });
}

TEST_CASE("gradients of packing", "[fast]") {
  const bool scales = GENERATE(false, true), accumulate = GENERATE(false, true), x_wanted = GENERATE(false, true);
  if (!scales && !x_wanted) { return; }
  check([=](Machine& m) {
    m.run(PackTokensBackward{.d_x = x_wanted ? m.gradient({2, 5, 37}, accumulate) : Tensor{},
                             .d_factor = scales ? m.float_gradient({2, 5}, accumulate) : Tensor{},
                             .d_list = m.input({1, 10, 37}),
                             .x = m.input({2, 5, 37}),
                             .slot = m.integers({2, 5}, {0, -1, 1, 2, -1, 3, 4, -1, 5, 6}),
                             .factor = scales ? m.parameter({2, 5}) : Tensor{},
                             .accumulate_x = accumulate,
                             .accumulate_factor = accumulate});
  });
}

}  // namespace
