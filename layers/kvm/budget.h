#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/fields.h"

namespace hebb {

/// The `state` object of kvm: how many rows the state has (docs/layers/kvm.md, Budget).
struct KvmBudget {
  std::string mode;  // fixed, power, saturate
  std::optional<int64_t> rows{}, limit{};
  std::optional<double> factor{}, exponent{};
  int64_t min_rows = 1, multiple = 1, max_rows = 0;

  /// Rows that a document of `seen` tokens asks for, before the limits of docs/layers/kvm.md, Budget; in double.
  int64_t want(int64_t seen) const;
};
void fields(Fields& f, KvmBudget& budget);

/// Extends `sizes` to `chunks` entries: rows that the queries of chunk c of a document see, 0 below `window`.
void extend_sizes(const KvmBudget& budget, int64_t chunk, int64_t window, int64_t chunks, std::vector<int32_t>& sizes);

}  // namespace hebb
