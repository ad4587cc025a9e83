// What HAM adds to attention and the delta rule, and what lies around lact's fast weights, against their CPU twins.
#include "twins.h"

using namespace hebb_test;
using namespace hebb;

namespace {

TEST_CASE("scores of predictions equal the CPU's", "[fast]") {
  const bool takes_max = GENERATE(false, true);
  in_both_types([&](Twins& t) {
    const Twin p = t.input({7, 3, 37}), v = t.input({7, 3, 37}), score = t.float_output({7});
    t.check([&](auto at) { return PredictionScore{at(score), at(p), at(v), takes_max}; });
  });
}

TEST_CASE("router inputs and their gradients equal the CPU's", "[fast]") {
  const bool accumulate = GENERATE(false, true);
  in_both_types([&](Twins& t) {
    const Twin p = t.input({5, 3, 9}), v = t.input({5, 3, 9}), x = t.input({5, 41}), y = t.output({5, 3, 59});
    t.check([&](auto at) { return RouterInput{at(y), at(p), at(v), at(x)}; });
  });
  in_both_types([&](Twins& t) {
    const Twin d_y = t.input({5, 3, 59}), d_x = accumulate ? t.sum({5, 41}) : t.output({5, 41});
    t.check([&](auto at) { return RouterInputBackward{at(d_x), at(d_y), accumulate}; });
  });
}

TEST_CASE("gelu and its gradient equal the CPU's", "[fast]") {
  const bool accumulate = GENERATE(false, true);
  in_both_types([&](Twins& t) {
    const Twin x = t.input({3, 301}, 4), y = t.output({3, 301});
    t.check([&](auto at) { return Gelu{at(y), at(x)}; });
  });
  in_both_types([&](Twins& t) {
    const Twin x = t.input({3, 301}, 4), d_y = t.input({3, 301}),
               d_x = accumulate ? t.sum({3, 301}) : t.output({3, 301});
    t.check([&](auto at) { return GeluBackward{at(d_x), at(d_y), at(x), accumulate}; });
  });
}

TEST_CASE("router scores equal the CPU's", "[fast]") {
  const bool takes_max = GENERATE(false, true), averages = GENERATE(false, true);
  in_both_types([&](Twins& t) {
    const Twin logits = t.input({37, 5}, 3), previous = averages ? t.parameter({37}) : Twin{},
               eda = averages ? t.parameter({1}) : Twin{}, score = t.float_output({37}), own = t.float_output({37}),
               winner = t.integer_output({37});
    t.check([&](auto at) {
      return RouterScore{at(score), at(own), at(winner), at(logits), at(previous), at(eda), takes_max};
    });
  });
}

TEST_CASE("gradients of router scores equal the CPU's", "[fast]") {
  const bool averages = GENERATE(false, true), accumulate = GENERATE(false, true),
             logits_wanted = GENERATE(false, true);
  in_both_types([&](Twins& t) {
    std::vector<int64_t> heads;
    for (int64_t n = 0; n < 37; ++n) { heads.push_back(n % 5); }
    const Twin own = t.parameter({37}), winner = t.integers({37}, heads), d_score = t.parameter({37}),
               previous = averages ? t.parameter({37}) : Twin{}, eda = averages ? t.parameter({1}) : Twin{};
    const Twin d_logits = !logits_wanted ? Twin{}
                          : accumulate   ? t.sum({37, 5})
                                         : t.output({37, 5}),
               d_previous = !averages    ? Twin{}
                            : accumulate ? t.float_sum({37})
                                         : t.float_output({37}),
               d_eda = averages ? t.float_sum({1}) : Twin{};
    if (averages || logits_wanted) {
      t.check([&](auto at) {
        return RouterScoreBackward{at(d_logits), at(d_previous), at(d_eda), at(d_score), at(own),
                                   at(winner),   at(previous),   at(eda),   accumulate,  accumulate};
      });
    }
  });
}

/// Rows of 700 tokens, more than the selection's block holds at once; documents of 1, 3 and more tokens.
std::vector<int64_t> long_documents(int64_t rows, int64_t length, bool continues) {
  std::vector<int64_t> starts;
  for (int64_t i = 0; i < rows * length; ++i) {
    const int64_t t = i % length;
    starts.push_back(t < 5 ? (continues ? -9 : 0) : t == 5 ? 5 : t < 9 ? 6 : t < 650 ? 9 : 650);
  }
  return starts;
}

TEST_CASE("selections equal the CPU's", "[fast]") {
  struct Case {
    Selecting selecting;
    bool threshold, forced, held;
  };
  const Case c =
      GENERATE(Case{Selecting::threshold, true, false, false}, Case{Selecting::threshold, false, false, true},
               Case{Selecting::all, false, false, true}, Case{Selecting::none, false, false, false},
               Case{Selecting::none, false, true, false}, Case{Selecting::threshold, true, true, false});
  constexpr int64_t kRows = 2, kLength = 700;
  Twins t;
  std::vector<int64_t> mask;
  for (int64_t i = 0; i < kRows * kLength; ++i) { mask.push_back(i % 7 < 3 ? 1 : 0); }
  const Shape shape{kRows, kLength};
  const Twin score = c.selecting == Selecting::threshold ? t.parameter(shape) : Twin{},
             threshold = c.threshold ? t.parameter({1}) : Twin{}, forced = c.forced ? t.integers(shape, mask) : Twin{},
             held = c.held ? t.integers({kRows, 2}, {2, 9, 0, 4}) : Twin{},
             doc_start = t.integers(shape, long_documents(kRows, kLength, c.held)), slot = t.integer_output(shape),
             lo = t.integer_output(shape), hi = t.integer_output(shape), selected = t.integer_output({kRows});
  t.check([&](auto at) {
    return SelectTokens{at(slot),   at(lo),   at(hi),        at(selected), at(score), at(threshold),
                        at(forced), at(held), at(doc_start), c.selecting,  1.5,       0.25};
  });
}

TEST_CASE("counts of selected tokens and the gradients of thresholds equal the CPU's", "[fast]") {
  Twins t;
  const Twin selected = t.integers({3}, {5, 0, 31}), counter = t.integers({2}, {1000, 2000}, DType::i64, true);
  t.check([&](auto at) { return CountSelected{at(counter), at(selected), 96}; });
  const double gain = GENERATE(0.5, 9.0, -9.0);  // within the limits and beyond
  Twins g;
  const Twin gradient = g.float_output({1}), counters = g.integers({3, 2}, {30, 96, 17, 96, 0, 96}, DType::i64);
  g.check([&](auto at) { return ThresholdGradient{at(gradient), at(counters), 0.4, gain, 0.25}; });
}

// For the thread sanitizer: a selection of two rounds, and the sum over all tokens.
TEST_CASE("selections and the gradient of score averages do not race", "[threads]") {
  constexpr int64_t kLength = 1030;
  Twins t;
  const Shape shape{1, kLength};
  const Twin score = t.parameter(shape), threshold = t.parameter({1}),
             doc_start = t.integers(shape, std::vector<int64_t>(kLength)), slot = t.integer_output(shape),
             lo = t.integer_output(shape), hi = t.integer_output(shape), selected = t.integer_output({1});
  t.check([&](auto at) {
    return SelectTokens{at(slot), at(lo), at(hi),        at(selected),         at(score), at(threshold),
                        {},       {},     at(doc_start), Selecting::threshold, 1.5,       0};
  });
  Twins r;
  const Twin own = r.parameter({37}), d_score = r.parameter({37}), previous = r.parameter({37}), eda = r.parameter({1}),
             winner = r.integers({37}, std::vector<int64_t>(37)), d_eda = r.float_sum({1});
  r.check([&](auto at) {
    return RouterScoreBackward{{},         {},           at(d_eda), at(d_score), at(own),
                               at(winner), at(previous), at(eda),   false,       false};
  });
}

TEST_CASE("packing of selected tokens equals the CPU's", "[fast]") {
  const bool own_lists = GENERATE(false, true), scales = GENERATE(false, true);
  in_both_types([&](Twins& t) {
    const Twin x = t.input({2, 5, 37}), factor = scales ? t.parameter({2, 5}) : Twin{},
               slot = t.integers({2, 5}, own_lists ? std::vector<int64_t>{3, -1, 4, 5, -1, 0, 1, -1, 2, 6}
                                                   : std::vector<int64_t>{0, -1, 1, 2, -1, 3, 4, -1, 5, 6}),
               list = t.sum(own_lists ? Shape{2, 7, 37} : Shape{1, 10, 37});
    t.check([&](auto at) { return PackTokens{at(list), at(x), at(slot), at(factor)}; });
  });
}

TEST_CASE("gradients of packing equal the CPU's", "[fast]") {
  const bool scales = GENERATE(false, true), accumulate = GENERATE(false, true), x_wanted = GENERATE(false, true);
  in_both_types([&](Twins& t) {
    const Twin d_list = t.input({1, 10, 37}), x = t.input({2, 5, 37}), factor = scales ? t.parameter({2, 5}) : Twin{},
               slot = t.integers({2, 5}, {0, -1, 1, 2, -1, 3, 4, -1, 5, 6}),
               d_x = !x_wanted    ? Twin{}
                     : accumulate ? t.sum({2, 5, 37})
                                  : t.output({2, 5, 37}),
               d_factor = !scales      ? Twin{}
                          : accumulate ? t.float_sum({2, 5})
                                       : t.float_output({2, 5});
    t.check([&](auto at) {
      return PackTokensBackward{at(d_x), at(d_factor), at(d_list), at(x), at(slot), at(factor), accumulate, accumulate};
    });
  });
}

TEST_CASE("fast keys and their gradients equal the CPU's", "[fast]") {
  const int64_t column = GENERATE(0, 1);
  const bool accumulate = GENERATE(false, true), wanted = GENERATE(false, true);
  const Shape shape{37, 3, 41};
  in_both_types([&](Twins& t) {
    const Twin x = t.input(shape, 3), scale = t.parameter({123, 2}), offset = t.parameter({123, 2}),
               y = t.output(shape);
    t.check([&](auto at) { return LactKeysForward{at(y), at(x), at(scale), at(offset), column}; });
  });
  in_both_types([&](Twins& t) {
    const Twin x = t.input(shape, 3), scale = t.parameter({123, 2}), offset = t.parameter({123, 2}),
               d_y = t.input(shape),
               d_x = !wanted      ? Twin{}
                     : accumulate ? t.sum(shape)
                                  : t.output(shape),
               d_scale = t.float_sum({123, 2}), d_offset = wanted ? t.float_sum({123, 2}) : Twin{};
    t.check([&](auto at) {
      return LactKeysBackward{.d_x = at(d_x),
                              .d_scale = at(d_scale),
                              .d_offset = at(d_offset),
                              .d_y = at(d_y),
                              .x = at(x),
                              .scale = at(scale),
                              .offset = at(offset),
                              .column = column,
                              .accumulate = accumulate};
    });
  });
}

TEST_CASE("mixing of fast readings and its gradients equal the CPU's", "[fast]") {
  const bool accumulate = GENERATE(false, true), wanted = GENERATE(false, true);
  const Shape shape{9, 3, 41};
  in_both_types([&](Twins& t) {
    const Twin base = t.input(shape), x = t.input(shape), gate = t.input({9, 3}, 3), y = t.output(shape);
    t.check([&](auto at) { return LactMixForward{at(y), at(base), at(x), at(gate)}; });
  });
  in_both_types([&](Twins& t) {
    const Twin d_y = t.input(shape), x = t.input(shape), gate = t.input({9, 3}, 3),
               d_x = !wanted      ? Twin{}
                     : accumulate ? t.sum(shape)
                                  : t.output(shape),
               d_gate = accumulate ? t.sum({9, 3}) : t.output({9, 3});
    t.check([&](auto at) {
      return LactMixBackward{at(d_x), at(d_gate), at(d_y), at(x), at(gate), accumulate, accumulate};
    });
  });
}

TEST_CASE("half identities equal the CPU's", "[fast]") {
  const Shape shape = GENERATE(Shape{2, 5, 9}, Shape{2, 9, 5});
  Twins t;
  const Twin y = t.float_output(shape);
  t.check([&](auto at) { return HalfIdentity{at(y)}; });
}

}  // namespace
