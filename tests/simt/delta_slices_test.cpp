// How the delta rule on tensor cores divides its value channels into slices.
#include "kernels/gated_delta/chunk_pipeline.cuh"

#include "support.h"
#include "tests/op_cases/gated_delta.h"

using namespace hebb_test;

namespace {

TEST_CASE("results of the delta rule on tensor cores do not depend on the width of slices", "[fast]") {
  const int64_t key_dim = GENERATE(24, 72);  // kernels for keys of 64 and of 128
  const Delta d{70, 1, 1, key_dim, 72, 64, std::vector<int64_t>(140), true, true};
  std::vector<std::vector<unsigned char>> found[2];
  for (const int multiprocessors : {1, 3}) {  // slices of 64, and of 32
    simt::Settings settings = simt::settings();
    settings.multiprocessors = multiprocessors;
    const simt::ScopedSettings scope(settings);
    const std::unique_ptr<Memory> memory = emulated_memory();
    found[multiprocessors / 3] = run_case(*memory, {.activations = DType::bf16, .reals = DType::f64}, [&](Machine& m) {
                                   const DeltaInputs in(m, d);
                                   m.run(delta_forward(m, d, in));
                                   m.run(delta_backward(m, d, in));
                                 }).bits;
  }
  CHECK(found[0] == found[1]);
}

TEST_CASE("the delta rule takes slices of 32 value channels where the multiprocessors hold them in as many rounds",
          "[fast]") {
  const auto blocks = [](int64_t value_heads, int64_t value_dim, int multiprocessors) {
    const simt::ScopedSettings scope({.multiprocessors = multiprocessors});
    const Tensor k{nullptr, DType::bf16, {8, 4096, 4, 64}}, v{nullptr, DType::bf16, {8, 4096, value_heads, value_dim}};
    std::vector<unsigned> found;
    device::delta_mma::dispatch_slices(DeltaSizes(k, v), false, [&](auto width, auto slice, auto, dim3 grid) {
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

}  // namespace
