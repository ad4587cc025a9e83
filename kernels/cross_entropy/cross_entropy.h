#pragma once
#include "core/kernel.h"

namespace hebb {

/// Softmax cross-entropy of a chunk of rows (docs/model.md, Loss): loss [n] f64 = log-sum-exp(logits)
/// - logits[target], 0 where the target is -100. gradient [n, V], unless undefined, = (softmax - onehot) *
/// scale (0 in ignored rows), times factor [1] f64 if defined, in place of the logits or elsewhere, then also in bf16
/// beside f32 logits. logits [n, V], targets [n] i32. Bound: memory, 2 reads and 1 write of [n, V].
struct CrossEntropy {
  Tensor loss, gradient;
  Tensor logits, targets;
  double scale;
  Tensor factor{};
};
HEBB_KERNEL(CrossEntropy)

/// Room for as many of `rows` rows as the device computes at once: logits [n, vocab] in the type of sums, and their
/// gradients (if wanted) as matrix products take them, in the type of the activations; the same memory where the types
/// are the same.
struct LogitsChunk {
  Tensor logits, gradients;
};
LogitsChunk logits_chunk(Workspace& workspace, int64_t rows, int64_t vocab, DType activations, bool wants_gradients);

}  // namespace hebb
