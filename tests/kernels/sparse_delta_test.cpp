#include "tests/op_cases/sparse_delta.h"

#include <algorithm>
#include <map>
#include <set>

#include "core/parallel.h"
#include "core/random.h"

using namespace hebb;
using namespace hebb_test;

namespace {

/// Inputs and, after run(), everything that the kernels give.
struct Problem : SparseDelta, SparseDeltaResults {
  using SparseDelta::SparseDelta;
  template <class S> void run() {
    const std::unique_ptr<Memory> memory_of = host_memory();
    Machine m(*memory_of, {.activations = DType::f32, .reals = dtype_of<S>});
    static_cast<SparseDeltaResults&>(*this) = sparse_delta_passes(m, *this);
  }
};

/// The chunk equations of docs/layers/sdm.md, literally and in double: chunks of `chunk` tokens of every sequence and
/// head. Matching entries are found by comparing slots; sums of logs are per slot.
class Chunks {
 public:
  Chunks(const Problem& c, int64_t chunk) : c_(c), n_(c.n), chunk_(chunk) {
    const size_t heads = static_cast<size_t>(n_.tokens() * n_.heads);
    y.resize(heads * static_cast<size_t>(n_.dim));
    d_v = u_ = z_ = y;
    d_k.resize(c.k.size());
    d_q.resize(c.q.size());
    d_g.resize(heads);
    d_beta.resize(heads);
    d_memory.resize(static_cast<size_t>(n_.heads * n_.slots * n_.dim));
    for (int64_t b = 0; b < n_.batch; ++b) {
      for (int64_t h = 0; h < n_.heads; ++h) {
        int64_t at = b * n_.length;
        for (const int64_t length : c.lengths) {
          sequence(b, h, at, length);
          at += length;
        }
      }
    }
  }

  Values y, d_k, d_q, d_v, d_g, d_beta, d_memory;
  std::map<std::pair<int64_t, int64_t>, Values> final_state;  // of (row, head): last sequence

 private:
  using Table = std::vector<Values>;  // [slots][D]

  // Entry access: token t (absolute), entry e, of the current head.
  size_t head(int64_t t) const { return static_cast<size_t>(t * n_.heads + h_); }
  size_t w(int64_t t, int64_t e) const { return head(t) * static_cast<size_t>(n_.writes) + static_cast<size_t>(e); }
  size_t r(int64_t t, int64_t e) const { return head(t) * static_cast<size_t>(n_.reads) + static_cast<size_t>(e); }
  size_t d(int64_t t, int64_t i) const { return head(t) * static_cast<size_t>(n_.dim) + static_cast<size_t>(i); }
  double g(int64_t t, int64_t e) const { return c_.g[head(t)] * (c_.by_key ? c_.k[w(t, e)] : 1.0); }
  double dot(const Values& a, size_t at, const Values& b, size_t bt) const {
    double sum = 0;
    for (int64_t i = 0; i < n_.dim; ++i) { sum += a[at + static_cast<size_t>(i)] * b[bt + static_cast<size_t>(i)]; }
    return sum;
  }
  /// Sum of g over the chunk's writes to `slot` by tokens in [first, last].
  double logs(int64_t slot, int64_t first, int64_t last) const {
    double sum = 0;
    for (int64_t t = first; t <= last; ++t) {
      for (int64_t e = 0; e < n_.writes; ++e) { sum += c_.write_slots[w(t, e)] == slot ? g(t, e) : 0.0; }
    }
    return sum;
  }

