#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

namespace hebb_test {

/// The chunks of rows [batch, length], as layers/ops/chunk_grid.h lays them out.
struct Grid {
  std::vector<int64_t> chunks, rows{0};
  int64_t states = 0, longest = 0;

  Grid(const std::vector<int64_t>& doc_start, int64_t batch, int64_t length, int64_t chunk) {
    for (int64_t row = 0; row < batch; ++row) {
      for (int64_t t = 0; t < length;) {
        const int64_t start = doc_start[static_cast<size_t>(row * length + t)];
        int64_t end = t + 1;
        while (end < length && end - t < chunk && doc_start[static_cast<size_t>(row * length + end)] == start) {
          ++end;
        }
        chunks.insert(chunks.end(), {row * length + t, end - t, t > 0 && start < t ? states++ : -1});
        longest = std::max(longest, end - t);
        t = end;
      }
      rows.push_back(static_cast<int64_t>(chunks.size()) / 3);
    }
  }
};

}  // namespace hebb_test
