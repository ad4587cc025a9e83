#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/json.h"
#include "data/rows/data_config.h"
#include "data/rows/mixture.h"
#include "data/rows/row_source.h"
#include "data/shards/checksum_pass.h"

namespace hebb {

struct LoaderOptions {
  int64_t batch_size = 1, micro_batch_size = 1, sequence_length = 1;  // rows, rows, tokens
  int64_t rank = 0, world = 1;
  int64_t lanes = 0;       // parts of a group of rows, the same number on each rank; 0: one a rank
  uint64_t seed = 0;       // train.seed: data.seed where that is not set
  int64_t vocab_size = 0;  // tokens are below this
  bool document_mask = false;
  int64_t prefetch_batches = 2;  // built ahead by a background thread; 0 = none
  uint64_t tokenizer_hash = 0;   // that the files must name, if they name one; 0 = that of the first file that does
};

/// What training sources need to know of the run.
RowSourceContext row_source_context(const DataConfig& config, const LoaderOptions& options);

/// Rows of one rank for one forward and backward pass, row-major.
struct MicroBatch {
  MicroBatch() = default;
  MicroBatch(int64_t rows, int64_t length);
  RowView view(int64_t row);

  int64_t rows = 0, length = 0;
  std::vector<int32_t> inputs, targets, doc_ids;  // [rows * length]; targets: -100 = ignored
};

/// One rank's part of a global batch: micro-batch m of its lane l is micro[m * own lanes + l].
struct Batch {
  int64_t first_row = 0;      // number of the batch's first global row
  int64_t valid_targets = 0;  // targets != -100 of the whole global batch, all ranks
  std::vector<MicroBatch> micro;
  std::vector<std::string> notices;  // a source that passes the end of epoch 0, said once
};

/// Mixes the training sources and deals global batches to ranks (docs/data.md, Mixing). The
/// global order of rows depends on files, configuration and seed alone: not on ranks, micro-batch
/// size, threads or prefetching.
/// Errors: ConfigError (batch arithmetic, options), DataError (files, tokens, checksums). Those of the
/// background thread appear in next_batch().
class Loader {
 public:
  struct SourceInfo {
    std::string name;
    int64_t tokens = 0, documents = 0;
    std::optional<int64_t> rows_per_epoch;  // none: endless
    double share = 0;                       // of the rows
  };

  Loader(const DataConfig& config, const LoaderOptions& options);
  ~Loader();

  Batch next_batch();

  /// State after the batches that next_batch() has returned; batches built ahead do not count.
  Json state() const;
  /// Continues after `state`. Files, T, seed or sources that differ from it are a DataError unless
  /// allow_change; then the differences are returned, one line each. With another number of sources
  /// the mixture starts as if the new ones had given all rows so far.
  /// A state that is not one is a CheckpointError.
  std::vector<std::string> restore(const Json& state, bool allow_change);

  const std::vector<SourceInfo>& sources() const { return info_; }
  /// Of the files of all sources; 0 when none names its tokenizer.
  uint64_t tokenizer_hash() const { return options_.tokenizer_hash; }
  /// Data plan: one line per source with its epochs over `total_rows` rows of the run.
  std::string describe(int64_t total_rows) const;

 private:
  struct Built {
    Batch batch;
    std::vector<int64_t> taken_after;
  };
  Built build();
  bool build_next();  // into ready_ or failure_
  int64_t lanes() const { return options_.lanes > 0 ? options_.lanes : options_.world; }
  void add_row(Batch& batch, int64_t index_in_batch);
  void run_ahead();
  void stop();
  std::vector<std::string> differences(const Json& state) const;

  LoaderOptions options_;
  uint64_t seed_;
  std::vector<std::unique_ptr<RowSource>> sources_;
  std::vector<SourceInfo> info_;
  Mixture mixture_;  // position of the next batch to build
  ChecksumPass checksums_;
  std::vector<int64_t> taken_;  // rows that next_batch() has handed out, by source
  bool has_built_ = false;
  std::thread thread_;  // uses sources_, mixture_ and checksums_ alone while it runs
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Built> ready_;
  std::exception_ptr failure_;
  bool is_stopping_ = false;
};

}  // namespace hebb
