#pragma once
// The gated delta rule on tensor cores: where it is, and what its backward kernels hand to each other.
#include "kernels/gated_delta/chunk_scan.cuh"
#include "kernels/gated_delta/scratch.h"

namespace hebb::HEBB_DEVICE::delta_mma {

/// A tensor as the sum of two in bf16, one behind the other: the bytes of fp32, and ready for tensor cores.
struct SplitTensor {
  bf16* high = nullptr;
  int64_t size = 0;

  __device__ bf16* low() const { return high + size; }
};

/// Products of the scans of the backward pass, for the kernel that looks at all chunks at once.
struct Handed {
  SplitTensor errors, adjoints;  // [B, T, HV, dv] E, X of docs/layers/gdn.md, Chunk form
  bf16 *starts, *d_starts;  // [states, HV, dk, dv] S at chunk starts that do not begin a document, and its gradient
  bf16* initial;            // [HV, dk, dv] S where documents begin; null: 0
  float* initial_sums;      // [B, HV, dk, dv] or null

  Handed(const GatedDeltaBackward& a, const GatedDeltaBackwardScratch& scratch);
};

void forward(Stream& stream, const GatedDeltaForward& a);
/// The forward scan again, for errors and starts.
void recompute(Stream& stream, const GatedDeltaBackward& a, const Handed& to);
/// The reverse scan: d_v, initial_sums, adjoints and d_starts.
void reverse_scan(Stream& stream, const GatedDeltaBackward& a, const Handed& to);
/// All gradients but what initial_sums add up to, from d_o in bf16. Errors and starts are there already unless
/// `recomputes`.
void backward(Stream& stream, const GatedDeltaBackward& a, const GatedDeltaBackwardScratch& scratch, bool recomputes);

}  // namespace hebb::HEBB_DEVICE::delta_mma
