#pragma once
#include "core/tape.h"

namespace hebb {

/// x in another type (core/stream.h says which); x itself where it has that type. For what a layer computes in fp32
/// among bf16 activations (docs/training.md, Precision), or in fp64 among fp32 ones.
Var convert(Tape& tape, Var x, DType dtype);

}  // namespace hebb
