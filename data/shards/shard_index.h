#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"

namespace hebb {

/// Throws DataError("NAME: byte OFFSET", what, found, expected).
[[noreturn]] void fail_at_byte(const std::string& name, uint64_t offset, const std::string& what,
                               const std::string& found, const std::string& expected);

/// Reads a little-endian value at any alignment; the caller has checked the bounds.
template <class T> T load_le(const uint8_t* bytes) {
  T value;
  __builtin_memcpy(&value, bytes, sizeof value);
  return value;
}

/// How tokens are stored in a file.
enum class TokenType { u8, i8, u16, i16, u32, i32, i64 };
/// Calls f(T()) with the type T of a token.
template <class F> auto with_token_type(TokenType type, const F& f) {
  switch (type) {
    case TokenType::u8: return f(uint8_t());
    case TokenType::i8: return f(int8_t());
    case TokenType::u16: return f(uint16_t());
    case TokenType::i16: return f(int16_t());
    case TokenType::u32: return f(uint32_t());
    case TokenType::i32: return f(int32_t());
    case TokenType::i64: break;
  }
  return f(int64_t());
}
int64_t token_width(TokenType type);
const char* token_type_name(TokenType type);

/// Checks a hebb index (docs/formats/shards.md) against its shard of `tokens` tokens: magic, sizes,
/// CRC-32, first, ascending and last offsets. Returns the number of documents n; the n + 1 document
/// starts are the u64 at byte 24. Errors: DataError naming file and byte offset.
int64_t check_index(std::span<const uint8_t> bytes, const std::string& name, int64_t tokens);

/// A Megatron index (docs/formats/safetensors.md).
struct MegatronIndex {
  TokenType type = TokenType::u16;
  int64_t tokens = 0;
  std::vector<int64_t> starts;  // token offsets of the documents, first 0, last = tokens
};

/// Parses a Megatron .idx and checks it against a .bin of `bin_bytes` bytes: version, dtype (integers
/// only), lengths, gapless byte offsets, document boundaries. Errors: DataError naming file and byte offset.
MegatronIndex parse_megatron_index(std::span<const uint8_t> bytes, const std::string& name, uint64_t bin_bytes);

}  // namespace hebb
