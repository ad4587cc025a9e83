#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/files.h"
#include "core/map_faults.h"
#include "data/shards/shard_index.h"

namespace hebb {

struct ShardOptions {
  std::string format = "auto";  // "auto" (hebb, llm.c, NumPy, Megatron by its index), "raw_u16", "raw_u32", "megatron"
  std::optional<int64_t> split_token = {};  // makes documents of a file without an index
  bool split_before = false;                // the token starts a document; otherwise it ends one
};

/// One read-only token file, memory-mapped, with its documents (docs/formats/shards.md).
/// Documents come from NAME.idx, else from split_token, else the file is one document.
class Shard {
 public:
  enum class Format { hebb, llmc, raw, numpy, megatron };

  /// Opens PATH and its index and checks magic, version, sizes and the index; the token CRC is
  /// left to require_crc(). Errors: DataError naming file, byte offset, found and expected.
  static Shard open(const fs::path& path, const ShardOptions& options);
  /// The same on bytes in memory (`index`: the .idx, if any).
  static Shard from_bytes(const std::string& name, std::string bytes, std::optional<std::string> index,
                          const ShardOptions& options);

  const std::string& name() const { return name_; }
  Format format() const { return format_; }
  TokenType token_type() const { return type_; }
  int64_t tokens() const { return tokens_; }
  int64_t documents() const { return documents_; }
  bool has_index() const { return has_index_; }

  // Header of a hebb shard; empty, -1 or 0 in other formats.
  std::optional<int64_t> vocab_size() const { return vocab_size_; }
  int32_t bos() const { return bos_; }
  int32_t eos() const { return eos_; }
  uint64_t tokenizer_hash() const { return tokenizer_hash_; }
  std::optional<uint32_t> stored_crc() const { return stored_crc_; }

  /// Token offset of document d's start, d = 0 .. documents(); the last is tokens().
  int64_t document_start(int64_t d) const {
    if (index_starts_ == nullptr) { return starts_[static_cast<size_t>(d)]; }
    const int64_t start = load_le<int64_t>(index_starts_ + 8 * d);
    if (start == 0 && d > 0) { require_uncut(index_starts_ + 8 * d); }
    return start;
  }
  /// Copies tokens [begin, begin + count) as int32. A token outside [0, vocab_size) is a DataError
  /// with its byte offset; a file that was cut after it was opened a LostDataError.
  void read(int64_t begin, int64_t count, int64_t vocab_size, int32_t* out) const;
  /// Offset of the token's first byte in the file.
  uint64_t byte_offset(int64_t token) const;

  /// CRC-32 of the token bytes, computed over the whole file at each call.
  uint32_t compute_crc() const { return continue_crc(0, tokens_, 0); }
  /// CRC-32 over tokens [begin, begin + count) that goes on from `crc`.
  uint32_t continue_crc(int64_t begin, int64_t count, uint32_t crc) const;
  /// Throws a DataError when the header stores a CRC other than `computed`.
  void require_crc(uint32_t computed) const;

 private:
  struct Bytes {  // a mapped file or a string
    MappedFile map;
    std::string text;
    std::span<const uint8_t> view() const;
  };

  Shard() = default;
  void parse(const ShardOptions& options);
  void parse_header();
  void parse_extended_header();
  void parse_raw(TokenType type);
  void parse_documents(const ShardOptions& options);
  void split_documents(int64_t split_token, bool split_before);
  int64_t token(int64_t i) const;
  std::string index_name() const;
  void require_uncut_after(int64_t begin, int64_t count) const;

  std::string name_;
  std::shared_ptr<const Bytes> bin_, idx_;  // shared: views below point into them
  Format format_ = Format::hebb;
  TokenType type_ = TokenType::u16;
  const uint8_t* data_ = nullptr;  // first token
  int64_t data_offset_ = 0, tokens_ = 0, documents_ = 0;
  bool has_index_ = false;
  const uint8_t* index_starts_ = nullptr;  // u64 offsets inside the hebb index
  std::vector<int64_t> starts_;            // without a hebb index
  std::optional<int64_t> vocab_size_;
  int32_t bos_ = -1, eos_ = -1;
  uint64_t tokenizer_hash_ = 0;
  std::optional<uint32_t> stored_crc_;
};

}  // namespace hebb
