#pragma once
#include <string>
#include <vector>

#include "kernels/kvm/kvm.h"
#include "layers/heads_config.h"
#include "layers/kvm/budget.h"
#include "layers/layer.h"

namespace hebb {

/// The slots of a batch and the last chunks of its tokens, carried from segment to segment. What of it is in use
/// follows from the position in the document. The slots' memory grows with the documents.
struct KvmState {
  Arena& arena;
  Buffer keys, values, radii, counts, key_hats, value_hats;  // KvmSlots
  Buffer window_k, window_v, window_gates;                   // KvmWindow
  std::vector<int32_t> sizes;                                // slots by chunk, as far as known

  KvmState(Arena& memory, int64_t batch, const HeadSizes& shape, int64_t room, const KvmRule& rule, DType dtype);
  /// Makes room for `slots` slots; what is held is kept.
  void reserve(Stream& stream, int64_t slots);
  /// Row `row` becomes row `from_row` of `from`.
  void take_row(Stream& stream, int64_t row, const KvmState& from, int64_t from_row);
  int64_t room() const { return keys.tensor().size(2); }
  KvmSlots slots() const {
    return {.keys = keys,
            .values = values,
            .radii = radii,
            .counts = counts,
            .key_hats = key_hats,
            .value_hats = value_hats};
  }
  KvmWindow window() const { return {window_k, window_v, window_gates}; }
};

/// q [B T, H D], k [B T, K D], v [B T, K Dv]; gate [B T, K] logits of the merge gate, or none; norm_weight, norm_bias
/// [D]; window_temp, state_temp [H], both or none.
struct KvmVars {
  Var q, k, v, gate, norm_weight, norm_bias, window_temp, state_temp;
};

/// Key-value means; returns [B T, H Dv]. Keeps routes and log-sum-exps; the gate,
/// the norm and state_temp are reached only where the state was used (docs/model.md, Reached parameters). Dumps and
/// takes `name`.row and `name`.append [B, K, T]; throws DataError for forced ones that no run of the rule could have
/// made. Writes the statistics of `name`. Source: docs/layers/kvm.md.
Var kvm_attention(Pass& pass, const KvmVars& in, const HeadSizes& shape, const KvmRule& rule, const KvmBudget& budget,
                  KvmState* state, const std::string& name);

}  // namespace hebb
