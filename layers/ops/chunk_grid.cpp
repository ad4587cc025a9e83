#include "layers/ops/chunk_grid.h"

#include <algorithm>

namespace hebb {

ChunkGrid chunk_grid(Tape& tape, const Rows& rows, int64_t chunk) {
  HEBB_ASSERT(chunk >= 1);
  ChunkGrid grid;
  std::vector<int64_t> chunks, first(static_cast<size_t>(rows.batch() + 1));
  for (const DocumentSpan& span : rows.spans()) {
    for (int64_t at = 0; at < span.length; at += chunk) {
      const int64_t length = std::min(chunk, span.length - at);
      chunks.insert(chunks.end(), {span.row * rows.length() + span.start + at, length, at > 0 ? grid.states++ : -1});
      grid.longest = std::max(grid.longest, length);
    }
    first[static_cast<size_t>(span.row + 1)] = static_cast<int64_t>(chunks.size()) / 3;
  }
  grid.chunks = tape.saved({static_cast<int64_t>(chunks.size()) / 3, 3}, DType::i64, "chunks");
  grid.rows = tape.saved({rows.batch() + 1}, DType::i64, "chunks of rows");
  copy_to_device(tape.stream(), grid.chunks, chunks.data());
  copy_to_device(tape.stream(), grid.rows, first.data());
  return grid;
}

}  // namespace hebb
