#include "layers/ovq/pair_shift.h"

#include "kernels/pair_shift/pair_shift.h"

namespace hebb {

KeysAndValues pair_shift(Pass& pass, Var k, Var v, Var shift, PairShiftState* state) {
  Tape& tape = pass.tape;
  const int64_t batch = pass.batch(), length = pass.length();
  const Tensor doc_start = pass.rows.doc_start();
  const Shape keys{batch, length, tape.shape(k).numel() / pass.tokens()},
      values{batch, length, tape.shape(v).numel() / pass.tokens()};
  const KeysAndValues out{tape.output(tape.shape(k), tape.dtype(k), "shifted keys"),
                          tape.output(tape.shape(v), tape.dtype(v), "mixed values")};
  const Tensor old_k = tape.value(k).view(keys), old_v = tape.value(v).view(values);
  run(tape.stream(), PairShiftForward{.k_out = tape.value(out.k).view(keys),
                                      .v_out = tape.value(out.v).view(values),
                                      .k = old_k,
                                      .v = old_v,
                                      .shift = tape.value(shift),
                                      .previous_k = state != nullptr ? state->k.tensor() : Tensor{},
                                      .previous_v = state != nullptr ? state->v.tensor() : Tensor{},
                                      .doc_start = doc_start});
  if (state != nullptr) {
    keep_last(tape.stream(), state->k, old_k);
    keep_last(tape.stream(), state->v, old_v);
  }
  return tape.record(out, [=](Tape& tape) {
    const GradSlot d_k = tape.grad_slot(k), d_v = tape.grad_slot(v), d_shift = tape.grad_slot(shift);
    run(tape.workspace(), PairShiftBackward{.d_k = d_k.view(keys),
                                            .d_v = d_v.view(values),
                                            .d_shift = d_shift.tensor,
                                            .d_k_out = tape.grad(out.k).view(keys),
                                            .d_v_out = tape.grad(out.v).view(values),
                                            .v = tape.value(v).view(values),
                                            .shift = tape.value(shift),
                                            .doc_start = doc_start,
                                            .accumulate_k = d_k.accumulate,
                                            .accumulate_v = d_v.accumulate});
  });
}

}  // namespace hebb
