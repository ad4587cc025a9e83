#pragma once
#include "core/stream.h"

namespace hebb {

// The core of sparse delta memory (docs/layers/sdm.md, Update), per head of every token t:
//   m_n = decay_n M[I_n];  e = v - sum_n k_n m_n;  M[I_n] = m_n + beta k_n e;  y = sum_m q_m M[J_m].
// N = B T tokens, H heads, D channels, W writes, R reads. A *sequence* is a document's run of tokens
// inside a row; its rows of M live in a private table that starts out empty and gets a row at the first
// write to a slot (rows that were not written yet are read from `memory`), or in `state` where the
// caller carries M. Everything is independent per channel, so tasks are (sequence, head, slice of D).
// A GPU does not number rows: its private table is [B, H, slices, slots, 64], a row of it 64 neighbouring
// channels, its tasks are (row of the batch, head, slice of D), and scratch has the shapes of sparse_delta_scratch.

/// Sequences [S, 4] i32, ascending: first token in [0, N), length, row of the batch, 1 if it runs on `state`.
struct SparseDeltaSequence {
  int32_t first, length, row, carried;
};

/// Slots numbered per sequence and head by first use, so that private rows are dense.
/// write_rows, read_rows [N, H, W], [N, H, R]: number c; ~c while M[c] is still that of `memory`.
/// touched [N, H, W + R]: the head's part of a sequence begins at (first H + head length) (W + R) and
/// holds the slot of every number; count [S, H] how many. map [workers, slots] is scratch.
/// Carried sequences are skipped: their rows are the slots themselves.
/// GPU: numbers are slots; touched has the layout [N, H, W + R], writes first: the slot at its first use in
/// its sequence, else -1; order [B, H, T (W + R)]: these entries of a row and head, sorted by slot and time.
/// Where a token writes and reads a slot, its backward pass handles both as one. That pass alone (undefined in others)
/// has twins [N, H, W]: the number of that read, or -1; later_writes, later_reads like the rows: codes c of the slots'
/// adjoint, ~c where no later token of the sequence uses the slot; for such a read, later_reads and read_rows are
/// INT32_MIN.
struct SparseDeltaIndex {
  Tensor write_rows, read_rows, touched, count, map, order, later_writes, later_reads, twins;
  Tensor write_slots, read_slots, sequences;
  int64_t slots;
};
HEBB_KERNEL(SparseDeltaIndex)

/// decay [N, H] = exp(g), or [N, H, W] = exp(g k) with key-weighted decay. g [N, H], write_weights [N, H, W].
struct SparseDeltaDecay {
  Tensor decay, g, write_weights;
};
HEBB_KERNEL(SparseDeltaDecay)

/// What forward and backward share. memory [H, slots, D] or undefined (0). table [workers, rows, slice] is
/// scratch: rows >= every count, slice = sparse_delta_slice; as many workers as it has tables. On a GPU the table may
/// be bf16 where no sequence is carried: then `memory` is, too; numbers are rounded to nearest even when a row is
/// written, and everything else is fp32.
struct SparseDeltaInputs {
  Tensor write_weights, read_weights, decay, beta, v, memory;  // [N,H,W] [N,H,R] [N,H(,W)] [N,H] [N,H,D]
  Tensor write_slots, read_slots, sequences;
  Tensor write_rows, read_rows, touched, count, table, order;  // undefined where every sequence is carried
  Tensor later_writes, later_reads, twins;                     // of a backward pass on a GPU

  bool decays_by_key() const { return decay.shape.rank == 3; }
};

/// y, error [N, H, D]: readings and e (undefined: not kept). state [B, H, slots, D] advances for carried sequences.
/// Bound: memory, 2 W + R rows of D a token and head; FLOPs H D (4 W + 2 R) a token.
struct SparseDeltaForward {
  Tensor y, error, state;
  SparseDeltaInputs in;
};
HEBB_KERNEL(SparseDeltaForward)

/// From d_y and e, in two sweeps that need no snapshots of M: backward in time for the adjoint G of M,
/// which gives d_u (and d_memory), then forward for M itself, whose writes beta k e are known.
/// d_u [N, H, D] is scratch; d_v overwritten or added to; d_memory += per sequence, in order.
/// by_write [slices, N, H, 2, W]: <G[I_n], e> and <m_n, d_u>; by_read [slices, N, H, R]: <d_y, M[J_m]>;
/// by_token [slices, N, H]: <d_u, e>, each over one slice of channels. sums: scratch of a GPU for d_memory.
/// Bound: memory, 2 W + 2 R rows of G and 2 W + R of M a token and head.
struct SparseDeltaBackward {
  Tensor d_u, d_v, d_memory, by_write, by_read, by_token, sums;  // d_v, d_memory may be undefined
  Tensor d_y, error;
  SparseDeltaInputs in;
  bool accumulate;  // d_v
};
HEBB_KERNEL(SparseDeltaBackward)

/// Adds the slices up: d_write_weights, d_read_weights, d_g, d_beta (overwritten). <dm, m> of a write, the
/// gradient of its log decay, is <G, M> of the slot just before it; that is carried from write to write,
/// backward in time, by <G, M> before = <G, M> after - k <G, u> - beta k <m, d_u> (a read: + q d_q).
/// carry [workers, rows] f64 is scratch; so are by_write and by_read from here on.
struct SparseDeltaScan {
  Tensor d_write_weights, d_read_weights, d_g, d_beta, carry;
  Tensor by_write, by_read, by_token, g;
  SparseDeltaInputs in;
};
HEBB_KERNEL(SparseDeltaScan)

/// Sizes of one call; N = batch length.
struct SparseDeltaSizes {
  int64_t batch, length, heads, slots, dim, writes, reads;
  int64_t tokens() const { return batch * length; }
  /// More rows than any sequence touches, whatever the documents are: dry runs know it.
  int64_t row_limit() const { return slots < length * (writes + reads) ? slots : length * (writes + reads); }
};

/// Scratch of the kernels above. `slices` of a head: the first dimension of by_write, by_read and by_token.
struct SparseDeltaScratch {
  Shape map, order, table, sums, carry;  // empty: not needed on this device
  int64_t slices;
};
SparseDeltaScratch sparse_delta_scratch(const Stream& stream, const SparseDeltaSizes& sizes, DType dtype);

/// CPU: channels of a slice and slices of a head; dtype decides.
int64_t sparse_delta_slice(int64_t dim, DType dtype);
int64_t sparse_delta_slices(int64_t dim, DType dtype);
/// GPU: channels of a slice.
inline constexpr int64_t kSparseDeltaSlice = 64;
/// GPU: D must be a multiple of it where rows are bf16, so that 16-byte accesses are possible.
inline constexpr int64_t kSparseDeltaPack = 8;

}  // namespace hebb
