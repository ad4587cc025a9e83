// Fast-weight perceptrons.
#include "kernels/fwmlp/scratch.h"
#include "tests/op_cases/machine.h"

using namespace hebb_test;

namespace {

constexpr FwmlpSizes kSizes{.key_dim = 5, .hidden = 7, .value_dim = 6};
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

void run_chunk(Machine& m, bool mean, int64_t lookahead, double clip, bool second) {
  // With bf16 tokens the operands of products are rounded to TF32: 2^-11 (5e-4) each, and more where terms cancel.
  const auto tolerance = [&](double exact) { return m.is_bf16() ? 1e-3 : exact; };
  const Shape all{kSizes.total()}, keys{kTokens, kSizes.key_dim}, values{kTokens, kSizes.value_dim};
  const Tensor weights = m.parameter(all), vh = m.input(values), gradient = m.float_output(all);
  const FwmlpPairs pairs{m.input(values), m.integers({kTokens}, targets_of(lookahead)), mean, 5, lookahead};
  const FwmlpActivations kept{m.float_output({kRows, kSizes.key_dim}), m.float_output({kRows, 2 * kSizes.hidden}),
                              m.float_output({kRows, kSizes.hidden})};
  m.run(FwmlpRead{.vh = m.sum(values),
                  .kept = kept,
                  .weights = weights,
                  .tokens_q = m.input(keys),
                  .sizes = kSizes,
                  .chunk = kChunk},
        tolerance(kSingle));
  m.run(FwmlpStep{.next = m.float_output(all),
                  .gradient = gradient,
                  .weights = weights,
                  .vh = vh,
                  .kept = kept,
                  .pairs = pairs,
                  .sizes = kSizes,
                  .chunk = kChunk,
                  .rate = 0.3,
                  .clip = clip},
        tolerance(kSingle));
  m.run(FwmlpBackward{.d_q = m.sum(keys),
                      .d_v = m.sum(values),
                      .d_weights = lookahead == 0 ? Tensor{} : m.float_output(all),
                      .d_vh = m.input(values),
                      .d_next = second ? m.parameter(all) : Tensor{},
                      .gradient = gradient,
                      .weights = weights,
                      .vh = vh,
                      .kept = kept,
                      .pairs = pairs,
                      .sizes = kSizes,
                      .chunk = kChunk,
                      .rate = 0.3,
                      .clip = clip,
                      .accumulate = mean},
        tolerance(1e-5));  // chains of five products
}

TEST_CASE("reading, step and gradients of fast perceptrons", "[fast]") {
  const bool mean = GENERATE(false, true), second = GENERATE(false, true);
  const int64_t lookahead = GENERATE(0, 1, 2);
  const double clip = GENERATE(0.0, 0.05);
  CAPTURE(mean, second, lookahead, clip);
  check([=](Machine& m) { run_chunk(m, mean, lookahead, clip, second); });
}

}  // namespace
