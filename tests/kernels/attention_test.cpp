#include "kernels/attention/attention.h"

#include <cmath>
#include <cstring>

#include "core/arena.h"
#include "core/parallel.h"
#include "core/random.h"
#include "tests/test.h"

using namespace hebb;

namespace {

/// A random problem with intervals that do not decrease, and what a direct computation gives.
struct Problem {
  int64_t batch, length, spaces, keys, heads, kv_heads, d, dv;
  bool has_bias;
  double scale = 0.3;
  std::vector<double> q, k, v, bias, d_o;
  std::vector<int32_t> lo, hi;

  Problem(int64_t batch, int64_t length, int64_t spaces, int64_t keys, int64_t heads, int64_t kv_heads, int64_t d,
          int64_t dv, bool has_bias = false)
      : batch(batch),
        length(length),
        spaces(spaces),
        keys(keys),
        heads(heads),
        kv_heads(kv_heads),
        d(d),
        dv(dv),
        has_bias(has_bias) {}

  void draw(uint64_t seed) {
    Rng rng(seed, "attention");
    const auto fill = [&](std::vector<double>& x, int64_t n) {
      x.resize(static_cast<size_t>(n));
      for (double& e : x) { e = static_cast<float>(rng.normal()); }
    };
    fill(q, batch * length * heads * d);
    fill(k, spaces * keys * kv_heads * d);
    fill(v, spaces * keys * kv_heads * dv);
    fill(d_o, batch * length * heads * dv);
    if (has_bias) { fill(bias, spaces * keys * kv_heads); }
  }

  /// Token t of every row sees keys t - window + 1 .. t of its document (window 0: all of it), which
  /// start `shift` further on; documents start at multiples of `document` (0: one).
  void causal(int64_t window, int64_t document, int64_t shift) {
    for (int64_t i = 0; i < batch * length; ++i) {
      const int64_t t = i % length;
      int64_t from = document > 0 ? t / document * document + shift : 0;
      if (window > 0) { from = std::max(from, t + shift - window + 1); }
      lo.push_back(static_cast<int32_t>(from));
      hi.push_back(static_cast<int32_t>(t + shift + 1));
    }
  }
  /// A staircase with empty intervals: every third key belongs to a token.
  void staircase() {
    for (int64_t i = 0; i < batch * length; ++i) {
      const int64_t t = spaces == 1 ? i : i % length;
      hi.push_back(static_cast<int32_t>(std::min(keys, t / 3)));
      lo.push_back(static_cast<int32_t>(std::min(keys, t / 45 * 15)));
    }
  }

  struct Result {
    std::vector<double> o, lse, d_q, d_k, d_v, d_bias;
  };

  Result direct() const {
    Result r;
    const int64_t group = heads / kv_heads;
    const auto zeros = [](int64_t n) { return std::vector<double>(static_cast<size_t>(n), 0.0); };
    r.o = zeros(batch * length * heads * dv);
    r.lse = zeros(batch * length * heads);
    r.d_q = zeros(static_cast<int64_t>(q.size()));
    r.d_k = zeros(static_cast<int64_t>(k.size()));
    r.d_v = zeros(static_cast<int64_t>(v.size()));
    r.d_bias = zeros(spaces * keys * kv_heads);
    for (int64_t i = 0; i < batch * length * heads; ++i) {
      const int64_t token = i / heads, space = spaces == 1 ? 0 : token / length, head = i % heads / group;
      const int64_t from = lo[static_cast<size_t>(token)], to = hi[static_cast<size_t>(token)];
      const auto key = [&](int64_t j) { return (space * keys + j) * kv_heads + head; };
      std::vector<double> p;
      double top = -INFINITY, sum = 0, delta = 0;
      for (int64_t j = from; j < to; ++j) {
        double s = has_bias ? bias[static_cast<size_t>(key(j))] : 0.0;
        for (int64_t c = 0; c < d; ++c) {
          s += scale * q[static_cast<size_t>(i * d + c)] * k[static_cast<size_t>(key(j) * d + c)];
        }
        p.push_back(s);
        top = std::max(top, s);
      }
      for (double& e : p) { sum += e = std::exp(e - top); }
      r.lse[static_cast<size_t>(i)] = from < to ? top + std::log(sum) : -INFINITY;
      for (int64_t j = from; j < to; ++j) {
        p[static_cast<size_t>(j - from)] /= sum;
        for (int64_t c = 0; c < dv; ++c) {
          const double part = p[static_cast<size_t>(j - from)] * v[static_cast<size_t>(key(j) * dv + c)];
          r.o[static_cast<size_t>(i * dv + c)] += part;
          delta += part * d_o[static_cast<size_t>(i * dv + c)];
        }
      }
      for (int64_t j = from; j < to; ++j) {
        const double w = p[static_cast<size_t>(j - from)];
        double dp = 0;
        for (int64_t c = 0; c < dv; ++c) {
          dp += d_o[static_cast<size_t>(i * dv + c)] * v[static_cast<size_t>(key(j) * dv + c)];
          r.d_v[static_cast<size_t>(key(j) * dv + c)] += w * d_o[static_cast<size_t>(i * dv + c)];
        }
        const double ds = w * (dp - delta);
        r.d_bias[static_cast<size_t>(key(j))] += ds;
        for (int64_t c = 0; c < d; ++c) {
          r.d_q[static_cast<size_t>(i * d + c)] += scale * ds * k[static_cast<size_t>(key(j) * d + c)];
          r.d_k[static_cast<size_t>(key(j) * d + c)] += scale * ds * q[static_cast<size_t>(i * d + c)];
        }
      }
    }
    return r;
  }