  void sequence(int64_t row, int64_t head_index, int64_t begin, int64_t length) {
    h_ = head_index;
    Table m(static_cast<size_t>(n_.slots), Values(static_cast<size_t>(n_.dim)));
    for (size_t s = 0; s < m.size() && c_.has_memory; ++s) {
      std::copy_n(c_.memory.begin() + static_cast<int64_t>(h_ * n_.slots + static_cast<int64_t>(s)) * n_.dim, n_.dim,
                  m[s].begin());
    }
    std::vector<std::pair<int64_t, Table>> starts;
    for (int64_t t = begin; t < begin + length; t += chunk_) {
      starts.push_back({t, m});
      forward(t, std::min(begin + length, t + chunk_), m);
    }
    Values flat;
    for (const Values& x : m) { flat.insert(flat.end(), x.begin(), x.end()); }
    final_state[{row, h_}] = flat;
    Table adjoint(m.size(), Values(static_cast<size_t>(n_.dim)));
    for (size_t i = starts.size(); i-- > 0;) {
      backward(starts[i].first, std::min(begin + length, starts[i].first + chunk_), starts[i].second, adjoint);
    }
    for (size_t s = 0; s < m.size(); ++s) {
      for (int64_t i = 0; i < n_.dim; ++i) {
        d_memory[(static_cast<size_t>(h_) * m.size() + s) * static_cast<size_t>(n_.dim) + static_cast<size_t>(i)] +=
            adjoint[s][static_cast<size_t>(i)];
      }
    }
  }

  /// e^(sum of logs of the slot over tokens (after, until]) where the slots match.
  double decay(int64_t slot, int64_t after, int64_t until) const { return std::exp(logs(slot, after + 1, until)); }
  double a_entry(int64_t t, int64_t e, int64_t j, int64_t f) const {
    return c_.write_slots[w(t, e)] == c_.write_slots[w(j, f)] ? decay(c_.write_slots[w(t, e)], j, t) : 0.0;
  }
  double p_entry(int64_t t, int64_t e, int64_t j, int64_t f) const {
    return c_.read_slots[r(t, e)] == c_.write_slots[w(j, f)] ? decay(c_.read_slots[r(t, e)], j, t) : 0.0;
  }

