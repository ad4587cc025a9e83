#pragma once
#include <array>
#include <memory>

#include "kernels/fwmlp/fwmlp.h"
#include "layers/layer.h"

namespace hebb {

/// Sizes and rules of a fast-weight perceptron (docs/layers/fwmlp.md, Keys).
struct FwmlpOptions {
  FwmlpSizes sizes;
  int64_t chunk, lookahead;
  bool mean;  // the target is the mean of v_t ... v_{t+L}
  double rate, clip;
  bool through;  // the loss is differentiated through the updates
};

/// w_up, w_gate, b_up, b_gate, w_down, b_down.
using FwmlpParams = std::array<Param*, 6>;

/// The fast weights before each chunk of a row, and after the last.
struct FwmlpLog {
  FwmlpLog(Arena& arena, const FwmlpOptions& options, const FastChunk& row, int64_t chunk, DType dtype, bool keep);
  Tensor weights(int64_t c) const;   // [total]; c = chunks.size(): after the row
  Tensor gradient(int64_t c) const;  // of the step of chunk c; kept for clipped steps only

  std::vector<FastChunk> chunks;
  std::vector<int64_t> pairs;  // of each chunk
  Buffer states, gradients, targets;
};

/// vh [B T, value_dim] of a row of chunks (docs/layers/fwmlp.md, Update); q [B T, key_dim], v [B T, value_dim]. In
/// training the fast weights end as the row left them, else as they were. `undo` carries what a repeated
/// pass (recomputation) starts from.
Var fwmlp_row(Pass& pass, Var q, Var v, const FwmlpParams& params, const FwmlpOptions& options,
              std::shared_ptr<FwmlpLog>& undo);

/// Reading of tokens of every row with the fast weights of now: part of vh. No gradient.
void fwmlp_read(Stream& stream, Arena& arena, const FwmlpOptions& options, const Tensor& q, const FastChunk& chunk,
                const FwmlpParams& params, const Tensor& vh);

/// One update with given pairs: token i of q [N, key_dim] writes towards v up to targets[i] (-1: no part).
void fwmlp_update(Stream& stream, Arena& arena, const FwmlpOptions& options, const Tensor& q, const Tensor& v,
                  const std::vector<int32_t>& targets, const FastChunk& chunk, const FwmlpParams& params);

}  // namespace hebb
