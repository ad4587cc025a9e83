#include "eval/eval_data.h"

#include <algorithm>

#include "data/shards/dataset.h"

namespace hebb {

void EvalTokens::read(int64_t begin, int64_t count, int64_t vocab_size, int32_t* out) const {
  int64_t start = 0;
  for (size_t i = 0; i < is_checked_.size(); ++i) {
    const Shard& shard = source_.shards()[i];
    const bool is_read = start < begin + count && begin < start + shard.tokens();
    if (is_read && !is_checked_[i]) {
      if (shard.stored_crc()) { shard.require_crc(shard.compute_crc()); }
      is_checked_[i] = true;
    }
    start += shard.tokens();
  }
  source_.read(begin, count, vocab_size, out);
}

EvalTokens EvalData::open(const Tokenizer* tokenizer) const {
  const std::string files = format == "auto" ? held_out_path(path, path) : path;
  TokenSource source(files, open_shards(files, ShardOptions{format, split_token, split == "before"}));
  for (const Shard& shard : source.shards()) { require_tokenizer(shard, tokenizer != nullptr ? tokenizer->hash() : 0); }
  return EvalTokens(std::move(source));
}

void fields(Fields& f, EvalData& d) {
  f.file("path", d.path)
      .required()
      .help("A shard, a pattern of shards (byte order), or a data set's folder for its val_*.bin.");
  f.field("format", d.format).one_of({"auto", "raw_u16", "raw_u32", "megatron"}).help("Format of the files.");
  f.field("split_token", d.split_token).min(0).help("Token id that separates documents in files without an index.");
  f.field("split", d.split).one_of({"after", "before"}).help("Whether split_token ends or starts a document.");
}

std::vector<int32_t> read_document(const EvalTokens& source, int64_t d, int64_t limit, int64_t vocab) {
  const int64_t n = std::min(limit, source.document_tokens(d));
  std::vector<int32_t> tokens(static_cast<size_t>(n));
  source.read(source.document_start(d), n, vocab, tokens.data());
  return tokens;
}

}  // namespace hebb