  void forward(int64_t begin, int64_t end, Table& m) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t i = 0; i < n_.dim; ++i) {
        double e = c_.v[d(t, i)];
        for (int64_t n = 0; n < n_.writes; ++n) {
          const int64_t slot = c_.write_slots[w(t, n)];
          e -= c_.k[w(t, n)] * std::exp(logs(slot, begin, t)) * m[static_cast<size_t>(slot)][static_cast<size_t>(i)];
          for (int64_t j = begin; j < t; ++j) {
            for (int64_t f = 0; f < n_.writes; ++f) {
              e -= c_.k[w(t, n)] * c_.k[w(j, f)] * a_entry(t, n, j, f) * u_[d(j, i)];
            }
          }
        }
        u_[d(t, i)] = c_.beta[head(t)] * e;
        double sum = 0;
        for (int64_t n = 0; n < n_.reads; ++n) {
          const int64_t slot = c_.read_slots[r(t, n)];
          sum += c_.q[r(t, n)] * std::exp(logs(slot, begin, t)) * m[static_cast<size_t>(slot)][static_cast<size_t>(i)];
          for (int64_t j = begin; j <= t; ++j) {
            for (int64_t f = 0; f < n_.writes; ++f) {
              sum += c_.q[r(t, n)] * c_.k[w(j, f)] * p_entry(t, n, j, f) * u_[d(j, i)];
            }
          }
        }
        y[d(t, i)] = sum;
      }
    }
    for (int64_t slot = 0; slot < n_.slots; ++slot) {
      for (int64_t i = 0; i < n_.dim; ++i) {
        double& x = m[static_cast<size_t>(slot)][static_cast<size_t>(i)];
        x *= std::exp(logs(slot, begin, end - 1));
        for (int64_t t = begin; t < end; ++t) {
          for (int64_t n = 0; n < n_.writes; ++n) {
            if (c_.write_slots[w(t, n)] == slot) { x += c_.k[w(t, n)] * decay(slot, t, end - 1) * u_[d(t, i)]; }
          }
        }
      }
    }
  }

  void backward(int64_t begin, int64_t end, const Table& m, Table& adjoint) {
    const int64_t writes = n_.writes, reads = n_.reads, dim = n_.dim;
    const auto slot_of = [&](int64_t t, int64_t e) { return static_cast<size_t>(c_.write_slots[w(t, e)]); };
    const auto read_of = [&](int64_t t, int64_t e) { return static_cast<size_t>(c_.read_slots[r(t, e)]); };
    // dU, then Z by back substitution with (I + diag(beta) A)^T.
    for (int64_t t = end - 1; t >= begin; --t) {
      for (int64_t i = 0; i < dim; ++i) {
        double z = 0;
        for (int64_t f = 0; f < writes; ++f) {
          const int64_t slot = c_.write_slots[w(t, f)];
          z += c_.k[w(t, f)] * decay(slot, t, end - 1) * adjoint[slot_of(t, f)][static_cast<size_t>(i)];
          for (int64_t s = t; s < end; ++s) {
            for (int64_t e = 0; e < reads; ++e) {
              z += c_.q[r(s, e)] * c_.k[w(t, f)] * p_entry(s, e, t, f) * c_.d_y[d(s, i)];
            }
            for (int64_t e = 0; s > t && e < writes; ++e) {
              z -= c_.beta[head(s)] * c_.k[w(s, e)] * c_.k[w(t, f)] * a_entry(s, e, t, f) * z_[d(s, i)];
            }
          }
        }
        z_[d(t, i)] = z;
      }
    }
    Values d_lam(static_cast<size_t>(n_.tokens() * n_.heads * writes)),
        d_mu(static_cast<size_t>(n_.tokens() * n_.heads * reads));
    Values d_last(static_cast<size_t>(n_.slots));  // dLam
    for (int64_t s = 0; s < n_.slots; ++s) {
      d_last[static_cast<size_t>(s)] =
          std::exp(logs(s, begin, end - 1)) * dot(adjoint[static_cast<size_t>(s)], 0, m[static_cast<size_t>(s)], 0);
    }
    for (int64_t t = begin; t < end; ++t) {
      const double beta = c_.beta[head(t)];
      double d_b = 0;
      for (int64_t i = 0; i < dim; ++i) {
        d_v[d(t, i)] = beta * z_[d(t, i)];
        d_b += z_[d(t, i)] * (beta != 0 ? u_[d(t, i)] / beta : 0.0);
      }
      d_beta[head(t)] = d_b;
      for (int64_t e = 0; e < writes; ++e) {
        const int64_t slot = c_.write_slots[w(t, e)];
        const double k = c_.k[w(t, e)], lam = std::exp(logs(slot, begin, t)), rest = decay(slot, t, end - 1);
        const double d_ka = -beta * dot(z_, d(t, 0), m[slot_of(t, e)], 0),
                     d_kp = dot(u_, d(t, 0), adjoint[slot_of(t, e)], 0);
        double row = 0, col = 0, pcol = 0;
        for (int64_t j = begin; j < end; ++j) {
          for (int64_t f = 0; f < writes; ++f) {
            if (j < t) { row += -beta * dot(z_, d(t, 0), u_, d(j, 0)) * c_.k[w(j, f)] * a_entry(t, e, j, f); }
            if (j > t) {
              col += -c_.beta[head(j)] * dot(z_, d(j, 0), u_, d(t, 0)) * c_.k[w(j, f)] * a_entry(j, f, t, e);
            }
          }
          for (int64_t f = 0; j >= t && f < reads; ++f) {
            pcol += dot(c_.d_y, d(j, 0), u_, d(t, 0)) * c_.q[r(j, f)] * p_entry(j, f, t, e);
          }
        }
        d_k[w(t, e)] = d_ka * lam + d_kp * rest + row + col + pcol;
        d_lam[w(t, e)] = d_ka * k * lam - d_kp * k * rest + k * (row - col - pcol);
        d_last[static_cast<size_t>(slot)] += k * rest * d_kp;
      }
      for (int64_t e = 0; e < reads; ++e) {
        double sum = dot(c_.d_y, d(t, 0), m[read_of(t, e)], 0) * std::exp(logs(c_.read_slots[r(t, e)], begin, t));
        for (int64_t j = begin; j <= t; ++j) {
          for (int64_t f = 0; f < writes; ++f) {
            sum += dot(c_.d_y, d(t, 0), u_, d(j, 0)) * c_.k[w(j, f)] * p_entry(t, e, j, f);
          }
        }
        d_q[r(t, e)] = sum;
        d_mu[r(t, e)] = c_.q[r(t, e)] * sum;
      }
    }
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t e = 0; e < writes; ++e) {
        double d_log = d_last[slot_of(t, e)];
        for (int64_t s = t; s < end; ++s) {
          for (int64_t f = 0; f < writes; ++f) { d_log += slot_of(s, f) == slot_of(t, e) ? d_lam[w(s, f)] : 0.0; }
          for (int64_t f = 0; f < reads; ++f) { d_log += read_of(s, f) == slot_of(t, e) ? d_mu[r(s, f)] : 0.0; }
        }
        d_g[head(t)] += c_.by_key ? c_.k[w(t, e)] * d_log : d_log;
        d_k[w(t, e)] += c_.by_key ? c_.g[head(t)] * d_log : 0.0;
      }
    }
    for (int64_t s = 0; s < n_.slots; ++s) {
      Values& to = adjoint[static_cast<size_t>(s)];
      for (int64_t i = 0; i < dim; ++i) {
        double x = to[static_cast<size_t>(i)] * std::exp(logs(s, begin, end - 1));
        for (int64_t t = begin; t < end; ++t) {
          const double decayed = std::exp(logs(s, begin, t));
          for (int64_t e = 0; e < writes; ++e) {
            x -= c_.write_slots[w(t, e)] == s ? c_.k[w(t, e)] * decayed * c_.beta[head(t)] * z_[d(t, i)] : 0.0;
          }
          for (int64_t e = 0; e < reads; ++e) {
            x += c_.read_slots[r(t, e)] == s ? c_.q[r(t, e)] * decayed * c_.d_y[d(t, i)] : 0.0;
          }
        }
        to[static_cast<size_t>(i)] = x;
      }
    }
  }

  const Problem& c_;
  const SparseDelta::Sizes n_;
  const int64_t chunk_;
  int64_t h_ = 0;
  Values u_, z_;
};