  /// The kernels, with gradients added to `start` when `accumulate`.
  template <class S> Result kernels(bool accumulate = false, double start = 0) const {
    Arena arena(DeviceKind::cpu);
    arena.set_poison(true);
    Stream stream;
    const DType dtype = dtype_of<S>;
    const auto put = [&](Shape shape, const std::vector<double>& values) {
      Buffer b(arena, shape, dtype, "values");
      const std::vector<S> typed(values.begin(), values.end());
      copy_to_device(stream, b, typed.data());
      return b;
    };
    const auto started = [&](Shape shape) {
      Buffer b(arena, shape, dtype, "gradient");
      if (accumulate) { std::fill_n(b.tensor().as<S>(), shape.numel(), static_cast<S>(start)); }
      return b;
    };
    const Shape q_shape{batch, length, heads, d}, k_shape{spaces, keys, kv_heads, d},
        v_shape{spaces, keys, kv_heads, dv};
    const Shape o_shape{batch, length, heads, dv}, lse_shape{batch, length, heads}, bias_shape{spaces, keys, kv_heads};
    const Buffer q_buffer = put(q_shape, q), k_buffer = put(k_shape, k), v_buffer = put(v_shape, v);
    const Buffer bias_buffer = has_bias ? put(bias_shape, bias) : Buffer(), d_o_buffer = put(o_shape, d_o);
    const Buffer o(arena, o_shape, dtype, "o"), lse(arena, lse_shape, dtype, "lse");
    const Buffer lo_buffer(arena, {batch, length}, DType::i32, "lo"),
        hi_buffer(arena, {batch, length}, DType::i32, "hi");
    copy_to_device(stream, lo_buffer, lo.data());
    copy_to_device(stream, hi_buffer, hi.data());
    run(Workspace(stream, arena), AttentionForward{.o = o,
                                                   .lse = lse,
                                                   .q = q_buffer,
                                                   .k = k_buffer,
                                                   .v = v_buffer,
                                                   .lo = lo_buffer,
                                                   .hi = hi_buffer,
                                                   .bias = bias_buffer,
                                                   .scale = scale});
    const Buffer d_q = started(q_shape), d_k = started(k_shape), d_v = started(v_shape), d_bias = started(bias_shape);
    run(Workspace(stream, arena), AttentionBackward{.d_q = d_q,
                                                    .d_k = d_k,
                                                    .d_v = d_v,
                                                    .d_bias = d_bias,
                                                    .d_o = d_o_buffer,
                                                    .q = q_buffer,
                                                    .k = k_buffer,
                                                    .v = v_buffer,
                                                    .o = o,
                                                    .lse = lse,
                                                    .lo = lo_buffer,
                                                    .hi = hi_buffer,
                                                    .bias = bias_buffer,
                                                    .scale = scale,
                                                    .accumulate_q = accumulate,
                                                    .accumulate_k = accumulate,
                                                    .accumulate_v = accumulate,
                                                    .accumulate_bias = accumulate});
    const auto get = [&](const Buffer& b) {
      const S* p = b.tensor().as<S>();
      return std::vector<double>(p, p + b.tensor().numel());
    };
    return {get(o), get(lse), get(d_q), get(d_k), get(d_v), get(d_bias)};
  }
};

/// Largest difference relative to the largest entry (at least 1); infinities must agree.
double difference(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double worst = 0, largest = 1;  // entries are of order 1; gradients that vanish hold rounding noise only
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isinf(b[i]) || std::isinf(a[i])) {
      worst = a[i] == b[i] ? worst : INFINITY;
      continue;
    }
    worst = std::isnan(a[i]) ? INFINITY : std::max(worst, std::abs(a[i] - b[i]));
    largest = std::max(largest, std::abs(b[i]));
  }
  return worst / largest;
}

