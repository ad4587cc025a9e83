#pragma once
#include <optional>
#include <string>

#include "data/rows/loader.h"
#include "train/memory_plan.h"
#include "train/training_state.h"

namespace hebb {

/// Mean, standard deviation and range of tensors, one line for each group of equal names in different blocks.
std::string describe_parameters(Stream& stream, const ParamStore& params, const Optimizer& optimizer);

/// FLOPs of one forward and backward pass per token.
double training_flops_per_token(const RunConfig& config, const Model& model);

/// Dense peak of the device in FLOP/s; nothing when it is unknown.
std::optional<double> peak_flops(const RunConfig& config);

/// Rows and columns of the matrices of measure_matrix_product(), for a device by its name (machine_name()).
int64_t measured_product_size(const std::string& machine);
/// FLOP/s of matrix products on this device, measured for some milliseconds.
double measure_matrix_product(TrainingState& training);

/// What a run says before its first step: device, parameters, FLOPs per token, batch arithmetic, memory plan, data
/// plan, hours (docs/verbs/train.md, What it prints). `full` has a line for each group of tensors and each use of
/// memory; `brief` fits a small terminal.
struct StartText {
  std::string full, brief;
};
/// ranks: of the run.
StartText startup_report(const RunConfig& config, TrainingState& training, const MemoryPlan& plan, const Loader& loader,
                         int64_t step, int ranks);

/// The first `count` lines of a text, and a line that says how many more there are.
std::string first_lines(const std::string& text, size_t count);

}  // namespace hebb
