#include "data/shards/shard_index.h"

#include <fmt/core.h>

#include <cstring>

#include "core/hash.h"
#include "data/shards/shard_format.h"

namespace hebb {
namespace {

TokenType megatron_type(const std::string& name, uint8_t code) {
  switch (code) {
    case 1: return TokenType::u8;
    case 2: return TokenType::i8;
    case 3: return TokenType::i16;
    case 4: return TokenType::i32;
    case 5: return TokenType::i64;
    case 6:
    case 7: fail_at_byte(name, 17, "dtype", code == 6 ? "f64" : "f32", "an integer type, because tokens are integers");
    case 8: return TokenType::u16;
    default: fail_at_byte(name, 17, "dtype", std::to_string(code), "a code from 1 to 8");
  }
}

constexpr int64_t kMegatronHeaderBytes = 9 + 8 + 1 + 8 + 8;

// The three arrays of a Megatron index.
struct MegatronArrays {
  const uint8_t* bytes;
  uint64_t sequences, boundaries;
  uint64_t length_at(uint64_t i) const { return kMegatronHeaderBytes + 4 * i; }
  uint64_t offset_at(uint64_t i) const { return kMegatronHeaderBytes + 4 * sequences + 8 * i; }
  uint64_t boundary_at(uint64_t i) const { return kMegatronHeaderBytes + 12 * sequences + 8 * i; }
  int64_t length(uint64_t i) const { return load_le<int32_t>(bytes + length_at(i)); }
  int64_t offset(uint64_t i) const { return load_le<int64_t>(bytes + offset_at(i)); }
  int64_t boundary(uint64_t i) const { return load_le<int64_t>(bytes + boundary_at(i)); }
};

MegatronArrays megatron_arrays(std::span<const uint8_t> bytes, const std::string& name) {
  const uint64_t size = bytes.size();
  const auto sequences = load_le<uint64_t>(bytes.data() + 18);
  const auto boundaries = load_le<uint64_t>(bytes.data() + 26);
  const uint64_t room = size - kMegatronHeaderBytes;
  if (sequences > room / 12 || boundaries != (room - 12 * sequences) / 8 || (room - 12 * sequences) % 8 != 0) {
    fail_at_byte(name, 18, fmt::format("file size of {:d} bytes does not fit the counts", size),
                 fmt::format("{:d} sequences, {:d} document boundaries", sequences, boundaries),
                 "34 + 12 * sequences + 8 * boundaries bytes");
  }
  return {bytes.data(), sequences, boundaries};
}

void check_boundaries(const MegatronArrays& arrays, const std::string& name) {
  if (arrays.boundaries == 0) { fail_at_byte(name, 26, "number of document boundaries", "0", "at least 1"); }
  const auto last = static_cast<int64_t>(arrays.sequences);
  int64_t previous = 0;
  for (uint64_t i = 0; i < arrays.boundaries; ++i) {
    const int64_t boundary = arrays.boundary(i);
    const bool is_end = i + 1 == arrays.boundaries;
    if (boundary < previous || boundary > last || (i == 0 && boundary != 0) || (is_end && boundary != last)) {
      const std::string lowest = std::to_string(is_end ? last : previous);
      const std::string highest = std::to_string(i == 0 && !is_end ? 0 : last);
      fail_at_byte(name, arrays.boundary_at(i), fmt::format("document boundary {:d}", i), std::to_string(boundary),
                   lowest == highest ? lowest : lowest + " to " + highest);
    }
    previous = boundary;
  }
}

}  // namespace

void fail_at_byte(const std::string& name, uint64_t offset, const std::string& what, const std::string& found,
                  const std::string& expected) {
  throw DataError(fmt::format("{}: byte {:d}", name, offset), what, found, expected);
}

int64_t token_width(TokenType type) {
  return with_token_type(type, []<class T>(T) { return static_cast<int64_t>(sizeof(T)); });
}

const char* token_type_name(TokenType type) {
  static constexpr const char* kNames[] = {"u8", "i8", "u16", "i16", "u32", "i32", "i64"};
  return kNames[static_cast<size_t>(type)];
}

int64_t check_index(std::span<const uint8_t> bytes, const std::string& name, int64_t tokens) {
  constexpr uint64_t kSmallest = kIndexHeaderBytes + 8 + 4;  // no document: one offset and the CRC
  if (bytes.size() < kSmallest) {
    fail_at_byte(name, bytes.size(), "file ends too early", fmt::format("{:d} bytes", bytes.size()),
                 fmt::format("at least {:d}", kSmallest));
  }
  if (std::memcmp(bytes.data(), kIndexMagic.data(), kIndexMagic.size()) != 0) {
    fail_at_byte(name, 0, "magic word of the index", "other bytes", std::string(kIndexMagic));
  }
  const auto documents = load_le<uint64_t>(bytes.data() + 8);
  const uint64_t room = bytes.size() - kSmallest;
  if (room % 8 != 0 || documents != room / 8) {
    fail_at_byte(name, 8, fmt::format("number of documents in a file of {:d} bytes", bytes.size()),
                 std::to_string(documents), fmt::format("{:d}{}", room / 8, room % 8 != 0 ? " and a remainder" : ""));
  }
  const uint64_t crc_offset = bytes.size() - 4;
  const auto stored = load_le<uint32_t>(bytes.data() + crc_offset);
  const uint32_t computed = crc32(bytes.data(), crc_offset);
  if (stored != computed) {
    fail_at_byte(name, crc_offset, fmt::format("CRC-32 of the index does not match its {:d} bytes", crc_offset),
                 fmt::format("0x{:08x}", computed), fmt::format("0x{:08x}", stored));
  }
  const auto stored_tokens = load_le<uint64_t>(bytes.data() + 16);
  if (stored_tokens != static_cast<uint64_t>(tokens)) {
    fail_at_byte(name, 16, "number of tokens", std::to_string(stored_tokens),
                 fmt::format("{:d}, as in the shard", tokens));
  }
  uint64_t previous = 0;
  for (uint64_t i = 0; i <= documents; ++i) {
    const uint64_t at = kIndexHeaderBytes + 8 * i;
    const auto start = load_le<uint64_t>(bytes.data() + at);
    if ((i == 0 && start != 0) || start < previous || start > stored_tokens) {
      fail_at_byte(name, at, fmt::format("start of document {:d}", i), std::to_string(start),
                   i == 0 ? "0" : fmt::format("{:d} to {:d}", previous, stored_tokens));
    }
    previous = start;
  }
  if (previous != stored_tokens) {
    fail_at_byte(name, kIndexHeaderBytes + 8 * documents, "last offset", std::to_string(previous),
                 fmt::format("{:d}, the number of tokens", stored_tokens));
  }
  return static_cast<int64_t>(documents);
}

MegatronIndex parse_megatron_index(std::span<const uint8_t> bytes, const std::string& name, uint64_t bin_bytes) {
  if (bytes.size() < kMegatronHeaderBytes) {
    fail_at_byte(name, bytes.size(), "file ends too early", fmt::format("{:d} bytes", bytes.size()),
                 fmt::format("at least {:d}", kMegatronHeaderBytes));
  }
  if (std::memcmp(bytes.data(), kMegatronMagic.data(), kMegatronMagic.size()) != 0) {
    fail_at_byte(name, 0, "magic word of the Megatron index", "other bytes", "MMIDIDX and two zero bytes");
  }
  const auto version = load_le<uint64_t>(bytes.data() + 9);
  if (version != 1) { fail_at_byte(name, 9, "version", std::to_string(version), "1"); }
  MegatronIndex index;
  index.type = megatron_type(name, bytes[17]);
  const MegatronArrays arrays = megatron_arrays(bytes, name);
  const int64_t width = token_width(index.type);
  check_boundaries(arrays, name);
  index.starts.reserve(arrays.boundaries);
  uint64_t document = 0;
  for (uint64_t i = 0; i <= arrays.sequences; ++i) {
    for (; document < arrays.boundaries && arrays.boundary(document) == static_cast<int64_t>(i); ++document) {
      index.starts.push_back(index.tokens);
    }
    if (i == arrays.sequences) { break; }
    if (arrays.length(i) < 0) {
      fail_at_byte(name, arrays.length_at(i), fmt::format("length of sequence {:d}", i),
                   std::to_string(arrays.length(i)), ">= 0");
    }
    if (arrays.offset(i) != index.tokens * width) {
      fail_at_byte(name, arrays.offset_at(i), fmt::format("byte offset of sequence {:d}", i),
                   std::to_string(arrays.offset(i)),
                   fmt::format("{:d}, the end of the one before", index.tokens * width));
    }
    index.tokens += arrays.length(i);
  }
  if (static_cast<uint64_t>(index.tokens) * static_cast<uint64_t>(width) != bin_bytes) {
    fail_at_byte(name, kMegatronHeaderBytes, "tokens of all sequences",
                 fmt::format("{:d} of {:d} bytes", index.tokens, width),
                 fmt::format("the {:d} bytes of the .bin file", bin_bytes));
  }
  return index;
}

}  // namespace hebb
