#pragma once
#include "kernels/dictionary/parts.h"
#include "kernels/vq/vq.h"

namespace hebb {

struct VqKeysBackwardScratch {
  Tensor shares;  // [B, T, K, 2]: how much of e - k each of a key's two codewords gets
  Tensor work;    // [vq_backward_work(...)] f32, on a GPU and for d_codes: see its kernels
};

/// Elements of VqKeysBackwardScratch::work; k [B, T, K, D], codes [K, N, D].
inline int64_t vq_backward_work(const Shape& k, const Shape& codes) {
  return k[0] * k[1] * k[2] * (k[3] + 1) + codes[0] * codes[1] * codes[2];
}

/// Queries that the CPU reads out together.
inline constexpr int64_t kVqTile = 32;

struct VqReadScratch {
  Tensor own;     // [B, K, chunk, D]: quantized keys of the chunk, on the CPU
  Tensor logits;  // [B, K, kVqTile, N + chunk], on the CPU
  Tensor work;    // [vq_read_work(...)] of 4 bytes, on a GPU: see its kernels
};

/// Elements of VqReadScratch::work; q [B, T, H, D], v [B, T, K, Dv].
inline int64_t vq_read_work(const Shape& q, const Shape& v, int64_t chunk, int64_t points) {
  return q[0] * q[1] * (v[2] * q[3] + q[2] + 2) + 5 * q[0] * (q[1] / chunk + 1) + 4 +
         dictionary_parts_work(q, v, chunk, 1, points, false);
}

}  // namespace hebb
