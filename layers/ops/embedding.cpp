#include "layers/ops/embedding.h"

#include "kernels/embedding/embedding.h"

namespace hebb {

Var embedding(Tape& tape, Var table, const Tensor& ids) {
  const Var y = tape.output({ids.numel(), tape.shape(table)[1]}, tape.matrix(table).dtype, "embedding");
  run(tape.stream(), EmbeddingForward{tape.value(y), tape.matrix(table), ids});
  return tape.record(y, [=](Tape& tape) {
    if (const GradSlot d = tape.grad_slot(table)) {
      run(tape.stream(), EmbeddingBackward{d.tensor, tape.grad(y), ids});
    }
  });
}

}  // namespace hebb
