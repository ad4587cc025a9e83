// Indices, barriers, warp operations, shared memory, streams and memory of the emulator.
#include <array>
#include <numeric>

#include "kernels/common/cuda/prelude.cuh"
#include "support.h"

using namespace hebb_test;

namespace {

__global__ void write_indices(int* out) {
  const dim3 n = blockDim, g = gridDim;
  const auto thread = threadIdx.x + n.x * (threadIdx.y + n.y * threadIdx.z);
  const auto block = blockIdx.x + g.x * (blockIdx.y + g.y * blockIdx.z);
  out[block * n.x * n.y * n.z + thread] = static_cast<int>(1000 * block + thread);
}

TEST_CASE("every thread of every block runs once with its own index", "[fast]") {
  both_ways([] {
    TestStream stream;
    const dim3 grid(3, 2, 2), block(5, 4, 8);  // 12 blocks of 160 threads
    DeviceArray<int> out(12 * 160);
    HEBB_LAUNCH(write_indices, grid, block, 0, stream, out.data());
    const std::vector<int> got = out.host();
    for (int b = 0; b < 12; ++b) {
      for (int t = 0; t < 160; ++t) { REQUIRE(got[static_cast<size_t>(b * 160 + t)] == 1000 * b + t); }
    }
  });
}

__global__ void reverse_tile(float* out, const float* in) {
  HEBB_SHARED(float[96], tile);
  tile[threadIdx.x] = in[blockIdx.x * 96 + threadIdx.x];
  __syncthreads();
  out[blockIdx.x * 96 + threadIdx.x] = tile[95 - threadIdx.x];
}

TEST_CASE("a barrier makes shared memory visible to the block", "[fast]") {
  both_ways([] {
    TestStream stream;
    const std::vector<float> values = random_values<float>(5 * 96, 1);
    DeviceArray<float> in(values), out(5 * 96);
    HEBB_LAUNCH(reverse_tile, 5, 96, 0, stream, out.data(), in.data());
    const std::vector<float> got = out.host();
    for (size_t b = 0; b < 5; ++b) {
      for (size_t t = 0; t < 96; ++t) { REQUIRE(got[b * 96 + t] == values[b * 96 + 95 - t]); }
    }
  });
}

// What a lane gets from each operation, in columns of `out`.
__global__ void warp_operations(int* out) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  int* const mine = out + threadIdx.x * 11;
  mine[0] = __shfl_sync(0xFFFFFFFFu, 10 * lane, 7);
  mine[1] = __shfl_sync(0xFFFFFFFFu, 10 * lane, 3, 8);
  mine[2] = __shfl_xor_sync(0xFFFFFFFFu, 10 * lane, 5);
  mine[3] = __shfl_up_sync(0xFFFFFFFFu, 10 * lane, 3);
  mine[4] = __shfl_down_sync(0xFFFFFFFFu, 10 * lane, 3, 16);
  mine[5] = static_cast<int>(__ballot_sync(0xFFFFFFFFu, lane % 3 == 0));
  mine[6] = __any_sync(0xFFFFFFFFu, lane == 31) + 2 * __any_sync(0xFFFFFFFFu, lane > 31);
  mine[7] = static_cast<int>(__match_any_sync(0xFFFFFFFFu, lane % 5));
  mine[8] = static_cast<int>(__shfl_xor_sync(0xFFFFFFFFu, 1ull << lane, 1) >> 1);
  if (lane < 11) {  // part of a warp
    mine[9] = __shfl_sync(0x7FFu, lane, 10 - lane);
    __syncwarp(0x7FFu);
  } else {
    mine[9] = static_cast<int>(__ballot_sync(0xFFFFF800u, true));
  }
  mine[10] = hebb::HEBB_DEVICE::warp_sum(lane);
}

TEST_CASE("shuffles, votes and matches give each lane what CUDA gives it", "[fast]") {
  both_ways([] {
    TestStream stream;
    DeviceArray<int> out(64 * 11);
    HEBB_LAUNCH(warp_operations, 1, 64, 0, stream, out.data());
    const std::vector<int> got = out.host();
    for (int thread = 0; thread < 64; ++thread) {
      const int lane = thread % 32;
      unsigned thirds = 0, same = 0;
      for (int other = 0; other < 32; ++other) {
        thirds |= (other % 3 == 0 ? 1u : 0u) << other;
        same |= (other % 5 == lane % 5 ? 1u : 0u) << other;
      }
      const std::array<int, 11> expected{70,
                                         10 * (lane / 8 * 8 + 3),
                                         10 * (lane ^ 5),
                                         10 * (lane >= 3 ? lane - 3 : lane),
                                         10 * (lane % 16 + 3 < 16 ? lane + 3 : lane),
                                         static_cast<int>(thirds),
                                         1,
                                         static_cast<int>(same),
                                         static_cast<int>((1ull << (lane ^ 1)) >> 1),
                                         lane < 11 ? 10 - lane : static_cast<int>(0xFFFFF800u),
                                         496};
      INFO("thread " << thread);
      for (size_t i = 0; i < 11; ++i) {
        INFO("operation " << i);
        REQUIRE(got[static_cast<size_t>(thread) * 11 + i] == expected[i]);
      }
    }
  });
}

