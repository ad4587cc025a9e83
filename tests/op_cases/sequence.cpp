// Convolutions, norms and gates of heads, and the places of keys.
#include "kernels/attention/visible_keys.h"
#include "kernels/delta_gates/scratch.h"
#include "kernels/head_norm/scratch.h"
#include "kernels/scaled_l2_norm/scratch.h"
#include "kernels/short_conv/scratch.h"
#include "tests/op_cases/machine.h"

using namespace hebb_test;
using namespace hebb;

namespace {

constexpr int64_t kRows = 2, kLength = 70;

struct Filter {
  int64_t taps;  // 0: no filter
  bool biased, silu;
  int64_t channels = 37, head_dim = 0;             // 0: no norm of heads
  bool walks_with_norm = false, and_back = false;  // in one kernel
};

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
  const bool fits = f.walks_with_norm && (m.is_bf16() || f.head_dim <= 128);
  const auto apart = [&](const char* kernel, bool in_one_kernel) {
    return Launches{f.head_dim > 0 ? kernel : nullptr, !in_one_kernel};
  };
  m.run(ShortConvForward{y, x, weight, bias, {}, documents, f.silu, scale, f.head_dim}, tolerance(fits),
        apart("l2_norm_forward", fits));
  ShortConvBackward back{m.gradient(shape, f.biased),
                         f.taps > 0 ? m.float_sum(weights) : Tensor{},
                         f.biased ? m.float_sum({f.channels}) : Tensor{},
                         m.input(shape),
                         x,
                         weight,
                         bias,
                         documents,
                         f.silu,
                         f.biased};
  if (f.head_dim > 0) {
    back.n = y;
    back.scale = scale;
    back.head_dim = f.head_dim;
  }
  m.run(back, tolerance(f.and_back), apart("l2_norm_backward", f.and_back));
}

TEST_CASE("short convolutions", "[fast]") {
  // Up to four taps are walked over, five are not.
  for (const Filter& f :
       {Filter{4, true, true}, {3, false, false}, {2, true, true}, {5, true, true}, {0, false, true}}) {
    CAPTURE(f.taps);
    check([f](Machine& m) { check_filter(m, f); });
  }
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
  for (const auto& [length, taps, channels] :
       {std::tuple<int64_t, int64_t, int64_t>{1, 4, 5}, {2, 4, 8}, {5, 4, 5}, {21, 2, 5}, {3, 5, 5}}) {
    check(DType::f32, [=, length = length, taps = taps, channels = channels](Machine& m) {
      std::vector<int64_t> starts(static_cast<size_t>(2 * length), -9);
      starts.back() = length - 1;  // a document that begins with the last token
      const Shape shape{2, length, channels};
      m.run(ShortConvForward{m.output(shape),
                             m.input(shape),
                             m.parameter({channels, taps}),
                             {},
                             m.input({2, taps - 1, channels}),
                             m.integers({2, length}, starts),
                             true});
      m.run(ShortConvShift{m.sum({2, 3, 5}), m.input({2, length, 5})});
    });
  }
}

TEST_CASE("l2 norms of heads", "[fast]") {
  for (const int64_t width : {37, 8, 64, 520}) {  // no packs; one lane or two; a part of a warp; several packs a lane
    CAPTURE(width);
    check([width](Machine& m) {
      const Shape shape{5, 3 * width};
      m.run(L2NormForward{m.output(shape), m.float_output({5, 3}), m.input(shape), width});
      m.run(L2NormBackward{m.sum(shape), m.input(shape), m.input(shape, 0.2), m.parameter({5, 3}), width, true});
    });
  }
  for (const int64_t width : {37, 48}) {
    check([width](Machine& m) {
      const Shape shape{70, 3, width};
      m.run(ScaledL2NormForward{m.output(shape), m.input(shape), m.parameter({3})});
      m.run(
          ScaledL2NormBackward{m.sum(shape), m.float_sum({3}), m.input(shape), m.input(shape), m.parameter({3}), true});
    });
  }
}

struct Gate {
  HeadGate gate;
  int64_t heads, width, weights;  // weights 0: no norm
  bool gates_first = false, accumulate_o = true, accumulate_z = false, of_fp32 = false;
};

