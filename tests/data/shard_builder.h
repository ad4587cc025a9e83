#pragma once
// Token files built byte by byte, independently of the writer under test.
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "core/files.h"
#include "core/hash.h"
#include "data/shards/shard.h"
#include "data/shards/shard_format.h"

namespace hebb {

template <class T> void put(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

template <class T> void patch(std::string& bytes, size_t at, T value) {
  bytes.replace(at, sizeof value, reinterpret_cast<const char*>(&value), sizeof value);
}

template <class Token> std::string token_bytes(const std::vector<int64_t>& tokens) {
  std::string bytes;
  for (const int64_t token : tokens) { put(bytes, static_cast<Token>(token)); }
  return bytes;
}

/// A plain llm.c file of uint16 tokens.
inline std::string llmc_bytes(const std::vector<int64_t>& tokens) {
  std::string bytes(1024, '\0');
  patch<int32_t>(bytes, 0, kShardMagic16);
  patch<int32_t>(bytes, 4, 1);
  patch<int32_t>(bytes, 8, static_cast<int32_t>(tokens.size()));
  return bytes + token_bytes<uint16_t>(tokens);
}

/// A hebb shard of uint16 tokens.
inline std::string hebb_bytes(const std::vector<int64_t>& tokens, int32_t vocab_size) {
  std::string bytes = llmc_bytes(tokens);
  patch<int32_t>(bytes, 12, 1);
  patch<int32_t>(bytes, 16, vocab_size);
  patch<int32_t>(bytes, 20, -1);
  patch<int32_t>(bytes, 24, -1);
  patch<uint32_t>(bytes, 28, crc32(bytes.data() + 1024, bytes.size() - 1024));
  return bytes;
}

/// A hebb index; `starts` holds the document starts and the number of tokens.
inline std::string index_bytes(const std::vector<uint64_t>& starts) {
  std::string bytes(kIndexMagic);
  put<uint64_t>(bytes, starts.size() - 1);
  put<uint64_t>(bytes, starts.back());
  for (const uint64_t start : starts) { put(bytes, start); }
  put(bytes, crc32(bytes.data(), bytes.size()));
  return bytes;
}

/// Renews the CRC of an index that a test has changed.
inline std::string with_index_crc(std::string bytes) {
  patch(bytes, bytes.size() - 4, crc32(bytes.data(), bytes.size() - 4));
  return bytes;
}

/// A Megatron index of dtype `code` for sequences of these lengths.
inline std::string megatron_index_bytes(uint8_t code, int64_t width, const std::vector<int32_t>& lengths,
                                        const std::vector<int64_t>& boundaries) {
  std::string bytes(kMegatronMagic);
  put<uint64_t>(bytes, 1);
  put(bytes, code);
  put<uint64_t>(bytes, lengths.size());
  put<uint64_t>(bytes, boundaries.size());
  int64_t offset = 0;
  std::string offsets;
  for (const int32_t length : lengths) {
    put(bytes, length);
    put(offsets, offset);
    offset += length * width;
  }
  bytes += offsets;
  for (const int64_t boundary : boundaries) { put(bytes, boundary); }
  return bytes;
}

/// The documents of some shards in order.
inline std::vector<std::vector<int32_t>> read_documents(const std::vector<Shard>& shards) {
  std::vector<std::vector<int32_t>> documents;
  for (const Shard& shard : shards) {
    for (int64_t d = 0; d < shard.documents(); ++d) {
      const int64_t begin = shard.document_start(d), count = shard.document_start(d + 1) - begin;
      documents.emplace_back(static_cast<size_t>(count));
      shard.read(begin, count, int64_t{1} << 31, documents.back().data());
    }
  }
  return documents;
}

inline void flip_bit(const fs::path& path, size_t byte) {
  std::string bytes = read_file(path);
  bytes[byte] = static_cast<char>(bytes[byte] ^ 4);
  std::ofstream(path, std::ios::binary) << bytes;
}

}  // namespace hebb
