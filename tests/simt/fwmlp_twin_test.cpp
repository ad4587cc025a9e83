// Fast-weight perceptrons, against their CPU twin.
#include "twins.h"

using namespace hebb_test;
using namespace hebb;

namespace {

constexpr FwMlpSizes kSizes{.key_dim = 5, .hidden = 7, .value_dim = 6};
constexpr FastChunk kChunk{.batch = 2, .length = 11, .first = 4, .count = 5};
constexpr int64_t kTokens = 22, kRows = 10;

/// Targets `lookahead` tokens later in the chunk; a document ends after two of its tokens.
std::vector<int64_t> targets_of(int64_t lookahead) {
  std::vector<int64_t> targets(kTokens, -1);
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t t = kChunk.first; t + lookahead < kChunk.first + kChunk.count; ++t) {
      const bool same = (t < kChunk.first + 2) == (t + lookahead < kChunk.first + 2);
      targets[static_cast<size_t>(b * kChunk.length + t)] = same ? b * kChunk.length + t + lookahead : -1;
    }
  }
  return targets;
}

struct Layer {
  Twins& t;
  bool mean;
  int64_t lookahead;
  double clip;
  Twin weights = t.parameter({kSizes.total()}), tokens_q = t.input({kTokens, kSizes.key_dim}),
       v = t.input({kTokens, kSizes.value_dim}), vh = t.input({kTokens, kSizes.value_dim}),
       targets = t.integers({kTokens}, targets_of(lookahead)), q = t.float_output({kRows, kSizes.key_dim}),
       act = t.float_output({kRows, 2 * kSizes.hidden}), hid = t.float_output({kRows, kSizes.hidden});

  template <class At> FwMlpActivations kept(At&& at) const { return {at(q), at(act), at(hid)}; }
  template <class At> FwMlpPairs pairs(At&& at) const { return {at(v), at(targets), mean, 5, lookahead}; }
};

/// With bf16 tokens the operands of products are rounded to TF32: 2^-11 (5e-4) each, and more where terms cancel.
double tolerance(const Twins& t, double exact) { return t.is_bf16() ? 1e-3 : exact; }

void check_layer(Twins& t, bool mean, int64_t lookahead, double clip, bool second) {
  Layer l{t, mean, lookahead, clip};
  const Twin reading = t.sum({kTokens, kSizes.value_dim});
  const auto read = [&](auto at) {
    return FwMlpRead{.vh = at(reading),
                     .kept = l.kept(at),
                     .weights = at(l.weights),
                     .tokens_q = at(l.tokens_q),
                     .sizes = kSizes,
                     .chunk = kChunk};
  };
  t.check(read, tolerance(t, 2e-6));
  t.prepare(read);
  const Twin next = t.float_output({kSizes.total()}), gradient = t.float_output({kSizes.total()});
  const auto step = [&](auto at) {
    return FwMlpStep{.next = at(next),
                     .gradient = at(gradient),
                     .weights = at(l.weights),
                     .vh = at(l.vh),
                     .kept = l.kept(at),
                     .pairs = l.pairs(at),
                     .sizes = kSizes,
                     .chunk = kChunk,
                     .rate = 0.3,
                     .clip = clip};
  };
  t.check(step, tolerance(t, 2e-6));
  t.prepare(step);
  const Twin d_q = t.sum({kTokens, kSizes.key_dim}), d_v = t.sum({kTokens, kSizes.value_dim}),
             d_weights = lookahead == 0 ? Twin{} : t.float_output({kSizes.total()}),
             d_vh = t.input({kTokens, kSizes.value_dim}), d_next = second ? t.parameter({kSizes.total()}) : Twin{};
  t.check(
      [&](auto at) {
        return FwMlpBackward{.d_q = at(d_q),
                             .d_v = at(d_v),
                             .d_weights = at(d_weights),
                             .d_vh = at(d_vh),
                             .d_next = at(d_next),
                             .gradient = at(gradient),
                             .weights = at(l.weights),
                             .vh = at(l.vh),
                             .kept = l.kept(at),
                             .pairs = l.pairs(at),
                             .sizes = kSizes,
                             .chunk = kChunk,
                             .rate = 0.3,
                             .clip = clip,
                             .accumulate = mean};
      },
      tolerance(t, 1e-5));  // chains of five products
}

TEST_CASE("reading, step and gradients of fast perceptrons equal the CPU's", "[fast]") {
  const bool mean = GENERATE(false, true), second = GENERATE(false, true);
  const int64_t lookahead = GENERATE(0, 1, 2);
  const double clip = GENERATE(0.0, 0.05);
  CAPTURE(mean, second, lookahead, clip);
  in_both_types([&](Twins& t) { check_layer(t, mean, lookahead, clip, second); });
}

}  // namespace
