#pragma once
#include <cstdint>

#include "kernels/ovq/ovq.h"
#include "layers/heads_config.h"
#include "layers/layer.h"

namespace hebb {

/// The dictionaries and pending chunks of a batch of rows, carried from segment to segment. How full they are follows
/// from the position in the document.
struct OvqState {
  Buffer keys, values, log_counts, counts;  // [B, K, N, D], [B, K, N, Dv], [B, K, N], [B, K, N] i32
  Buffer pending_k, pending_v;              // [B, K, L, D], [B, K, L, Dv]
  Buffer key_copies, value_copies;          // of keys and values in bf16, where queries are
  /// room: centroids, at least the rule's max_centroids in any pass; dtype: of queries, keys and values.
  OvqState(Arena& arena, int64_t rows, const HeadSizes& shape, int64_t room, int64_t chunk, DType dtype);
  std::vector<Tensor> by_row() const {
    std::vector<Tensor> all{keys, values, log_counts, counts, pending_k, pending_v};
    if (key_copies.tensor().defined()) { all.insert(all.end(), {key_copies, value_copies}); }
    return all;
  }
  OvqDictionary dictionary() const {
    return {.keys = keys,
            .values = values,
            .log_counts = log_counts,
            .counts = counts,
            .key_copies = key_copies,
            .value_copies = value_copies};
  }
};

/// Online vector-quantized attention of q [B T, H D] over keys [B T, K D] and values [B T, K Dv]; returns [B T, H Dv].
/// Keeps the assignments and log-sum-exps. Dumps and takes `name`.assign [B, K, T];
/// throws DataError for forced ids that no run of the rule could have made. Source: docs/layers/ovq.md.
Var ovq_attention(Pass& pass, Var q, Var k, Var v, const HeadSizes& shape, const OvqRule& rule, OvqState* state,
                  const std::string& name);

}  // namespace hebb
