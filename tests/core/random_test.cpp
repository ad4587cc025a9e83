#include "core/random.h"

#include <algorithm>
#include <cmath>

#include "tests/test.h"

using Words = std::array<uint32_t, 4>;

TEST_CASE("philox4x32 gives the published words", "[fast]") {
  CHECK(philox4x32({0, 0, 0, 0}, {0, 0}) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  const uint32_t f = 0xffffffff;
  CHECK(philox4x32({f, f, f, f}, {f, f}) == Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("the stream (1, x, 0) starts as the data page says", "[fast]") {
  Rng rng(1, "x");
  for (uint32_t expected : {680807643u, 3868465066u, 550560502u, 4037176142u, 1348136578u}) {
    CHECK(rng.u32() == expected);
  }
}

TEST_CASE("u64 and uniform consume two words, low word first", "[fast]") {
  Rng a(1, "x"), b(1, "x");
  const uint64_t expected = 680807643u + (uint64_t{3868465066u} << 32);
  CHECK(a.u64() == expected);
  CHECK(b.uniform() == std::ldexp(static_cast<double>(expected >> 11), -53));
  CHECK(a.u32() == b.u32());
}

TEST_CASE("label and index select other streams, whose words are the blocks of their counter", "[fast]") {
  CHECK(Rng(1, "x", 0).u64() != Rng(1, "y", 0).u64());
  const uint64_t index = 0x123456789abcdefULL;
  const uint64_t key = stream_key(5, "label");
  Rng rng(5, "label", index);
  for (uint32_t block = 0; block < 3; ++block) {
    const Words words = philox4x32({block, 0, static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32)},
                                   {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)});
    for (uint32_t word : words) { CHECK(rng.u32() == word); }
  }
}

TEST_CASE("below rejects the words that would bias it", "[fast]") {
  // With n = 2^31 + 1 nearly half of the words fall below the threshold 2^31 - 1 and are redrawn.
  const uint32_t n = (1u << 31) + 1;
  Rng rng(3, "below"), words(3, "below");
  int redrawn = 0;
  for (int i = 0; i < 200; ++i) {
    uint64_t m = uint64_t{words.u32()} * n;
    while (static_cast<uint32_t>(m) < (1u << 31) - 1) {
      m = uint64_t{words.u32()} * n;
      ++redrawn;
    }
    CHECK(rng.below(n) == m >> 32);
  }
  CHECK(redrawn > 50);
  CHECK(rng.below(1) == 0);
}

TEST_CASE("normal draws are standard normal and take four words each", "[fast]") {
  Rng rng(9, "n"), words(9, "n");
  const double u1 = words.uniform(), u2 = words.uniform();
  CHECK(rng.normal() == std::sqrt(-2 * std::log(1 - u1)) * std::cos(2 * M_PI * u2));
  CHECK(rng.u32() == words.u32());
  double sum = 0, squares = 0;
  const int n = 20000;
  for (int i = 0; i < n; ++i) {
    const double x = rng.normal();
    sum += x;
    squares += x * x;
  }
  CHECK(std::abs(sum / n) < 5 / std::sqrt(n));
  CHECK(std::abs(squares / n - 1) < 5 * std::sqrt(2.0 / n));
}

TEST_CASE("sample draws distinct numbers by swapping, shuffle permutes, choice picks", "[fast]") {
  Rng rng(2, "s"), same(2, "s");
  std::vector<uint32_t> all(11);
  for (uint32_t i = 0; i < 11; ++i) { all[i] = i; }
  std::vector<uint32_t> expected = all;
  for (uint32_t i = 0; i < 5; ++i) { std::swap(expected[i], expected[i + same.below(11 - i)]); }
  expected.resize(5);
  CHECK(rng.sample(11, 5) == expected);

  std::vector<uint32_t> shuffled = all, by_hand = all;
  rng.shuffle(shuffled);
  for (size_t i = 10; i >= 1; --i) { std::swap(by_hand[i], by_hand[same.below(static_cast<uint32_t>(i + 1))]); }
  CHECK(shuffled == by_hand);
  CHECK(std::is_permutation(shuffled.begin(), shuffled.end(), all.begin()));
  CHECK(rng.choice(all) == all[same.below(11)]);
}

TEST_CASE("P(1000; 7, rows/0, 0) starts as the data page says", "[fast]") {
  const Permutation p(1000, 7, "rows/0");
  CHECK(p(0) == 948);
  CHECK(p(1) == 166);
  CHECK(p(2) == 412);
  CHECK(p(3) == 308);
}

TEST_CASE("a permutation is a bijection of every size", "[fast]") {
  for (uint64_t n : {1u, 2u, 3u, 4u, 5u, 64u, 65u, 1000u}) {
    const Permutation p(n, 7, "rows/0", 3);
    std::vector<bool> hit(n);
    for (uint64_t x = 0; x < n; ++x) {
      const uint64_t y = p(x);
      REQUIRE(y < n);
      CHECK_FALSE(hit[y]);
      hit[y] = true;
    }
  }
  const Permutation largest(~uint64_t{0}, 7, "rows/0");
  CHECK(largest(0) != largest(~uint64_t{0} - 1));
}
