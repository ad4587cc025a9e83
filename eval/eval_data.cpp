#include "eval/eval_data.h"

#include <algorithm>

#include "data/shards/dataset.h"

namespace hebb {

TokenSource EvalData::open(const Tokenizer* tokenizer) const {
  const std::string files = format == "auto" ? held_out_path(path, path) : path;
  TokenSource source(files, open_shards(files, ShardOptions{format, split_token, split == "before"}));
  for (const Shard& shard : source.shards()) { require_tokenizer(shard, tokenizer != nullptr ? tokenizer->hash() : 0); }
  return source;
}

void fields(Fields& f, EvalData& d) {
  f.file("path", d.path)
      .required()
      .help("A shard, a pattern of shards (byte order), or a data set's folder for its val_*.bin.");
  f.field("format", d.format).one_of({"auto", "raw_u16", "raw_u32", "megatron"}).help("Format of the files.");
  f.field("split_token", d.split_token).min(0).help("Token id that separates documents in files without an index.");
  f.field("split", d.split).one_of({"after", "before"}).help("Whether split_token ends or starts a document.");
}

std::vector<int32_t> read_document(const TokenSource& source, int64_t d, int64_t limit, int64_t vocab) {
  const int64_t begin = source.document_start(d), n = std::min(limit, source.document_start(d + 1) - begin);
  std::vector<int32_t> tokens(static_cast<size_t>(n));
  source.read(begin, n, vocab, tokens.data());
  return tokens;
}

}  // namespace hebb
