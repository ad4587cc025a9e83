#pragma once
#include <algorithm>

#include "kernels/attention/scratch.h"
#include "tests/op_cases/machine.h"

namespace hebb_test {

/// Query t of a row sees keys lo .. hi - 1 of its row's space, or of the one space that all rows share.
struct Attention {
  const char* name;
  int64_t batch, length, heads, kv_heads, d, dv, spaces, keys;
  std::vector<int64_t> lo, hi;
  bool biased = false;
  double scale = 0;                     // 0: 1.7 / sqrt(d)
  std::vector<int64_t> hidden = {};     // entries of the bias that are minus infinity
  Values q_values = {}, k_values = {};  // empty: random ones

  hebb::Shape q() const { return {batch, length, heads, d}; }
  hebb::Shape o() const { return {batch, length, heads, dv}; }
  hebb::Shape k() const { return {spaces, keys, kv_heads, d}; }
  hebb::Shape v() const { return {spaces, keys, kv_heads, dv}; }
  hebb::Shape bias() const { return {spaces, keys, kv_heads}; }
  hebb::Shape lse() const { return {batch, length, heads}; }
  double factor() const { return scale > 0 ? scale : 1.7 / std::sqrt(static_cast<double>(d)); }

  /// Values of keys, NaN before the first interval of a space and behind the last: those must not be read. Keys
  /// between intervals may be multiplied by 0.
  Values keys_of(int64_t width, uint32_t seed) const {
    Values values = as_double(random_values<float>(spaces * keys * kv_heads * width, seed));
    const int64_t queries = batch * length / spaces;
    for (int64_t space = 0; space < spaces; ++space) {
      int64_t first = keys, last = 0;
      for (auto i = static_cast<size_t>(space * queries); i < static_cast<size_t>((space + 1) * queries); ++i) {
        if (lo[i] < hi[i]) {
          first = std::min(first, lo[i]);
          last = std::max(last, hi[i]);
        }
      }
      const auto begin = values.begin() + space * keys * kv_heads * width;
      std::fill(begin, begin + first * kv_heads * width, std::nan(""));
      std::fill(begin + std::max(first, last) * kv_heads * width, begin + keys * kv_heads * width, std::nan(""));
    }
    return values;
  }
};

/// Outputs and gradients of attention.
struct AttentionResults {
  Values o, lse, d_q, d_k, d_v, d_bias;
};

/// The formula, by loops, added to `r`.
inline void attention_formula(const Attention& c, const Values& q, const Values& k, const Values& v, const Values& bias,
                              const Values& d_o, AttentionResults& r) {
  const auto d = static_cast<size_t>(c.d), dv = static_cast<size_t>(c.dv);
  const auto dot = [](const Values& a, size_t i, const Values& b, size_t j, size_t count) {
    double sum = 0;
    for (size_t n = 0; n < count; ++n) { sum += a[i * count + n] * b[j * count + n]; }
    return sum;
  };
  const auto add = [](Values& to, size_t i, double factor, const Values& from, size_t j, size_t count) {
    for (size_t n = 0; n < count; ++n) { to[i * count + n] += factor * from[j * count + n]; }
  };
  for (int64_t query = 0; query < c.batch * c.length * c.heads; ++query) {
    const int64_t token = query / c.heads, space = c.spaces == 1 ? 0 : token / c.length;
    const auto i = static_cast<size_t>(query), from = static_cast<size_t>(c.lo[static_cast<size_t>(token)]),
               to = std::max(from, static_cast<size_t>(c.hi[static_cast<size_t>(token)]));
    const auto key = [&](size_t j) {
      return static_cast<size_t>((space * c.keys + static_cast<int64_t>(j)) * c.kv_heads +
                                 query % c.heads / (c.heads / c.kv_heads));
    };
    Values p;
    double top = -INFINITY, sum = 0, delta = 0;
    for (size_t j = from; j < to; ++j) {
      p.push_back((bias.empty() ? 0.0 : bias[key(j)]) + c.factor() * dot(q, i, k, key(j), d));
      top = std::max(top, p.back());
    }
    for (double& e : p) { sum += e = top > -INFINITY ? std::exp(e - top) : 0; }
    r.lse[i] = sum > 0 ? top + std::log(sum) : -INFINITY;
    for (double& e : p) { e /= sum > 0 ? sum : 1; }
    for (size_t j = from; j < to; ++j) {
      add(r.o, i, p[j - from], v, key(j), dv);
      delta += p[j - from] * dot(d_o, i, v, key(j), dv);
    }
    for (size_t j = from; j < to; ++j) {
      const double w = p[j - from], ds = w * (dot(d_o, i, v, key(j), dv) - delta);
      add(r.d_v, key(j), w, d_o, i, dv);
      if (!bias.empty()) { r.d_bias[key(j)] += ds; }
      add(r.d_q, i, c.factor() * ds, k, key(j), d);
      add(r.d_k, key(j), c.factor() * ds, q, i, d);
    }
  }
}

/// Forward and backward. Gradients of queries and values are overwritten and the others added to, or, `flipped`, the
/// other way round. `back`: the tolerance of gradients; `of_formula`: of all in fp64.
inline hebb::AttentionBackward attention_passes(Machine& m, const Attention& c, double tolerance, double back,
                                                bool flipped = false, const Launches& launches = {},
                                                double of_formula = 1e-12) {
  const auto given = [&](const Values& values, const hebb::Shape& shape) {
    return values.empty() ? m.input(shape, 2) : m.activations(shape, values);
  };
  const hebb::Tensor q = given(c.q_values, c.q()),
                     k = m.activations(c.k(), c.k_values.empty() ? c.keys_of(c.d, 3) : c.k_values),
                     v = m.activations(c.v(), c.keys_of(c.dv, 4)), lo = m.integers({c.batch, c.length}, c.lo),
                     hi = m.integers({c.batch, c.length}, c.hi), o = m.output(c.o()), lse = m.float_output(c.lse());
  hebb::Tensor bias;
  if (c.biased) {
    Values biases = c.keys_of(1, 5);
    for (const int64_t entry : c.hidden) { biases[static_cast<size_t>(entry)] = -HUGE_VAL; }
    bias = m.values(c.bias(), biases);
  }
  m.run(
      hebb::AttentionForward{
          .o = o, .lse = lse, .q = q, .k = k, .v = v, .lo = lo, .hi = hi, .bias = bias, .scale = c.factor()},
      tolerance, launches);
  const hebb::AttentionBackward args{.d_q = m.gradient(c.q(), flipped),
                                     .d_k = m.gradient(c.k(), !flipped),
                                     .d_v = m.gradient(c.v(), flipped),
                                     .d_bias = c.biased ? m.float_gradient(c.bias(), !flipped) : hebb::Tensor{},
                                     .d_o = m.input(c.o()),
                                     .q = q,
                                     .k = k,
                                     .v = v,
                                     .o = o,
                                     .lse = lse,
                                     .lo = lo,
                                     .hi = hi,
                                     .bias = bias,
                                     .scale = c.factor(),
                                     .accumulate_q = flipped,
                                     .accumulate_k = !flipped,
                                     .accumulate_v = flipped,
                                     .accumulate_bias = !flipped};
  const auto start = [&](const hebb::Tensor& sum, bool adds) {
    return adds && sum.defined() ? m.read(sum) : Values(static_cast<size_t>(sum.numel()));
  };
  AttentionResults r{start(o, false),           start(lse, false),        start(args.d_q, flipped),
                     start(args.d_k, !flipped), start(args.d_v, flipped), start(args.d_bias, !flipped)};
  m.run(args, back, launches);
  if (!m.has_formulas()) { return args; }
  attention_formula(c, m.read(q), m.read(k), m.read(v), bias.defined() ? m.read(bias) : Values{}, m.read(args.d_o), r);
  m.expect(o, r.o, of_formula);
  m.expect(lse, r.lse, of_formula);
  m.expect(args.d_q, r.d_q, of_formula);
  m.expect(args.d_k, r.d_k, of_formula);
  m.expect(args.d_v, r.d_v, of_formula);
  m.expect(args.d_bias, r.d_bias, of_formula);
  return args;
}

/// One row of documents of one token: each query sees its own key alone.
inline Attention lone_keys(int64_t length, int64_t heads, int64_t kv_heads, int64_t d, int64_t dv) {
  Attention c{"lone keys", 1, length, heads, kv_heads, d, dv, 1, length, {}, {}};
  for (int64_t t = 0; t < length; ++t) {
    c.lo.push_back(t);
    c.hi.push_back(t + 1);
  }
  return c;
}

inline Attention causal(int64_t length, int64_t heads, int64_t kv_heads, int64_t d = 64, int64_t dv = 64) {
  Attention c = lone_keys(length, heads, kv_heads, d, dv);
  c.name = "causal";
  c.lo.assign(static_cast<size_t>(length), 0);
  return c;
}

}  // namespace hebb_test
