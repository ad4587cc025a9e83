#include "data/rows/validation.h"

#include <algorithm>

#include "core/error.h"

namespace hebb {
namespace {

void check_seed(const DataConfig& config, const SourceConfig& validation, const std::string& where,
                uint64_t data_seed) {
  if (validation.type != "synthetic") { return; }
  const SyntheticConfig& own = validation.synthetic;
  for (const SourceConfig& training : config.sources) {
    const SyntheticConfig& other = training.synthetic;
    if (training.type == "synthetic" && other.task.task == own.task.task &&
        other.seed.value_or(data_seed) == own.seed.value_or(data_seed)) {
      throw ConfigError(where + ".seed", std::to_string(own.seed.value_or(data_seed)),
                        "another seed than that of the training rows of " + own.task.task);
    }
  }
}

}  // namespace

ValidationSource::ValidationSource(const DataConfig& config, size_t index, const LoaderOptions& options)
    : name_(config.validation[index].name), length_(options.sequence_length) {
  const ValidationConfig& validation = config.validation[index];
  const std::string where = "data.validation." + std::to_string(index);
  RowSourceContext context;
  context.seed = config.seed.value_or(options.seed);
  context.sequence_length = options.sequence_length;
  context.batch_size = options.batch_size;
  context.vocab_size = options.vocab_size;
  context.document_mask = options.document_mask;
  context.is_shuffled = false;
  check_seed(config, validation.source, where, context.seed);
  source_ = make_row_source(validation.source, config.packing, where, static_cast<int64_t>(index), context);
  uint64_t tokenizer_hash = options.tokenizer_hash;
  require_tokenizer(*source_, tokenizer_hash);
  for (const Shard* shard : source_->shards()) { shard->require_crc(shard->compute_crc()); }
  const int64_t limit = validation.max_rows.value_or(INT64_MAX);
  rows_ = std::min(limit, source_->rows_per_epoch().value_or(limit));
  if (validation.source.type == "shards" && valid_targets() == 0) {
    throw DataError(where + " (" + source_->name() + ")", "no valid target",
                    "ignored targets only in " + std::to_string(rows_) + " rows", "at least one that is not ignored");
  }
}

MicroBatch ValidationSource::read(int64_t first, int64_t count) {
  HEBB_ASSERT(first >= 0 && first <= rows_ && count >= 0);
  MicroBatch batch(std::min(count, rows_ - first), length_);
  for (int64_t i = 0; i < batch.rows; ++i) {
    const RowView view = batch.view(i);
    source_->row(first + i, &view);
  }
  return batch;
}

int64_t ValidationSource::valid_targets() {
  int64_t sum = 0;
  for (int64_t row = 0; row < rows_; ++row) { sum += source_->row(row, nullptr); }
  return sum;
}

}  // namespace hebb
