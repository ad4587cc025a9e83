#pragma once
#include "core/kernel.h"

namespace hebb {

// The core of sparse delta memory (docs/layers/sdm.md, Update), per head of every token t:
//   m_n = decay_n M[I_n];  e = v - sum_n k_n m_n;  M[I_n] = m_n + beta k_n e;  y = sum_m q_m M[J_m].
// N = B T tokens, H heads, D channels, W writes, R reads. A *sequence* is a document's run of tokens inside a row of
// the batch. Its slots of M begin as those of `memory` and live in a private table, or in `state` where the caller
// carries M. Everything is independent per channel.

/// Sequences [S, 4] i32, ascending: first token in [0, N), length, row of the batch, 1 if it runs on `state`.
struct SparseDeltaSequence {
  int32_t first, length, row, carried;
};

/// Where the slots of tokens lie in private tables, in the layout of the device (kernels/sparse_delta/codes.h): what
/// SparseDeltaIndex leaves for the other kernels.
struct SparseDeltaUses {
  Tensor write_codes, read_codes, numbered, count, first_use, order, next_write, next_read, paired_read;
};
/// Room for the uses in one pass, in `workspace`.
SparseDeltaUses sparse_delta_uses(Workspace& workspace, const Tensor& write_slots, const Tensor& read_slots,
                                  const Tensor& sequences, int64_t batch, bool backward);

/// Indexes the slots of all sequences that are not carried. write_slots [N, H, W], read_slots [N, H, R] i32; rows of
/// the batch; slots of a head.
struct SparseDeltaIndex {
  SparseDeltaUses uses;
  Tensor write_slots, read_slots, sequences;
  int64_t batch, slots;
};
HEBB_KERNEL_WITH_SCRATCH(SparseDeltaIndex)

/// decay [N, H] = exp(g), or [N, H, W] = exp(g k) with key-weighted decay. g [N, H], write_weights [N, H, W].
struct SparseDeltaDecay {
  Tensor decay, g, write_weights;
};
HEBB_KERNEL(SparseDeltaDecay)

/// What forward and backward share. memory [H, slots, D] or undefined (0). place_type: of private tables, that of v. On
/// a GPU also bf16 where no sequence is carried: then `memory` is, too; numbers are rounded to nearest even when they
/// are stored, and everything else is fp32.
struct SparseDeltaInputs {
  Tensor write_weights, read_weights, decay, beta, v, memory;  // [N,H,W] [N,H,R] [N,H(,W)] [N,H] [N,H,D]
  Tensor write_slots, read_slots, sequences;
  SparseDeltaUses uses;  // undefined where every sequence is carried
  int64_t batch, slots;
  DType place_type;

  bool decays_by_key() const { return decay.shape.rank == 3; }
};

/// y, error [N, H, D]: readings and e (undefined: not kept). state [B, H, slots, D] advances for carried sequences.
/// Bound: memory, 2 W + R slots of D numbers a token and head; FLOPs H D (4 W + 2 R) a token.
struct SparseDeltaForward {
  Tensor y, error, state;
  SparseDeltaInputs in;
};
HEBB_KERNEL_WITH_SCRATCH(SparseDeltaForward)

/// Inner products over slices of channels: what SparseDeltaBackward leaves for SparseDeltaScan.
/// by_write [slices, N, H, 2, W]: <G[I_n], e> and <m_n, d_u>; by_read [slices, N, H, R]: <d_y, M[J_m]>;
/// by_token [slices, N, H]: <d_u, e>.
struct SparseDeltaProducts {
  Tensor by_write, by_read, by_token;
};
/// Room for them, in `workspace`.
SparseDeltaProducts sparse_delta_products(Workspace& workspace, const SparseDeltaInputs& in);

/// From d_y and e, in two scans that need no snapshots of M: backward in time for the adjoint G of M, which gives the
/// gradient d_u of u = beta e (and d_memory), then forward for M itself, whose writes k u are known.
/// d_v overwritten or added to; d_memory += per sequence, in order. No sequence is carried.
/// Bound: memory, 2 W + 2 R slots of G and 2 W + R of M a token and head.
struct SparseDeltaBackward {
  Tensor d_v, d_memory;  // may be undefined
  SparseDeltaProducts products;
  Tensor d_y, error;
  SparseDeltaInputs in;
  bool accumulate;  // d_v
};
HEBB_KERNEL_WITH_SCRATCH(SparseDeltaBackward)

/// Adds the slices up (`products` is overwritten): d_write_weights, d_read_weights, d_g, d_beta (overwritten). <dm, m>
/// of a write, the gradient of its log decay, is <G, M> of the slot just before it; that is carried from write to
/// write, backward in time, by <G, M> before = <G, M> after - k <G, u> - beta k <m, d_u> (a read: + q d_q).
struct SparseDeltaScan {
  Tensor d_write_weights, d_read_weights, d_g, d_beta;
  SparseDeltaProducts products;
  Tensor g;
  SparseDeltaInputs in;
};
HEBB_KERNEL_WITH_SCRATCH(SparseDeltaScan)

/// On a GPU D must be a multiple of it where place_type is bf16, so that 16-byte accesses are possible.
inline constexpr int64_t kSparseDeltaPack = 8;

}  // namespace hebb