void check_close(const std::string& what, const Values& a, const Values& b, double tolerance) {
  REQUIRE(a.size() == b.size());
  double worst = 0, largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double error = std::abs(a[i] - b[i]);
    worst = error <= worst ? worst : std::isnan(error) ? INFINITY : error;
    largest = std::max(largest, std::abs(b[i]));
  }
  INFO(what << ": largest difference " << worst << ", largest entry " << largest);
  CHECK(worst <= tolerance * largest + 1e-13);
}

template <class A, class B> void check_all(const A& a, const B& b, double tolerance) {
  check_close("y", a.y, b.y, tolerance);
  check_close("d_k", a.d_k, b.d_k, tolerance);
  check_close("d_q", a.d_q, b.d_q, tolerance);
  check_close("d_v", a.d_v, b.d_v, tolerance);
  check_close("d_g", a.d_g, b.d_g, tolerance);
  check_close("d_beta", a.d_beta, b.d_beta, tolerance);
  check_close("d_memory", a.d_memory, b.d_memory, tolerance);
}

/// Head 0 of row 0 with W = R = N as a dense gated delta rule; k, q by slot.
Values dense_delta_rule(const Problem& c) {
  const size_t slots = static_cast<size_t>(c.n.slots), dim = static_cast<size_t>(c.n.dim);
  Values m(c.memory), y;
  for (int64_t t = 0; t < c.n.length; ++t) {
    const size_t at = static_cast<size_t>(t);
    Values k(slots), q(slots);
    for (size_t e = 0; e < slots; ++e) {
      k[static_cast<size_t>(c.write_slots[at * slots + e])] = c.k[at * slots + e];
      q[static_cast<size_t>(c.read_slots[at * slots + e])] = c.q[at * slots + e];
    }
    for (size_t i = 0; i < dim; ++i) {
      double k_m = 0, read = 0;
      for (size_t s = 0; s < slots; ++s) { k_m += k[s] * m[s * dim + i]; }
      for (size_t s = 0; s < slots; ++s) {
        m[s * dim + i] =
            std::exp(c.g[at]) * (m[s * dim + i] - c.beta[at] * k[s] * k_m) + c.beta[at] * k[s] * c.v[at * dim + i];
        read += q[s] * m[s * dim + i];
      }
      y.push_back(read);
    }
  }
  return y;
}

}  // namespace