double difference(const Problem::Result& a, const Problem::Result& b) {
  return std::max({difference(a.o, b.o), difference(a.lse, b.lse), difference(a.d_q, b.d_q), difference(a.d_k, b.d_k),
                   difference(a.d_v, b.d_v), difference(a.d_bias, b.d_bias)});
}

bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}

std::vector<Problem> problems() {
  std::vector<Problem> all;
  const auto add = [&](Problem p, int64_t window, int64_t document, int64_t shift) {
    p.causal(window, document, shift);
    p.draw(all.size());
    all.push_back(std::move(p));
  };
  //   B, T, spaces, keys, H, K, D, Dv
  add({2, 1, 2, 1, 3, 1, 5, 7}, 0, 0, 0);
  add({1, 63, 1, 63, 2, 2, 16, 16}, 0, 0, 0);
  add({2, 65, 2, 65, 6, 2, 20, 9}, 0, 0, 0);
  add({1, 200, 1, 200, 2, 1, 64, 48}, 0, 0, 0);
  add({1, 200, 1, 200, 1, 1, 33, 40}, 17, 0, 0);
  add({2, 150, 2, 150, 4, 2, 8, 8}, 64, 37, 0);
  add({1, 130, 1, 130, 2, 2, 24, 24, true}, 0, 1, 0);
  add({1, 70, 1, 141, 4, 4, 12, 12, true}, 0, 0, 71);
  add({2, 1, 2, 700, 2, 2, 19, 21}, 0, 0, 600);
  add({3, 1, 3, 300, 4, 2, 19, 21, true}, 300, 0, 299);
  for (const int64_t spaces : {1, 2}) {
    Problem p{2, 100, spaces, 67, 3, 3, 10, 6, spaces == 1};
    p.staircase();
    p.draw(77);
    all.push_back(p);
  }
  return all;
}

}  // namespace

TEST_CASE("attention over intervals equals the direct computation, outputs and gradients", "[fast]") {
  const std::vector<Problem> all = problems();
  for (size_t i = 0; i < all.size(); ++i) {
    INFO("problem " << i);
    const Problem::Result expected = all[i].direct();
    CHECK(difference(all[i].kernels<double>(), expected) < 1e-12);  // sums of a few hundred terms
    CHECK(difference(all[i].kernels<float>(), expected) < 1e-5);    // the page's fp32 tolerance
  }
}

TEST_CASE("gradients of attention add to what is there", "[fast]") {
  Problem p = problems()[5];
  const Problem::Result once = p.kernels<double>(), added = p.kernels<double>(true, 3.0);
  for (const auto member :
       {&Problem::Result::d_q, &Problem::Result::d_k, &Problem::Result::d_v, &Problem::Result::d_bias}) {
    std::vector<double> shifted = once.*member;
    for (double& e : shifted) { e += 3.0; }
    CHECK(difference(added.*member, shifted) < 1e-13);
  }
}

TEST_CASE("the score of a lone visible key has a gradient of exactly zero", "[fast]") {
  Problem p{2, 70, 2, 70, 4, 2, 12, 9, true};
  p.causal(0, 1, 0);  // documents of one token
  p.draw(5);
  for (const Problem::Result& r : {p.kernels<double>(), p.kernels<float>()}) {
    for (const auto& gradient : {r.d_q, r.d_k, r.d_bias}) {
      CHECK(std::all_of(gradient.begin(), gradient.end(), [](double g) { return g == 0; }));
    }
    CHECK(difference(r.d_v, p.direct().d_v) < 1e-5);
  }
}

