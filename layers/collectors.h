#pragma once
// Collectors of statistics that several types of layers share.
#include "layers/statistics.h"

namespace hebb {

/// "collision", "coverage" and "kld" of complete windows of the tokens read: of the record "slots" [1, T, H, k], in a
/// table of num_subkeys^2 slots.
std::unique_ptr<StatisticsCollector> slot_windows(const StatisticsOptions& options);

/// Tokens per slot after a sequence as NAME_max, NAME_mean and NAME_entropy, and the series "slots_by_position": slots
/// in use (the record "slots_in_use") and bytes of the state. `record`: the slot of each token [1, K, T], negative for
/// tokens in none.
std::unique_ptr<StatisticsCollector> slot_tokens(std::string record, std::string name);

/// Frobenius norm per head of the record "state" [1, H, ...]: the number "state_norm" at the end, the series by
/// position.
std::unique_ptr<StatisticsCollector> state_norms();

}  // namespace hebb
