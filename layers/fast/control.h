#pragma once
#include <cstdint>

namespace hebb {

/// When fast weights (FwPKM, FwMLP) are updated during a pass.
enum class FastUpdate {
  per_sequence,  // by chunks of each row: training, and any call without a queue
  streaming,     // whenever chunk + lookahead tokens are queued
  at_end,        // once, after the last token of the pass
  never,         // read only, nothing is queued
};

/// What a pass says about fast weights.
struct FastWeightControl {
  FastUpdate update = FastUpdate::per_sequence;
  bool freeze = false;  // no update at all
  bool keep = false;    // outside training, too, updates of per_sequence stay
  int64_t chunk = 0;    // > 0: in place of the layers' chunk_size [tokens]

  int64_t chunk_or(int64_t chunk_size) const { return chunk > 0 ? chunk : chunk_size; }
};

}  // namespace hebb
