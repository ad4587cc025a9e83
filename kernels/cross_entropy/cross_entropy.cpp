#include "kernels/cross_entropy/cross_entropy.h"

#include <algorithm>
#include <cmath>

#include "core/parallel.h"
#include "kernels/common/cpu/math.h"

namespace hebb {

LogitsChunk logits_chunk(Workspace& workspace, int64_t rows, int64_t vocab, DType activations, bool wants_gradients) {
  // On the CPU a chunk stays in the caches; on a GPU it fills it. Each chunk reads and writes the whole gradient of the
  // matrix: a GPU's product of fewer than 2048 rows is bound by that.
  const int64_t logits = int64_t{1} << (workspace.on_gpu() ? 26 : 20), fewest = workspace.on_gpu() ? 2048 : 16;
  const int64_t chunk = std::min(rows, std::max(fewest, logits / vocab));
  LogitsChunk room;
  room.logits = workspace.tensor({chunk, vocab}, sum_dtype(activations), "logits of a chunk");
  const bool narrows = wants_gradients && activations != sum_dtype(activations);
  room.gradients = narrows ? workspace.tensor({chunk, vocab}, activations, "logit gradients of a chunk") : room.logits;
  return room;
}

namespace cpu {
namespace {

/// Loss of one row; x becomes its gradient when asked.
template <class S> double row_loss(S* x, int64_t vocab, int32_t target, S scale, bool gradient) {
  if (target < 0) {
    if (gradient) { std::fill(x, x + vocab, S(0)); }
    return 0;
  }
  const S top = largest_of(vocab, x), at_target = x[target];
  S sum;
  if (gradient) {
    for (int64_t v = 0; v < vocab; ++v) { x[v] = exp_(x[v] - top); }
    sum = lane_sum<S>(vocab, [&](int64_t v) { return x[v]; });
    const S factor = scale / sum;
    for (int64_t v = 0; v < vocab; ++v) { x[v] *= factor; }
    x[target] -= scale;
  } else {
    sum = lane_sum<S>(vocab, [&](int64_t v) { return exp_(x[v] - top); });
  }
  // largest_of skips a NaN, the sum does not: it reaches the loss.
  return std::log(static_cast<double>(sum)) + static_cast<double>(top) - static_cast<double>(at_target);
}

}  // namespace

void run(Stream&, const CrossEntropy& a) {
  dispatch_real(a.logits.dtype, [&]<class S>(S) {
    const double scale = a.factor.defined() ? a.scale * a.factor.as<double>()[0] : a.scale;
    const int64_t rows = a.targets.numel(), vocab = a.logits.numel() / std::max<int64_t>(rows, 1);
    parallel_each(rows, 4, [&](int64_t r) {
      S* x = a.logits.as<S>() + r * vocab;
      if (a.gradient.defined() && a.gradient.data != a.logits.data) {
        x = std::copy(x, x + vocab, a.gradient.as<S>() + r * vocab) - vocab;
      }
      a.loss.as<double>()[r] =
          row_loss<S>(x, vocab, a.targets.as<int32_t>()[r], static_cast<S>(scale), a.gradient.defined());
    });
  });
}

}  // namespace cpu
}  // namespace hebb
