#pragma once
// Layout of hebb's shards and indexes (docs/formats/shards.md); all integers little-endian.
#include <cstdint>
#include <string_view>

namespace hebb {

constexpr int64_t kShardHeaderBytes = 1024;
constexpr int64_t kShardHeaderInts = kShardHeaderBytes / 4;
constexpr int32_t kShardMagic16 = 20240520, kShardVersion16 = 1;  // uint16 tokens
constexpr int32_t kShardMagic32 = 20240801, kShardVersion32 = 7;  // uint32 tokens
constexpr int64_t kMaxShardTokens = 0x7FFFFFFF;
constexpr int64_t kMaxVocab16 = 65'536;

constexpr std::string_view kIndexMagic = "HEBBIDX1";
constexpr int64_t kIndexHeaderBytes = 24;  // magic, documents, tokens
constexpr std::string_view kMegatronMagic{"MMIDIDX\0\0", 9};

/// Positions of the int32 fields of the header.
enum ShardField : int {
  kFieldMagic = 0,
  kFieldVersion = 1,
  kFieldTokens = 2,
  kFieldExtended = 3,
  kFieldVocab = 4,
  kFieldBos = 5,
  kFieldEos = 6,
  kFieldCrc = 7,
  kFieldHashLow = 8,
  kFieldHashHigh = 9,
  kFieldUnused = 10,
};

}  // namespace hebb
