#pragma once
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "data/rows/validation.h"
#include "train/run_context.h"
#include "train/step_reporter.h"
#include "train/stop_agreement.h"
#include "train/training_state.h"

namespace hebb {

/// The validations of a run: which are due after a step, and their losses.
class Validation {
 public:
  /// Opens all sources. Errors: ConfigError, DataError.
  Validation(const RunContext& run, const LoaderOptions& loader);

  /// Of all sources.
  int64_t rows() const;
  /// A line for each source.
  std::string text() const;
  /// done: sources that have a line at the current step, as the first rank knows. Every rank calls it.
  void start(const std::set<std::string>& done);
  /// None has a line at the new step.
  void next_step() { done_.clear(); }
  bool is_due(int64_t step) const;
  /// Those that have no line yet. False when a request to stop came in between. Every rank calls it.
  bool run(TrainingState& training, int64_t step, StopAgreement& stop, StepReporter& reporter);

 private:
  struct LossSum {
    double loss = 0;
    int64_t tokens = 0;
  };
  bool run_source(ValidationSource& source, TrainingState& training, int64_t step, StopAgreement& stop,
                  StepReporter& reporter);
  bool add_group(ValidationSource& source, TrainingState& training, int64_t first, const PassSettings& settings,
                 bool wants_stop, LossSum& sum);

  const RunContext& run_;
  std::vector<std::unique_ptr<ValidationSource>> sources_;
  std::set<std::string> done_;  // sources that have a line at the current step
};

}  // namespace hebb
