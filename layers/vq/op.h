#pragma once
#include <vector>

#include "kernels/vq/vq.h"
#include "layers/heads_config.h"
#include "layers/layer.h"

namespace hebb {

struct VqShape : HeadSizes {
  int64_t codewords;
};

/// How keys of a pass become points. idle [K, N] i32 and dither [K (N-1)] (sf_diveq only) act in training modes.
struct VqQuantizer {
  VqMode mode;
  Tensor idle;
  double idle_bonus;
  const std::vector<double>* dither;
};

struct VqKeys {
  Var keys;    // [B T, K D]
  Tensor ids;  // [B, K, T] i32: codeword (nearest, diveq), or first codeword of the segment (sf_diveq)
};

/// Unit keys k [B T, K D] replaced by points of the unit codewords `codes` [K, N, D]; both get gradients. Dumps and
/// takes `name`.assign [B, K, T]; throws DataError for forced ids out of range. With pass.statistics, the mean cosine
/// of keys and points as `name` commitment_similarity, and that of the evaluation rule as commitment_similarity_eval.
/// Source: docs/layers/vq.md, Forward and Quantizers.
VqKeys vq_keys(Pass& pass, Var k, Var codes, const VqShape& shape, const VqQuantizer& quantizer,
               const std::string& name);

/// What the linear form carries from segment to segment, independent of their length.
struct VqState final : DeviceState {
  Buffer counts, log_counts, means;  // [B, K, N] i32, [B, K, N], [B, K, N, Dv]
  VqState(Arena& arena, int64_t rows, const VqShape& shape, DType dtype);
  VqDictionary dictionary() const { return {counts, log_counts, means}; }
  std::vector<Tensor> by_row() const override { return {counts, log_counts, means}; }
};

/// Nearest codewords of k [B T, K D], [B, K, T] i32; dumped and forced like vq_keys where `inspects`.
Tensor vq_nearest(Pass& pass, Var k, Var codes, const VqShape& shape, bool inspects, const std::string& name);

/// The linear form: q [B T, H D] reads points [K, M, D] with ids [B, K, T] and values v [B T, K Dv] in chunks of up to
/// `chunk` tokens; returns [B T, H Dv], without gradients. Equal to causal attention to the points. Advances `state`
/// when given. Source: docs/layers/vq.md, Linear form.
Var vq_read(Pass& pass, Var q, Var v, const Tensor& points, const Tensor& ids, const VqShape& shape, int64_t chunk,
            VqState* state);

/// Says in `name`.assign that no key was quantized (-1). Throws DataError where ids are forced.
void vq_report_unquantized(Pass& pass, const VqShape& shape, const std::string& name);

}  // namespace hebb
