// Convolutions, norms and gates of heads, and the places of keys.
#include <algorithm>

#include "kernels/attention/visible_keys.h"
#include "kernels/delta_gates/scratch.h"
#include "kernels/head_norm/scratch.h"
#include "kernels/scaled_l2_norm/scratch.h"
#include "kernels/short_conv/scratch.h"
#include "tests/op_cases/machine.h"

using namespace hebb_test;

namespace {

constexpr int64_t kRows = 2, kLength = 70;

struct Filter {
  int64_t taps;  // 0: no filter
  bool biased, silu;
  int64_t channels = 37, head_dim = 0;             // 0: no norm of heads
  bool scans_with_norm = false, and_back = false;  // in one kernel
};

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double silu_slope(double x) { return sigmoid(x) * (1 + x * (1 - sigmoid(x))); }

/// A convolution and, to what is there, its gradients.
struct Convolved {
  Values y, d_x, d_weight, d_bias;
};

/// From the definition, for rows of `length` tokens. previous: the inputs before the rows.
void convolve(const Filter& f, int64_t length, const std::vector<int64_t>& starts, const Values& x,
              const Values& weight, const Values& bias, const Values& previous, const Values& d_y, Convolved& to) {
  const int64_t channels = f.channels, taps = f.taps;
  for (size_t at = 0; at < x.size(); ++at) {
    const int64_t i = static_cast<int64_t>(at) / channels, c = static_cast<int64_t>(at) % channels, t = i % length;
    const auto w = [&](int64_t l) { return static_cast<size_t>(c * taps + taps - 1 - l); };
    const auto input = [&](int64_t l) { return static_cast<size_t>((i - l) * channels + c); };
    const int64_t last = std::min(std::max<int64_t>(taps, 1) - 1, t - starts[static_cast<size_t>(i)]);
    const auto u = [&](int64_t l) {
      return t >= l ? x[input(l)]
                    : previous[static_cast<size_t>((i / length * (taps - 1) + taps - 1 + t - l) * channels + c)];
    };
    double z = f.biased ? bias[static_cast<size_t>(c)] : 0;
    for (int64_t l = 0; l <= last; ++l) { z += (taps > 0 ? weight[w(l)] : 1) * u(l); }
    to.y.push_back(f.silu ? z * sigmoid(z) : z);
    if (d_y.empty()) { continue; }
    const double d_z = d_y[at] * (f.silu ? silu_slope(z) : 1);
    if (f.biased) { to.d_bias[static_cast<size_t>(c)] += d_z; }
    for (int64_t l = 0; l <= last; ++l) {
      to.d_x[input(l)] += d_z * (taps > 0 ? weight[w(l)] : 1);
      if (taps > 0) { to.d_weight[w(l)] += d_z * u(l); }
    }
  }
}

Values read_any(Machine& m, const Tensor& t) { return t.defined() ? m.read(t) : Values{}; }

/// Forward and backward.
void check_filter(Machine& m, const Filter& f) {
  const Shape shape{kRows, kLength, f.channels}, weights{f.channels, f.taps};
  const Tensor documents = m.integers({kRows, kLength}, documents_of_two_rows()), x = m.input(shape),
               weight = f.taps > 0 ? m.parameter(weights) : Tensor{},
               bias = f.biased ? m.parameter({f.channels}) : Tensor{}, y = m.output(shape),
               scale = f.head_dim > 0 ? m.float_output({kRows, kLength, f.channels / f.head_dim}) : Tensor{};
  // A norm in a kernel of its own finds the activation, or leaves its gradient, in bf16: each within 2^-9.
  const auto tolerance = [&](bool in_one_kernel) {
    return f.head_dim > 0 && m.is_bf16() && !in_one_kernel ? 4e-3 : kSingle;
  };
  const bool fits = f.scans_with_norm && (m.is_bf16() || f.head_dim <= 128);
  const auto apart = [&](const char* kernel, bool in_one_kernel) {
    return Launches{f.head_dim > 0 ? kernel : nullptr, !in_one_kernel};
  };
  m.run(ShortConvForward{.y = y,
                         .x = x,
                         .weight = weight,
                         .bias = bias,
                         .previous = {},
                         .doc_start = documents,
                         .silu = f.silu,
                         .scale = scale,
                         .head_dim = f.head_dim},
        tolerance(fits), apart("l2_norm_forward", fits));
  ShortConvBackward back{.d_x = m.gradient(shape, f.biased),
                         .d_weight = f.taps > 0 ? m.float_sum(weights) : Tensor{},
                         .d_bias = f.biased ? m.float_sum({f.channels}) : Tensor{},
                         .d_y = m.input(shape),
                         .x = x,
                         .weight = weight,
                         .bias = bias,
                         .doc_start = documents,
                         .silu = f.silu,
                         .accumulate = f.biased};
  if (f.head_dim > 0) {
    back.n = y;
    back.scale = scale;
    back.head_dim = f.head_dim;
  }
  Convolved expected{{},
                     f.biased ? m.read(back.d_x) : Values(static_cast<size_t>(shape.numel())),
                     read_any(m, back.d_weight),
                     read_any(m, back.d_bias)};
  m.run(back, tolerance(f.and_back), apart("l2_norm_backward", f.and_back));
  if (f.head_dim > 0 || !m.has_formulas()) { return; }
  convolve(f, kLength, documents_of_two_rows(), m.read(x), read_any(m, weight), read_any(m, bias), {}, m.read(back.d_y),
           expected);
  m.expect(y, expected.y);
  m.expect(back.d_x, expected.d_x);
  m.expect(back.d_weight, expected.d_weight);
  m.expect(back.d_bias, expected.d_bias);
}

TEST_CASE("short convolutions", "[fast]") {
  // Filters of up to four taps scan the tokens, those of five do not.
  for (const Filter& f :
       {Filter{4, true, true}, {3, false, false}, {2, true, true}, {5, true, true}, {0, false, true}}) {
    CAPTURE(f.taps);
    check([f](Machine& m) { check_filter(m, f); });
  }
  for (const int64_t taps : {2, 3, 4, 7}) {
    for (const int64_t channels : {1, 16, 19, 300}) {
      CAPTURE(taps, channels);
      const bool silu = (taps + channels) % 2 == 0;
      check(one_of_both_types(static_cast<int>(taps / 2 + channels)), [=](Machine& m) {
        check_filter(m, {taps, taps % 2 == 0, silu, channels});
      });
    }
  }
}

TEST_CASE("the short convolution does not depend on the number of threads", "[threads]") {
  check(DType::f32, [](Machine& m) { check_filter(m, {4, true, true, 40}); });
}

TEST_CASE("short convolutions with norms of heads", "[fast]") {
  for (const Filter& f : {Filter{4, true, true, 64, 32, true, true},
                          {3, false, true, 32, 8, true, true},
                          {4, false, true, 48, 24, false, false},
                          {2, true, false, 256, 256, true, false},
                          {4, true, true, 37, 37, false, false},
                          {5, false, true, 32, 16, false, false},
                          {0, false, true, 32, 16, false, false},
                          {0, false, false, 32, 16, false, false}}) {
    CAPTURE(f.channels, f.head_dim, f.taps);
    check([f](Machine& m) { check_filter(m, f); });
  }
}

TEST_CASE("carried inputs of a convolution", "[fast]") {
  const int64_t offset = GENERATE(1, 2, 9);
  for (const auto& [length, taps, channels] :
       {std::tuple<int64_t, int64_t, int64_t>{1, 4, 5}, {2, 4, 8}, {5, 4, 5}, {21, 2, 5}, {3, 5, 5}}) {
    CAPTURE(offset, length, taps);
    check(DType::f32, [=, length = length, taps = taps, channels = channels](Machine& m) {
      std::vector<int64_t> starts(static_cast<size_t>(2 * length), -offset);
      starts.back() = length - 1;  // a document that begins with the last token
      const Shape shape{2, length, channels}, before{2, taps - 1, channels};
      Values inputs = as_double(random_values<float>(before.numel(), 3));
      for (size_t i = 0; i < inputs.size(); ++i) {  // what lies before the document was never written
        if (static_cast<int64_t>(i) / channels % (taps - 1) < taps - 1 - offset) { inputs[i] = std::nan(""); }
      }
      const Tensor y = m.output(shape), x = m.input(shape), weight = m.parameter({channels, taps});
      m.run(ShortConvForward{.y = y,
                             .x = x,
                             .weight = weight,
                             .bias = {},
                             .previous = m.activations(before, inputs),
                             .doc_start = m.integers({2, length}, starts),
                             .silu = true});
      if (m.has_formulas()) {
        Convolved expected;
        convolve({taps, false, true, channels}, length, starts, m.read(x), m.read(weight), {}, inputs, {}, expected);
        m.expect(y, expected.y);
      }
      const Tensor window = m.sum({2, 3, 5}), more = m.input({2, length, 5});
      const Values old = m.read(window), all = m.read(more);
      m.run(ShortConvShift{window, more});
      Values expected;
      for (int64_t row = 0; row < 2; ++row) {
        Values line(old.begin() + row * 15, old.begin() + (row + 1) * 15);
        line.insert(line.end(), all.begin() + row * length * 5, all.begin() + (row + 1) * length * 5);
        expected.insert(expected.end(), line.end() - 15, line.end());
      }
      m.expect(window, expected);
    });
  }
}

/// f(head, index) of each number of heads with `width` channels.
template <class F> Values each_head(int64_t width, size_t count, F&& f) {
  Values values;
  for (size_t i = 0; i < count; ++i) { values.push_back(f(i / static_cast<size_t>(width), i)); }
  return values;
}
template <class F> double sum_of_head(int64_t width, size_t head, F&& f) {
  double sum = 0;
  for (size_t i = 0; i < static_cast<size_t>(width); ++i) { sum += f(head * static_cast<size_t>(width) + i); }
  return sum;
}

TEST_CASE("l2 norms of heads", "[fast]") {
  for (const int64_t width : {37, 8, 64, 520}) {  // no packs; one lane or two; a part of a warp; several packs a lane
    CAPTURE(width);
    check([width](Machine& m) {
      const Shape shape{5, 3 * width};
      const L2NormForward f{
          .n = m.output(shape), .scale = m.float_output({5, 3}), .x = m.input(shape), .head_dim = width};
      m.run(f);
      const L2NormBackward b{.d_x = m.sum(shape),
                             .d_n = m.input(shape),
                             .n = m.input(shape, 0.2),
                             .scale = m.parameter({5, 3}),
                             .head_dim = width,
                             .accumulate = true};
      const Values d_x = m.read(b.d_x), x = m.read(f.x), n = m.read(b.n), d_n = m.read(b.d_n), scale = m.read(b.scale);
      m.run(b);
      m.expect(f.n, each_head(width, x.size(), [&](size_t head, size_t i) {
                 return x[i] / std::sqrt(sum_of_head(width, head, [&](size_t j) { return x[j] * x[j]; }) + 1e-6);
               }));
      m.expect(b.d_x, each_head(width, n.size(), [&](size_t head, size_t i) {
                 const double along = sum_of_head(width, head, [&](size_t j) { return n[j] * d_n[j]; });
                 return d_x[i] + scale[head] * (d_n[i] - n[i] * along);
               }));
    });
  }
  for (const int64_t width : {37, 48}) {
    check([width](Machine& m) {
      const Shape shape{70, 3, width};
      m.run(ScaledL2NormForward{m.output(shape), m.input(shape), m.parameter({3})});
      m.run(ScaledL2NormBackward{.d_x = m.sum(shape),
                                 .d_scale = m.float_sum({3}),
                                 .d_y = m.input(shape),
                                 .x = m.input(shape),
                                 .scale = m.parameter({3}),
                                 .accumulate = true});
    });
  }
}

struct Gate {
  HeadGate gate;
  int64_t heads, width, weights;  // weights 0: no norm
  bool gates_first = false, accumulate_o = true, accumulate_z = false, of_fp32 = false;
  int64_t rows = 70;
};

void check_gated_norm(Machine& m, const Gate& g) {
  const Shape shape{g.rows, g.heads * g.width};
  const bool gated = g.gate != HeadGate::none, normed = g.weights > 0;
  const Tensor weight = normed ? m.parameter({g.weights}) : Tensor{}, z = gated ? m.input(shape) : Tensor{},
               o = g.of_fp32 ? m.parameter(shape) : m.input(shape), y = m.output(shape);
  m.run(GatedNormForward{.y = y,
                         .o = o,
                         .z = z,
                         .weight = weight,
                         .head_dim = g.width,
                         .eps = 1e-5,
                         .gate = g.gate,
                         .gate_first = g.gates_first});
  const GatedNormBackward b{.d_o = g.of_fp32 ? m.float_sum(shape) : m.gradient(shape, g.accumulate_o),
                            .d_z = gated ? m.gradient(shape, g.accumulate_z) : Tensor{},
                            .d_weight = normed ? m.float_sum({g.weights}) : Tensor{},
                            .d_y = m.input(shape),
                            .o = o,
                            .z = z,
                            .weight = weight,
                            .head_dim = g.width,
                            .eps = 1e-5,
                            .gate = g.gate,
                            .accumulate_o = g.accumulate_o,
                            .accumulate_z = g.accumulate_z,
                            .gate_first = g.gates_first};
  const auto start = [&](const Tensor& t, bool adds) {
    return adds && t.defined() ? m.read(t) : Values(static_cast<size_t>(t.numel()));
  };
  Values d_o = start(b.d_o, g.accumulate_o || g.of_fp32), d_z = start(b.d_z, g.accumulate_z),
         d_weight = read_any(m, b.d_weight);
  m.run(b);
  if (!m.has_formulas()) { return; }
  const Values of_o = m.read(o), of_z = read_any(m, z), w = read_any(m, weight), d_y = m.read(b.d_y);
  const auto opens = [&](size_t i) {
    return !gated ? 1 : g.gate == HeadGate::silu ? of_z[i] * sigmoid(of_z[i]) : sigmoid(of_z[i]);
  };
  const auto in = [&](size_t i) { return of_o[i] * (g.gates_first ? opens(i) : 1); };  // of the norm
  const auto behind = [&](size_t i) { return g.gates_first ? 1 : opens(i); };
  const auto at = [&](size_t i) { return i % static_cast<size_t>(normed ? g.weights : 1); };
  const auto width = static_cast<double>(g.width);
  m.expect(y, each_head(g.width, of_o.size(), [&](size_t head, size_t i) {
             const auto squares = [&](size_t j) { return in(j)*in(j); };
             const double rstd = !normed ? 1 : 1 / std::sqrt(sum_of_head(g.width, head, squares) / width + 1e-5);
             const auto scaled = [&](size_t j) { return d_y[j] * behind(j) * (normed ? w[at(j)] : 1); };
             const double n = in(i)*rstd,
                          along = normed ? sum_of_head(g.width, head, [&](size_t j) { return in(j)*scaled(j); }) : 0,
                          d_in = rstd * (scaled(i) - n * rstd * along / width);
             d_o[i] += d_in * (g.gates_first ? opens(i) : 1);
             if (normed) { d_weight[at(i)] += d_y[i] * n * behind(i); }
             if (gated) {
               const double slope = g.gate == HeadGate::silu ? silu_slope(of_z[i]) : opens(i) * (1 - opens(i));
               d_z[i] += slope * (g.gates_first ? d_in * of_o[i] : d_y[i] * n * (normed ? w[at(i)] : 1));
             }
             return n * behind(i) * (normed ? w[at(i)] : 1);
           }));
  m.expect(b.d_o, d_o);
  m.expect(b.d_z, d_z);
  m.expect(b.d_weight, d_weight);
}

TEST_CASE("gradients of heads and of activations may take the place of what they come from", "[fast]") {
  const Shape shape{kRows, kLength, 37};
  Values with_zeros = as_double(random_values<float>(shape.numel(), 3));
  std::fill_n(with_zeros.begin(), 37, 0.0);  // a head of zeros stays one
  check([&](Machine& m) {
    const Tensor n = m.output(shape), scale = m.float_output({kRows, kLength}), d = m.sum(shape), d_y = m.sum(shape),
                 x = m.activations(shape, with_zeros);
    m.run(L2NormForward{.n = n, .scale = scale, .x = x, .head_dim = 37});
    const Values of_x = m.read(x);
    m.expect(scale, each_head(1, static_cast<size_t>(scale.numel()), [&](size_t head, size_t) {
               return 1 / std::sqrt(sum_of_head(37, head, [&](size_t j) { return of_x[j] * of_x[j]; }) + 1e-6);
             }));
    m.run(L2NormBackward{.d_x = d, .d_n = d, .n = n, .scale = scale, .head_dim = 37, .accumulate = false});
    const Values before = m.read(d_y);
    m.run(ShortConvBackward{.d_x = d_y,
                            .d_weight = {},
                            .d_bias = {},
                            .d_y = d_y,
                            .x = x,
                            .weight = {},
                            .bias = {},
                            .doc_start = m.integers({kRows, kLength}, documents_of_two_rows()),
                            .silu = true,
                            .accumulate = false});
    m.expect(d_y, each_head(1, of_x.size(), [&](size_t i, size_t) { return before[i] * silu_slope(of_x[i]); }));
  });
}

TEST_CASE("gated norms", "[fast]") {
  const HeadGate gate = GENERATE(HeadGate::none, HeadGate::silu, HeadGate::sigmoid);
  const int64_t width = gate == HeadGate::sigmoid ? 40 : 37;  // in packs or not
  for (const bool normed : {true, false}) {
    check([=](Machine& m) { check_gated_norm(m, {gate, 2, width, normed ? width : 0}); });
  }
  if (gate != HeadGate::silu) {
    INFO("fp32 answers among bf16 activations");
    check(DType::bf16, [=](Machine& m) { check_gated_norm(m, {gate, 2, 37, 37, false, true, false, true}); });
  }
}

TEST_CASE("norms of gated heads, with a weight for each channel", "[fast]") {
  for (const auto& [heads, width, by_channel] :
       {std::tuple<int64_t, int64_t, bool>{2, 37, false}, {2, 37, true}, {3, 16, true}, {260, 4, true}}) {
    CAPTURE(heads, width);
    const Gate gate{HeadGate::silu, heads, width, by_channel ? heads * width : width, true, false, true};
    check([gate](Machine& m) { check_gated_norm(m, gate); });
  }
}

TEST_CASE("norms and gates of heads do not race", "[threads]") {
  check(DType::f32, [](Machine& m) {
    check_gated_norm(m, {HeadGate::silu, 2, 24, 24, false, false, false, false, 3});
  });
}

TEST_CASE("gates of the delta rule", "[fast]") {
  check([](Machine& m) {
    const Shape shape{70, 3}, heads{3};
    const Tensor a_log = m.parameter(heads), dt_bias = m.parameter(heads);
    const DeltaGatesForward f{.g = m.float_output(shape),
                              .beta = m.float_output(shape),
                              .a = m.input(shape, 30),
                              .b = m.input(shape),
                              .a_log = a_log,
                              .dt_bias = dt_bias,
                              .beta_scale = 2.0};
    m.run(f);
    const DeltaGatesBackward b{.d_a = m.sum(shape),
                               .d_b = m.output(shape),
                               .d_a_log = m.float_sum(heads),
                               .d_dt_bias = m.float_sum(heads),
                               .d_g = m.parameter(shape),
                               .d_beta = m.parameter(shape),
                               .g = m.parameter(shape),
                               .beta = m.parameter(shape),
                               .a = m.input(shape),
                               .a_log = a_log,
                               .dt_bias = dt_bias,
                               .beta_scale = 2.0,
                               .accumulate_a = true,
                               .accumulate_b = false};
    Values d_a = m.read(b.d_a), d_log = m.read(b.d_a_log), d_bias = m.read(b.d_dt_bias), d_b;
    m.run(b);
    // softplus(z) = z above 20: off by e^-20 = 2e-9 there.
    constexpr double kSoftplus = 1e-8;
    const Values log = m.read(a_log), bias = m.read(dt_bias), of_a = m.read(f.a), of_b = m.read(f.b);
    m.expect(f.g,
             each_head(1, of_a.size(),
                       [&](size_t i, size_t) {
                         const double z = of_a[i] + bias[i % 3];
                         return -std::exp(log[i % 3]) * (z > 20 ? z : std::log1p(std::exp(z)));
                       }),
             kSoftplus);
    m.expect(f.beta, each_head(1, of_b.size(), [&](size_t i, size_t) { return 2 * sigmoid(of_b[i]); }));
    const Values d_g = m.read(b.d_g), g = m.read(b.g), d_beta = m.read(b.d_beta), beta = m.read(b.beta),
                 a = m.read(b.a);
    for (size_t i = 0; i < a.size(); ++i) {
      const double d = -d_g[i] * std::exp(log[i % 3]) * sigmoid(a[i] + bias[i % 3]);
      d_a[i] += d;
      d_bias[i % 3] += d;
      d_log[i % 3] += d_g[i] * g[i];
      d_b.push_back(d_beta[i] * beta[i] * (1 - beta[i] / 2));
    }
    m.expect(b.d_a, d_a, kSoftplus);
    m.expect(b.d_b, d_b);
    m.expect(b.d_a_log, d_log);
    m.expect(b.d_dt_bias, d_bias, kSoftplus);
  });
}

TEST_CASE("gates whose strength is the step", "[fast]") {
  check(DType::f32, [](Machine& m) {
    const Shape shape{70, 3}, heads{3};
    const Tensor g = m.float_output(shape), beta = m.float_output(shape), a = m.input(shape, 3),
                 a_log = m.parameter(heads), dt_bias = m.parameter(heads);
    m.run(DeltaGatesForward{.g = g,
                            .beta = beta,
                            .a = a,
                            .b = {},
                            .a_log = a_log,
                            .dt_bias = dt_bias,
                            .beta_scale = 1.0,
                            .dt_low = 0.2,
                            .dt_high = 1.5});
    m.run(DeltaGatesBackward{.d_a = m.sum(shape),
                             .d_b = {},
                             .d_a_log = m.float_sum(heads),
                             .d_dt_bias = m.float_sum(heads),
                             .d_g = m.parameter(shape),
                             .d_beta = m.parameter(shape),
                             .g = g,
                             .beta = beta,
                             .a = a,
                             .a_log = a_log,
                             .dt_bias = dt_bias,
                             .beta_scale = 1.0,
                             .accumulate_a = true,
                             .accumulate_b = false,
                             .b_is_step = true,
                             .dt_low = 0.2,
                             .dt_high = 1.5});
  });
}

TEST_CASE("visible keys and rings", "[fast]") {
  for (const KeyRange& range :
       {KeyRange{.window = 5}, KeyRange{.block = 3, .blocks = 3}, KeyRange{.block = 4, .blocks = 1}, KeyRange{}}) {
    CAPTURE(range.window, range.block, range.blocks);
    check(DType::f32, [&](Machine& m) {
      m.run(VisibleKeys{.lo = m.integer_output({kRows, kLength}),
                        .hi = m.integer_output({kRows, kLength}),
                        .doc_start = m.integers({kRows, kLength}, documents_of_two_rows()),
                        .range = range,
                        .offset = 2});
    });
    if (range.full()) { continue; }
    const RingSlots slots{range};
    const int64_t size = range.size();
    for (const int64_t position : {0, 3, 6, 12, 16, 17}) {
      CAPTURE(position);
      check(DType::f32, [&](Machine& m) {
        const Tensor at = m.integers({2, 1}, {-position, 0});
        m.run(RingAppend{.ring = m.sum({2, size, 37}), .x = m.input({2, 1, 37}), .doc_start = at, .slots = slots}, 0);
        m.run(
            RingKeys{.lo = m.integer_output({2, 1}), .hi = m.integer_output({2, 1}), .doc_start = at, .slots = slots});
        // Documents: one that continues, one that begins within the row.
        const Tensor documents = m.integers({2, 3}, {-position, -position, -position, 0, 0, 2});
        m.run(RingUnroll{.line = m.sum({2, size - 1 + 3, 5}),
                         .ring = m.input({2, size, 5}),
                         .doc_start = documents,
                         .slots = slots},
              0);
        m.run(RingStore{.ring = m.sum({2, size, 5}),
                        .line = m.input({2, size - 1 + 3, 5}),
                        .doc_start = documents,
                        .slots = slots},
              0);
      });
    }
  }
}

}  // namespace
