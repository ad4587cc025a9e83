#pragma once
#include <algorithm>

#include "kernels/gated_delta/scratch.h"
#include "support.h"

namespace hebb_test {

/// All results of the delta rule on tensor cores, forward and backward, for a row of 70 tokens: two chunks, two slices
/// of 64 of the 72 value channels, three of 32.
inline std::vector<double> delta_on_tensor_cores(int64_t key_dim) {
  constexpr int64_t kTokens = 70, kValues = 72;
  using hebb::bf16;
  TestStream stream;
  DeviceArray<bf16> keys(random_values<bf16>(kTokens * key_dim, 1, 0.3)),
      values(random_values<bf16>(kTokens * kValues, 2)), o(kTokens * kValues), d_q(kTokens * key_dim),
      d_k(kTokens * key_dim), d_v(kTokens * kValues);
  std::vector<float> decays = random_values<float>(kTokens, 3, 0.1);
  std::for_each(decays.begin(), decays.end(), [](float& g) { g = -std::fabs(g); });
  DeviceArray<float> g(decays), beta(random_values<float>(kTokens, 4)),
      state(random_values<float>(key_dim * kValues, 5)), d_g(kTokens), d_beta(kTokens),
      d_initial(std::vector<float>(key_dim * kValues));
  DeviceArray<int32_t> doc_start(std::vector<int32_t>(kTokens, -1)), one_document(std::vector<int32_t>(kTokens, 0));
  DeviceArray<int64_t> chunks(std::vector<int64_t>{0, 64, 0, 64, 6, 1}),
      trained(std::vector<int64_t>{0, 64, -1, 64, 6, 0}), rows(std::vector<int64_t>{0, 2});
  const hebb::Shape key_shape{1, kTokens, 1, key_dim}, value_shape{1, kTokens, 1, kValues},
      state_shape{1, 1, key_dim, kValues};
  const hebb::Tensor k = keys.tensor(key_shape), v = values.tensor(value_shape), gates = g.tensor({1, kTokens, 1}),
                     strengths = beta.tensor({1, kTokens, 1});
  run_device(stream, hebb::GatedDeltaForward{.o = o.tensor(value_shape),
                                             .prediction = {},
                                             .state = state.tensor(state_shape),
                                             .q = k,
                                             .k = k,
                                             .v = v,
                                             .g = gates,
                                             .beta = strengths,
                                             .initial_state = {},
                                             .doc_start = doc_start.tensor({1, kTokens}),
                                             .grid = {chunks.tensor({2, 3}), rows.tensor(), 2, 64},
                                             .scale = 0.5});
  const hebb::Shape initial_shape{1, key_dim, kValues};
  run_device(stream, hebb::GatedDeltaBackward{.d_q = d_q.tensor(key_shape),
                                              .d_k = d_k.tensor(key_shape),
                                              .d_v = d_v.tensor(value_shape),
                                              .d_g = d_g.tensor(),
                                              .d_beta = d_beta.tensor(),
                                              .d_initial_state = d_initial.tensor(initial_shape),
                                              .d_o = o.tensor(value_shape),
                                              .q = k,
                                              .k = k,
                                              .v = v,
                                              .g = gates,
                                              .beta = strengths,
                                              .initial_state = state.tensor(initial_shape),
                                              .doc_start = one_document.tensor({1, kTokens}),
                                              .grid = {trained.tensor({2, 3}), rows.tensor(), 1, 64},
                                              .scale = 0.5});
  std::vector<double> results = o.values();
  for (const std::vector<double>& more :
       {state.values(), d_q.values(), d_k.values(), d_v.values(), d_g.values(), d_beta.values(), d_initial.values()}) {
    results.insert(results.end(), more.begin(), more.end());
  }
  return results;
}

}  // namespace hebb_test
