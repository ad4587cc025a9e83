#include "layers/ops/head_norm.h"

#include "layers/ops/convert.h"

namespace hebb {

Var l2_norm(Tape& tape, Var x, int64_t head_dim) {
  const int64_t tokens = tape.shape(x)[0], heads = tape.shape(x).numel() / tokens / head_dim;
  const Var n = tape.output(tape.shape(x), tape.dtype(x), "l2 norm");
  const Tensor scale = tape.saved({tokens, heads}, sum_dtype(tape.dtype(x)), "l2 norm scale");
  run(tape.stream(), L2NormForward{.n = tape.value(n), .scale = scale, .x = tape.value(x), .head_dim = head_dim});
  return tape.record(n, [=](Tape& tape) {
    if (const GradSlot d = tape.grad_slot(x)) {
      run(tape.stream(), L2NormBackward{.d_x = d.tensor,
                                        .d_n = tape.grad(n),
                                        .n = tape.value(n),
                                        .scale = scale,
                                        .head_dim = head_dim,
                                        .accumulate = d.accumulate});
    }
  });
}

Var gated_norm(Tape& tape, Var o, const GatedNorm& options) {
  HEBB_ASSERT(static_cast<bool>(options.z) == (options.gate != HeadGate::none));
  const DType dtype = options.dtype.value_or(tape.dtype(o));
  if (!options.z && !options.weight) { return convert(tape, o, dtype); }
  HEBB_ASSERT(!options.z || tape.dtype(options.z) == dtype);
  const Var y = tape.output(tape.shape(o), dtype, "gated norm");
  run(tape.stream(), GatedNormForward{.y = tape.value(y),
                                      .o = tape.value(o),
                                      .z = tape.value_or_none(options.z),
                                      .weight = tape.value_or_none(options.weight),
                                      .head_dim = options.head_dim,
                                      .eps = options.eps,
                                      .gate = options.gate,
                                      .gate_first = options.gate_first});
  return tape.record(y, [=](Tape& tape) {
    const GradSlot d_o = tape.grad_slot(o), d_z = tape.grad_slot(options.z);
    run(tape.workspace(), GatedNormBackward{.d_o = d_o.tensor,
                                            .d_z = d_z.tensor,
                                            .d_weight = tape.grad_slot(options.weight).tensor,
                                            .d_y = tape.grad(y),
                                            .o = tape.value(o),
                                            .z = tape.value_or_none(options.z),
                                            .weight = tape.value_or_none(options.weight),
                                            .head_dim = options.head_dim,
                                            .eps = options.eps,
                                            .gate = options.gate,
                                            .accumulate_o = d_o.accumulate,
                                            .accumulate_z = d_z.accumulate,
                                            .gate_first = options.gate_first});
  });
}

}  // namespace hebb
