#include "data/rows/source.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/hash.h"

namespace hebb {
namespace {

// The shard that holds `position`, given the first position of each shard; empty shards hold none.
size_t find_shard(const std::vector<int64_t>& starts, int64_t position) {
  return static_cast<size_t>(std::upper_bound(starts.begin(), starts.end(), position) - starts.begin()) - 1;
}

}  // namespace

TokenSource::TokenSource(std::string path, std::vector<Shard> shards)
    : path_(std::move(path)), shards_(std::move(shards)), token_starts_{0}, document_starts_{0} {
  for (const Shard& shard : shards_) {
    token_starts_.push_back(token_starts_.back() + shard.tokens());
    document_starts_.push_back(document_starts_.back() + shard.documents());
  }
  if (tokens() == 0) {
    throw DataError(path_, "the source is empty", fmt::format("0 tokens in {:d} files", shards_.size()),
                    "at least one token");
  }
}

int64_t TokenSource::document_start(int64_t d) const {
  if (d == documents()) { return tokens(); }
  const size_t s = find_shard(document_starts_, d);
  return token_starts_[s] + shards_[s].document_start(d - document_starts_[s]);
}

void TokenSource::read(int64_t begin, int64_t count, int64_t vocab_size, int32_t* out) const {
  HEBB_ASSERT(begin >= 0 && count >= 0 && begin + count <= tokens());
  for (size_t s = count > 0 ? find_shard(token_starts_, begin) : 0; count > 0; ++s) {
    const int64_t offset = begin - token_starts_[s];
    const int64_t piece = std::min(count, shards_[s].tokens() - offset);
    shards_[s].read(offset, piece, vocab_size, out);
    begin += piece;
    count -= piece;
    out += piece;
  }
}

uint64_t TokenSource::fingerprint() const {
  if (!fingerprint_) {
    uint64_t hash = kFnvOffset;
    for (const Shard& shard : shards_) {
      const auto tokens = static_cast<uint64_t>(shard.tokens());
      const uint32_t crc = shard.stored_crc() ? *shard.stored_crc() : shard.compute_crc();
      hash = fnv1a64(&crc, sizeof crc, fnv1a64(&tokens, sizeof tokens, hash));
    }
    fingerprint_ = hash;
  }
  return *fingerprint_;
}

void require_tokenizer(const Shard& shard, uint64_t hash) {
  if (hash != 0 && shard.tokenizer_hash() != 0 && shard.tokenizer_hash() != hash) {
    throw DataError(shard.name(), "tokens of another tokenizer than that of the run",
                    fmt::format("tokenizer hash {:016x}", shard.tokenizer_hash()), fmt::format("{:016x}", hash));
  }
}

}  // namespace hebb
