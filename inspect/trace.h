#pragma once
// One micro-batch through a model, tensor by tensor (docs/verbs/trace.md).
#include <map>
#include <string>
#include <vector>

#include "layers/model.h"

namespace hebb {

struct TraceInput {
  int64_t rows = 0, length = 0;
  std::vector<int64_t> inputs;   // [B T]
  std::vector<int64_t> targets;  // [B T], -100 = ignored; empty: no loss
  std::vector<int64_t> doc_ids;  // [B T]; empty: no document mask
};

struct TraceOptions {
  bool training = true;
  bool grads = false;
  bool inside = false;
  uint64_t seed = 0;
  int64_t step = 0;
  std::map<std::string, Inspector::Record> forced;
};

/// A host copy of one floating-point tensor, in double.
struct TraceTensor {
  Shape shape;
  std::vector<double> values;
};

struct TraceOutput {
  TraceTensor logits;  // [B, T, V]
  bool has_loss = false;
  double loss = 0;                           // mean over targets != -100
  std::map<std::string, TraceTensor> grads;  // by parameter name: those that the loss reached
  std::map<std::string, TraceTensor> after;  // fast weights after the micro-batch (training mode)
  std::map<std::string, Inspector::Record> inside;
};

/// Copies a floating-point tensor to the host as doubles.
TraceTensor to_host(Stream& stream, const Tensor& tensor);

/// Runs the micro-batch. The model's parameters must be allocated (for `grads`: with gradients).
/// Fast weights of the model advance as in training when options.training.
/// Throws DataError for ids outside the vocabulary.
TraceOutput trace(Model& model, Stream& stream, Arena& arena, const TraceInput& input, const TraceOptions& options);

}  // namespace hebb
