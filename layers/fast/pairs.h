#pragma once
#include "kernels/fwpkm/fwpkm.h"
#include "layers/rows.h"

namespace hebb {

/// Row of the token that each token of a row pass predicts, `lookahead` later in the same chunk of the
/// same row and document; -1: none (docs/layers/fwpkm.md, Chunks). [B T].
std::vector<int32_t> row_targets(const Rows& rows, int64_t chunk, int64_t lookahead);

/// How many tokens of a chunk have a pair.
int64_t pairs_of(const std::vector<int32_t>& targets, const FastChunk& chunk);

}  // namespace hebb
