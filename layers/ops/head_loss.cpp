#include "layers/ops/head_loss.h"

#include <algorithm>

#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/gemm/gemm.h"

namespace hebb {

void head_loss(Tape& tape, Var x, Var weight, const Tensor& targets, const Tensor& row_loss, double scale,
               const Tensor& factor) {
  Stream& stream = tape.stream();
  const int64_t vocab = tape.shape(weight)[0], d = tape.shape(weight)[1], rows = targets.numel();
  Workspace workspace = tape.workspace();
  const LogitsChunk room = logits_chunk(workspace, rows, vocab, tape.dtype(x), tape.recording());
  const int64_t chunk = room.logits.size(0);
  const Tensor weights = tape.matrix(weight);
  const GradSlot d_weight = tape.grad_slot(weight), d_x = tape.grad_slot(x);
  HEBB_ASSERT(!d_x.accumulate);
  for (int64_t begin = 0; begin < rows; begin += chunk) {
    const int64_t n = std::min(chunk, rows - begin);
    const Tensor part = room.logits.slice(0, {n, vocab}), in = tape.value(x).slice(begin * d, {n, d});
    const Tensor d_part = tape.recording() ? room.gradients.slice(0, {n, vocab}) : Tensor{};
    run(stream, Gemm{.c = part, .a = in, .b = weights, .m = n, .n = vocab, .k = d, .trans_b = true});
    run(stream, CrossEntropy{.loss = row_loss.slice(begin, {n}),
                             .gradient = d_part,
                             .logits = part,
                             .targets = targets.slice(begin, {n}),
                             .scale = scale,
                             .factor = factor});
    if (d_weight) {
      run(stream, Gemm{.c = d_weight.tensor,
                       .a = d_part,
                       .b = in,
                       .m = vocab,
                       .n = d,
                       .k = n,
                       .trans_a = true,
                       .accumulate = true});
    }
    if (d_x) {
      run(stream,
          Gemm{.c = d_x.tensor.slice(begin * d, {n, d}), .a = d_part, .b = weights, .m = n, .n = d, .k = vocab});
    }
  }
}

}  // namespace hebb
