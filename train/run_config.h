#pragma once
#include <optional>
#include <string>
#include <vector>

#include "data/rows/data_config.h"
#include "layers/model_config.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"

namespace hebb {

struct CheckpointConfig {
  int64_t every = 1000, keep = 2, keep_every = 0;
};

struct RandomWindowConfig {
  double p = 0;
  int64_t window = 0;
};

/// How ranks meet, watch each other and send gradients (docs/distributed.md).
struct CommConfig {
  std::string reduce = "fp32";
  int64_t bucket_mib = 64;
  std::optional<bool> overlap;  // default: by device
  std::string interface, token_file;
  double init_seconds = 300, lost_seconds = 20, stall_seconds = 300;
  bool verify = true;
};

/// The `train` section of a run configuration (docs/training.md).
struct TrainConfig {
  int64_t steps = 0;  // filled from `tokens` when those are given
  std::optional<int64_t> tokens;
  int64_t batch_size = 0, sequence_length = 0;
  std::optional<int64_t> micro_batch_size, fast_batch;
  std::optional<int64_t> lanes;  // not set: one
  uint64_t seed = 0;
  bool document_mask = false;
  std::string device = "auto";
  int64_t threads = 0;                   // 0: the cores that the process may use
  std::optional<std::string> precision;  // default: by device
  std::string nonfinite = "skip";
  int64_t max_consecutive_skips = 10;
  int64_t log_every = 10, val_every = 0;
  CheckpointConfig checkpoint;
  double max_minutes = 0;
  int64_t exit_code_on_stop = 75;
  std::string recompute = "none";
  std::optional<int64_t> zero;
  std::optional<CommConfig> comm;
  bool allow_tf32 = false, cuda_graphs = true, autotune = true;
  std::optional<double> peak_tflops;
  std::optional<RandomWindowConfig> random_window;

  int64_t tokens_per_step() const { return batch_size * sequence_length; }
};

/// A run configuration (docs/configuration.md). Relative paths are absolute after reading.
struct RunConfig {
  std::string name;
  ModelConfig model;
  DataConfig data;
  TrainConfig train;
  OptimizerConfig optimizer;
  ScheduleConfig schedule;
  Json eval;    // read by the evaluation; null when absent
  Json source;  // what was read, for the positions in messages

  /// Where the value at a dotted path was written; empty when it was not.
  std::string where(const std::string& path) const;
  /// The path with where it was written, as messages begin.
  std::string place(const std::string& path) const;
  /// The error of a value that only the machine or another value makes wrong.
  ConfigError error(const std::string& path, std::string_view found, std::string_view expected) const;
};
void fields(Fields& f, CheckpointConfig& config);
void fields(Fields& f, RandomWindowConfig& config);
void fields(Fields& f, CommConfig& config);
void fields(Fields& f, TrainConfig& config);
void fields(Fields& f, RunConfig& config);

/// Reads the list of evaluations at a path: every default filled in, absolute paths. Errors: ConfigError.
using EvaluationReader = Json(const Json& json, const std::string& path);

/// The run configuration in `source`, which is kept. evaluations: reads `eval` (resolve_evaluations); null leaves it as
/// it is, for configurations that are resolved. Errors: ConfigError.
RunConfig run_config_of(Json source, EvaluationReader* evaluations);
/// Whether a configuration is that of a sweep (docs/verbs/ladder.md).
bool is_sweep(const Json& source);
/// Errors: ConfigError where a file holds a sweep in place of one configuration.
void require_no_sweep(const Json& source, const std::string& path);
/// "with 8 lanes micro-batches of 1, 2, 3 or 6 rows do", or the batch size next to one that no micro-batch divides.
std::string micro_batches_that_divide(int64_t batch_size, int64_t lanes);
/// Reads a run configuration with "extends" and `overrides` ("a.b=3") applied. Errors: ConfigError.
RunConfig read_run_config(const std::string& path, const std::vector<std::string>& overrides = {},
                          EvaluationReader* evaluations = nullptr);

/// How the run that goes on cut its batches into lanes and micro-batches.
struct StoredSplit {
  int64_t lanes = 1;
  std::optional<int64_t> micro_batch_size;
};

/// Fills what depends on the machine and on the number of ranks: precision, lanes, micro-batch size, zero, the
/// tokenizer of the data. `stored`: of the run that goes on, for what the configuration leaves open. `runs`: see
/// choose_compute. Errors: ConfigError for a device or precision that this build does not have, and for batch sizes
/// that do not divide.
void resolve(RunConfig& config, int ranks = 1, bool runs = true, const std::optional<StoredSplit>& stored = {});

/// The device that train.device and train.precision mean here. Errors: ConfigError.
DeviceKind device_of(const RunConfig& config, bool runs = true);

/// The resolved configuration, which can be read again.
Json to_json(const RunConfig& config);

/// fnv1a64 of the canonical JSON (sorted keys, no spaces), 16 hexadecimal digits (docs/verbs/ladder.md).
std::string config_hash(const Json& config);

/// One place where two configurations differ.
struct ConfigDifference {
  std::string path, stored, current;
};
/// Where two resolved configurations differ, apart from what a resumed run may change (docs/training.md; paths of data
/// and tokenizers only inform: docs/data.md, Resume).
std::vector<ConfigDifference> compare_configs(const Json& stored, const Json& current);
/// Where they differ at all.
std::vector<ConfigDifference> all_differences(const Json& stored, const Json& current);

}  // namespace hebb
