#pragma once
#include "core/stream.h"

namespace hebb {

/// Softmax cross-entropy of a chunk of rows (spec 00, section 4): loss [n] f64 = log-sum-exp(logits)
/// - logits[target], 0 where the target is -100. With `gradient`, logits [n, V] are replaced by
/// (softmax - onehot) * scale (0 in ignored rows). targets [n] i32.
/// Bound: memory, 2 reads and 1 write of [n, V].
struct CrossEntropy {
  Tensor loss, logits, targets;
  double scale;
  bool gradient;
};
HEBB_KERNEL(CrossEntropy)

}  // namespace hebb
