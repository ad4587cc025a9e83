#pragma once
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/mean.h"
#include "train/comm_times.h"
#include "train/metrics_file.h"
#include "train/rank_statistics.h"
#include "train/run_context.h"
#include "train/run_folder.h"
#include "train/tensorboard.h"
#include "train/training_state.h"

namespace hebb {

/// What one optimizer step did.
struct StepReport {
  int64_t step = 0, tokens = 0;  // of the run, with this step
  int64_t skipped = 0;           // steps of the run
  double loss = 0, lr = 0;
  GradientNorms norms;
  std::optional<double> spike;
  Statistics statistics;
  double seconds = 0, comm_seconds = 0;  // of the step; of these in collectives
  int64_t sent_bytes = 0;                // to other ranks
};

/// What a run reports about its steps: console line and bar, metrics.jsonl, TensorBoard, the summary at the end.
class StepReporter {
 public:
  /// training outlives this. validation_rows: of all sources.
  StepReporter(const RunContext& run, const TrainingState& training, int64_t validation_rows);

  /// Opens the files of the first rank, of a run that goes on after `step`. saved_step: of the checkpoint that it goes
  /// on from; -1: none of its own.
  void open_files(const RunFolder& folder, int64_t step, int64_t saved_step);
  /// Validation sources that have a line at that step; none before open_files().
  std::set<std::string> validated() const { return metrics_ ? metrics_->validated() : std::set<std::string>(); }
  /// Brings the files onto the disk; of the first rank. Warnings, some of them empty.
  std::vector<std::string> sync() { return {metrics_->sync(), tensorboard_->sync()}; }

  /// Whether the step that completes so many has a line.
  bool is_logged(int64_t completed) const;
  /// Every rank calls it.
  void step(const StepReport& report);
  /// Steps reported, by this process.
  int64_t steps() const { return steps_; }
  /// Warns of parameters that the loss of step `step` did not reach.
  void warn_of_unreached(int64_t step);
  void validation(int64_t step, const std::string& name, double loss, int64_t tokens);
  void add_validation_seconds(double seconds) { validation_seconds_.add(seconds); }
  void add_save_seconds(double seconds) { save_seconds_.add(seconds); }
  /// What the run came to, and what to do with it.
  std::string summary(const fs::path& folder, int64_t step) const;

 private:
  struct Interval {  // since the last logged step
    double seconds = 0;
    int64_t steps = 0, sent_bytes = 0;
    std::vector<StepTime> times{};  // of each step; empty for one rank
  };

  std::optional<double> mfu(double step_seconds) const;
  int64_t memory_bytes() const;
  double seconds_left(int64_t step) const;
  std::optional<CommTimes> comm_times();
  void warn_of_slow_rank(const CommTimes& times);
  void warn_of_residuals(const StepReport& report);
  std::string console_line(const StepReport& report, double step_seconds) const;
  Json metrics_line(const StepReport& report, double step_seconds, const std::optional<CommTimes>& comm) const;
  Scalars tensorboard_values(const StepReport& report, double step_seconds) const;

  const RunContext& run_;
  const TrainingState& training_;
  int64_t validation_rows_;
  std::optional<double> peak_flops_;  // of the device
  double flops_per_token_;
  std::unique_ptr<MetricsFile> metrics_;  // of the first rank, as the next
  std::unique_ptr<TensorBoardWriter> tensorboard_;
  int64_t largest_bytes_ = 0;  // of memory_bytes() at logged steps, of all ranks
  int64_t steps_ = 0;          // by this process
  double step_seconds_ = 0;    // of a step, by the last logged line
  double passed_ = 0;          // seconds of all steps of this process
  Mean validation_seconds_, save_seconds_;
  std::optional<double> last_loss_;                              // of this process
  std::vector<std::pair<std::string, double>> last_validation_;  // of each source, likewise
  Interval interval_;
  SkewWatch skew_;
  std::set<std::string> unconverged_;  // layers that were warned of
};

}  // namespace hebb
