#pragma once
#include "layers/ham/select.h"

namespace hebb {

/// What the statistics of one HAM layer are computed from.
struct HamReadings {
  Var score;                      // [B T] or no Var
  std::vector<int64_t> selected;  // [B]
  std::optional<double> tau;      // in score units; nothing without a threshold
  Var rnn_gate, kv_gate;          // logits, or no Var
  Var decay;                      // [B T, H] logits of the decay, before dt_bias
  Tensor a_log, dt_bias;          // [H]
};

/// kv_fraction (mean, _min and _max over rows), tau, score_mean, score_std, gate_rnn_mean, gate_kv_mean and
/// reset_fraction (share of tokens and heads with alpha < 0.05).
std::map<std::string, double> ham_statistics(Pass& pass, const HamReadings& readings);

/// Which tokens were selected, of the records "mask" and "score" [1, T]: kv_fraction of whole sequences, and the series
/// "kv_fraction", "kv_growth", "kv_growth_single" and "score_by_position".
std::unique_ptr<StatisticsCollector> ham_selection(const StatisticsOptions& options);

}  // namespace hebb
