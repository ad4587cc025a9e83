#include "tests/op_cases/sparse_delta.h"

#include <algorithm>
#include <set>

#include "core/random.h"
#include "tests/kernels/tensors.h"

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

template <class A, class B> void check_all(const A& a, const B& b, double tolerance) {
  check_near("y", a.y, b.y, tolerance);
  check_near("d_k", a.d_k, b.d_k, tolerance);
  check_near("d_q", a.d_q, b.d_q, tolerance);
  check_near("d_v", a.d_v, b.d_v, tolerance);
  check_near("d_g", a.d_g, b.d_g, tolerance);
  check_near("d_beta", a.d_beta, b.d_beta, tolerance);
  check_near("d_memory", a.d_memory, b.d_memory, tolerance);
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

TEST_CASE("a carried state that begins as the memory gives the same readings", "[fast]") {
  Problem c({2, 9, 2, 5, 19, 2, 3});
  c.run<double>();
  Problem carried = c;
  carried.carried = true;
  carried.state.clear();
  for (int64_t b = 0; b < c.n.batch; ++b) {
    carried.state.insert(carried.state.end(), c.memory.begin(), c.memory.end());
  }
  carried.run<double>();
  CHECK(carried.y == c.y);
}

TEST_CASE("writing and reading every slot is the dense gated delta rule", "[fast]") {
  Problem c({1, 13, 1, 7, 5, 7, 7});
  c.run<double>();
  check_near("y", c.y, dense_delta_rule(c), 1e-12);
}

TEST_CASE("one slot written with full strength reads back exactly", "[fast]") {
  Problem c({1, 6, 2, 9, 5, 1, 1});
  c.read_slots = c.write_slots;
  std::fill(c.k.begin(), c.k.end(), 1.0);
  std::fill(c.q.begin(), c.q.end(), 1.0);
  std::fill(c.beta.begin(), c.beta.end(), 1.0);
  c.run<double>();
  check_near("y", c.y, c.v, 1e-14);
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

TEST_CASE("decays that underflow leave everything finite", "[fast]") {
  Problem c({1, 10, 1, 6, 5, 3, 3});
  std::fill(c.g.begin(), c.g.end(), -400.0);
  Problem narrow = c;
  c.run<double>();
  narrow.run<float>();
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
  const SparseDelta c({3, 21, 2, 12, 300, 3, 4}, {4, 1, 16});  // several slices of channels
  check(DType::f32, [&](Machine& m) { sparse_delta_passes(m, c, 5e-6, 5e-6); });
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
