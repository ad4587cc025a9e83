#include "data/rows/validation.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/error.h"
#include "data/shards/dataset.h"

namespace hebb {
namespace {

constexpr const char* kWord = ", or \"allow_training_data\": true where this is meant";

/// A folder of a data set stands for its validation shards.
SourceConfig held_out_files(SourceConfig source, const std::string& place) {
  if (source.type == "shards" && source.format == "auto") { source.path = held_out_path(source.path, place); }
  return source;
}

void require_other_seed(const SourceConfig& training, const SyntheticConfig& own, const std::string& where,
                        uint64_t data_seed) {
  const SyntheticConfig& other = training.synthetic;
  const uint64_t seed = own.seed.value_or(data_seed);
  if (training.type == "synthetic" && other.task.task == own.task.task && other.seed.value_or(data_seed) == seed) {
    throw ConfigError(where, std::to_string(seed),
                      "another seed than that of the training rows of " + own.task.task + kWord);
  }
}

/// The same file, or a copy of it: hebb's shards store a checksum of their tokens.
bool has_same_tokens(const Shard& a, const Shard& b) {
  std::error_code error;
  return fs::equivalent(a.name(), b.name(), error) ||
         (a.stored_crc() && a.stored_crc() == b.stored_crc() && a.tokens() == b.tokens() && a.tokens() > 0);
}

void require_other_files(const SourceConfig& training, const std::string& training_name, const RowSource& own,
                         const std::string& where) {
  if (training.type != "shards") { return; }
  const ShardOptions options{.format = training.format};  // without split_token, which would read whole files
  for (const Shard& shard : open_shards(training.path, options)) {
    for (const Shard* held : own.shards()) {
      if (has_same_tokens(shard, *held)) {
        throw ConfigError(where, held->name() + ", whose tokens are trained on (" + training_name + ")",
                          std::string("other files") + kWord);
      }
    }
  }
}

/// Validation on rows that are trained on says nothing about held-out ones.
void require_held_out(const DataConfig& config, const ValidationConfig& validation, const RowSource& own,
                      const std::string& where, uint64_t data_seed) {
  if (validation.allow_training_data) { return; }
  for (size_t i = 0; i < config.sources.size(); ++i) {
    if (validation.source.type == "synthetic") {
      const std::string seed = where + ".seed";  // may not be written
      const std::string place = config.place(seed) != seed ? config.place(seed) : config.place(where) + ".seed";
      require_other_seed(config.sources[i], validation.source.synthetic, place, data_seed);
    } else {
      require_other_files(config.sources[i], fmt::format("data.sources.{:d}", i), own, config.place(where + ".path"));
    }
  }
}

/// Of the i-th of n rows that are read: floor((2 i + 1) R / (2 n)) of R rows.
int64_t row_index(const RowSource& source, int64_t n, int64_t i) {
  const auto all = source.rows_per_epoch();
  if (!all || *all == n) { return i; }
  using Wide = __int128;  // products of two numbers of rows
  return static_cast<int64_t>((2 * Wide{i} + 1) * Wide{*all} / (2 * Wide{n}));
}

}  // namespace

ValidationSource::ValidationSource(const DataConfig& config, size_t index, const LoaderOptions& options)
    : name_(config.validation[index].name), length_(options.sequence_length) {
  const ValidationConfig& validation = config.validation[index];
  const std::string where = fmt::format("data.validation.{:d}", index);
  RowSourceContext context = row_source_context(config, options);
  context.is_shuffled = false;
  source_ = make_row_source(held_out_files(validation.source, config.place(where + ".path")), config, where,
                            static_cast<int64_t>(index), context);
  require_held_out(config, validation, *source_, where, context.seed);
  uint64_t tokenizer_hash = options.tokenizer_hash;
  config.at(where + ".path", [&] { require_tokenizer(*source_, tokenizer_hash); });
  for (const Shard* shard : source_->shards()) { shard->require_crc(shard->compute_crc()); }
  const int64_t limit = validation.max_rows.value_or(INT64_MAX);
  rows_ = std::min(limit, source_->rows_per_epoch().value_or(limit));
  if (validation.source.type == "shards" && valid_targets() == 0) {
    throw DataError(config.place(where) + " (" + source_->name() + ")", "no valid target",
                    fmt::format("ignored targets only in {:d} rows", rows_), "at least one that is not ignored");
  }
}

MicroBatch ValidationSource::read(int64_t first, int64_t count) {
  HEBB_ASSERT(first >= 0 && first <= rows_ && count >= 0);
  MicroBatch batch(std::min(count, rows_ - first), length_);
  for (int64_t i = 0; i < batch.rows; ++i) {
    const RowView view = batch.view(i);
    source_->row(row_index(*source_, rows_, first + i), &view);
  }
  return batch;
}

int64_t ValidationSource::valid_targets() {
  int64_t sum = 0;
  for (int64_t row = 0; row < rows_; ++row) { sum += source_->row(row_index(*source_, rows_, row), nullptr); }
  return sum;
}

}  // namespace hebb
