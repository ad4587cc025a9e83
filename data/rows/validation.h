#pragma once
#include <memory>
#include <string>

#include "data/rows/loader.h"

namespace hebb {

/// One validation source: rows in file order, unshuffled, each once; max_rows of them spread evenly (docs/data.md).
/// Tokens are checked as they are read; checksums of its files when it is opened.
class ValidationSource {
 public:
  /// `index`: its number in data.validation. Errors: as for a training source; ConfigError for files, or task and
  /// seed, of a training source unless allow_training_data; DataError for a data set without validation shards.
  ValidationSource(const DataConfig& config, size_t index, const LoaderOptions& options);

  const std::string& name() const { return name_; }
  int64_t rows() const { return rows_; }
  /// Rows first .. first + count - 1; count may be cut at rows().
  MicroBatch read(int64_t first, int64_t count);
  /// Targets != -100 of all rows.
  int64_t valid_targets();

 private:
  std::string name_;
  int64_t length_ = 0, rows_ = 0;
  std::unique_ptr<RowSource> source_;
};

}  // namespace hebb
