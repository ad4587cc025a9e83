#pragma once
#include <optional>

#include "data/loader.h"
#include "layers/model.h"

namespace hebb {

/// What a pass needs beside model and rows.
struct PassSettings {
  bool training = false;
  bool document_mask = false;
  int64_t random_window = 0;
  uint64_t seed = 0;
  int64_t step = 0;
  Statistics* statistics = nullptr;
};

/// Uploads a micro-batch and runs it through the model: row_loss [rows * length] f64 = cross-entropy of
/// every position (0 where ignored). With grad_scale also a backward pass, which adds the gradients of
/// grad_scale * sum(row_loss) to those of the parameters. Temporary memory comes from `work`.
void run_micro_batch(Model& model, Stream& stream, Arena& work, const MicroBatch& rows, const PassSettings& settings,
                     const Tensor& row_loss, std::optional<double> grad_scale);

}  // namespace hebb
