#pragma once
// Codes: where a task finds what a slot holds.
//
// Every sequence begins with M as in `memory`, and its backward pass with G = 0. Nothing is copied for that: a task has
// a private table, and a code says whether the slot's place in it was written yet.
//
//   c >= 0         place c of the table
//   unwritten(c)   place c, but nothing is there yet: M is that of `memory`, G is 0; a write goes to place c
//   kNoSlot        nothing to do: an entry that does not exist, or a read that is handled with its token's write
//
// The CPU numbers the slots of a sequence and head by first use, so that tables are dense; on a GPU c is the slot.
//
// Three tokens of one head with two writes and two reads each; a token writes before it reads. `-` is kNotFirst or
// kUnpaired, `x` is kNoSlot, `~` marks unwritten codes.
//
//                  token 0         token 1         token 2
//                  write   read    write   read    write   read
//   slots           5   6   6   8   5   7   5   8   6   8   5   6
//   CPU
//     codes        ~0  ~1   1  ~2   0  ~3   0  ~2   1  ~2   0   1   numbered slots: 5 6 8 7
//   GPU
//     codes        ~5  ~6   6  ~8   5  ~7   5  ~8   6  ~8   5   6
//     first_use     5   6   -   8   -   7   -   -   -   -   -   -
//     order         0   4   6  10   1   2   8  11   5   3   7   9   entries (0 to 11) by slot, then by time
//   GPU, backward pass: a token's write and read of one slot are a single access, made by the write
//     codes        ~5  ~6   x  ~8   5  ~7   x  ~8   6  ~8   5   x   of M, forward in time
//     next use      5   6   x   8   5  ~7   x   8  ~6  ~8  ~5   x   of G, backward in time: unwritten after the last
//     paired_read   -   0           0   -           1   -
//
// The tensors of SparseDeltaUses, all i32:
//   write_codes [N, H, W], read_codes [N, H, R]
//   CPU: numbered [N, H, W + R], slots by number, where those of a sequence and head begin at (first H + head length)
//     (W + R); count [S, H], how many there are
//   GPU: first_use [N, H, W + R], writes first; order [B, H, T (W + R)], entries of a row of the batch and head
//   GPU, backward pass: next_write [N, H, W], next_read [N, H, R], paired_read [N, H, W]: the number of the read
#include <cstdint>

#include "kernels/common/formulas.h"

namespace hebb {

constexpr int32_t kNoSlot = INT32_MIN;  // below all other codes
constexpr int32_t kNotFirst = -1;       // in first_use
constexpr int32_t kUnpaired = -1;       // in paired_read

}  // namespace hebb

#ifdef HEBB_DEVICE
namespace hebb::HEBB_DEVICE::sparse_delta {
#else
namespace hebb::cpu::sparse_delta {
#endif

HEBB_FORMULA int32_t unwritten(int32_t place) { return ~place; }
HEBB_FORMULA bool is_written(int32_t code) { return code >= 0; }
/// The place of a code that is not kNoSlot, written or not.
HEBB_FORMULA int32_t place_of(int32_t code) { return code >= 0 ? code : ~code; }

}  // namespace hebb::HEBB_DEVICE::sparse_delta or hebb::cpu::sparse_delta
