// Convolutions, norms and gates of heads, and the places of keys, against their CPU twins.
#include "twins.h"

using namespace hebb_test;
using namespace hebb;

namespace {

constexpr int64_t kRows = 2, kLength = 70;

struct Filter {
  int64_t taps;
  bool weighted, biased, silu;
};

TEST_CASE("short convolutions equal the CPU's", "[fast]") {
  // Up to four taps are walked over, five are not.
  for (const Filter& f : {Filter{4, true, true, true}, Filter{3, true, false, false}, Filter{2, true, true, true},
                          Filter{5, true, true, true}, Filter{1, false, false, true}}) {
    CAPTURE(f.taps);
    in_both_types([&f](Twins& t) {
      const Shape shape{kRows, kLength, 37};
      const Twin y = t.output(shape), x = t.input(shape), doc = t.integers({kRows, kLength}, documents_of_two_rows()),
                 weight = f.weighted ? t.parameter({37, f.taps}) : Twin{}, bias = f.biased ? t.parameter({37}) : Twin{};
      t.check([&](auto at) { return ShortConvForward{at(y), at(x), at(weight), at(bias), Tensor{}, at(doc), f.silu}; });

      Twins back(t.is_bf16() ? DType::bf16 : DType::f32);
      const Twin d_y = back.input(shape), in = back.input(shape),
                 starts = back.integers({kRows, kLength}, documents_of_two_rows()),
                 w = f.weighted ? back.parameter({37, f.taps}) : Twin{}, b = f.biased ? back.parameter({37}) : Twin{},
                 d_x = f.biased ? back.sum(shape) : back.output(shape),
                 d_w = f.weighted ? back.float_sum({37, f.taps}) : Twin{},
                 d_b = f.biased ? back.float_sum({37}) : Twin{};
      back.check([&](auto at) {
        return ShortConvBackward{at(d_x), at(d_w), at(d_b),    at(d_y), at(in),
                                 at(w),   at(b),   at(starts), f.silu,  f.biased};
      });
    });
  }
}

struct NormedFilter {
  int64_t channels, head_dim, taps;
  bool biased, silu;
  bool walks_with_norm, and_back;  // in one kernel
};

TEST_CASE("short convolutions with norms of heads equal the CPU's", "[fast]") {
  for (const NormedFilter& f : {NormedFilter{64, 32, 4, true, true, true, true},
                                {32, 8, 3, false, true, true, true},
                                {48, 24, 4, false, true, false, false},
                                {256, 256, 2, true, false, true, false},
                                {37, 37, 4, true, true, false, false},
                                {32, 16, 5, false, true, false, false},
                                {32, 16, 0, false, true, false, false},
                                {32, 16, 0, false, false, false, false}}) {
    CAPTURE(f.channels, f.head_dim, f.taps);
    in_both_types([&f](Twins& t) {
      const Shape shape{kRows, kLength, f.channels}, heads{kRows, kLength, f.channels / f.head_dim};
      const Twin y = t.output(shape), x = t.input(shape), doc = t.integers({kRows, kLength}, documents_of_two_rows()),
                 weight = f.taps > 0 ? t.parameter({f.channels, f.taps}) : Twin{},
                 bias = f.biased ? t.parameter({f.channels}) : Twin{}, scale = t.float_output(heads);
      const auto forward = [&](auto at) {
        return ShortConvForward{at(y), at(x), at(weight), at(bias), Tensor{}, at(doc), f.silu, at(scale), f.head_dim};
      };
      const bool fits_forward = f.walks_with_norm && (t.is_bf16() || f.head_dim <= 128);
      const int64_t norms = simt::runs_of("l2_norm_forward");
      // A norm in a kernel of its own finds the activation, or leaves its gradient, in bf16: each within 2^-9.
      const auto tolerance = [&t](bool in_one_kernel) { return t.is_bf16() && !in_one_kernel ? 4e-3 : 2e-6; };
      t.check(forward, tolerance(fits_forward));
      CHECK((simt::runs_of("l2_norm_forward") == norms) == fits_forward);
      t.prepare(forward);
      const Twin d_y = t.input(shape), d_x = f.biased ? t.sum(shape) : t.output(shape),
                 d_w = f.taps > 0 ? t.float_sum({f.channels, f.taps}) : Twin{},
                 d_b = f.biased ? t.float_sum({f.channels}) : Twin{};
      const int64_t norms_back = simt::runs_of("l2_norm_backward");
      t.check(
          [&](auto at) {
            ShortConvBackward args{at(d_x),    at(d_w),  at(d_b), at(d_y), at(x),
                                   at(weight), at(bias), at(doc), f.silu,  f.biased};
            args.n = at(y);
            args.scale = at(scale);
            args.head_dim = f.head_dim;
            return args;
          },
          tolerance(f.and_back));
      CHECK((simt::runs_of("l2_norm_backward") == norms_back) == f.and_back);
    });
  }
}

TEST_CASE("carried inputs of a convolution equal the CPU's", "[fast]") {
  for (const auto& [length, taps, channels] :
       {std::tuple<int64_t, int64_t, int64_t>{1, 4, 5}, {2, 4, 8}, {5, 4, 5}, {21, 2, 5}, {3, 5, 5}}) {
    Twins t;
    const Twin y = t.output({2, length, channels}), x = t.input({2, length, channels}),
               weight = t.parameter({channels, taps}), previous = t.input({2, taps - 1, channels});
    std::vector<int64_t> starts(static_cast<size_t>(2 * length), -9);
    starts.back() = length - 1;  // a document that begins with the last token
    const Twin doc = t.integers({2, length}, starts);
    t.check([&](auto at) { return ShortConvForward{at(y), at(x), at(weight), Tensor{}, at(previous), at(doc), true}; });
    Twins shift;
    const Twin old = shift.sum({2, 3, 5}), in = shift.input({2, length, 5});
    shift.check([&](auto at) { return ShortConvShift{at(old), at(in)}; });
  }
}

TEST_CASE("norms of heads equal the CPU's", "[fast]") {
  for (const int64_t width : {37, 8, 64, 520}) {  // no packs; one lane or two; a part of a warp; several packs a lane
    CAPTURE(width);
    in_both_types([width](Twins& t) {
      const Twin n = t.output({5, 3 * width}), scale = t.float_output({5, 3}), x = t.input({5, 3 * width});
      t.check([&](auto at) { return L2NormForward{at(n), at(scale), at(x), width}; });
    });
    in_both_types([width](Twins& t) {
      const Twin d_x = t.sum({5, 3 * width}), d_n = t.input({5, 3 * width}), n = t.input({5, 3 * width}, 0.2),
                 scale = t.parameter({5, 3});
      t.check([&](auto at) { return L2NormBackward{at(d_x), at(d_n), at(n), at(scale), width, true}; });
    });
  }
  for (const int64_t width : {37, 48}) {
    in_both_types([width](Twins& t) {
      const Twin y = t.output({5, 3, width}), x = t.input({5, 3, width}), scale = t.parameter({3});
      t.check([&](auto at) { return ScaledL2NormForward{at(y), at(x), at(scale)}; });
    });
    in_both_types([width](Twins& t) {
      const Twin d_x = t.sum({70, 3, width}), d_scale = t.float_sum({3}), d_y = t.input({70, 3, width}),
                 x = t.input({70, 3, width}), scale = t.parameter({3});
      t.check([&](auto at) { return ScaledL2NormBackward{at(d_x), at(d_scale), at(d_y), at(x), at(scale), true}; });
    });
  }
}

TEST_CASE("gated norms equal the CPU's", "[fast]") {
  for (const HeadGate gate : {HeadGate::none, HeadGate::silu, HeadGate::sigmoid}) {
    for (const bool normed : {true, false}) {
      const int64_t width = gate == HeadGate::sigmoid ? 40 : 37;  // in packs or not
      in_both_types([&](Twins& t) {
        const Shape shape{70, 2 * width};
        const Twin y = t.output(shape), o = t.input(shape), z = gate != HeadGate::none ? t.input(shape) : Twin{},
                   weight = normed ? t.parameter({width}) : Twin{};
        t.check([&](auto at) { return GatedNormForward{at(y), at(o), at(z), at(weight), width, 1e-5, gate}; });
        Twins back(t.is_bf16() ? DType::bf16 : DType::f32);
        const Twin d_y = back.input(shape), in = back.input(shape),
                   g = gate != HeadGate::none ? back.input(shape) : Twin{},
                   w = normed ? back.parameter({width}) : Twin{}, d_o = back.sum(shape),
                   d_z = gate != HeadGate::none ? back.output(shape) : Twin{},
                   d_w = normed ? back.float_sum({width}) : Twin{};
        back.check([&](auto at) {
          return GatedNormBackward{at(d_o), at(d_z), at(d_w), at(d_y), at(in), at(g),
                                   at(w),   width,   1e-5,    gate,    true,   false};
        });
      });
    }
  }
}

TEST_CASE("gated norms of fp32 answers among bf16 activations equal the CPU's", "[fast]") {
  const Shape shape{70, 2 * 37};
  for (const HeadGate gate : {HeadGate::none, HeadGate::sigmoid}) {
    Twins t(DType::bf16);
    const Twin y = t.output(shape), o = t.parameter(shape), z = gate != HeadGate::none ? t.input(shape) : Twin{},
               weight = t.parameter({37});
    t.check([&](auto at) { return GatedNormForward{at(y), at(o), at(z), at(weight), 37, 1e-5, gate}; });
    Twins back(DType::bf16);
    const Twin d_y = back.input(shape), in = back.parameter(shape),
               g = gate != HeadGate::none ? back.input(shape) : Twin{}, w = back.parameter({37}),
               d_o = back.float_sum(shape), d_z = gate != HeadGate::none ? back.output(shape) : Twin{},
               d_w = back.float_sum({37});
    back.check([&](auto at) {
      return GatedNormBackward{at(d_o), at(d_z), at(d_w), at(d_y), at(in), at(g), at(w), 37, 1e-5, gate, true, false};
    });
  }
}

TEST_CASE("norms of gated heads, with a weight for each channel, equal the CPU's", "[fast]") {
  for (const auto& [heads, width, by_channel] :
       {std::tuple<int64_t, int64_t, bool>{2, 37, false}, {2, 37, true}, {3, 16, true}, {260, 4, true}}) {
    CAPTURE(heads, width);
    in_both_types([heads = heads, width = width, by_channel = by_channel](Twins& t) {
      const int64_t weights = by_channel ? heads * width : width;
      const Shape shape{70, heads * width};
      const Twin y = t.output(shape), o = t.input(shape), z = t.input(shape), weight = t.parameter({weights});
      t.check([&](auto at) {
        return GatedNormForward{at(y), at(o), at(z), at(weight), width, 1e-5, HeadGate::silu, true};
      });
      Twins back(t.is_bf16() ? DType::bf16 : DType::f32);
      const Twin d_y = back.input(shape), in = back.input(shape), g = back.input(shape), w = back.parameter({weights}),
                 d_o = back.output(shape), d_z = back.sum(shape), d_w = back.float_sum({weights});
      back.check([&](auto at) {
        return GatedNormBackward{at(d_o), at(d_z), at(d_w),        at(d_y), at(in), at(g), at(w),
                                 width,   1e-5,    HeadGate::silu, false,   true,   true};
      });
    });
  }
}

TEST_CASE("gates whose strength is the step equal the CPU's", "[fast]") {
  const Shape shape{70, 3};
  Twins t;
  const Twin g = t.float_output(shape), beta = t.float_output(shape), a = t.input(shape, 3), a_log = t.parameter({3}),
             dt_bias = t.parameter({3});
  const auto forward = [&](auto at) {
    return DeltaGatesForward{at(g), at(beta), at(a), Tensor{}, at(a_log), at(dt_bias), 1.0, 0.2, 1.5};
  };
  t.check(forward);
  t.prepare(forward);
  const Twin d_a = t.sum(shape), d_log = t.float_sum({3}), d_bias = t.float_sum({3}), d_g = t.parameter(shape),
             d_beta = t.parameter(shape);
  t.check([&](auto at) {
    return DeltaGatesBackward{at(d_a), Tensor{}, at(d_log), at(d_bias), at(d_g),     at(d_beta),
                              at(g),   at(beta), at(a),     at(a_log),  at(dt_bias), 1.0,
                              true,    false,    true,      0.2,        1.5};
  });
}

TEST_CASE("gates of the delta rule equal the CPU's", "[fast]") {
  in_both_types([](Twins& t) {
    const Shape shape{70, 3};
    const Twin g = t.float_output(shape), beta = t.float_output(shape), a = t.input(shape, 30), b = t.input(shape),
               a_log = t.parameter({3}), dt_bias = t.parameter({3});
    t.check([&](auto at) { return DeltaGatesForward{at(g), at(beta), at(a), at(b), at(a_log), at(dt_bias), 2.0}; });
    Twins back(t.is_bf16() ? DType::bf16 : DType::f32);
    const Twin d_a = back.sum(shape), d_b = back.output(shape), d_log = back.float_sum({3}),
               d_bias = back.float_sum({3}), d_g = back.parameter(shape), d_beta = back.parameter(shape),
               gate = back.parameter(shape), strength = back.parameter(shape), in = back.input(shape),
               log = back.parameter({3}), dt = back.parameter({3});
    back.check([&](auto at) {
      return DeltaGatesBackward{at(d_a),      at(d_b), at(d_log), at(d_bias), at(d_g), at(d_beta), at(gate),
                                at(strength), at(in),  at(log),   at(dt),     2.0,     true,       false};
    });
  });
}

TEST_CASE("visible keys and rings equal the CPU's", "[fast]") {
  for (const KeyRange& sight :
       {KeyRange{.window = 5}, KeyRange{.block = 3, .blocks = 3}, KeyRange{.block = 4, .blocks = 1}, KeyRange{}}) {
    CAPTURE(sight.window, sight.block, sight.blocks);
    Twins t;
    const Twin lo = t.integer_output({kRows, kLength}), hi = t.integer_output({kRows, kLength}),
               doc = t.integers({kRows, kLength}, documents_of_two_rows());
    t.check([&](auto at) { return VisibleKeys{at(lo), at(hi), at(doc), sight, 2}; });
    if (sight.full()) { continue; }
    const RingSlots slots{sight};
    const int64_t size = sight.size();
    for (const int64_t position : {0, 3, 6, 12, 16, 17}) {
      CAPTURE(position);
      Twins append;
      const Twin ring = append.sum({2, size, 37}), x = append.input({2, 1, 37}),
                 starts = append.integers({2, 1}, {-position, 0});
      append.check([&](auto at) { return RingAppend{at(ring), at(x), at(starts), slots}; }, 0);
      Twins keys;
      const Twin first = keys.integer_output({2, 1}), last = keys.integer_output({2, 1}),
                 begun = keys.integers({2, 1}, {-position, 0});
      keys.check([&](auto at) { return RingKeys{at(first), at(last), at(begun), slots}; });
      Twins unroll;  // documents: one that continues, one that begins within the row
      const std::vector<int64_t> documents{-position, -position, -position, 0, 0, 2};
      const Twin line = unroll.sum({2, size - 1 + 3, 5}), from = unroll.input({2, size, 5}),
                 at_start = unroll.integers({2, 3}, documents);
      unroll.check([&](auto at) { return RingUnroll{at(line), at(from), at(at_start), slots}; }, 0);
      Twins store;
      const Twin to = store.sum({2, size, 5}), in = store.input({2, size - 1 + 3, 5}),
                 at_end = store.integers({2, 3}, documents);
      store.check([&](auto at) { return RingStore{at(to), at(in), at(at_end), slots}; }, 0);
    }
  }
}

}  // namespace
