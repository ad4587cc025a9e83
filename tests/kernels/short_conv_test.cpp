#include "kernels/short_conv/short_conv.h"

#include "core/parallel.h"
#include "tests/kernels/tensors.h"

using namespace hebb;
using namespace hebb::testing;

namespace {

struct Problem {
  int64_t batch = 2, length = 70, channels = 19, taps = 4;
  bool silu = true, bias = true;
  std::vector<int32_t> doc_start;
  Values x, weight, shift, previous, d_y;

  Shape shape() const { return {batch, length, channels}; }
  void fill() {
    x = random_values(shape().numel(), "x");
    weight = random_values(channels * taps, "weight");
    shift = random_values(channels, "shift");
    previous = random_values(batch * (taps - 1) * channels, "previous");
    d_y = random_values(shape().numel(), "d_y");
    if (doc_start.empty()) { doc_start.assign(static_cast<size_t>(batch * length), 0); }
  }
  /// z, straight from the definition; `previous` stands before the rows.
  Values expected() const {
    Values y;
    for (int64_t i = 0; i < batch * length; ++i) {
      const int64_t t = i % length, b = i / length;
      for (int64_t c = 0; c < channels; ++c) {
        double z = bias ? shift[static_cast<size_t>(c)] : 0.0;
        for (int64_t l = 0; l < taps && t - l >= doc_start[static_cast<size_t>(i)]; ++l) {
          const double u = t - l >= 0
                               ? x[static_cast<size_t>((i - l) * channels + c)]
                               : previous[static_cast<size_t>((b * (taps - 1) + taps - 1 + t - l) * channels + c)];
          z += weight[static_cast<size_t>(c * taps + taps - 1 - l)] * u;
        }
        y.push_back(silu ? z / (1.0 + std::exp(-z)) : z);
      }
    }
    return y;
  }
};

Values forward(const Problem& p, DType dtype, bool carry = false) {
  Tensors t(dtype);
  const Tensor y = t.empty(p.shape());
  run(t.stream, ShortConvForward{y, t.make(p.shape(), p.x), t.make({p.channels, p.taps}, p.weight),
                                 p.bias ? t.make({p.channels}, p.shift) : Tensor{},
                                 carry ? t.make({p.batch, p.taps - 1, p.channels}, p.previous) : Tensor{},
                                 t.integers({p.batch, p.length}, p.doc_start), p.silu});
  return Tensors::read(y);
}

struct Gradients {
  Values x, weight, shift;
};

Gradients backward(const Problem& p, DType dtype, bool accumulate) {
  Tensors t(dtype);
  const Tensor d_x = accumulate ? t.make(p.shape(), p.x) : t.empty(p.shape());
  const Tensor d_weight = t.make({p.channels, p.taps}, p.weight), d_shift = p.bias ? t.zeros({p.channels}) : Tensor{};
  run(t.workspace(),
      ShortConvBackward{d_x, d_weight, d_shift, t.make(p.shape(), p.d_y), t.make(p.shape(), p.x),
                        t.make({p.channels, p.taps}, p.weight), p.bias ? t.make({p.channels}, p.shift) : Tensor{},
                        t.integers({p.batch, p.length}, p.doc_start), p.silu, accumulate});
  Gradients g{Tensors::read(d_x), Tensors::read(d_weight), p.bias ? Tensors::read(d_shift) : Values{}};
  for (size_t i = 0; i < g.weight.size(); ++i) {
    g.weight[i] -= p.weight[i];  // it is added to what was there
  }
  return g;
}

Problem packed() {
  Problem p;
  for (int64_t b = 0; b < 2; ++b) {
    for (int32_t t = 0; t < 70; ++t) {
      p.doc_start.push_back(b == 0 ? (t < 2 ? 0 : t < 3 ? 2 : t < 65 ? 3 : 65) : (t < 69 ? 0 : 69));
    }
  }
  return p;
}

}  // namespace

TEST_CASE("the short convolution follows its definition", "[short_conv][fast]") {
  for (const int64_t taps : {2, 3, 4, 7}) {
    for (const int64_t channels : {1, 16, 19, 300}) {
      for (const bool silu : {false, true}) {
        Problem p = packed();
        p.taps = taps;
        p.channels = channels;
        p.silu = silu;
        p.bias = taps % 2 == 0;
        p.fill();
        check_near("y", forward(p, DType::f64), p.expected(), 1e-13);  // fp64, 7 terms
        check_near("y, fp32", forward(p, DType::f32), p.expected(), 1e-6);
      }
    }
  }
}