__global__ void reduce_twice(double* out, const float* in, int64_t count) {
  hebb::HEBB_DEVICE::BlockReducer<double> reduce;
  double values[2] = {0, 0};
  float top = -INFINITY;
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) {
    values[0] += static_cast<double>(in[i]);
    values[1] += 1;
    top = fmaxf(top, in[i]);
  }
  reduce.sum(values);
  const double again = reduce.sum(values[0]);
  const double largest = hebb::HEBB_DEVICE::BlockReducer<float>{}.max(top);
  if (threadIdx.x == blockDim.x - 1) {
    out[0] = values[0];
    out[1] = values[1];
    out[2] = again;
    out[3] = largest;
  }
}

TEST_CASE("block reductions reach every thread, for one warp and for many", "[fast]") {
  const int threads = GENERATE(32, 96, 1024);
  both_ways([threads] {
    TestStream stream;
    const std::vector<float> values = random_values<float>(2777, 5);
    DeviceArray<float> in(values);
    DeviceArray<double> out(4);
    HEBB_LAUNCH(reduce_twice, 1, threads, 0, stream, out.data(), in.data(), 2777);
    const std::vector<double> got = out.host();
    const double sum = std::accumulate(values.begin(), values.end(), 0.0);
    CHECK(got[0] == Catch::Approx(sum));
    CHECK(got[1] == 2777);
    CHECK(got[2] == Catch::Approx(threads * sum));
    CHECK(got[3] == *std::max_element(values.begin(), values.end()));
  });
}

// Counts with atomics in dynamic shared memory, then in global memory.
__global__ void count_bins(unsigned* out, const unsigned* in, int64_t count) {
  HEBB_DYN_SHARED(raw);
  auto* const bins = reinterpret_cast<unsigned*>(raw);
  for (unsigned i = threadIdx.x; i < 37; i += blockDim.x) { bins[i] = 0; }
  __syncthreads();
  for (int64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    atomicAdd(&bins[in[i] % 37], 1);
  }
  __syncthreads();
  for (unsigned i = threadIdx.x; i < 37; i += blockDim.x) {
    atomicAdd(&out[i], bins[i]);
    atomicMax(&out[37], bins[i]);
  }
}

TEST_CASE("integer atomics lose nothing within and between blocks", "[fast]") {
  both_ways([] {
    TestStream stream;
    std::vector<unsigned> values, expected(38);
    Numbers numbers(3);
    for (int i = 0; i < 5003; ++i) {
      values.push_back(numbers.below(1000));
      ++expected[values.back() % 37];
    }
    DeviceArray<unsigned> in(values), out(std::vector<unsigned>(38, 0));
    HEBB_LAUNCH(count_bins, 7, 64, 37 * 4, stream, out.data(), in.data(), 5003);
    std::vector<unsigned> got = out.host();
    CHECK(got[37] > 0);
    got[37] = 0;
    CHECK(got == expected);
  });
}

__global__ void add_one(int* value) {
  if (threadIdx.x == 0) { *value += 1; }
}

__global__ void add_all(int* sum, const int* values, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) { sum[i] += values[i]; }
}

TEST_CASE("late streams do nothing before somebody waits for them", "[fast]") {
  const simt::ScopedSettings scope({simt::Order::forward, simt::Timing::late, 2});
  TestStream first, second;
  int source = 41, result = 0;
  DeviceArray<int> value(1);
  simt::copy_async(value.data(), &source, sizeof(int), static_cast<simt::Stream*>(device::native_stream(first)));
  HEBB_LAUNCH(add_one, 1, 32, 0, first, value.data());
  device::Event copied;
  copied.record(first);
  HEBB_LAUNCH(add_one, 1, 32, 0, first, value.data());
  CHECK(*value.data() == -1);
  copied.make_wait(second);
  simt::copy_async(&result, value.data(), sizeof(int), static_cast<simt::Stream*>(device::native_stream(second)));
  CHECK(result == 0);
  device::synchronize(second);
  CHECK(result == 42);  // up to the event and no further
  device::synchronize(first);
  CHECK(*value.data() == 43);
}

TEST_CASE("early streams do everything at once", "[fast]") {
  const simt::ScopedSettings scope({simt::Order::forward, simt::Timing::early, 2});
  TestStream stream;
  DeviceArray<int> value(std::vector<int>{7});
  HEBB_LAUNCH(add_one, 1, 32, 0, stream, value.data());
  CHECK(*value.data() == 8);
}

