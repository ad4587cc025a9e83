#pragma once
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "data/rows/loader.h"
#include "optim/step_policy.h"
#include "train/memory_plan.h"
#include "train/run_folder.h"
#include "train/step_reporter.h"
#include "train/stop_agreement.h"
#include "train/training_state.h"
#include "train/validation.h"

namespace hebb {

/// Trains one model in one run folder (docs/training.md), as one rank of those that do. Construction opens the folder,
/// plans and reserves all memory, and loads what the run starts from: it fails there or not for want of memory.
class Trainer {
 public:
  /// `config` must be resolved for so many ranks. Only the first speaks on the console. `banner`: versions, for the
  /// log. Errors: ConfigError, DataError, CheckpointError, MemoryError, CommError.
  Trainer(RunConfig config, const RunOptions& options, const Ranks& ranks, Console console, const std::string& banner);

  /// Trains until the last step, a signal or the time limit; returns the exit code.
  /// Errors: NumericError (train.nonfinite, carried state), DataError, CheckpointError.
  int run();

  const RunState& state() const { return state_; }
  /// Not of a run that was complete before: it loads nothing.
  const ParamStore& params() const { return training_->model.params(); }
  const fs::path& run_folder() const { return folder_.path(); }
  /// Whether the last step is done.
  bool is_complete() const { return state_.step >= config_.train.steps; }

 private:
  using Clock = std::chrono::steady_clock;

  int loop();
  void start(const RunOptions& options, const std::string& banner);
  bool was_complete();
  void open_log();
  void reserve_memory(const ProductList& products);
  void start_model(const RunOptions& options);
  LoaderOptions loader_options() const;
  void open_data(const RunOptions& options);

  Batch next_batch();
  StepReport train_step();
  void forward_backward(const Batch& batch, StepReport& report);
  void apply(const Batch& batch, StepReport& report);
  void count(const Batch& batch, const StepReport& report);
  std::string reason_to_skip(const Batch& batch, const StepReport& report) const;
  int64_t random_window(int64_t step) const;

  bool checkpoint_due() const;
  void save();
  void sync_files();
  void warn_of_all(const std::vector<std::string>& notes);
  int stop();
  int finish();

  RunConfig config_;
  Ranks ranks_;
  HostExchange host_;
  RunLog log_;
  RunContext run_{config_, ranks_, host_, log_};
  StopAgreement stop_{run_};
  RunFolder folder_;
  MemoryPlan plan_;
  std::unique_ptr<TrainingState> training_;
  std::unique_ptr<Loader> loader_;
  std::unique_ptr<Validation> validation_;
  std::unique_ptr<StepReporter> reporter_;
  SkipPolicy skips_;
  SpikeWindow spikes_;
  RunState state_;
  int64_t saved_step_ = -1;
};

}  // namespace hebb
