#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace hebb {

constexpr uint64_t kFnvOffset = 0xCBF29CE484222325ULL;
/// FNV-1a 64; pass the previous value to go on over several pieces.
uint64_t fnv1a64(const void* bytes, size_t size, uint64_t hash = kFnvOffset);
inline uint64_t fnv1a64(std::string_view s) { return fnv1a64(s.data(), s.size()); }

/// CRC-32 (IEEE 802.3, as in zlib) and CRC-32C (Castagnoli); pass the previous value to go on.
uint32_t crc32(const void* bytes, size_t size, uint32_t crc = 0);
uint32_t crc32c(const void* bytes, size_t size, uint32_t crc = 0);

}  // namespace hebb