TEST_CASE("the sparse delta recurrence and its gradients equal the chunk equations", "[fast]") {
  const int64_t chunk = GENERATE(1, 3, 4, 11);  // 11 = T; 11 is no multiple of 3 or 4
  const bool by_key = GENERATE(false, true);
  const std::vector<int64_t> lengths = GENERATE(std::vector<int64_t>{11}, std::vector<int64_t>{1, 7, 3});
  const int64_t writes = GENERATE(1, 3);
  Problem c({2, 11, 2, 6, 5, writes, 2});
  c.by_key = by_key;
  c.lengths = lengths;
  c.run<double>();
  // 1e-11: rounding of a few hundred sums, small against the 1e-9 that golden cases ask for.
  check_all(c, Chunks(c, chunk), 1e-11);
}

TEST_CASE("a carried state ends as the chunk equations say, and private rows give the same readings", "[fast]") {
  Problem c({2, 9, 2, 5, 19, 2, 3});
  c.run<double>();
  const Chunks chunks(c, 4);
  Problem carried = c;
  carried.carried = true;
  carried.state.clear();
  for (int64_t b = 0; b < c.n.batch; ++b) {
    carried.state.insert(carried.state.end(), c.memory.begin(), c.memory.end());
  }
  carried.run<double>();
  CHECK(carried.y == c.y);
  Values expected;
  for (const auto& [key, state] : chunks.final_state) { expected.insert(expected.end(), state.begin(), state.end()); }
  check_close("state", carried.final_state, expected, 1e-12);
}

TEST_CASE("writing and reading every slot is the dense gated delta rule", "[fast]") {
  Problem c({1, 13, 1, 7, 5, 7, 7});
  c.run<double>();
  check_close("y", c.y, dense_delta_rule(c), 1e-12);
}

TEST_CASE("one slot written with full strength reads back exactly", "[fast]") {
  Problem c({1, 6, 2, 9, 5, 1, 1});
  c.read_slots = c.write_slots;
  std::fill(c.k.begin(), c.k.end(), 1.0);
  std::fill(c.q.begin(), c.q.end(), 1.0);
  std::fill(c.beta.begin(), c.beta.end(), 1.0);
  c.run<double>();
  check_close("y", c.y, c.v, 1e-14);
}

TEST_CASE("without decay and write strength the memory keeps its bits; slots that are not written always do",
          "[fast]") {
  Problem c({1, 12, 2, 30, 5, 2, 3});
  Problem still = c;
  std::fill(still.g.begin(), still.g.end(), 0.0);
  std::fill(still.beta.begin(), still.beta.end(), 0.0);
  still.carried = c.carried = true;
  still.state = still.memory;
  still.run<double>();
  CHECK(still.final_state == still.memory);
  for (size_t i = 0; i < still.y.size(); ++i) {
    const size_t head = i / 5 % 2, token = i / 10;
    double expected = 0;
    for (size_t m = 0; m < 3; ++m) {
      const size_t e = (token * 2 + head) * 3 + m;
      expected += c.q[e] * c.memory[(head * 30 + static_cast<size_t>(c.read_slots[e])) * 5 + i % 5];
    }
    CHECK(still.y[i] == Catch::Approx(expected).epsilon(1e-13));
  }
  c.state = c.memory;
  c.run<double>();
  for (size_t head = 0; head < 2; ++head) {
    std::set<int64_t> written;
    for (size_t t = 0; t < 12; ++t) {
      written.insert(c.write_slots.begin() + static_cast<int64_t>(t * 4 + head * 2),
                     c.write_slots.begin() + static_cast<int64_t>(t * 4 + head * 2 + 2));
    }
    REQUIRE(written.size() < 30);
    for (size_t slot = 0; slot < 30; ++slot) {
      const auto row = [&](const Values& m) {
        return Values(m.begin() + static_cast<int64_t>((head * 30 + slot) * 5),
                      m.begin() + static_cast<int64_t>((head * 30 + slot + 1) * 5));
      };
      CHECK((row(c.final_state) == row(c.memory)) == (written.count(static_cast<int64_t>(slot)) == 0));
    }
  }
}

