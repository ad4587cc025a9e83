// What the thread sanitizer watches, with the tests of other files that are tagged [threads]: every kernel with a
// barrier or warp operation once, in small, and planted races. Timing is early, so that asynchronous copies happen
// where they are issued. Other builds compare results between numbers of workers.
#include <algorithm>

#include "kernels/common/cuda/async_copy.cuh"
#include "kernels/common/cuda/prelude.cuh"
#include "kernels/common/cuda/sort.cuh"
#include "support.h"

#ifdef SIMT_TSAN
#include <cstdlib>
#include <filesystem>
#endif

using namespace hebb_test;

namespace {

/// f() returns a result; it must be the same for one worker and for one more than there are blocks.
template <class F> void same_for_all_workers(int blocks, F&& f) {
  std::vector<std::vector<double>> results;
  for (const int workers : {1, blocks + 1}) {
    const simt::ScopedSettings scope({simt::Order::forward, simt::Timing::early, workers});
    results.push_back(f());
  }
  CHECK(results[0] == results[1]);
  CHECK(std::none_of(results[0].begin(), results[0].end(), [](double x) { return std::isnan(x); }));
}

TEST_CASE("a sort of several tiles does not race", "[threads]") {
  constexpr int64_t kCount = 4 * 2048 + 3;
  same_for_all_workers(5, [] {
    TestStream stream;
    std::vector<int32_t> keys;
    Numbers numbers(1);
    for (int64_t i = 0; i < kCount; ++i) { keys.push_back(static_cast<int32_t>(numbers.below(200))); }
    DeviceArray<int32_t> in(keys);
    DeviceArray<unsigned char> scratch(device::sort_scratch_bytes(kCount));
    const device::SortedKeys sorted = device::sort_keys(stream, in.data(), kCount, 200, scratch.data());
    device::synchronize(stream);
    return std::vector<double>(sorted.positions, sorted.positions + kCount);
  });
}

TEST_CASE("sums of squares do not race", "[threads]") {
  same_for_all_workers(2, [] {
    TestStream stream;
    DeviceArray<float> x(random_values<float>(65536 + 7, 1));
    DeviceArray<double> partial(2);
    device::run(stream, hebb::SumSquares{.partial = partial.tensor(), .x = x.tensor()});
    return partial.host();
  });
}

TEST_CASE("decisions of steps do not race", "[threads]") {
  same_for_all_workers(1, [] {
    TestStream stream;
    DeviceArray<double> outcome(hebb::step_outcome_size(2)), partial(random_values<double>(300, 1)),
        limits(std::vector<double>{1, 1}), losses(random_values<double>(300, 2)), scale(std::vector<double>{0.5});
    DeviceArray<int64_t> ends(std::vector<int64_t>{299, 300});
    device::run(stream, hebb::DecideStep{.outcome = outcome.tensor(),
                                         .partial = partial.tensor(),
                                         .ends = ends.tensor(),
                                         .limits = limits.tensor(),
                                         .row_loss = losses.tensor(),
                                         .scale = scale.tensor()});
    return outcome.host();
  });
}

template <bool kOrders> __global__ void double_buffer(float* out, const float* in) {
  HEBB_SHARED(float[2][128], tile);
  const unsigned t = threadIdx.x;
  float sum = 0;
  for (int i = 0; i < 3; ++i) {
    device::copy_async_16(&tile[i % 2][4 * t], in + 4 * t, 16);
    device::commit_async_copies();
    device::wait_async_copies<0>();
    __syncthreads();
    sum += tile[i % 2][(4 * t + 4) % 128];
    if (kOrders) {
      __syncthreads();
    } else if (i == 1) {
      tile[1][4 * t] = 0;  // while a neighbour reads
    }
  }
  out[blockIdx.x * 32 + t] = sum;
}

template <bool kSyncs> __global__ void exchange_in_warp(float* out) {
  HEBB_SHARED(float[32], values);
  values[threadIdx.x] = static_cast<float>(threadIdx.x);
  if (kSyncs) {
    __syncwarp();
  } else {
    __shfl_sync(0xFFFFFFFFu, 1, 0);  // no fence
  }
  out[blockIdx.x * 32 + threadIdx.x] = values[31 - threadIdx.x];
}

template <bool kOwn> __global__ void write_globally(float* out) {
  if (threadIdx.x == 0) { out[kOwn ? blockIdx.x : 0] = 1; }
}

std::vector<double> run_exchange(void (*kernel)(float*)) {
  TestStream stream;
  DeviceArray<float> out(std::vector<float>(64));
  HEBB_LAUNCH(kernel, 2, 32, 0, stream, out.data());
  return out.values();
}

std::vector<double> run_double_buffer(void (*kernel)(float*, const float*)) {
  TestStream stream;
  DeviceArray<float> in(random_values<float>(128, 1)), out(64);
  HEBB_LAUNCH(kernel, 2, 32, 0, stream, out.data(), in.data());
  return out.values();
}

TEST_CASE("barriers, warp barriers and private addresses order what they should", "[threads]") {
  same_for_all_workers(2, [] { return run_double_buffer(double_buffer<true>); });
  same_for_all_workers(2, [] { return run_exchange(exchange_in_warp<true>); });
  same_for_all_workers(2, [] { return run_exchange(write_globally<true>); });
}

#ifdef SIMT_TSAN
TEST_CASE("planted race within a block", "[.]") { run_double_buffer(double_buffer<false>); }
TEST_CASE("planted race within a warp", "[.]") { run_exchange(exchange_in_warp<false>); }
TEST_CASE("planted race between blocks", "[.]") { run_exchange(write_globally<false>); }

TEST_CASE("races within a warp, within a block and between blocks are reported", "[threads]") {
  // In a process of their own, which ends with the sanitizer's exit code.
  const std::string place = GENERATE("within a block", "within a warp", "between blocks");
  CAPTURE(place);
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  const int status =
      std::system(("TSAN_OPTIONS=exitcode=66 '" + program + "' 'planted race " + place + "' >/dev/null 2>&1").c_str());
  CHECK(WEXITSTATUS(status) == 66);
}
#endif

}  // namespace
