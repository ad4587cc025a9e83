#pragma once
// Small kvm models for tests.
#include "tests/layers/properties.h"

namespace hebb::testing {

inline std::string kvm_json(const std::string& options, int64_t layers = 2) {
  return small_model_json(R"("type": "kvm", "head_dim": 6, )" + options, layers);
}

/// Every option and budget once.
inline const std::vector<std::string>& kvm_variants() {
  static const std::vector<std::string> variants = {
      R"("num_heads": 2, "chunk_size": 4, "state": {"mode": "fixed", "rows": 5})",
      R"("num_heads": 4, "num_kv_heads": 2, "value_head_dim": 3, "chunk_size": 3, "window_chunks": 1, "sinks": 0, )"
      R"("state": {"mode": "power", "factor": 1.5, "exponent": 0.7, "multiple": 2, "max_rows": 9}, )"
      R"("rope": {"theta": 100.0, "dims": 4}, "qk_norm": "rms", "merge_gate": "keys", "value_norm": "mean")",
      R"("num_heads": 2, "num_kv_heads": 1, "chunk_size": 3, "window_chunks": 3, "sinks": 2, )"
      R"("state": {"mode": "saturate", "limit": 8, "min_rows": 4}, "qk_norm": "none", "merge_gate": "values", )"
      R"("gate_appends": true, "token_shift": true, "rope": {"theta": 50.0, "dims": 4, "endpoint": true})",
      R"("num_heads": 3, "value_head_dim": 7, "chunk_size": 2, "sinks": 1, "merge_gate": "none", )"
      R"("state": {"mode": "fixed", "rows": 4}, "temperatures": false, "value_norm": "updates", )"
      R"("value_residual": "gated", "value_residual_rank": 3, "value_residual_source": "embedding")",
      R"("num_heads": 1, "chunk_size": 1, "sinks": 0, "state": {"mode": "fixed", "rows": 3}, "gate_appends": true, )"
      R"("value_norm": "mean", "value_residual": "lambda")",
      R"("num_heads": 2, "chunk_size": 3, "state": {"mode": "power", "factor": 1.0, "exponent": 1.0})",
  };
  return variants;
}

}  // namespace hebb::testing
