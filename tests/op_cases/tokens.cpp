// What lies around the layers: embeddings, activations and the loss.
#include <algorithm>
#include <array>

#include "kernels/activation/activation.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/embedding/embedding.h"
#include "tests/op_cases/machine.h"

using namespace hebb_test;

namespace {

std::vector<int64_t> random_ids(int64_t count, int64_t limit, uint32_t seed) {
  Numbers numbers(seed);
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < count; ++i) { ids.push_back(numbers.below(static_cast<uint32_t>(limit))); }
  return ids;
}

TEST_CASE("SwiGLU and squared ReLU", "[fast]") {
  const int64_t count = GENERATE(1, 37, 1000, 5003);
  check([=](Machine& m) {
    const Tensor y = m.output({count}), gate = m.input({count}, 4), up = m.input({count}), d_y = m.input({count}),
                 d_gate = m.output({count}), d_up = m.output({count}), square = m.output({count}),
                 d_square = m.output({count});
    m.run(SwigluForward{y, gate, up});
    m.run(SwigluBackward{.d_gate = d_gate, .d_up = d_up, .d_y = d_y, .gate = gate, .up = up});
    m.run(Relu2Forward{square, up});
    m.run(Relu2Backward{d_square, d_y, up});
    /// f(gate, up, d_y) of each number.
    const Values g = m.read(gate), u = m.read(up), d = m.read(d_y);
    const auto formula = [&](double (*f)(double, double, double)) {
      Values values;
      for (size_t i = 0; i < g.size(); ++i) { values.push_back(f(g[i], u[i], d[i])); }
      return values;
    };
    m.expect(y, formula([](double g, double u, double) { return g * u / (1 + std::exp(-g)); }));
    m.expect(d_up, formula([](double g, double, double d) { return d * g / (1 + std::exp(-g)); }));
    m.expect(d_gate, formula([](double g, double u, double d) {
               const double s = 1 / (1 + std::exp(-g));
               return d * u * (s + g * s * (1 - s));
             }));
    m.expect(square, formula([](double, double u, double) { return std::pow(std::max(u, 0.0), 2); }));
    m.expect(d_square, formula([](double, double u, double d) { return 2 * std::max(u, 0.0) * d; }));
  });
}

/// The gradient takes the place of the logits.
void run_loss(Machine& m, int64_t rows, int64_t vocab, bool has_gradient) {
  const Shape shape{rows, vocab};
  constexpr double kScale = 0.03;
  std::vector<int64_t> targets = random_ids(rows, vocab, 5);
  for (size_t r = 2; r < targets.size(); r += 3) { targets[r] = -100; }
  const bool has_factor = rows % 2 == 1;
  const Tensor logits = m.sum(shape, 8), loss = m.double_output({rows});
  Values losses, gradients = m.read(logits);
  for (size_t r = 0; r < targets.size(); ++r) {
    double* const x = gradients.data() + static_cast<int64_t>(r) * vocab;
    double sum = 0;
    for (int64_t v = 0; v < vocab; ++v) { sum += std::exp(x[v]); }
    losses.push_back(targets[r] < 0 ? 0 : std::log(sum) - x[targets[r]]);
    for (int64_t v = 0; has_gradient && v < vocab; ++v) {
      x[v] = targets[r] < 0 ? 0 : kScale * (std::exp(x[v]) / sum - (v == targets[r] ? 1 : 0));
    }
  }
  m.run(CrossEntropy{.loss = loss,
                     .gradient = has_gradient ? logits : Tensor{},
                     .logits = logits,
                     .targets = m.integers({rows}, targets),
                     .scale = has_factor ? 0.5 : kScale,
                     .factor = has_factor ? m.double_values({1}, {kScale / 0.5}) : Tensor{}});
  m.expect(loss, losses);
  m.expect(logits, gradients);
}

TEST_CASE("cross-entropy and its gradient", "[fast]") {
  const auto [rows, vocab] = GENERATE(std::pair{1, 1}, std::pair{7, 37}, std::pair{5, 1000}, std::pair{4, 5003});
  const bool has_gradient = GENERATE(false, true);
  CAPTURE(rows, vocab, has_gradient);
  check([&, rows = rows, vocab = vocab](Machine& m) { run_loss(m, rows, vocab, has_gradient); });
}

TEST_CASE("cross-entropy does not race", "[threads]") {
  check(DType::f32, [](Machine& m) { run_loss(m, 2, 1100, true); });
}

TEST_CASE("embedding rows are copied, in every pair of types", "[fast]") {
  const int64_t width = GENERATE(1, 20, 64, 1500);
  const std::vector<int64_t> ids = random_ids(29, 11, 1);
  check([&](Machine& m) {
    for (const bool of_fp32 : {true, false}) {
      const Tensor table = of_fp32 ? m.parameter({11, width}) : m.input({11, width}), y = m.output({29, width});
      m.run(EmbeddingForward{y, table, m.integers({29}, ids)}, 0);
      const Values rows = m.read(table);
      Values expected;
      for (const int64_t id : ids) {
        expected.insert(expected.end(), rows.begin() + id * width, rows.begin() + (id + 1) * width);
      }
      m.expect(y, expected, 0);
    }
  });
}

void run_embedding_gradient(Machine& m, const std::vector<int64_t>& ids, int64_t vocab, int64_t width) {
  const auto tokens = static_cast<int64_t>(ids.size());
  const Tensor d_table = m.float_sum({vocab, width}), d_y = m.input({tokens, width});
  Values expected = m.read(d_table);
  m.run(EmbeddingBackward{d_table, d_y, m.integers({tokens}, ids)});
  if (!m.has_formulas()) { return; }
  const Values d = m.read(d_y);
  for (size_t t = 0; t < ids.size(); ++t) {
    for (int64_t i = 0; i < width; ++i) {
      expected[static_cast<size_t>(ids[t] * width + i)] += d[t * static_cast<size_t>(width) + static_cast<size_t>(i)];
    }
  }
  m.expect(d_table, expected);
}

TEST_CASE("the embedding gradient sums the rows of each id, few or many", "[fast]") {
  // Vocabulary 1: one id through all chunks. 1100 tokens of width 520 exceed the workspace and go in two runs.
  const std::array<int, 3> size = GENERATE(std::array{1, 5, 3}, std::array{70, 1, 20}, std::array{333, 4, 67},
                                           std::array{333, 50000, 24}, std::array{1100, 70, 520});
  CAPTURE(size[0], size[1], size[2]);
  check([&](Machine& m) { run_embedding_gradient(m, random_ids(size[0], size[1], 9), size[1], size[2]); });
}

TEST_CASE("the embedding gradient and its sort do not race", "[threads]") {
  std::vector<int64_t> ids(70, 2);
  for (size_t i = 0; i < ids.size(); i += 3) { ids[i] = static_cast<int64_t>(i) % 5; }
  check(DType::f32, [&](Machine& m) { run_embedding_gradient(m, ids, 5, 8); });
}

}  // namespace
