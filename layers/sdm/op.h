#pragma once
#include <string>

#include "kernels/slot_select/slot_select.h"
#include "layers/layer.h"

namespace hebb {

/// How one side of the memory, writing or reading, is addressed.
struct SlotAddress {
  int64_t count = 0;  // slots per token and head
  SlotActivation activation = SlotActivation::softmax;
  double scale = 1.0;
};

/// Sizes and rules of a sparse delta memory (docs/layers/sdm.md, Keys).
struct SparseDeltaConfig {
  int64_t heads = 0, subkeys = 0, value_dim = 0;  // H, n (n^2 slots per head), D
  SlotAddress write, read;
  bool key_weighted_decay = false;

  int64_t slots() const { return subkeys * subkeys; }
};

/// N = B T tokens; all in fp32 or fp64.
struct SparseDeltaVars {
  Var q, k;            // [N, H 2n] scores of the sub-keys of reads and writes
  Var v;               // [N, H D]
  Var a, b;            // [N, H] logits of decay and write strength
  Var a_log, dt_bias;  // [H]
  Var memory;          // [H, n^2, D], or no Var: 0
};

/// What decoding carries: M [B, H, n^2, D].
struct SparseDeltaState final : DeviceState {
  Buffer memory;
  SparseDeltaState(Arena& arena, int64_t rows, const SparseDeltaConfig& config, DType dtype)
      : memory(arena, {rows, config.heads, config.slots(), config.value_dim}, dtype, "sparse delta state") {}
  std::vector<Tensor> by_row() const override { return {memory}; }
};

/// Readings [N, H D] of a gated delta rule on the selected slots of a table (docs/layers/sdm.md, Update). M begins
/// as `memory` at every document's first token. With `state` it continues there and ends there.
/// `name`.write_slots and .read_slots are recorded and forced (docs/verbs/trace.md, Decisions), their weights recorded;
/// statistics go under `name`. Keeps the selected slots and the write errors e [N, H D]; the rest is computed again
/// backward. `place_type`: type in which a pass keeps M and G for itself. That of v; on a GPU, without a state and if
/// kSparseDeltaPack divides D, also bf16, where `memory` is read from its rounded copy.
Var sparse_delta(Pass& pass, const SparseDeltaVars& in, const SparseDeltaConfig& config, SparseDeltaState* state,
                 const std::string& name, DType place_type);

}  // namespace hebb
