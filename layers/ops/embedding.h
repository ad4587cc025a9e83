#pragma once
#include "core/tape.h"

namespace hebb {

/// Rows of table [V, d] at ids [N] i32 (device memory that outlives the tape). Returns [N, d].
Var embedding(Tape& tape, Var table, const Tensor& ids);

}  // namespace hebb
