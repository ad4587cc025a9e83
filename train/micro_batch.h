#pragma once
#include "data/rows/loader.h"
#include "layers/model.h"

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
/// every position (0 where ignored). Temporary memory comes from `work`. (Training: training_passes.h.)
void run_micro_batch(Model& model, Stream& stream, Arena& work, const MicroBatch& rows, const PassSettings& settings,
                     const Tensor& row_loss);

}  // namespace hebb
