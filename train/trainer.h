#pragma once
#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/mean.h"
#include "core/stop_signals.h"
#include "data/rows/loader.h"
#include "data/rows/validation.h"
#include "optim/step_policy.h"
#include "train/comm_times.h"
#include "train/memory_plan.h"
#include "train/metrics_file.h"
#include "train/rank_statistics.h"
#include "train/run_folder.h"
#include "train/run_log.h"
#include "train/tensorboard.h"
#include "train/training_state.h"

namespace hebb {

/// What one optimizer step did.
struct StepReport {
  double loss = 0, lr = 0;
  GradientNorms norms;
  std::optional<double> spike;
  Statistics statistics;
  double seconds = 0, comm_seconds = 0;  // of the step; of these in collectives
  int64_t sent_bytes = 0;                // to other ranks
};

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
  struct Interval {  // since the last logged step
    double seconds = 0;
    int64_t steps = 0, sent_bytes = 0;
    std::vector<StepTime> times{};  // of each step; empty for one rank
  };

  int loop();
  void start(const RunOptions& options, const std::string& banner);
  bool was_complete();
  void open_log();
  void reserve_memory(const ProductList& products);
  void start_model(const RunOptions& options);
  LoaderOptions loader_options() const;
  void open_data(const RunOptions& options);
  void open_metrics();
  void share_validated();

  Batch next_batch();
  StepReport train_step();
  void forward_backward(const Batch& batch, StepReport& report);
  void apply(const Batch& batch, StepReport& report);
  void count(const Batch& batch, const StepReport& report);
  std::string reason_to_skip(const Batch& batch, const StepReport& report) const;
  int64_t random_window(int64_t step) const;
  void log(const StepReport& report);
  void warn_of_residuals(const Statistics& statistics);
  void warn_of_unreached();
  std::string console_line(const StepReport& report, double step_seconds) const;
  std::optional<CommTimes> comm_times();
  void warn_of_slow_rank(const CommTimes& times);
  Json metrics_line(const StepReport& report, double step_seconds, const std::optional<CommTimes>& comm) const;
  Scalars tensorboard_values(const StepReport& report, double step_seconds) const;
  std::optional<double> mfu(double step_seconds) const;
  int64_t memory_bytes() const;
  double seconds_left() const;

  void log_validation(const std::string& name, double loss, int64_t tokens);

  bool is_logged(int64_t completed) const;
  bool validation_due() const;
  bool validate();
  bool validate_source(ValidationSource& source);
  struct LossSum {
    double loss = 0;
    int64_t tokens = 0;
  };
  bool add_validation_group(ValidationSource& source, int64_t first, const PassSettings& settings, LossSum& sum);
  bool checkpoint_due() const;
  void save();
  void sync_files();
  void warn_of_all(const std::vector<std::string>& notes);
  std::string stop_reason() const { return stop_reason(steps_done_); }
  std::string stop_reason(int64_t steps_done) const;
  void agree_to_stop(bool stops);
  bool any_rank_wants_to_stop();
  int stop(const std::string& reason);
  int finish();
  std::string summary() const;

  RunConfig config_;
  Ranks ranks_;
  HostExchange host_;
  RunLog log_;
  std::optional<StopSignals> signals_;  // while the run goes on: until then a signal ends the process
  Clock::time_point started_ = Clock::now();
  RunFolder folder_;
  MemoryPlan plan_;
  std::unique_ptr<TrainingState> training_;
  std::unique_ptr<Loader> loader_;
  std::vector<std::unique_ptr<ValidationSource>> validation_;
  std::set<std::string> validated_;  // sources that have a line at the current step
  std::unique_ptr<MetricsFile> metrics_;
  std::unique_ptr<TensorBoardWriter> tensorboard_;
  SkipPolicy skips_;
  SpikeWindow spikes_;
  RunState state_;
  std::string agreed_stop_;  // several ranks: why all of them stop
  int64_t saved_step_ = -1;
  int64_t largest_bytes_ = 0;  // of memory_bytes() at logged steps, of all ranks
  int64_t steps_done_ = 0;     // by this process
  double step_seconds_ = 0;    // of a step, by the last logged line
  double passed_ = 0;          // seconds of all steps of this process
  Mean validation_seconds_, save_seconds_;
  std::optional<double> last_loss_;                              // of this process
  std::vector<std::pair<std::string, double>> last_validation_;  // of each source, likewise
  double flops_per_token_ = 0;
  std::optional<double> peak_flops_;  // of the device
  Interval interval_;
  SkewWatch skew_;
  std::set<std::string> unconverged_;  // layers that were warned of
};

}  // namespace hebb