TEST_CASE("rows that continue see the inputs before them", "[short_conv][fast]") {
  for (const int32_t offset : {1, 2, 3, 50}) {
    for (const int64_t length : {1, 2, 5}) {
      Problem p;
      p.length = length;
      p.doc_start.assign(static_cast<size_t>(2 * length), -offset);
      p.fill();
      for (size_t i = 0; i < p.previous.size(); ++i) {  // what lies before the document was never written
        if (static_cast<int64_t>(i) / p.channels % 3 < 3 - offset) { p.previous[i] = NAN; }
      }
      check_near("y", forward(p, DType::f64, true), p.expected(), 1e-13);
    }
  }
}

TEST_CASE("the window holds the last inputs whatever the length of the segments", "[short_conv][fast]") {
  const int64_t channels = 5, kept = 3;
  const Values stream = random_values(20 * channels, "stream");
  Tensors t(DType::f64);
  const Tensor previous = t.make({1, kept, channels}, random_values(kept * channels, "before"));
  int64_t at = 0;
  for (const int64_t length : {1, 1, 2, 5, 3, 1, 4}) {
    const auto begin = stream.begin() + at * channels;
    run(t.stream, ShortConvShift{previous, t.make({1, length, channels}, Values(begin, begin + length * channels))});
    at += length;
    if (at >= kept) {
      const auto end = stream.begin() + at * channels;
      CHECK(Tensors::read(previous) == Values(end - kept * channels, end));
    }
  }
}

TEST_CASE("the short convolution's gradients agree with difference quotients", "[short_conv][fast]") {
  for (const bool silu : {false, true}) {
    for (const int64_t taps : {2, 4}) {
      Problem p = packed();
      p.silu = silu;
      p.taps = taps;
      p.bias = silu;
      p.fill();
      const Gradients g = backward(p, DType::f64, false);
      const auto loss = [&](Values Problem::*member) {
        return [&p, member](const Values& values) {
          Problem other = p;
          other.*member = values;
          return weighted_sum(forward(other, DType::f64), p.d_y);
        };
      };
      check_derivative("x", p.x, g.x, loss(&Problem::x), 60);
      check_derivative("weight", p.weight, g.weight, loss(&Problem::weight), 80);
      if (p.bias) { check_derivative("bias", p.shift, g.shift, loss(&Problem::shift), 19); }
      Gradients added = backward(p, DType::f64, true);
      for (size_t i = 0; i < added.x.size(); ++i) { added.x[i] -= p.x[i]; }
      check_near("accumulated", added.x, g.x, 1e-13);
      check_near("fp32", backward(p, DType::f32, false).x, g.x, 1e-5);
    }
  }
}

TEST_CASE("without a filter only the activation is left", "[short_conv][fast]") {
  const Values x = random_values(2 * 5 * 3, "x"), d_y = random_values(2 * 5 * 3, "d_y");
  Tensors t(DType::f64);
  const Tensor doc_start = t.integers({2, 5}, std::vector<int32_t>(10, 0)), y = t.empty({2, 5, 3}),
               d = t.make({2, 5, 3}, d_y);
  run(t.stream, ShortConvForward{y, t.make({2, 5, 3}, x), {}, {}, {}, doc_start, true});
  run(t.workspace(), ShortConvBackward{d, {}, {}, d, t.make({2, 5, 3}, x), {}, {}, doc_start, true, false});
  for (size_t i = 0; i < x.size(); ++i) {
    const double s = 1.0 / (1.0 + std::exp(-x[i]));
    CHECK(Tensors::read(y)[i] == Approx(x[i] * s).epsilon(1e-14));
    CHECK(Tensors::read(d)[i] == Approx(d_y[i] * s * (1.0 + x[i] * (1.0 - s))).epsilon(1e-13));
  }
}

TEST_CASE("the short convolution gives the same bits on 1 and 3 threads", "[short_conv][threads]") {
  Problem p = packed();
  p.channels = 40;
  p.fill();
  set_threads(1);
  const Values y = forward(p, DType::f32);
  const Gradients one = backward(p, DType::f32, false);
  set_threads(3);
  CHECK(forward(p, DType::f32) == y);
  const Gradients three = backward(p, DType::f32, false);
  set_threads(0);
  CHECK(one.x == three.x);
  CHECK(one.weight == three.weight);
  CHECK(one.shift == three.shift);
}