TEST_CASE("attention gives the same bits on one thread and on three", "[fast][threads]") {
  const int before = threads();
  // Few heads: on three threads the backward pass shares one head by ranges of keys and tiles of rows.
  for (const int64_t heads : {1, 2, 5}) {
    Problem p{1, 333, 1, 333, 2 * heads, heads, 32, 32, true};
    p.causal(0, 150, 0);
    p.draw(3);
    set_threads(1);
    const Problem::Result one = p.kernels<float>();
    set_threads(3);
    const Problem::Result three = p.kernels<float>();
    CHECK(same_bits(one.o, three.o));
    CHECK(same_bits(one.lse, three.lse));
    CHECK(same_bits(one.d_q, three.d_q));
    CHECK(same_bits(one.d_k, three.d_k));
    CHECK(same_bits(one.d_v, three.d_v));
    CHECK(same_bits(one.d_bias, three.d_bias));
  }
  set_threads(before);
}

TEST_CASE("a huge logit gives finite outputs and gradients", "[fast]") {
  for (const double sign : {1.0, -1.0}) {
    Problem p{1, 90, 1, 90, 1, 1, 4, 4};
    p.causal(0, 0, 0);
    p.draw(9);
    p.scale = 1.0;
    for (int64_t t = 0; t < 90; ++t) { p.q[static_cast<size_t>(t * 4)] = 100; }
    p.k[static_cast<size_t>(20 * 4)] = sign * 100;  // logits of +-1e4 at key 20
    const Problem::Result expected = p.direct(), narrow = p.kernels<float>(), wide = p.kernels<double>();
    CHECK(difference(wide, expected) < 1e-10);
    for (const auto member :
         {&Problem::Result::o, &Problem::Result::d_q, &Problem::Result::d_k, &Problem::Result::d_v}) {
      for (const double e : narrow.*member) { REQUIRE(std::isfinite(e)); }
    }
    CHECK(difference(narrow.o, expected.o) < 1e-3);  // logits of 1e4 are rounded to 1e-3 in fp32
  }
}

TEST_CASE("a bias of minus infinity hides a key, and all keys hidden give zero", "[fast]") {
  Problem p{1, 70, 1, 70, 1, 1, 8, 8, true};
  p.causal(0, 0, 0);
  p.draw(4);
  for (int64_t j = 0; j < 70; ++j) {
    if (j < 3 || j == 30) { p.bias[static_cast<size_t>(j)] = -INFINITY; }
  }
  for (const Problem::Result& r : {p.kernels<double>(), p.kernels<float>()}) {
    for (int64_t i = 0; i < 3 * 8; ++i) { CHECK(r.o[static_cast<size_t>(i)] == 0.0); }
    CHECK(r.lse[2] == -INFINITY);
    for (int64_t c = 0; c < 8; ++c) {
      CHECK(r.d_v[static_cast<size_t>(30 * 8 + c)] == 0.0);
      CHECK(r.d_k[static_cast<size_t>(30 * 8 + c)] == 0.0);
    }
    for (const auto member :
         {&Problem::Result::o, &Problem::Result::d_q, &Problem::Result::d_k, &Problem::Result::d_v}) {
      for (const double e : r.*member) { REQUIRE(std::isfinite(e)); }
    }
  }
}

TEST_CASE("keys outside every interval are not read and get a zero gradient", "[fast]") {
  for (const int64_t length : {1, 40}) {
    Problem p{1, length, 1, 400, 2, 2, 16, 16};
    p.causal(30, 0, 200);
    p.draw(4);
    for (int64_t j = 0; j < 400; ++j) {
      if (j < 171 || j > 200 + length - 1) {
        std::fill_n(p.k.begin() + j * 32, 32, NAN);
        std::fill_n(p.v.begin() + j * 32, 32, NAN);
      }
    }
    for (const Problem::Result& r : {p.kernels<double>(), p.kernels<float>()}) {
      CHECK(difference(r, p.direct()) < 1e-5);
      CHECK(r.d_k[0] == 0.0);
      CHECK(r.d_v[399 * 32] == 0.0);
    }
  }
}
