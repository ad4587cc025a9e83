#pragma once
#include "kernels/fwpkm/fwpkm.h"

namespace hebb {

// A SwiGLU perceptron whose weights are rewritten while it is read (docs/layers/fwmlp.md):
// vh = w_down ((w_up q + b_up) * silu(w_gate q + b_gate)) + b_down. Its six tensors lie in one flat
// tensor: w_up, w_gate [hidden, key_dim], b_up, b_gate [hidden], w_down [value_dim, hidden], b_down.
// All kernels: bound by dense products of R = B count rows. tokens_q, v, vh and their gradients may be
// bf16 on a GPU; everything else is fp32 there.

struct FwmlpSizes {
  int64_t key_dim, hidden, value_dim;
  int64_t b_up() const { return 2 * hidden * key_dim; }
  int64_t w_down() const { return b_up() + 2 * hidden; }
  int64_t b_down() const { return w_down() + value_dim * hidden; }
  int64_t total() const { return b_down() + value_dim; }
};

/// What reading a chunk leaves for its step and its backward pass: q [R, key_dim] gathered; act [R, 2 hidden]: up and
/// gate before silu; hid [R, hidden].
struct FwmlpActivations {
  Tensor q, act, hid;
};

/// vh [., value_dim] of a chunk's tokens, and `kept`. 6 hidden key_dim FLOPs a token.
struct FwmlpRead {
  Tensor vh;
  FwmlpActivations kept;
  Tensor weights, tokens_q;
  FwmlpSizes sizes;
  FastChunk chunk;
};
HEBB_KERNEL_WITH_SCRATCH(FwmlpRead)

/// What the memory is taught: target of token t is v of targets[t] (mean: the mean of v_t up to it).
struct FwmlpPairs {
  Tensor v, targets;  // targets i32, -1: no pair
  bool mean;
  int64_t count;      // pairs of the chunk
  int64_t lookahead;  // targets[t] = t + lookahead
};

/// next = weights - rate times the clipped gradient of sum |vh - target|^2 / (pairs value_dim). gradient [total] is
/// left as the unclipped gradient. clip 0: none. 12 hidden key_dim FLOPs.
struct FwmlpStep {
  Tensor next, gradient;
  Tensor weights, vh;
  FwmlpActivations kept;
  FwmlpPairs pairs;
  FwmlpSizes sizes;
  FastChunk chunk;
  double rate, clip;
};
HEBB_KERNEL_WITH_SCRATCH(FwmlpStep)

/// Backward of reading with d_vh, and of the step with d_next (undefined: no gradient came through it):
/// d_q (overwritten or added to), d_v +=, and d_weights (total; undefined: not wanted) = d_next + ....
/// gradient: as FwmlpStep left it, for clipping. Targets lie in the chunk. At most 36 hidden key_dim FLOPs a token.
struct FwmlpBackward {
  Tensor d_q, d_v, d_weights;
  Tensor d_vh, d_next, gradient, weights, vh;
  FwmlpActivations kept;
  FwmlpPairs pairs;
  FwmlpSizes sizes;
  FastChunk chunk;
  double rate, clip;
  bool accumulate;
};
HEBB_KERNEL_WITH_SCRATCH(FwmlpBackward)

}  // namespace hebb
