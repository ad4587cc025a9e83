// What the thread sanitizer watches, with the tests of other files that are tagged [threads]: every kernel with a
// barrier or warp operation once, in small, and planted races. Timing is early, so that asynchronous copies happen
// where they are issued. Other builds compare results between numbers of workers.
#include <algorithm>

#include "kernels/head_norm/scratch.h"  // before support.h: run_device() finds the kernels declared by then

#include "delta_on_tensor_cores.h"
#include "kernels/common/cuda/async_copy.cuh"
#include "kernels/common/cuda/prelude.cuh"
#include "kernels/common/cuda/sort.cuh"
#include "kernels/slot_select/slot_select.h"
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

TEST_CASE("norm kernels do not race", "[threads]") {
  for (const int64_t width : {390, 40}) {  // a block a row; groups of lanes
    same_for_all_workers(3, [width] {
      TestStream stream;
      const hebb::Shape shape{3, width};
      const std::vector<float> zeros(static_cast<size_t>(width));
      DeviceArray<float> h(random_values<float>(3 * width, 1)), weight(random_values<float>(width, 2)), y(3 * width),
          mean(3), rstd(3), d_h(3 * width), d_weight(zeros), d_bias(zeros);
      device::run(stream, hebb::NormForward{.y = y.tensor(shape),
                                            .h_out = {},
                                            .mean = mean.tensor(),
                                            .rstd = rstd.tensor(),
                                            .h = h.tensor(shape),
                                            .branch = {},
                                            .weight = weight.tensor(),
                                            .bias = weight.tensor(),
                                            .rho = 1,
                                            .eps = 1e-5,
                                            .kind = hebb::NormKind::layer});
      run_device(stream, hebb::NormBackward{.d_h = d_h.tensor(shape),
                                            .d_branch = {},
                                            .d_weight = d_weight.tensor(),
                                            .d_bias = d_bias.tensor(),
                                            .d_y = y.tensor(shape),
                                            .d_h_out = {},
                                            .h = h.tensor(shape),
                                            .mean = mean.tensor(),
                                            .rstd = rstd.tensor(),
                                            .weight = weight.tensor(),
                                            .rho = 1,
                                            .kind = hebb::NormKind::layer,
                                            .accumulate = false});
      return d_weight.values();
    });
  }
}

TEST_CASE("norms and gates of heads do not race", "[threads]") {
  same_for_all_workers(3, [] {
    TestStream stream;
    const hebb::Shape shape{3, 2 * 24};
    const auto numbers = [](uint64_t seed) { return DeviceArray<float>(random_values<float>(3 * 48, seed)); };
    DeviceArray<float> o = numbers(1), z = numbers(2), d_y = numbers(3), weight(random_values<float>(24, 4)),
                       d_o(3 * 48), d_z(3 * 48), d_weight(std::vector<float>(24));
    run_device(stream, hebb::GatedNormBackward{.d_o = d_o.tensor(shape),
                                               .d_z = d_z.tensor(shape),
                                               .d_weight = d_weight.tensor(),
                                               .d_y = d_y.tensor(shape),
                                               .o = o.tensor(shape),
                                               .z = z.tensor(shape),
                                               .weight = weight.tensor(),
                                               .head_dim = 24,
                                               .eps = 1e-5,
                                               .gate = hebb::HeadGate::silu,
                                               .accumulate_o = false,
                                               .accumulate_z = false});
    return d_weight.values();
  });
}

TEST_CASE("cross-entropy does not race", "[threads]") {
  same_for_all_workers(2, [] {
    TestStream stream;
    DeviceArray<float> logits(random_values<float>(2 * 1100, 1));
    DeviceArray<double> loss(2);
    DeviceArray<int32_t> targets(std::vector<int32_t>{3, 1099});
    device::run(stream, hebb::CrossEntropy{.loss = loss.tensor(),
                                           .gradient = logits.tensor({2, 1100}),
                                           .logits = logits.tensor({2, 1100}),
                                           .targets = targets.tensor(),
                                           .scale = 1});
    return logits.values();
  });
}