TEST_CASE("decays that underflow leave everything finite and equal to the recurrence", "[fast]") {
  Problem c({1, 10, 1, 6, 5, 3, 3});
  std::fill(c.g.begin(), c.g.end(), -400.0);
  Problem narrow = c;
  c.run<double>();
  narrow.run<float>();
  check_all(c, Chunks(c, 4), 1e-11);
  check_all(narrow, c, 1e-5);  // the fp32 rule of the layer pages
  // e^-400 is 0 in float: what came before a write has no influence at all.
  CHECK(std::all_of(narrow.d_g.begin(), narrow.d_g.end(), [](double x) { return x == 0; }));
}

TEST_CASE("heads of a sparse delta memory are independent", "[fast]") {
  Problem c({1, 8, 2, 9, 5, 3, 2});
  c.run<double>();
  Problem changed = c;
  Rng rng(3, "changes");
  for (size_t t = 0; t < 8; ++t) {
    for (size_t i = 0; i < 5; ++i) { changed.v[(t * 2 + 1) * 5 + i] = rng.normal(); }
    for (size_t i = 0; i < 3; ++i) { changed.k[(t * 2 + 1) * 3 + i] = rng.normal(); }
    changed.g[t * 2 + 1] = -rng.uniform();
  }
  changed.run<double>();
  for (size_t i = 0; i < c.y.size(); ++i) {
    if (i / 5 % 2 == 0) {
      CHECK(changed.y[i] == c.y[i]);
      CHECK(changed.d_v[i] == c.d_v[i]);
    }
  }
  CHECK(std::equal(c.d_memory.begin(), c.d_memory.begin() + 45, changed.d_memory.begin()));
}

TEST_CASE("sparse delta kernels give the same bits on any number of threads", "[fast][threads]") {
  Problem c({3, 21, 2, 12, 300, 3, 4});  // several slices of channels
  c.lengths = {4, 1, 16};
  const int before = threads();
  set_threads(1);
  c.run<float>();
  for (const int count : {2, 3, 5}) {
    Problem again = c;
    set_threads(count);
    again.run<float>();
    CHECK(again.y == c.y);
    CHECK(again.d_k == c.d_k);
    CHECK(again.d_q == c.d_q);
    CHECK(again.d_v == c.d_v);
    CHECK(again.d_g == c.d_g);
    CHECK(again.d_beta == c.d_beta);
    CHECK(again.d_memory == c.d_memory);
  }
  set_threads(before);
}

TEST_CASE("fp32 gradients stay accurate over long sequences of repeated writes", "[fast]") {
  // The decay's gradient is carried from write to write: rounding could pile up over the thousands of
  // events that a hot slot sees here.
  Problem c({1, 1500, 1, 4, 33, 2, 2});
  for (double& x : c.g) { x *= 0.2; }
  for (double& x : c.k) { x = std::clamp(x, 0.05, 0.7); }
  Problem narrow = c;
  c.run<double>();
  narrow.run<float>();
  check_all(narrow, c, 1e-5);
}

TEST_CASE("without a learned memory the table begins as zeros", "[fast]") {
  Problem c({1, 9, 2, 7, 5, 3, 2});
  Problem none = c;
  std::fill(c.memory.begin(), c.memory.end(), 0.0);
  none.has_memory = false;
  c.run<double>();
  none.run<double>();
  CHECK(none.y == c.y);
  CHECK(none.d_k == c.d_k);
  CHECK(none.d_v == c.d_v);
  CHECK(none.d_g == c.d_g);
}
