#pragma once
#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace hebb {

/// Philox4x32-10 block (docs/random-streams.md).
std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

/// 64-bit key of a stream: mix64(seed xor fnv1a64(label)).
uint64_t stream_key(uint64_t seed, std::string_view label);

/// One random stream (seed, label, index); every draw consumes words in order (docs/random-streams.md).
class Rng {
 public:
  Rng(uint64_t seed, std::string_view label, uint64_t index = 0);

  uint32_t u32();
  uint64_t u64();
  double uniform();            // [0, 1)
  uint32_t below(uint32_t n);  // [0, n), n >= 1
  double normal();             // standard normal, two uniforms each, nothing cached
  /// As `count` calls of normal(), without the time. Only where nothing but normals has been drawn.
  void skip_normals(uint64_t count);
  /// k distinct of 0..n-1 in drawing order.
  std::vector<uint32_t> sample(uint32_t n, uint32_t k);
  template <class T> const T& choice(const std::vector<T>& xs) { return xs[below(static_cast<uint32_t>(xs.size()))]; }
  template <class T> void shuffle(std::vector<T>& xs) {
    for (size_t i = xs.size(); i-- > 1;) { std::swap(xs[i], xs[below(static_cast<uint32_t>(i + 1))]); }
  }

 private:
  std::array<uint32_t, 2> key_;
  uint64_t index_;
  uint64_t block_ = 0;
  int used_ = 4;  // words of buffer_ already handed out
  std::array<uint32_t, 4> buffer_{};
};

/// The bijection P(n; seed, label, index) of [0, n): O(1) memory, random access.
class Permutation {
 public:
  Permutation(uint64_t n, uint64_t seed, std::string_view label, uint64_t index = 0);
  uint64_t operator()(uint64_t x) const;

 private:
  uint64_t n_, index_, mask_;
  int half_bits_;
  std::array<uint32_t, 2> key_;
};

}  // namespace hebb
