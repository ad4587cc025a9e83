#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace hebb {

/// What a shard, a pattern of shards or a data set folder holds, as text for a terminal: format,
/// dtype, tokens, documents and their lengths, vocabulary, special ids, checksum, tokenizer.
/// `format` as in ShardOptions. Errors: DataError as at opening.
std::string describe_shards(const std::string& path, const std::string& format = "auto");

/// Result of reading every byte of a data set.
struct VerifyReport {
  int64_t files = 0, documents = 0, tokens = 0;
  std::vector<std::string> problems;  // one line each: file, byte offset, found, expected
  bool ok() const { return problems.empty(); }
  std::string text() const;  // summary, then the problems
};

/// Checks a shard, a pattern or a data set folder completely: everything that opening checks, the CRC
/// of the tokens, every token against the vocabulary, dataset.json against its shards, and the
/// val_*.bin shards beside it. Goes on after a broken file and reports all problems. Throws a DataError only
/// when there is nothing to check.
VerifyReport verify_shards(const std::string& path, const std::string& format = "auto");

}  // namespace hebb
