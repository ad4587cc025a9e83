#include "layers/ops/embedding.h"

#include "kernels/embedding/embedding.h"

namespace hebb {
namespace {

struct EmbeddingNode final : Node {
  Var table, y;
  Tensor ids;

  void backward(Tape& tape) override {
    if (const GradSlot d = tape.grad_slot(table)) {
      run(tape.stream(), EmbeddingBackward{d.tensor, tape.grad(y), ids});
    }
  }
};

}  // namespace

Var embedding(Tape& tape, Var table, const Tensor& ids) {
  EmbeddingNode node;
  node.table = table;
  node.ids = ids;
  node.y = tape.output({ids.numel(), tape.shape(table)[1]}, tape.matrix(table).dtype, "embedding");
  run(tape.stream(), EmbeddingForward{tape.value(node.y), tape.matrix(table), ids});
  return tape.record(std::move(node), &EmbeddingNode::y);
}

}  // namespace hebb