TEST_CASE("attention on tensor cores does not race", "[threads]") {
  constexpr int64_t kTokens = 140, kKeys = 150;  // three tiles of both, and keys that nobody sees in between
  using hebb::bf16;
  const std::vector<bf16> numbers = random_values<bf16>(kKeys * 32, 1);
  std::vector<int32_t> first(kTokens), last(kTokens, 31);
  for (size_t i = 60; i < kTokens; ++i) {
    first[i] = 50;
    last[i] = static_cast<int32_t>(i) + 10;
  }
  same_for_all_workers(3, [&] {
    TestStream stream;
    const auto tensor_of = [](const auto& array, int64_t tokens) { return array.tensor({1, tokens, 1, 32}); };
    DeviceArray<bf16> in(numbers), o(kTokens * 32), d_q(kTokens * 32), d_k(kKeys * 32), d_v(kKeys * 32);
    DeviceArray<int32_t> lo(first), hi(last);
    DeviceArray<float> bias(random_values<float>(kKeys, 2)), lse(kTokens), d_bias(kKeys);
    const hebb::Tensor q = tensor_of(in, kTokens), k = tensor_of(in, kKeys);
    run_device(stream, hebb::AttentionForward{.o = tensor_of(o, kTokens),
                                              .lse = lse.tensor(),
                                              .q = q,
                                              .k = k,
                                              .v = k,
                                              .lo = lo.tensor(),
                                              .hi = hi.tensor(),
                                              .bias = bias.tensor(),
                                              .scale = 0.3});
    run_device(stream, hebb::AttentionBackward{.d_q = tensor_of(d_q, kTokens),
                                               .d_k = tensor_of(d_k, kKeys),
                                               .d_v = tensor_of(d_v, kKeys),
                                               .d_bias = d_bias.tensor(),
                                               .d_o = q,
                                               .q = q,
                                               .k = k,
                                               .v = k,
                                               .o = tensor_of(o, kTokens),
                                               .lse = lse.tensor(),
                                               .lo = lo.tensor(),
                                               .hi = hi.tensor(),
                                               .bias = bias.tensor(),
                                               .scale = 0.3,
                                               .accumulate_q = false,
                                               .accumulate_k = false,
                                               .accumulate_v = false,
                                               .accumulate_bias = false});
    std::vector<double> results = o.values();
    for (const std::vector<double>& more : {lse.values(), d_q.values(), d_k.values(), d_v.values(), d_bias.values()}) {
      results.insert(results.end(), more.begin(), more.end());
    }
    return results;
  });
}

TEST_CASE("the delta rule on tensor cores does not race", "[threads]") {
  same_for_all_workers(2, [] { return delta_on_tensor_cores(24); });
}

TEST_CASE("the embedding gradient and its sort do not race", "[threads]") {
  same_for_all_workers(3, [] {
    TestStream stream;
    std::vector<int32_t> ids(70, 2);
    for (size_t i = 0; i < ids.size(); i += 3) { ids[i] = static_cast<int32_t>(i) % 5; }
    DeviceArray<int32_t> ids_in(ids);
    DeviceArray<float> d_y(random_values<float>(70 * 8, 1)), d_table(std::vector<float>(5 * 8));
    device::run(stream, hebb::EmbeddingBackward{
                            .d_table = d_table.tensor({5, 8}), .d_y = d_y.tensor({70, 8}), .ids = ids_in.tensor()});
    return d_table.values();
  });
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

TEST_CASE("the selection of slots and the gradient of their weights do not race", "[threads]") {
  constexpr int64_t kSubKeys = 37, kChosen = 9;
  same_for_all_workers(2, [] {
    TestStream stream;
    std::vector<float> numbers = random_values<float>(2 * 2 * kSubKeys, 1);
    std::fill_n(numbers.begin(), 2 * kSubKeys, 0.5f);  // of the first token all scores tie
    DeviceArray<float> scores(numbers), d_scores(2 * 2 * kSubKeys), weights(random_values<float>(2 * kChosen, 2));
    DeviceArray<int32_t> slots(2 * kChosen);
    const hebb::Shape shape{2, 1, 2, kSubKeys}, chosen{2, 1, kChosen};
    device::run(stream, hebb::SlotSelect{slots.tensor(chosen), scores.tensor(shape)});
    device::run(stream, hebb::SlotWeightsBackward{d_scores.tensor(shape), weights.tensor(chosen),
                                                  weights.tensor(chosen), slots.tensor(chosen), scores.tensor(shape),
                                                  hebb::SlotActivation::l2, 1.0, false});
    return d_scores.values();
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
