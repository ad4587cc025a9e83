#include "layers/ops/convert.h"

namespace hebb {

Var convert(Tape& tape, Var x, DType dtype) {
  if (tape.dtype(x) == dtype) { return x; }
  const Var y = tape.output(tape.shape(x), dtype, "converted");
  convert(tape.stream(), tape.value(y), tape.value(x));
  return tape.record(y, [=](Tape& tape) {
    const GradSlot d = tape.grad_slot(x);
    if (!d) { return; }
    if (!d.accumulate) {
      convert(tape.stream(), d.tensor, tape.grad(y));
      return;
    }
    const Buffer own = tape.scratch(tape.shape(x), tape.dtype(x), "converted gradient");
    convert(tape.stream(), own, tape.grad(y));
    add_to(tape.stream(), d.tensor, own);
  });
}

}  // namespace hebb
