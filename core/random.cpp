#include "core/random.h"

#include <cmath>
#include <numbers>
#include <numeric>
#include <utility>

#include "core/error.h"
#include "core/hash.h"

namespace hebb {
namespace {

uint64_t mix64(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

uint32_t low(uint64_t x) { return static_cast<uint32_t>(x); }
uint32_t high(uint64_t x) { return static_cast<uint32_t>(x >> 32); }

std::array<uint32_t, 2> key_words(uint64_t key) { return {low(key), high(key)}; }

}  // namespace

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> c, std::array<uint32_t, 2> k) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57} * c[2];
    c = {high(p1) ^ c[1] ^ k[0], low(p1), high(p0) ^ c[3] ^ k[1], low(p0)};
    k[0] += 0x9E3779B9;
    k[1] += 0xBB67AE85;
  }
  return c;
}

uint64_t stream_key(uint64_t seed, std::string_view label) { return mix64(seed ^ fnv1a64(label)); }

Rng::Rng(uint64_t seed, std::string_view label, uint64_t index)
    : key_(key_words(stream_key(seed, label))), index_(index) {}

uint32_t Rng::u32() {
  if (used_ == 4) {
    buffer_ = philox4x32({low(block_), high(block_), low(index_), high(index_)}, key_);
    ++block_;
    used_ = 0;
  }
  return buffer_[static_cast<size_t>(used_++)];
}

uint64_t Rng::u64() {
  const uint64_t first = u32();
  return first | uint64_t{u32()} << 32;
}

double Rng::uniform() { return static_cast<double>(u64() >> 11) * 0x1p-53; }

uint32_t Rng::below(uint32_t n) {
  HEBB_ASSERT(n >= 1);
  uint64_t m = uint64_t{u32()} * n;
  if (low(m) < n) {
    const uint32_t threshold = (0u - n) % n;
    while (low(m) < threshold) { m = uint64_t{u32()} * n; }
  }
  return high(m);
}

double Rng::normal() {
  const double u1 = uniform();
  const double u2 = uniform();
  return std::sqrt(-2.0 * std::log(1.0 - u1)) * std::cos(2.0 * std::numbers::pi * u2);
}

void Rng::skip_normals(uint64_t count) {
  HEBB_ASSERT(used_ == 4);  // a normal takes the four words of a block
  block_ += count;
}

std::vector<uint32_t> Rng::sample(uint32_t n, uint32_t k) {
  HEBB_ASSERT(k <= n);
  std::vector<uint32_t> a(n);
  std::iota(a.begin(), a.end(), 0u);
  for (uint32_t i = 0; i < k; ++i) { std::swap(a[i], a[i + below(n - i)]); }
  a.resize(k);
  return a;
}

Permutation::Permutation(uint64_t n, uint64_t seed, std::string_view label, uint64_t index)
    : n_(n), index_(index), half_bits_(1), key_(key_words(stream_key(seed, label))) {
  HEBB_ASSERT(n >= 1);
  while (half_bits_ < 32 && uint64_t{1} << (2 * half_bits_) < n) { ++half_bits_; }
  mask_ = (uint64_t{1} << half_bits_) - 1;
}

uint64_t Permutation::operator()(uint64_t x) const {
  HEBB_ASSERT(x < n_);
  do {
    uint64_t left = x >> half_bits_;
    uint64_t right = x & mask_;
    for (uint32_t round = 0; round < 6; ++round) {
      const auto w = philox4x32({low(right), (high(right) & 0xFFFFFF) | round << 24, low(index_), high(index_)}, key_);
      left ^= (w[0] | uint64_t{w[1]} << 32) & mask_;
      std::swap(left, right);
    }
    x = left << half_bits_ | right;
  } while (x >= n_);
  return x;
}

}  // namespace hebb
