#pragma once
#include <map>
#include <optional>
#include <utility>

#include "core/launch_graph.h"
#include "layers/model.h"
#include "train/rank_passes.h"

namespace hebb {

class GradientExchange;

/// What a pass needs beside model and rows.
struct PassSettings {
  bool training = false;
  bool document_mask = false;
  int64_t random_window = 0;
  uint64_t seed = 0;
  int64_t step = 0;
  Statistics* statistics = nullptr;
  RankExchange* ranks = nullptr;      // of several ranks
  const AllRows* all_rows = nullptr;  // for models that read the rows of all ranks
  GradientExchange* sends = nullptr;  // the backward pass is the last of the step: gradients leave when they are final
};

/// What a pass reads and writes on the device, of n tokens.
struct PassTensors {
  Tensor inputs, targets;  // [n] i32
  Tensor row_loss;         // [n] f64
  Tensor scale;            // [1] f64: also a backward pass, of scale * sum(row_loss). Undefined: none
};

/// Runs a micro-batch that is on the device through the model. Temporary memory comes from `work`.
void run_pass(Model& model, Stream& stream, Arena& work, const Rows& rows, const PassTensors& tensors,
              const PassSettings& settings);

/// The rows' structure, on the device.
Rows make_rows(Stream& stream, Arena& arena, const MicroBatch& rows, bool document_mask);

/// Uploads a micro-batch and runs it through the model: row_loss [rows * length] f64 = cross-entropy of
/// every position (0 where ignored). Temporary memory comes from `work`.
void run_micro_batch(Model& model, Stream& stream, Arena& work, const MicroBatch& rows, const PassSettings& settings,
                     const Tensor& row_loss);

/// The forward and backward passes of a run's steps. What they read and write lies at fixed addresses, so that passes
/// that repeat can be launched as CUDA graphs (docs/training.md).
class TrainingPasses {
 public:
  /// `config` must be resolved; own_lanes: of this rank; ranks: null for one; the others outlive this. Memory that
  /// stays comes from `state`, temporary memory from `work`.
  TrainingPasses(const RunConfig& config, int own_lanes, RankPasses* ranks, Model& model, Stream& stream, Arena& state,
                 Arena& work);

  /// Before the first pass of a step: gradients are those of `scale` times the sum of losses.
  void begin_step(double scale);
  /// Forward and backward pass of micro_batch_size rows; gradients add up. row_loss [tokens] f64.
  void run(const MicroBatch& rows, PassSettings settings, const Tensor& row_loss);

  /// [1] f64: that of the step.
  const Tensor& scale() const { return scale_; }
  bool uses_graphs() const { return uses_graphs_; }

 private:
  struct Repeated {
    LaunchGraph graph;
    std::vector<Param*> reached;  // by a pass
    int64_t ready_buckets = 0;    // GradientExchange
  };
  void run_repeated(const PassTensors& tensors, const PassSettings& settings);

  Model& model_;
  Stream& stream_;
  Arena& work_;
  bool uses_graphs_;
  Buffer inputs_, targets_, row_loss_, scale_;
  RankPasses* ranks_;
  std::optional<Rows> rows_;                               // where all micro-batches have the same structure
  std::optional<AllRows> all_rows_;                        // then, where layers read those of all ranks
  std::map<std::pair<int64_t, bool>, Repeated> repeated_;  // by random window; whether gradients leave
};

/// Why no pass of the run is launched as a graph: one reason a line, empty where they are (docs/training.md:
/// train.cuda_graphs). own_lanes: of this rank; ranks: null for one.
std::vector<std::string> reasons_against_graphs(const RunConfig& config, int own_lanes, const RankPasses* ranks,
                                                const Model& model, const Stream& stream);

}  // namespace hebb