TEST_CASE("a recorded graph does nothing until it is launched, and the same each time", "[fast]") {
  both_ways([] {
    TestStream stream;
    DeviceArray<int> value(std::vector<int>{7}), copied(std::vector<int>{0});
    const hebb::Tensor to{copied.data(), hebb::DType::i32, {1}};
    {
      device::Graph graph(stream, device::kUploadAlign, [&] {
        const int source = 41;  // gone when the graph is launched
        device::upload_bytes(stream, value.data(), &source, sizeof(source));
        HEBB_LAUNCH(add_one, 1, 32, 0, stream, value.data());
        device::move_bytes(stream, copied.data(), value.data(), sizeof(int));
      });
      CHECK(value.host()[0] == 7);
      for (int i = 0; i < 2; ++i) {
        graph.launch(stream);
        HEBB_LAUNCH(add_one, 1, 32, 0, stream, copied.data());
        CHECK(copied.host()[0] == 43);
        CHECK(value.host()[0] == 42);
      }
    }
    int result = 0;
    device::download(stream, {{&result, to}});
    CHECK(result == 43);
  });
}

TEST_CASE("work that cannot be recorded leaves the stream as it was", "[fast]") {
  TestStream stream;
  DeviceArray<int> value(std::vector<int>{7});
  CHECK_THROWS_AS(device::Graph(stream, 0,
                                [&] {
                                  HEBB_LAUNCH(add_one, 1, 32, 0, stream, value.data());
                                  throw std::runtime_error("no");
                                }),
                  std::runtime_error);
  HEBB_LAUNCH(add_one, 1, 32, 0, stream, value.data());
  CHECK(value.host()[0] == 8);
}

TEST_CASE("uploads wait for the device only where they have gone once around", "[fast]") {
  const simt::ScopedSettings scope({simt::Order::forward, simt::Timing::late, 1});
  TestStream stream;
  constexpr int64_t kCount = 5000;
  DeviceArray<int> values(kCount), sum(std::vector<int>(kCount, 0));
  const int64_t waits = device::device_counts().waits;
  std::vector<int> source(kCount);
  for (int round = 1; round <= 40; ++round) {  // 20 KB each, in a ring of 256 KB
    std::fill(source.begin(), source.end(), round);
    device::upload_bytes(stream, values.data(), source.data(), kCount * static_cast<int64_t>(sizeof(int)));
    device::launch("add", add_all, 20, 256, 0, stream, sum.data(), values.data(), kCount);
  }
  CHECK(device::device_counts().waits - waits > 0);
  CHECK(device::device_counts().waits - waits < 14);
  CHECK(sum.host() == std::vector<int>(kCount, 40 * 41 / 2));
  std::vector<int> large(100000, 3);
  DeviceArray<int> all(100000);
  device::upload_bytes(stream, all.data(), large.data(), 400000);  // more than a segment: copied before it returns
  std::fill(large.begin(), large.end(), 4);
  CHECK(all.host() == std::vector<int>(100000, 3));
}

TEST_CASE("device memory starts as NaN, and writing past its end is noticed", "[fast]") {
  auto* memory = static_cast<unsigned char*>(simt::allocate(37));
  CHECK(memory[0] == 0xFF);
  CHECK(memory[36] == 0xFF);
  CHECK(simt::allocated_bytes() >= 37);
#ifndef SIMT_ASAN  // stops the program here
  memory[37] = 1;
  CHECK(contains(fault_of([] { simt::check_guards(); }), "past an allocation of 37 bytes was written"));
  memory[37] = 0xA5;
#endif
  simt::release(memory);
  CHECK(contains(fault_of([&] { simt::release(memory); }), "not allocated"));
}

TEST_CASE("launches that no device would accept are faults", "[fast]") {
  const simt::ScopedSettings scope({simt::Order::forward, simt::Timing::early, 1});
  TestStream stream;
  int value = 0;
  const auto launch = [&](dim3 grid, dim3 block, int64_t shared) {
    return fault_of([&] { HEBB_LAUNCH(add_one, grid, block, shared, stream, &value); });
  };
  CHECK(contains(launch(0, 32, 0), "add_one: invalid grid (0,1,1)"));
  CHECK(contains(launch(dim3(1, 70000), 32, 0), "invalid grid (1,70000,1)"));
  CHECK(contains(launch(1, 33, 0), "block of 33 threads"));
  CHECK(contains(launch(1, 1056, 0), "block of 1056 threads"));
  CHECK(contains(launch(1, 32, 240000), "240000 bytes of shared memory; the limit is 232448"));
  CHECK(value == 0);
}

}  // namespace
