// Sums of tensor cores as DeviceModel::truncates makes them.
#include "kernels/common/cuda/mma.cuh"
#include "support.h"

using namespace hebb_test;

namespace {

/// d of mma_bf16 where every a[row][l] is `left` for l < terms, else 0, every b is `right` and d begins as `begin`.
__global__ void multiply_kernel(float* out, float begin, uint32_t left, uint32_t right, int terms, int times) {
  const int pair = 2 * (static_cast<int>(threadIdx.x) % 4);
  const auto at = [&](int column) { return (column < terms ? left : 0u) | (column + 1 < terms ? left : 0u) << 16; };
  const uint32_t a[4] = {at(pair), at(pair), at(pair + 8), at(pair + 8)},
                 b[2] = {right | right << 16, right | right << 16};
  float d[4] = {begin, begin, begin, begin};
  for (int i = 0; i < times; ++i) { device::mma_bf16(d, a, b); }
  out[threadIdx.x] = d[0];
}

struct Sum {
  float begin, left, right;
  int terms = 16, times = 1;
};

float sum_of(const Sum& s, bool truncates) {
  simt::DeviceModel model;
  model.truncates = truncates;
  const simt::ScopedDeviceModel scope(model);
  TestStream stream;
  hebb::Stream& queue = stream;
  const DeviceArray<float> out(32);
  using namespace hebb::HEBB_DEVICE;
  HEBB_LAUNCH(multiply_kernel, dim3(1), dim3(32), 0, queue, out.data(), s.begin,
              static_cast<uint32_t>(rounded<hebb::bf16>(s.left).bits),
              static_cast<uint32_t>(rounded<hebb::bf16>(s.right).bits), s.terms, s.times);
  return out.host()[0];
}

}  // namespace

TEST_CASE("truncated sums drop what lies behind 25 bits of the largest addend", "[fast]") {
  const float small = std::ldexp(1.0f, -13), tiny = std::ldexp(1.0f, -12);
  CHECK(sum_of({.begin = 1, .left = small, .right = small}, false) == 1 + std::ldexp(1.0f, -22));
  CHECK(sum_of({.begin = 1, .left = small, .right = small}, true) == 1);                              // each 2^-26
  CHECK(sum_of({.begin = 1, .left = small, .right = tiny}, true) == 1 + std::ldexp(1.0f, -21));       // each 2^-25
  CHECK(sum_of({.begin = 1, .left = small, .right = 3 * small}, true) == 1 + std::ldexp(1.0f, -21));  // 2^-25 of each
}

TEST_CASE("truncated sums round toward zero, for each sign", "[fast]") {
  const float x = std::ldexp(1.0f, -13), y = std::ldexp(1.5f, -11);  // 1.5 2^-24: nearest is up
  CHECK(sum_of({.begin = 1, .left = x, .right = y, .terms = 1}, false) == 1 + std::ldexp(1.0f, -23));
  CHECK(sum_of({.begin = 1, .left = x, .right = y, .terms = 1}, true) == 1);
  CHECK(sum_of({.begin = -1, .left = -x, .right = y, .terms = 1}, true) == -1);
}

TEST_CASE("truncated sums of numbers that fit are exact; infinities and NaN stay", "[fast]") {
  CHECK(sum_of({.begin = 0.5f, .left = 1.5f, .right = -2.25f}, true) == 0.5f - 16 * 1.5f * 2.25f);
  CHECK(sum_of({.begin = 0, .left = 0, .right = 1}, true) == 0);
  CHECK(sum_of({.begin = INFINITY, .left = 1, .right = 1}, true) == INFINITY);
  CHECK(std::isnan(sum_of({.begin = INFINITY, .left = -INFINITY, .right = 1}, true)));
  CHECK(sum_of({.begin = 0, .left = 1, .right = std::ldexp(1.0f, -126)}, true) == std::ldexp(1.0f, -122));
}

TEST_CASE("a sum of a thousand truncated steps is biased toward zero by some 2^-24 a step", "[fast]") {
  const Sum sum{.begin = 0, .left = 0.3f, .right = 0.7f, .terms = 16, .times = 1000};
  const double exact = 16000 * double(value_of(rounded<hebb::bf16>(0.3f))) * value_of(rounded<hebb::bf16>(0.7f));
  const double error = (sum_of(sum, true) - exact) / exact;
  CHECK(error < -1e-6);
  CHECK(error > -1000 * std::ldexp(1.0, -23));
}
