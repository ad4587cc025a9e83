#pragma once
#include "kernels/common/cuda/prelude.cuh"

namespace hebb::HEBB_DEVICE {

/// The row of a table that an entry goes to: its id. With n > 0 the id is slot i n + j of a product key, and the row is
/// (2 head + codebook) n + i in codebook 0, + j in codebook 1. Entries are [tokens, heads, per_head].
struct ScatterIds {
  const int32_t* ids;
  int64_t n = 0, heads = 1, per_head = 1;
  int codebook = 0;

  __device__ int32_t at(int64_t entry) const {
    if (n == 0) { return ids[entry]; }
    const int64_t head = entry / per_head % heads, part = codebook == 0 ? ids[entry] / n : ids[entry] % n;
    return static_cast<int32_t>((2 * head + codebook) * n + part);
  }
};

/// What entries add: factors[entry] (null: 1) times row entry / per_row of a matrix whose rows lie `stride` elements
/// apart.
struct ScatterRows {
  const void* data;
  DType dtype;
  int64_t stride, per_row = 1;
  const float* factors = nullptr;
};

/// table[id of entry] += what the entry adds, for entries < count, each row in the order of the entries. table
/// [table_rows, width]. Uses the stream's workspace. Bound: HBM, one source row an entry and the table's rows that
/// occur; and the sort by id.
void scatter_rows(Stream& stream, float* table, int64_t table_rows, int64_t width, int64_t count, const ScatterIds& ids,
                  const ScatterRows& from);

}  // namespace hebb::HEBB_DEVICE
