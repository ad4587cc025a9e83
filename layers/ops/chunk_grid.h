#pragma once
#include "core/tape.h"
#include "kernels/gated_delta/chunk_grid.h"
#include "layers/rows.h"

namespace hebb {

/// The chunk grid of `rows` for chunks of up to `chunk` tokens, in memory that the next recorded node keeps.
ChunkGrid chunk_grid(Tape& tape, const Rows& rows, int64_t chunk);

}  // namespace hebb
