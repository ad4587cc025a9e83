#pragma once
#include "kernels/fwpkm/fwpkm.h"

namespace hebb {

struct FwpkmIndexReadersScratch {
  Tensor sorted;  // i64: entries by slot; on a GPU a key each, two pairs of key and position, and counts of digits
};

struct FwpkmEntropyStepScratch {
  Tensor gamma;  // [., H, 2, k]
  Tensor lists;  // [fwpkm_key_lists(...)] i32 of the chunk, on a GPU: the CPU goes over the tokens instead
};

struct FwpkmMemoryStepScratch {
  Tensor index;      // [., H, 2, k] i32
  Tensor gamma;      // [., H, 2, k]
  Tensor d_weights;  // [., H, k]
  Tensor lists;      // as above
};

struct FwpkmValuesBackwardScratch {
  Tensor adjoint;  // [min(n n, most slots of all chunks), dv]: gradients of slots that later chunks read
  Tensor place;    // [n n] i32: where they are
  Tensor d_vh;     // [R, dv]
};

/// Only index and sigma without FwpkmKeysBackward::through.
struct FwpkmKeysBackwardScratch {
  Tensor index;        // [., H, 2, k] i32
  Tensor sigma;        // [., H, 2, k]
  Tensor gamma, beta;  // [., H, 2, k]
  Tensor d_keys;       // [2, H, 2, n, D]
  Tensor mean;         // [2, n]
  Tensor lists;        // two of all chunks, as above
};

/// Numbers of a GPU's lists of the entries of each key.
inline int64_t fwpkm_key_lists(const FastChunks& chunks, int64_t heads, int64_t n, int64_t k) {
  return 2 * heads * (chunks.all.tokens() * k + chunks.count() * (n + 1));
}

}  // namespace hebb
