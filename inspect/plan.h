#pragma once
#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "inspect/paper_flops.h"
#include "layers/model.h"
#include "train/memory_plan.h"
#include "train/run_config.h"

namespace hebb {

struct ParameterCounts {
  int64_t total = 0;          // trained parameters and fast weights
  int64_t non_embedding = 0;  // without embed, lm_head and `state`
  int64_t state = 0;          // learned starts of recurrent states
  int64_t fast = 0;           // fast weights
  int64_t memory = 0;         // learned starts, fast weights and tables that tokens read rows of
  int64_t active = 0;         // without the rows of sparse tables that a token does not read
};
ParameterCounts count_parameters(const Model& model);

/// FLOPs and state of the blocks that share their layer definitions.
struct LayerPlan {
  std::string name, type;            // "gdn", "swiglu"
  int64_t count = 0;                 // blocks that use it
  int64_t parameters = 0;            // of one
  double flops_per_token = 0;        // forward, of one
  std::vector<int64_t> state_bytes;  // of one, at Plan::contexts
};

/// The largest micro-batch that fits a given memory under one setting of train.recompute.
struct Fit {
  std::string recompute;
  int64_t micro_batch = 0;  // rows; 0: not even one
  int64_t bytes = 0;        // that it takes
};

/// What a model costs, before anything is trained (docs/evaluations/cost.md; docs/verbs/plan.md).
struct Plan {
  std::string name;
  ParameterCounts parameters;
  int64_t length = 0;          // row length of the FLOP figures [tokens]
  double flops_per_token = 0;  // forward; training = 3x
  double head_flops_per_token = 0;
  std::vector<PaperFlops> papers;  // the same model as papers count it
  std::vector<LayerPlan> layers;
  std::vector<int64_t> contexts;     // tokens
  std::vector<int64_t> state_bytes;  // of the model, one row, at `contexts`
  std::string unused;                // lines about what no block uses
  // Run configurations only:
  std::optional<MemoryPlan> memory;
  std::string memory_limit;  // a line where less than the memory of the machine is left to this process
  // Operations that leave a GPU's tensor cores idle in bf16, and why: "attention: heads of ..." (FallbackLog).
  std::vector<std::string> plain_cores;
  std::string device, precision;                       // that the memory is for
  int64_t checkpoint_bytes = 0, kept_checkpoints = 0;  // of one on disk, about; how many stay
  int ranks = 1;                                       // that train it together; memory is that of one of them
  int64_t micro_batch = 0, batch = 0, steps = 0, tokens = 0;
  std::optional<int64_t> largest_micro_batch;  // that fits a given memory
  std::vector<Fit> fits;                       // the same for every setting of train.recompute
  std::string data;                            // rows and epochs by source, or why not known
  std::optional<double> hours;
  std::string speed;  // that the hours are for, where nobody gave it: "an estimate: ..."

  double training_flops() const { return 3 * flops_per_token * static_cast<double>(tokens); }
  Json json() const;
  std::string text(int columns = 0) const;  // tables of at most so many columns; 0: any
};

struct PlanOptions {
  std::optional<double> memory_gib{};    // find the largest micro-batches that fit
  std::optional<double> tokens_per_s{};  // of a rank, for the hours
  std::optional<double> tflops{};        // the same, in TFLOP/s
  std::optional<int64_t> length{};       // row length for a configuration without `train`
  std::string gpu{};                     // a key of planned_gpu(): its device, memory, and speed where none is given
  bool open_data = true;
  int ranks = 1;  // that train the run together; the configuration is resolved for so many
};

/// What the data of a resolved run give: rows, passes, documents. Errors: DataError where they cannot be opened.
std::string describe_data(const RunConfig& config);

/// Plans a model alone.
Plan plan_model(const ModelConfig& config, int64_t length);
/// Plans a resolved run configuration.
Plan plan_run(const RunConfig& config, const PlanOptions& options);

/// Share of a GPU's peak that plans take where none was measured: an estimate.
constexpr double kPlannedShareOfPeak = 0.4;
/// Adds what `options.gpu` says to a run configuration as read: its device. Errors: ConfigError.
void set_planned_device(Json& config, const PlanOptions& options);

/// Plans side by side, one line each, in a table of at most so many columns (0: any); what no plan fills is left out.
std::string compare_plans(const std::vector<Plan>& plans, int columns = 0);

}  // namespace hebb
