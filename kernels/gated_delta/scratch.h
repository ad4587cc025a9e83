#pragma once
#include "kernels/common/cores.h"
#include "kernels/gated_delta/gated_delta.h"

namespace hebb {

struct GatedDeltaForwardScratch {
  Tensor work;  // [slots, elements]: the matrices of a chunk, a slot for each task that runs at a time
  bool on_tensor_cores = false;
};

/// On tensor cores starts holds states and their gradients in bf16, errors two bf16 each.
struct GatedDeltaBackwardScratch {
  Tensor starts;                      // [grid.states, HV, dk, dv]: states at chunk starts
  Tensor errors;                      // [B, T, HV, dv]: prediction errors
  Tensor initial_sums;                // [B, HV, dk, dv]: of d_initial_state, where that is wanted
  Tensor work;                        // as in GatedDeltaForwardScratch; not on tensor cores
  Tensor adjoints;                    // on tensor cores alone, of 4 bytes: [B, T, HV, dv], then initial_state in bf16
  Tensor parts;                       // on tensor cores where additive: [2, B, T, HV, dv], d_o in two bf16
  Tensor d_q, d_k, d_v, d_g, d_beta;  // likewise: the gradients of the lower part
  bool on_tensor_cores = false;
};

/// Shared memory [bytes] that a block on tensor cores takes at least.
constexpr int64_t gated_delta_shared_bytes(int64_t key_dim) { return (key_dim <= 64 ? 155 : 204) * 1024; }

/// The cores that the chunked rule takes. Tensor cores have kernels for bf16, chunks of up to 64 tokens, keys of a
/// multiple of 8 up to 128 and values of a multiple of 8, without predictions; `tensors`: those in bf16.
Cores gated_delta_cores(const Tensor& k, const Tensor& v, int64_t longest, bool predicts,
                        const std::vector<Tensor>& tensors);

}  // namespace hebb
