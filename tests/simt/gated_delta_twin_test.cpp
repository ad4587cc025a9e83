// The gated delta rule, by steps and by chunks, forward and backward, against its CPU twin.
#include "chunk_grids.h"
#include "delta_on_tensor_cores.h"
#include "kernels/gated_delta/scratch.h"
#include "kernels/gated_delta/walk.cuh"
#include "twins.h"

using namespace hebb_test;
using namespace hebb;

namespace {

// A chunk is a chain of products and of a triangular system, all in fp32; the CPU's fp32 kernels stay within as much.
constexpr double kDeltaTolerance = 3e-5;
// On tensor cores what is read from and written to the state has 16 bits; an error in one write reaches all later ones.
constexpr double kSplitTolerance = 1e-3;
// What gradients of decays take from the state and its gradient in bf16 is off by 2^-9 of the largest term; entries are
// sums of such.
constexpr double kRoundedTolerance = 6e-3;

struct Sizes {
  int64_t length, heads, value_heads, dk, dv, chunk;
  std::vector<int64_t> doc_start;
  bool initial, additive = false;

  Shape keys() const { return {2, length, heads, dk}; }
  Shape values() const { return {2, length, value_heads, dv}; }
  Shape gates() const { return {2, length, value_heads}; }
  Shape states(int64_t n) const { return {n, value_heads, dk, dv}; }
};

struct Operands {
  Twin q, k, v, g, beta, initial, doc_start;

  Operands(Twins& t, const Sizes& s)
      : q(t.input(s.keys())),
        k(t.input(s.keys(), 1.5 / std::sqrt(static_cast<double>(s.dk)))),
        v(t.input(s.values())),
        g(decays(t, s)),
        beta(t.parameter(s.gates())),
        initial(s.initial ? t.parameter({s.value_heads, s.dk, s.dv}) : Twin{}),
        doc_start(t.integers({2, s.length}, s.doc_start)) {}

