#pragma once
#include "core/kernel.h"

namespace hebb {

// Keys and what is compared with them are fp32 on the GPU (docs/training.md, Precision); layers convert.

/// Which points keys are replaced by: the codewords (evaluation), the codewords with a gradient for key and codeword,
/// or dithered points of the segments between neighbouring codewords (docs/layers/vq.md, Forward and Quantizers).
enum class VqMode { nearest, diveq, sf_diveq };

/// What the training-time selection compares keys with. sf_diveq: points [K, N-1, D], p[n] = (1 - l) c[n] + l c[n+1]
/// with l = dither [K, N-1], and bias [K, N-1] = rho max(idle[n], idle[n+1]) - |p|^2 / 2. diveq (points and dither
/// undefined): bias [K, N] = rho idle. codes [K, N, D] unit rows; idle [K, N] i32. Bound: memory, N D a kv head.
struct VqPoints {
  Tensor points, bias, codes, dither, idle;
  double idle_bonus;
};
HEBB_KERNEL(VqPoints)

/// ids [B, K, T] i32 = the first m that attains max_m k . points[m] + bias[m]. k [B, T, K, D]; points [K, M, D];
/// bias [K, M] or undefined. FLOPs: 2 K D M a token, bound by multiply-adds; every sum has one fixed order.
struct VqSelect {
  Tensor ids, k, points, bias;
};
HEBB_KERNEL(VqSelect)

/// kq [B, T, K, D] = points[ids]. Bound: memory.
struct VqGather {
  Tensor kq, points, ids;
};
HEBB_KERNEL(VqGather)

/// Gradients of quantized keys (docs/layers/vq.md, Quantizers): d_k [B, T, K, D] and d_codes [K, N, D], overwritten or
/// added to, undefined where not wanted. nearest: d_k = 0, and a codeword gets the gradients of its keys. dither [K,
/// N-1] with sf_diveq only. Tokens run in parallel for d_k, columns of a kv head for d_codes. FLOPs: 20 D a key; bound:
/// memory.
struct VqKeysBackward {
  Tensor d_k, d_codes;
  Tensor d_kq, k, codes, dither, ids;
  VqMode mode;
  bool accumulate_k, accumulate_codes;
};
HEBB_KERNEL_WITH_SCRATCH(VqKeysBackward)

/// similarity [B, K, T]: cosine of each key and its point.
struct VqSimilarity {
  Tensor similarity, k, points, ids;
};
HEBB_KERNEL(VqSimilarity)

/// codebook [K, N, D] row n = the unit vector along the mean of keys n hop to n hop + hop - 1 of k [tokens, K, D]
/// (docs/layers/vq.md, Start of the codebook).
struct VqStart {
  Tensor codebook, k;
  int64_t hop;
};
HEBB_KERNEL(VqStart)

/// used [K, N] i32 = 1 for the codewords ids [B, K, T] i32; of segments also for the next one.
struct VqMark {
  Tensor used, ids;
  bool segments;
};
HEBB_KERNEL(VqMark)

/// How many steps a codeword has not been used: idle [K, N] i32 = used ? 0 : idle + 1, where applies [1] f64 is not 0.
struct VqIdle {
  Tensor idle, used, applies;
};
HEBB_KERNEL(VqIdle)

/// How often each point was a key's in the document so far, and the mean of those keys' values: counts [B, K, N] i32,
/// log_counts [B, K, N] (-inf where the count is 0), means [B, K, N, Dv].
struct VqDictionary {
  Tensor counts, log_counts, means;
};

/// The linear form (docs/layers/vq.md): o [B, T, H, Dv] from q [B, T, H, D], v [B, T, K, Dv], points [K, N, D] and
/// ids [B, K, T]; doc_start [B, T] i32. Advances `dictionary`, which restarts at a document's first token. A chunk of
/// up to `chunk` tokens attends to all points by the counts of earlier ones and to its own quantized keys; a single
/// token joins the dictionary and reads it.
/// FLOPs: 2 H (D + Dv)(N + chunk / 2) a token, bound by the products. Rows x kv heads run in parallel.
struct VqRead {
  Tensor o;
  VqDictionary dictionary;
  Tensor q, v, points, ids, doc_start;
  int64_t chunk;
};
HEBB_KERNEL_WITH_SCRATCH(VqRead)

}  // namespace hebb
