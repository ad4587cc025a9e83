#pragma once
#include <string>
#include <vector>

#include "inspect/bench_operations.h"
#include "layers/model.h"
#include "train/autotune.h"
#include "train/choose_device.h"
#include "train/read_settings.h"

namespace hebb {

/// Speed of whole training steps as `train` does them (forward, backward, clipping, AdamW; on a GPU as CUDA graphs) on
/// random tokens.
struct ModelSpeed {
  int64_t rows = 0, length = 0, steps = 0, threads = 0;
  double best_ms = 0, median_ms = 0;        // per step
  double flops_per_token = 0;               // training
  int64_t peak_bytes = 0;                   // parameters, optimizer and activations
  double forward_ms = 0, optimizer_ms = 0;  // each alone, the best of those that were measured apart
  std::vector<std::string> plain_cores;     // as in Plan
  TuningReport tuning;                      // no products: nothing was measured
  std::vector<std::string> tuning_notes;

  double tokens_per_s() const { return static_cast<double>(rows * length) / (best_ms * 1e-3); }
  double median_tokens_per_s() const { return static_cast<double>(rows * length) / (median_ms * 1e-3); }
  double gflops() const { return tokens_per_s() * flops_per_token * 1e-9; }
};

/// `warmup` and then `steps` measured steps of `rows` rows of `length` random tokens. allow_tf32, recompute, autotune:
/// as in `train`.
struct BenchSteps {
  int64_t rows = 4, length = 512, warmup = 2, steps = 8;
  bool allow_tf32 = false;
  std::string recompute = "none";
  bool autotune = true;
};
/// Sizes >= 1 but `warmup` >= 0. Errors: MemoryError where a step does not fit.
ModelSpeed measure_model(ModelConfig config, const Compute& compute, const BenchSteps& steps);

/// Where the time of a training step goes: of each part the best of the measured steps.
struct StepProfile {
  double step_ms = 0;                      // the sum of the parts
  double rest_ms = 0;                      // between operations
  std::vector<OperationSpeed> operations;  // the longest first; products know their FLOPs
};
/// Steps as measure_model's, but every kernel is launched by itself and waited for.
StepProfile profile_model(ModelConfig config, Compute compute, const BenchSteps& steps);

/// Speed of the generator at a context length: `context` random tokens read, then steps of one token a row, the
/// median of 64 after 8 (docs/evaluations/cost.md, Speed).
struct DecodeSpeed {
  double prefill_tokens_per_s = 0, ms_per_token = 0;
};
DecodeSpeed measure_decode(const ModelConfig& config, const Compute& compute, int64_t context);
/// The same of a model with weights, with `rows` rows at once. Fast weights move.
DecodeSpeed measure_decode(Model& model, Stream& stream, Arena& arena, int64_t rows, int64_t context,
                           const ReadSettings& reading, bool cuda_graphs);

/// The small models that docs/benchmarks/cpu.md follows: name and model configuration (JSON text).
struct BenchModel {
  std::string name, json;
};
std::vector<BenchModel> bench_models();
/// The model "gdn" with one layer of each other type in one block, named after the type; settings: LayerType::measured.
std::vector<BenchModel> bench_layers();

}  // namespace hebb