  /// Logs of decays: weak ones and a few that forget nearly all.
  static Twin decays(Twins& t, const Sizes& s) {
    std::vector<double> values;
    Numbers numbers(11);
    for (int64_t i = 0; i < s.gates().numel(); ++i) {
      values.push_back(static_cast<float>(i % 29 == 28 ? -100.0 : -0.2 * std::fabs(numbers.next())));
    }
    return t.values(s.gates(), values);
  }
};

void check_forward(const Sizes& s, bool carried, DType dtype = DType::f32) {
  const bool on_tensor_cores = dtype == DType::bf16;
  Twins t(dtype);
  const Operands in(t, s);
  const Grid grid(s.doc_start, 2, s.length, s.chunk);
  const Twin o = t.output(s.values()), prediction = s.additive || on_tensor_cores ? Twin{} : t.output(s.values()),
             state = carried ? t.float_sum(s.states(2)) : Twin{},
             chunks = t.integers({static_cast<int64_t>(grid.chunks.size()) / 3, 3}, grid.chunks, DType::i64),
             rows = t.integers({3}, grid.rows, DType::i64);
  t.check(
      [&](auto at) {
        return GatedDeltaForward{.o = at(o),
                                 .prediction = at(prediction),
                                 .state = at(state),
                                 .q = at(in.q),
                                 .k = at(in.k),
                                 .v = at(in.v),
                                 .g = at(in.g),
                                 .beta = at(in.beta),
                                 .initial_state = at(in.initial),
                                 .doc_start = at(in.doc_start),
                                 .grid = ChunkGrid{at(chunks), at(rows), grid.states, grid.longest},
                                 .scale = 0.4,
                                 .additive = s.additive};
      },
      on_tensor_cores ? kSplitTolerance : kDeltaTolerance);
}

void check_backward(const Sizes& s, DType dtype = DType::f32) {
  Twins t(dtype);
  const Operands in(t, s);
  const Grid grid(s.doc_start, 2, s.length, s.chunk);
  const Twin chunks = t.integers({static_cast<int64_t>(grid.chunks.size()) / 3, 3}, grid.chunks, DType::i64),
             rows = t.integers({3}, grid.rows, DType::i64), d_o = t.input(s.values()), d_q = t.output(s.keys()),
             d_k = t.output(s.keys()), d_v = t.output(s.values()), d_g = t.float_output(s.gates()),
             d_beta = t.float_output(s.gates()),
             d_initial = s.initial ? t.float_sum({s.value_heads, s.dk, s.dv}) : Twin{};
  const bool on_tensor_cores = dtype == DType::bf16 && s.dk % 8 == 0;
  const int64_t runs = simt::runs_of("gated_delta_mma_");
  t.check(
      [&](auto at) {
        return GatedDeltaBackward{.d_q = at(d_q),
                                  .d_k = at(d_k),
                                  .d_v = at(d_v),
                                  .d_g = at(d_g),
                                  .d_beta = at(d_beta),
                                  .d_initial_state = at(d_initial),
                                  .d_o = at(d_o),
                                  .q = at(in.q),
                                  .k = at(in.k),
                                  .v = at(in.v),
                                  .g = at(in.g),
                                  .beta = at(in.beta),
                                  .initial_state = at(in.initial),
                                  .doc_start = at(in.doc_start),
                                  .grid = ChunkGrid{at(chunks), at(rows), grid.states, grid.longest},
                                  .scale = 0.4,
                                  .additive = s.additive};
      },
      on_tensor_cores ? kRoundedTolerance : kDeltaTolerance);
  CHECK(simt::runs_of("gated_delta_mma_") ==
        runs + (on_tensor_cores ? 2 * 3 : 0));  // three kernels, forward and in reverse
}

Sizes grouped() { return {70, 1, 2, 9, 13, 20, documents_of_two_rows(), true}; }

TEST_CASE("the chunked delta rule equals the CPU's", "[fast]") {
  check_forward(grouped(), false);
  Sizes s{37, 2, 2, 6, 5, 64, std::vector<int64_t>(74), false};
  check_forward(s, false);
  std::fill_n(s.doc_start.begin(), 37, -5);  // continues
  s.chunk = 17;
  check_forward(s, true);
  s.additive = true;
  check_forward(s, true);
}

TEST_CASE("the chunked delta rule on tensor cores equals the CPU's", "[fast]") {
  const auto check = [](const Sizes& s, bool carried) {
    const int64_t runs = simt::runs_of("gated_delta_mma");
    check_forward(s, carried, DType::bf16);
    CHECK(simt::runs_of("gated_delta_mma") == runs + 2);  // forward and in reverse
  };
  check({70, 1, 2, 128, 136, 64, documents_of_two_rows(), true}, true);
  check({70, 2, 2, 40, 24, 20, documents_of_two_rows(), false}, false);
  Sizes s{131, 1, 1, 64, 72, 64, std::vector<int64_t>(262), false};
  check(s, false);
  std::fill_n(s.doc_start.begin(), 131, -5);  // continues
  s.chunk = 33;
  check(s, true);
  s.additive = true;
  check(s, true);
}

TEST_CASE("gradients of the chunked delta rule equal the CPU's", "[fast]") {
  check_backward(grouped());
  Sizes additive = grouped();
  additive.additive = true;
  check_backward(additive);
  check_backward({70, 1, 1, 70, 66, 64, std::vector<int64_t>(140), false});
}

TEST_CASE("gradients of the chunked delta rule on tensor cores equal the CPU's", "[fast]") {
  const auto check = [](Sizes s) {
    CAPTURE(s.dk, s.dv, s.additive);
    check_backward(s, DType::bf16);
  };
  check({70, 1, 2, 128, 136, 64, documents_of_two_rows(), true});
  check({70, 2, 2, 40, 24, 20, documents_of_two_rows(), false});
  check({67, 1, 1, 64, 72, 33, std::vector<int64_t>(134), false});
  check({70, 1, 2, 16, 64, 33, documents_of_two_rows(), true, true});
  check({9, 1, 1, 9, 8, 4, std::vector<int64_t>(18), true});  // left to the plain cores
}

TEST_CASE("results of the delta rule on tensor cores do not depend on the width of slices", "[fast]") {
  const auto results = [](int64_t key_dim, int multiprocessors) {
    simt::Settings settings = simt::settings();
    settings.multiprocessors = multiprocessors;
    const simt::ScopedSettings scope(settings);
    return delta_on_tensor_cores(key_dim);
  };
  const int64_t key_dim = GENERATE(24, 72);                               // kernels for keys of 64 and of 128
  both_ways([&] { CHECK(results(key_dim, 1) == results(key_dim, 3)); });  // slices of 64, and of 32
}

TEST_CASE("the delta rule takes slices of 32 value channels where the multiprocessors hold them in as many rounds",
          "[fast]") {
  const auto blocks = [](int64_t value_heads, int64_t value_dim, int multiprocessors) {
    const simt::ScopedSettings scope({.multiprocessors = multiprocessors});
    const Tensor k{nullptr, DType::bf16, {8, 4096, 4, 64}}, v{nullptr, DType::bf16, {8, 4096, value_heads, value_dim}};
    std::vector<unsigned> found;
    device::delta_mma::dispatch_slices(device::delta::Sizes(k, v), false, [&](auto width, auto slice, auto, dim3 grid) {
      found = {static_cast<unsigned>(width), static_cast<unsigned>(slice), grid.x, grid.y};
    });
    return found;
  };
  using Found = std::vector<unsigned>;
  CHECK(blocks(8, 64, 132) == Found{64, 32, 64, 2});     // 128 blocks
  CHECK(blocks(8, 64, 127) == Found{64, 64, 64, 1});     // two rounds of slices of 32, one of 64
  CHECK(blocks(8, 32, 20) == Found{64, 32, 64, 1});      // half of a slice of 64 would be empty
  CHECK(blocks(16, 136, 132) == Found{64, 64, 128, 3});  // three rounds instead of five
}

TEST_CASE("steps of the delta rule equal the CPU's", "[fast]") {
  const bool additive = GENERATE(false, true);
  const Sizes s{3, 1, 2, 9, 37, 0, {-2, -2, 2, 0, 0, 0}, true};
  Twins t;
  const Operands in(t, s);
  const Twin o = t.output(s.values()), prediction = t.output(s.values()), state = t.float_sum(s.states(2));
  t.check(
      [&](auto at) {
        return GatedDeltaSteps{.o = at(o),
                               .prediction = at(prediction),
                               .state = at(state),
                               .q = at(in.q),
                               .k = at(in.k),
                               .v = at(in.v),
                               .g = at(in.g),
                               .beta = at(in.beta),
                               .initial_state = at(in.initial),
                               .doc_start = at(in.doc_start),
                               .scale = 0.4,
                               .additive = additive};
      },
      kDeltaTolerance);
}

TEST_CASE("the chunked delta rule and its gradients do not race", "[threads]") {
  const Sizes s{5, 1, 2, 3, 4, 2, std::vector<int64_t>(10), true};
  check_forward(s, true);
  check_backward(s);
}

}  // namespace
