#pragma once
#include <algorithm>

#include "kernels/gated_delta/chunk_grid.h"
#include "tests/op_cases/machine.h"

namespace hebb_test {

/// The chunks of rows [batch, length], as layers/ops/chunk_grid.h lays them out.
inline hebb::ChunkGrid chunk_grid(Machine& m, const std::vector<int64_t>& doc_start, int64_t length, int64_t chunk) {
  const int64_t batch = static_cast<int64_t>(doc_start.size()) / length;
  std::vector<int64_t> chunks, rows{0};
  int64_t states = 0, longest = 0;
  for (int64_t row = 0; row < batch; ++row) {
    for (int64_t t = 0; t < length;) {
      const int64_t start = doc_start[static_cast<size_t>(row * length + t)];
      int64_t end = t + 1;
      while (end < length && end - t < chunk && doc_start[static_cast<size_t>(row * length + end)] == start) { ++end; }
      chunks.insert(chunks.end(), {row * length + t, end - t, t > 0 && start < t ? states++ : -1});
      longest = std::max(longest, end - t);
      t = end;
    }
    rows.push_back(static_cast<int64_t>(chunks.size()) / 3);
  }
  return {m.integers({rows.back(), 3}, chunks, hebb::DType::i64), m.integers({batch + 1}, rows, hebb::DType::i64),
          states, longest};
}

/// Numbers around `mean`, and a few of -100: logs or logits of decays that forget nearly all.
inline Values decays(const hebb::Shape& shape, double mean, double spread) {
  Values values;
  Numbers numbers(11);
  for (int64_t i = 0; i < shape.numel(); ++i) {
    const double x = spread < 0 ? spread * std::fabs(numbers.next()) : spread * numbers.next();
    values.push_back(i % 29 == 28 ? -100.0 : mean + x);
  }
  return values;
}

}  // namespace hebb_test
