#pragma once
#include <string>
#include <vector>

#include "kernels/kvm/kvm.h"
#include "layers/layer.h"

namespace hebb {

/// Forced `name`.row and `name`.append (both, or neither), as routes on the device [B, K, T]; returns whether there are
/// any. Throws DataError for routes that no run of the rule could have made; entries of tokens that are still in the
/// window are not read. sizes: slots by chunk.
bool upload_forced_routes(Pass& pass, const Tensor& routes, const KvmRule& rule, const std::vector<int32_t>& sizes,
                          const std::string& name);

/// Records the routes as `name`.row and `name`.append.
void report_routes(Pass& pass, const Tensor& routes, const std::string& name);

/// Statistics of one pass (docs/layers/kvm.md, Statistics): `rows` and `rows_max` (mean over tokens, largest),
/// `append_share` of the tokens that left the window, tokens per row of the final states (`row_tokens_max`, `_mean`,
/// `_entropy`: the entropy over the logarithm of the rows, mean over heads), and `merge_gate_mean` over all tokens.
/// gate: logits or undefined.
void kvm_statistics(Pass& pass, const Tensor& routes, const Tensor& gate, const KvmRule& rule,
                    const std::vector<int32_t>& sizes, const std::string& name);

}  // namespace hebb
