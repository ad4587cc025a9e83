// Each wrapper of kernels/cuda/common alone.
#include "kernels/common/cuda/async_copy.cuh"
#include "kernels/common/cuda/mma.cuh"
#include "kernels/common/cuda/prelude.cuh"
#include "support.h"

using namespace hebb_test;
using namespace hebb::HEBB_DEVICE;

namespace {

// ldmatrix and mma as kernels use them: A [16][k] and B [n = 8][k] row by row in shared memory with padded rows.
__global__ void multiply_tile(float* out, const hebb::bf16* a, const hebb::bf16* b) {
  HEBB_SHARED(hebb::bf16[16][24], left);
  HEBB_SHARED(hebb::bf16[8][24], right);
  const unsigned lane = threadIdx.x;
  for (unsigned i = lane; i < 256; i += 32) { left[i / 16][i % 16] = a[i]; }
  for (unsigned i = lane; i < 128; i += 32) { right[i / 16][i % 16] = b[i]; }
  __syncwarp();
  uint32_t fragment_a[4], fragment_b[2];
  load_matrices<4, false>(fragment_a, &left[lane % 16][8 * (lane / 16)]);
  load_matrices<2, false>(fragment_b, &right[lane % 8][8 * (lane / 8 % 2)]);
  float d[4] = {1, 1, 1, 1};
  mma_bf16(d, fragment_a, fragment_b);
  for (unsigned i = 0; i < 4; ++i) { out[(lane / 4 + 8 * (i / 2)) * 8 + 2 * (lane % 4) + i % 2] = d[i]; }
}

TEST_CASE("ldmatrix and mma.m16n8k16 multiply a tile of bf16", "[fast]") {
  both_ways([] {
    TestStream stream;
    const auto a = random_values<hebb::bf16>(256, 1), b = random_values<hebb::bf16>(128, 2);
    DeviceArray<hebb::bf16> a_device(a), b_device(b);
    DeviceArray<float> out(128);
    HEBB_LAUNCH(multiply_tile, 1, 32, 0, stream, out.data(), a_device.data(), b_device.data());
    std::vector<double> expected;
    for (size_t i = 0; i < 16; ++i) {
      for (size_t j = 0; j < 8; ++j) {
        double sum = 1;
        for (size_t l = 0; l < 16; ++l) { sum += double(value_of(a[i * 16 + l])) * double(value_of(b[j * 16 + l])); }
        expected.push_back(sum);
      }
    }
    CHECK(relative_error(out.values(), expected) < 1e-6);
  });
}

__global__ void show_transposed(uint32_t* out) {
  const uint32_t first = 2 * threadIdx.x;  // 8 row + column
  out[threadIdx.x] = transpose_matrix(first | (first + 1) << 16);
}

TEST_CASE("movmatrix transposes a matrix in registers", "[fast]") {
  TestStream stream;
  DeviceArray<uint32_t> out(32);
  HEBB_LAUNCH(show_transposed, 1, 32, 0, stream, out.data());
  const std::vector<uint32_t> got = out.host();
  for (uint32_t lane = 0; lane < 32; ++lane) {
    const uint32_t row = lane / 4, pair = 2 * (lane % 4);
    REQUIRE(got[lane] == ((8 * pair + row) | (8 * (pair + 1) + row) << 16));
  }
}

template <int kCount, bool kTransposed> __global__ void show_matrices(uint32_t* out) {
  HEBB_SHARED(uint16_t[4][8][8], tile);
  for (unsigned i = threadIdx.x; i < 256; i += 32) {
    tile[i / 64][i / 8 % 8][i % 8] = static_cast<uint16_t>(i);  // matrix * 64 + row * 8 + column
  }
  __syncwarp();
  uint32_t fragment[kCount];
  load_matrices<kCount, kTransposed>(fragment, tile[threadIdx.x / 8][threadIdx.x % 8]);
  for (int i = 0; i < kCount; ++i) { out[threadIdx.x * kCount + static_cast<unsigned>(i)] = fragment[i]; }
}

template <int kCount, bool kTransposed> void check_matrices() {
  TestStream stream;
  DeviceArray<uint32_t> out(32 * kCount);
  HEBB_LAUNCH((show_matrices<kCount, kTransposed>), 1, 32, 0, stream, out.data());
  const std::vector<uint32_t> got = out.host();
  for (uint32_t lane = 0; lane < 32; ++lane) {
    for (uint32_t m = 0; m < kCount; ++m) {
      const uint32_t row = lane / 4, pair = 2 * (lane % 4);
      const uint32_t first = kTransposed ? pair * 8 + row : row * 8 + pair;
      const uint32_t second = kTransposed ? (pair + 1) * 8 + row : row * 8 + pair + 1;
      REQUIRE(got[lane * kCount + m] == ((m * 64 + first) | (m * 64 + second) << 16));
    }
  }
}

TEST_CASE("ldmatrix spreads one, two or four matrices, plain or transposed", "[fast]") {
  both_ways([] {
    check_matrices<1, false>();
    check_matrices<1, true>();
    check_matrices<2, false>();
    check_matrices<2, true>();
    check_matrices<4, false>();
    check_matrices<4, true>();
  });
}

__global__ void multiply_tf32(float* out, const float* a, const float* b) {  // a [16][8], b [k = 8][n = 8]
  const unsigned row = threadIdx.x / 4, column = threadIdx.x % 4;
  const uint32_t fragment_a[4] = {round_to_tf32(a[row * 8 + column]), round_to_tf32(a[(row + 8) * 8 + column]),
                                  round_to_tf32(a[row * 8 + column + 4]), round_to_tf32(a[(row + 8) * 8 + column + 4])};
  const uint32_t fragment_b[2] = {round_to_tf32(b[column * 8 + row]), round_to_tf32(b[(column + 4) * 8 + row])};
  float d[4] = {};
  mma_tf32(d, fragment_a, fragment_b);
  for (unsigned i = 0; i < 4; ++i) { out[(row + 8 * (i / 2)) * 8 + 2 * column + i % 2] = d[i]; }
}

TEST_CASE("mma.m16n8k8 multiplies a tile of tf32", "[fast]") {
  both_ways([] {
    TestStream stream;
    const auto a = random_values<float>(128, 3), b = random_values<float>(64, 4);
    DeviceArray<float> a_device(a), b_device(b), out(128);
    HEBB_LAUNCH(multiply_tf32, 1, 32, 0, stream, out.data(), a_device.data(), b_device.data());
    std::vector<double> expected;
    for (size_t i = 0; i < 16; ++i) {
      for (size_t j = 0; j < 8; ++j) {
        double sum = 0;
        for (size_t l = 0; l < 8; ++l) { sum += double(a[i * 8 + l]) * double(b[l * 8 + j]); }
        expected.push_back(sum);
      }
    }
    const double error = relative_error(out.values(), expected);
    CHECK(error < 1e-3);  // 10 bits of mantissa
    CHECK(error > 1e-5);  // and no more
  });
}

TEST_CASE("tf32 rounds to 10 bits, ties away from zero", "[fast]") {
  const auto rounded_to = [](uint32_t bits) { return round_to_tf32(__uint_as_float(bits)); };
  CHECK(rounded_to(0x3F800FFFu) == 0x3F800000u);
  CHECK(rounded_to(0x3F801000u) == 0x3F802000u);
  CHECK(rounded_to(0xBF801000u) == 0xBF802000u);
  CHECK(rounded_to(0x3F803000u) == 0x3F804000u);
  CHECK(rounded_to(0x7F800000u) == 0x7F800000u);
}

TEST_CASE("bf16 rounds to nearest, ties to even, and keeps infinities and NaN", "[fast]") {
  const auto bits_of = [](float x) { return round_to_bf16(x).bits; };
  CHECK(bits_of(__uint_as_float(0x3F808000u)) == 0x3F80);  // tie, even below
  CHECK(bits_of(__uint_as_float(0x3F818000u)) == 0x3F82);  // tie, even above
  CHECK(bits_of(__uint_as_float(0x3F808001u)) == 0x3F81);
  CHECK(bits_of(__uint_as_float(0x7F7FFFFFu)) == 0x7F80);  // largest float: infinity
  CHECK(bits_of(-INFINITY) == 0xFF80);
  CHECK(bits_of(NAN) == 0x7FFF);
  CHECK(bits_of(-0.0f) == 0x8000);
  for (const float x : random_values<float>(1000, 9, 1e3)) {
    REQUIRE(bits_of(x) == rounded<hebb::bf16>(x).bits);
    REQUIRE(hebb::HEBB_DEVICE::to_float(round_to_bf16(x)) == hebb_test::value_of(rounded<hebb::bf16>(x)));
  }
  CHECK(pack_bf16(1.0f, -2.0f) == 0xC0003F80u);
}

__global__ void copy_parts(uint32_t* out, const uint32_t* in) {
  HEBB_SHARED(uint32_t[2][128], tile);
  const unsigned t = threadIdx.x;
  copy_async_16(&tile[0][4 * t], in + 4 * t, static_cast<int>(t % 5 * 4));  // 0, 4, .. 16 bytes, the rest zeros
  commit_async_copies();
  for (unsigned i = 0; i < 4; ++i) { copy_async_4(&tile[1][4 * t + i], in + 4 * t + i, i == 3 ? 0 : 4); }
  commit_async_copies();
  wait_async_copies<1>();  // the first group is there, the second may not be
  for (unsigned i = 0; i < 4; ++i) { out[4 * t + i] = tile[0][4 * t + i]; }
  wait_async_copies<0>();
  for (unsigned i = 0; i < 4; ++i) { out[128 + 4 * t + i] = tile[1][4 * t + i]; }
}

TEST_CASE("cp.async copies whole and partial pieces, group by group", "[fast]") {
  both_ways([] {
    TestStream stream;
    std::vector<uint32_t> values;
    for (uint32_t i = 0; i < 128; ++i) { values.push_back(i + 1); }
    DeviceArray<uint32_t> in(values), out(256);
    HEBB_LAUNCH(copy_parts, 1, 32, 0, stream, out.data(), in.data());
    const std::vector<uint32_t> got = out.host();
    for (uint32_t i = 0; i < 128; ++i) {
      REQUIRE(got[i] == (i % 4 < i / 4 % 5 ? i + 1 : 0));
      REQUIRE(got[128 + i] == (i % 4 == 3 ? 0 : i + 1));
    }
  });
}

template <class T> __global__ void copy_packs(T* out, const T* in, int64_t count, bool vector) {
  float value[8];
  const int64_t at = 8 * static_cast<int64_t>(threadIdx.x);
  load_pack(value, in, at, count, vector);
  store_pack(out, at, count, vector, value);
}

TEMPLATE_TEST_CASE("packs cover every count: whole ones by vectors, all by scalars", "[fast]", float, hebb::bf16) {
  const int64_t count = GENERATE(1, 7, 8, 13, 64, 256, 255);
  const bool vector = GENERATE(false, true) && count % 8 == 0;
  TestStream stream;
  const auto values = random_values<TestType>(count, 6);
  DeviceArray<TestType> in(values), out(count);
  HEBB_LAUNCH(copy_packs<TestType>, 1, 32, 0, stream, out.data(), in.data(), count, vector);
  CHECK(out.values() == as_double(values));
}

}  // namespace