void check_gated_norm(Machine& m, const Gate& g) {
  const Shape shape{70, g.heads * g.width};
  const auto o = [&] { return g.of_fp32 ? m.parameter(shape) : m.input(shape); };
  const bool gated = g.gate != HeadGate::none, normed = g.weights > 0;
  const Tensor weight = normed ? m.parameter({g.weights}) : Tensor{}, z = gated ? m.input(shape) : Tensor{};
  m.run(GatedNormForward{m.output(shape), o(), z, weight, g.width, 1e-5, g.gate, g.gates_first});
  m.run(GatedNormBackward{g.of_fp32 ? m.float_sum(shape) : m.gradient(shape, g.accumulate_o),
                          gated ? m.gradient(shape, g.accumulate_z) : Tensor{},
                          normed ? m.float_sum({g.weights}) : Tensor{}, m.input(shape), o(), z, weight, g.width, 1e-5,
                          g.gate, g.accumulate_o, g.accumulate_z, g.gates_first});
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
    const Shape shape{3, 2 * 24};
    m.run(GatedNormBackward{m.output(shape), m.output(shape), m.float_sum({24}), m.input(shape), m.input(shape),
                            m.input(shape), m.parameter({24}), 24, 1e-5, HeadGate::silu, false, false});
  });
}

TEST_CASE("gates of the delta rule", "[fast]") {
  check([](Machine& m) {
    const Shape shape{70, 3}, heads{3};
    const Tensor a_log = m.parameter(heads), dt_bias = m.parameter(heads);
    m.run(DeltaGatesForward{m.float_output(shape), m.float_output(shape), m.input(shape, 30), m.input(shape), a_log,
                            dt_bias, 2.0});
    m.run(DeltaGatesBackward{m.sum(shape), m.output(shape), m.float_sum(heads), m.float_sum(heads), m.parameter(shape),
                             m.parameter(shape), m.parameter(shape), m.parameter(shape), m.input(shape), a_log, dt_bias,
                             2.0, true, false});
  });
}

TEST_CASE("gates whose strength is the step", "[fast]") {
  check(DType::f32, [](Machine& m) {
    const Shape shape{70, 3}, heads{3};
    const Tensor g = m.float_output(shape), beta = m.float_output(shape), a = m.input(shape, 3),
                 a_log = m.parameter(heads), dt_bias = m.parameter(heads);
    m.run(DeltaGatesForward{g, beta, a, {}, a_log, dt_bias, 1.0, 0.2, 1.5});
    m.run(DeltaGatesBackward{m.sum(shape),
                             {},
                             m.float_sum(heads),
                             m.float_sum(heads),
                             m.parameter(shape),
                             m.parameter(shape),
                             g,
                             beta,
                             a,
                             a_log,
                             dt_bias,
                             1.0,
                             true,
                             false,
                             true,
                             0.2,
                             1.5});
  });
}

TEST_CASE("visible keys and rings", "[fast]") {
  for (const KeyRange& range :
       {KeyRange{.window = 5}, KeyRange{.block = 3, .blocks = 3}, KeyRange{.block = 4, .blocks = 1}, KeyRange{}}) {
    CAPTURE(range.window, range.block, range.blocks);
    check(DType::f32, [&](Machine& m) {
      m.run(VisibleKeys{m.integer_output({kRows, kLength}), m.integer_output({kRows, kLength}),
                        m.integers({kRows, kLength}, documents_of_two_rows()), range, 2});
    });
    if (range.full()) { continue; }
    const RingSlots slots{range};
    const int64_t size = range.size();
    for (const int64_t position : {0, 3, 6, 12, 16, 17}) {
      CAPTURE(position);
      check(DType::f32, [&](Machine& m) {
        const Tensor at = m.integers({2, 1}, {-position, 0});
        m.run(RingAppend{m.sum({2, size, 37}), m.input({2, 1, 37}), at, slots}, 0);
        m.run(RingKeys{m.integer_output({2, 1}), m.integer_output({2, 1}), at, slots});
        // Documents: one that continues, one that begins within the row.
        const Tensor documents = m.integers({2, 3}, {-position, -position, -position, 0, 0, 2});
        m.run(RingUnroll{m.sum({2, size - 1 + 3, 5}), m.input({2, size, 5}), documents, slots}, 0);
        m.run(RingStore{m.sum({2, size, 5}), m.input({2, size - 1 + 3, 5}), documents, slots}, 0);
      });
    }
  }
}

}  // namespace
