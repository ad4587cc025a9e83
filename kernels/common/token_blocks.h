#pragma once
#include <cstdint>

namespace hebb {

/// Sums over tokens in two stages, blocks of kSize tokens first. Both devices divide the tokens alike, whatever the
/// number of threads.
template <int64_t kSize> struct TokenBlocks {
  static constexpr int64_t kTokens = kSize;

  static constexpr int64_t count(int64_t tokens) { return (tokens + kTokens - 1) / kTokens; }
  static constexpr int64_t begin(int64_t block) { return block * kTokens; }
  static constexpr int64_t end(int64_t block, int64_t tokens) {
    return begin(block + 1) < tokens ? begin(block + 1) : tokens;
  }
};

}  // namespace hebb
