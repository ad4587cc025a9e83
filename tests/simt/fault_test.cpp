// Planted bugs: each must be found, by a fault that names it or by a wrong result.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

#include "kernels/common/cuda/async_copy.cuh"
#include "kernels/common/cuda/block.cuh"
#include "kernels/common/cuda/mma.cuh"
#include "kernels/common/cuda/prelude.cuh"
#include "support.h"

using namespace hebb_test;
using namespace hebb::HEBB_DEVICE;

namespace {

constexpr simt::Settings kForwardLate{simt::Order::forward, simt::Timing::late, 1};
constexpr simt::Settings kReverseEarly{simt::Order::reverse, simt::Timing::early, 2};

template <class... P, class... A> std::string fault_in(void (*kernel)(P...), int threads, A... arguments) {
  return fault_of([&] {
    TestStream stream;
    HEBB_LAUNCH(kernel, 2, threads, 0, stream, arguments...);
    synchronize(stream);
  });
}

__global__ void reverse_without_barrier(float* out, const float* in) {
  HEBB_SHARED(float[64], tile);
  tile[threadIdx.x] = in[threadIdx.x];
  out[blockIdx.x * 64 + threadIdx.x] = tile[63 - threadIdx.x];
}

TEST_CASE("a missing barrier reads poison", "[fast]") {
  const simt::Settings settings = GENERATE(kForwardLate, kReverseEarly);
  const simt::ScopedSettings scope(settings);
  TestStream stream;
  DeviceArray<float> in(random_values<float>(64, 1)), out(128);
  HEBB_LAUNCH(reverse_without_barrier, 2, 64, 0, stream, out.data(), in.data());
  bool has_nan = false;
  for (const float x : out.host()) { has_nan = has_nan || std::isnan(x); }
  CHECK(has_nan);
}

__global__ void read_unwritten(float* out) {
  HEBB_SHARED(float[64], tile);
  if (threadIdx.x < 33) { tile[threadIdx.x] = 1; }
  __syncthreads();
  out[blockIdx.x * 64 + threadIdx.x] = tile[threadIdx.x];
}

TEST_CASE("shared memory that nobody wrote is NaN, in every block", "[fast]") {
  TestStream stream;
  DeviceArray<float> out(128);
  HEBB_LAUNCH(read_unwritten, 2, 64, 0, stream, out.data());
  const std::vector<float> got = out.host();
  for (size_t i = 0; i < 128; ++i) { CHECK((i % 64 < 33 ? got[i] == 1.0f : std::isnan(got[i]))); }
}

__global__ void barrier_for_some() {
  if (threadIdx.x < 40) { __syncthreads(); }
}
__global__ void two_barriers() {
  if (threadIdx.x < 40) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}
__global__ void barrier_against_collective() {
  if (threadIdx.x % 32 < 16) { __syncthreads(); }
  __syncwarp();
}
__global__ void return_before_barrier() {
  if (threadIdx.x == 5) { return; }
  __syncthreads();
}

TEST_CASE("a barrier in divergent code is a fault that names kernel, block, thread and line", "[fast]") {
  const simt::Settings settings = GENERATE(kForwardLate, kReverseEarly);
  const simt::ScopedSettings scope(settings);
  const std::string some = fault_in(barrier_for_some, 64);
  INFO(some);
  CHECK(contains(some, "kernel: block ("));
  CHECK(contains(some, "fault_test.cpp:"));
  CHECK((contains(some, "threads wait for it at the barrier") || contains(some, "threads of the block have returned")));
  CHECK(contains(fault_in(two_barriers, 64), "while others wait at the barrier (fault_test.cpp:"));
  const std::string deadlock = fault_in(barrier_against_collective, 64);
  INFO(deadlock);
  CHECK(contains(deadlock, "deadlock: thread ("));
  CHECK(contains(deadlock, "waits in __syncthreads at fault_test.cpp:"));
  CHECK(contains(deadlock, "waits in __syncwarp at fault_test.cpp:"));
  CHECK(contains(deadlock, "0 of 64 threads returned"));
  const std::string early = fault_in(return_before_barrier, 64);
  CHECK((contains(early, "after 1 threads of the block have returned") || contains(early, "returns while")));
}

__global__ void shuffle_at_two_lines(int* out) {
  int value = 0;
  if (threadIdx.x < 16) {
    value = __shfl_xor_sync(0xFFFFFFFFu, 1, 1);
  } else {
    value = __shfl_xor_sync(0xFFFFFFFFu, 2, 1);
  }
  out[threadIdx.x] = value;
}
__global__ void mask_without_caller(int* out) { out[threadIdx.x] = __shfl_sync(0xFFFF0000u, 1, 20); }
__global__ void mask_with_returned_lane(int* out) {
  if (threadIdx.x % 32 != 9) { out[threadIdx.x] = __shfl_sync(0xFFFFFFFFu, 1, 0); }
}

TEST_CASE("warp operations with wrong masks or in divergent code are faults", "[fast]") {
  const simt::Settings settings = GENERATE(kForwardLate, kReverseEarly);
  const simt::ScopedSettings scope(settings);
  DeviceArray<int> out(32);
  CHECK(contains(fault_in(shuffle_at_two_lines, 32, out.data()),
                 "while lanes of its mask wait in __shfl_xor_sync at fault_test.cpp:"));
  CHECK(contains(fault_in(mask_without_caller, 32, out.data()), "with a mask that does not name it"));
  const std::string returned = fault_in(mask_with_returned_lane, 32, out.data());
  CHECK((contains(returned, "names lane 9, which has returned") ||
         contains(returned, "returns while other lanes wait for it")));
}

// Places. Each line that a message must name is written down behind it.
__device__ __forceinline__ void wait_for_all() { __syncthreads(); }
constexpr int kWaitsForAll = __LINE__ - 1;
__device__ __attribute__((noinline)) int neighbour_of(int value) {
  return __shfl_xor_sync(0xFFFFFFFFu, value, 1);  // a call of its own in the machine code
}
constexpr int kNeighbour = __LINE__ - 2;

__global__ void divergent_barriers() {
  if (threadIdx.x < 40) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}
constexpr int kDivergentBarriers = __LINE__ - 5;

__global__ void divergent_operations(int* out) {
  if (threadIdx.x < 16) {
    out[threadIdx.x] = __shfl_xor_sync(0xFFFFFFFFu, 1, 1);
  } else {
    out[threadIdx.x] = __shfl_sync(0xFFFFFFFFu, 2, 1);
  }
}
constexpr int kDivergentOperations = __LINE__ - 5;

__global__ void barrier_by_two_ways() {
  if (threadIdx.x < 40) {
    wait_for_all();
  } else {
    wait_for_all();
  }
}
constexpr int kBarrierByTwoWays = __LINE__ - 5;

__global__ void operation_by_two_ways(int* out) {
  if (threadIdx.x < 16) {
    out[threadIdx.x] = neighbour_of(1);
  } else {
    out[threadIdx.x] = neighbour_of(2);
  }
}
constexpr int kOperationByTwoWays = __LINE__ - 5;

std::string place(int line, int inner = 0) {
  const std::string outer = "fault_test.cpp:" + std::to_string(line);
  return inner == 0 ? outer : outer + " > " + place(inner);
}

TEST_CASE("threads at two places of a kernel: the fault names the lines of both", "[fast]") {
  const bool is_forward = GENERATE(true, false);
  const simt::ScopedSettings scope(is_forward ? kForwardLate : kReverseEarly);
  DeviceArray<int> out(64);
  // The order of the threads decides which of the branches comes first.
  const auto barriers = [&](int line, int inner) {
    const std::string lower = place(line, inner), upper = place(line + 2, inner);
    return "reaches the barrier at " + (is_forward ? upper : lower) + " while others wait at the barrier (" +
           (is_forward ? lower : upper) + ")";
  };
  const auto operations = [&](int line, int inner, const std::string& of_lower, const std::string& of_upper) {
    const std::string lower = place(line, inner), upper = place(line + 2, inner);
    return "reaches " + (is_forward ? of_upper : of_lower) + " while lanes of its mask wait in " +
           (is_forward ? of_lower + " at " + lower : of_upper + " at " + upper) + " (" + (is_forward ? upper : lower) +
           ")";
  };
  const auto check = [](const std::string& found, const std::string& expected) {
    INFO(found);
    INFO(expected);
    CHECK(contains(found, expected));
  };
  check(fault_in(divergent_barriers, 64), barriers(kDivergentBarriers, 0));
  check(fault_in(barrier_by_two_ways, 64), barriers(kBarrierByTwoWays, kWaitsForAll));
  check(fault_in(divergent_operations, 32, out.data()),
        operations(kDivergentOperations, 0, "__shfl_xor_sync", "__shfl_sync"));
  check(fault_in(operation_by_two_ways, 32, out.data()),
        operations(kOperationByTwoWays, kNeighbour, "__shfl_xor_sync", "__shfl_xor_sync"));
}

// One line that stands twice in the machine code, as in code that a compiler has copied.
#define HEBB_SUM_OF_TWO(condition, x)        \
  if (condition) {                           \
    x += __shfl_xor_sync(0xFFFFFFFFu, 1, 1); \
  } else {                                   \
    x += __shfl_xor_sync(0xFFFFFFFFu, 2, 1); \
  }                                          \
  __syncthreads()

__global__ void one_line_twice(int* out) {
  int value = 0;
  HEBB_SUM_OF_TWO(threadIdx.x % 2 == 0, value);
  if (threadIdx.x / 32 == 0) {
    role_barrier(64);
  } else {
    role_barrier(64);
  }
  out[threadIdx.x + blockIdx.x * blockDim.x] = value;
}

TEST_CASE("copies of a line are one place, and roles wait for each other at several", "[fast]") {
  both_ways([] {
    TestStream stream;
    DeviceArray<int> out(128);
    HEBB_LAUNCH(one_line_twice, 2, 64, 0, stream, out.data());
    const std::vector<int> got = out.host();
    for (size_t i = 0; i < 128; ++i) { REQUIRE(got[i] == (i % 2 == 0 ? 2 : 1)); }
  });
}

__global__ void role_against_all() {
  if (threadIdx.x < 32) {
    role_barrier(64);
  } else {
    __syncthreads();
  }
}

TEST_CASE("a barrier of roles is not that of all threads", "[fast]") {
  CHECK(contains(fault_in(role_against_all, 64), "while others wait at the barrier (fault_test.cpp:"));
}

__global__ void shuffle_from_outside(int* out) {
  if (threadIdx.x < 8) { out[threadIdx.x] = __shfl_sync(0xFFu, 5, static_cast<int>(threadIdx.x) + 4); }
}

TEST_CASE("a lane outside the mask has nothing to give", "[fast]") {
  TestStream stream;
  DeviceArray<int> out(8);
  HEBB_LAUNCH(shuffle_from_outside, 1, 32, 0, stream, out.data());
  CHECK(out.host() == std::vector<int>{5, 5, 5, 5, -1, -1, -1, -1});
}

__global__ void __attribute__((noinline)) write_past_shared(int offset) {
  HEBB_SHARED(float[40], first);
  HEBB_SHARED(float[8], second);
  volatile float* const to = first;
  second[threadIdx.x % 8] = 0;
  __syncthreads();
  if (threadIdx.x == 3) { to[offset] = 1; }
  __syncthreads();
}

// Under the address sanitizer the program stops at the access, so this one runs in a child process.
TEST_CASE("writing past a shared array is found", "[fast]") {
#ifdef SIMT_ASAN
  const pid_t child = fork();
  if (child == 0) {
    REQUIRE(std::freopen("/dev/null", "w", stderr) != nullptr);  // the report
    const bool found = !fault_in(write_past_shared, 32, 40).empty();
    _exit(found ? 1 : 0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status != 0);
#else
  CHECK(contains(fault_in(write_past_shared, 32, 40), "written past the end of shared first"));
  CHECK(contains(fault_in(write_past_shared, 32, 41), "before (fault_test.cpp:"));
  CHECK(fault_in(write_past_shared, 32, 39).empty());
#endif
}

template <bool kWaits, bool kOrders> __global__ void double_buffer(float* out, const float* in, int tiles) {
  HEBB_SHARED(float[2][128], tile);
  const unsigned t = threadIdx.x;
  copy_async_16(&tile[0][4 * t], in + 4 * t, 16);
  commit_async_copies();
  float sum = 0;
  for (int i = 0; i < tiles; ++i) {
    if (i + 1 < tiles) { copy_async_16(&tile[(i + 1) % 2][4 * t], in + 128 * (i + 1) + 4 * t, 16); }
    commit_async_copies();
    if (kWaits || i + 1 == tiles) { wait_async_copies<1>(); }
    __syncthreads();
    for (unsigned j = 0; j < 4; ++j) { sum += tile[i % 2][(37 * t + 31 * j) % 128]; }
    if (kOrders) {
      __syncthreads();  // before the next copy into this buffer
    }
  }
  wait_async_copies<0>();
  out[t] = sum;
}

std::vector<float> run_double_buffer(void (*kernel)(float*, const float*, int), const simt::Settings& settings) {
  const simt::ScopedSettings scope(settings);
  TestStream stream;
  DeviceArray<float> in(random_values<float>(7 * 128, 11)), out(32);
  HEBB_LAUNCH(kernel, 1, 32, 0, stream, out.data(), in.data(), 7);
  return out.host();
}

TEST_CASE("a missing wait shows with late copies, a missing barrier before the next copy with early ones", "[fast]") {
  const std::vector<float> right = run_double_buffer(double_buffer<true, true>, kForwardLate);
  CHECK(run_double_buffer(double_buffer<true, true>, kReverseEarly) == right);
  for (const float x : right) { CHECK(!std::isnan(x)); }
  CHECK(run_double_buffer(double_buffer<false, true>, kForwardLate) != right);
  CHECK(run_double_buffer(double_buffer<true, false>, kReverseEarly) != right);
}

__global__ void copy_without_wait(const float* in) {
  HEBB_SHARED(float[128], tile);
  copy_async_16(&tile[4 * threadIdx.x], in + 4 * threadIdx.x, 16);
  commit_async_copies();
}
__global__ void copy_misaligned(const float* in) {
  HEBB_SHARED(float[132], tile);
  copy_async_16(&tile[4 * threadIdx.x], in + 4 * threadIdx.x + 1, 16);
}
__global__ void copy_outside(const float* in) {
  HEBB_SHARED(float[124], tile);
  copy_async_16(&tile[4 * threadIdx.x], in + 4 * threadIdx.x, 16);
  commit_async_copies();
  wait_async_copies<0>();
}
__global__ void matrix_misaligned(uint32_t* out) {
  HEBB_SHARED(uint16_t[300], tile);
  uint32_t fragment[1];
  load_matrices<1, false>(fragment, &tile[9 * (threadIdx.x % 8)]);
  out[threadIdx.x] = fragment[0];
}
__global__ void matrix_outside(uint32_t* out) {
  HEBB_SHARED(uint16_t[64], tile);
  uint32_t fragment[1];
  load_matrices<1, false>(fragment, &tile[16 * (threadIdx.x % 8)]);
  out[threadIdx.x] = fragment[0];
}
__global__ void pack_over_the_end(float* out, const float* in) {
  float value[4];
  device::load_pack(value, in, 0, 3, true);
  device::store_pack(out, 0, 4, true, value);
}

__global__ void vector_misaligned(float* out, const float* in) {
  float value[4];
  load_pack(value, in + 1, 4 * threadIdx.x, 1000, true);
  store_pack(out, 4 * threadIdx.x, 128, true, value);
}

TEST_CASE("wrong addresses and unfinished copies of the instructions are faults", "[fast]") {
  const simt::ScopedSettings scope(kForwardLate);
  DeviceArray<float> in(random_values<float>(1024, 2)), out(128);
  DeviceArray<uint32_t> fragments(32);
  CHECK(contains(fault_in(copy_without_wait, 32, in.data()),
                 "returns with a cp.async that was not waited for (fault_test.cpp:"));
  CHECK(contains(fault_in(copy_misaligned, 32, in.data()), "not multiples of 16 bytes"));
  CHECK(contains(fault_in(copy_outside, 32, in.data()),
                 "thread (31,0,0): cp.async to an address outside of shared memory"));
  CHECK(contains(fault_in(matrix_misaligned, 32, fragments.data()), "thread (1,0,0): ldmatrix of a row whose address"));
  CHECK(contains(fault_in(matrix_outside, 32, fragments.data()), "ldmatrix of a row outside of shared memory"));
  CHECK(contains(fault_in(vector_misaligned, 32, out.data(), in.data()), "16-byte load from an address"));
  CHECK(contains(fault_in(pack_over_the_end, 32, out.data(), in.data()), "a pack reaches over the end of its row"));
}

TEST_CASE("what CUDA refuses while a stream is captured is a fault", "[fast]") {
  TestStream stream, other;
  DeviceArray<int> value(std::vector<int>{1});
  int host = 0;
  const hebb::Tensor tensor{value.data(), hebb::DType::i32, {1}};
  device::Event event;
  const auto recorded = [&](const std::function<void()>& work) {
    return fault_of([&] { device::Graph(stream, 0, work); });
  };
  const std::string start = "stream capture: ";
  CHECK(recorded([&] { device::synchronize(stream); }) ==
        start + "the host waits for the device while a stream is captured");
  CHECK(contains(recorded([&] { device::synchronize(other); }), start + "the host waits for the device"));
  CHECK(contains(recorded([&] {
                   device::download(stream, {{&host, tensor}});
                 }),
                 start + "the host waits for the device"));
  CHECK(contains(recorded([&] { event.synchronize(); }), start + "the host waits for an event"));
  CHECK(contains(recorded([&] { event.record(other); }), start + "an event is recorded"));
  CHECK(contains(recorded([&] { simt::allocate(8); }), start + "device memory is allocated"));
  CHECK(contains(recorded([&] { simt::release(value.data()); }), start + "device memory is released"));
  CHECK(contains(recorded([&] { device::Graph(other, 0, [] {}); }), start + "another capture begins"));
  CHECK(recorded([] {}).empty());
  CHECK(contains(fault_of([&] { simt::end_capture(nullptr); }), start + "ends without having begun"));
}

TEST_CASE("after a fault the emulator works on", "[fast]") {
  DeviceArray<int> out(32);
  CHECK(!fault_in(mask_with_returned_lane, 32, out.data()).empty());
  TestStream stream;
  HEBB_LAUNCH(shuffle_from_outside, 1, 32, 0, stream, out.data());
  CHECK(out.host()[0] == 5);
}

}  // namespace
