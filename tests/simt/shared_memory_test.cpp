// Kernels on a GPU whose blocks may have 99 KB of shared memory (compute capability 8.6, 8.9, 12.x).
#include "kernels/common/cores.h"
#include "support.h"
#include "tests/op_cases/attention.h"

using namespace hebb_test;
using namespace hebb;

namespace {

constexpr int64_t kSmall = 99 * 1024;

/// The device has 99 KB, and fallbacks are collected.
struct SmallGpu {
  simt::ScopedDeviceModel scope{{.shared_bytes = kSmall, .truncates = false}};
  FallbackLog log;
};

/// What causal attention of one head of d channels gives on the device as it is.
Values attend(int64_t d) {
  const std::unique_ptr<Memory> memory = emulated_memory();
  Machine m(*memory, {.activations = DType::bf16, .reals = DType::f64});
  return m.read(attention_passes(m, causal(70, 1, 1, d, d), 0, 0).o);
}

}  // namespace

TEST_CASE("attention with 99 KB takes tensor cores up to heads of 96, then says why not", "[fast]") {
  const Values wide = attend(128), narrow = attend(96);
  const SmallGpu gpu;
  const int64_t runs = simt::runs_of("attention_mma_forward");
  CHECK(attend(96) == narrow);
  CHECK(simt::runs_of("attention_mma_forward") == runs + 1);
  CHECK(gpu.log.lines().empty());
  CHECK(relative_error(attend(128), wide) < 1e-2);
  CHECK(simt::runs_of("attention_mma_forward") == runs + 1);
  CHECK(gpu.log.lines() == std::vector<std::string>{"attention: heads of 128 channels: a block needs 113 KB of shared "
                                                    "memory, the GPU has 99 KB"});
}

TEST_CASE("a launch that needs more shared memory than the device has is refused", "[fast]") {
  const SmallGpu gpu;
  TestStream stream;
  const AttentionForwardScratch wrong{.partial = {}, .on_tensor_cores = true};
  const DeviceArray<hebb::bf16> q(random_values<hebb::bf16>(16 * 128, 1)), o(16 * 128);
  const DeviceArray<int32_t> lo(std::vector<int32_t>(16, 0)), hi(std::vector<int32_t>(16, 16));
  const Shape shape{1, 16, 1, 128};
  CHECK(contains(fault_of([&] {
                   device::run(stream,
                               AttentionForward{.o = o.tensor(shape),
                                                .lse = {},
                                                .q = q.tensor(shape),
                                                .k = q.tensor(shape),
                                                .v = q.tensor(shape),
                                                .lo = lo.tensor({1, 16}),
                                                .hi = hi.tensor({1, 16}),
                                                .bias = {},
                                                .scale = 1.0},
                               wrong);
                 }),
                 "bytes of shared memory; the limit is 101376"));
}
