#pragma once
#include "kernels/common/cuda/fast_divide.cuh"
#include "kernels/common/cuda/prelude.cuh"
#include "kernels/fwpkm/fwpkm.h"

namespace hebb::HEBB_DEVICE {

/// FastChunk::token and FastChunk::local for device code.
__device__ __forceinline__ int64_t token_of(const FastChunk& chunk, int64_t r) {
  const Split at(r, chunk.count);
  return at.quotient * chunk.length + chunk.first + at.remainder;
}
__device__ __forceinline__ int64_t local_of(const FastChunk& chunk, int64_t token) {
  const Split at(token, chunk.length);
  return at.quotient * chunk.count + at.remainder - chunk.first;
}
/// FastChunks::at for device code.
__device__ __forceinline__ FastChunk chunk_at(const FastChunks& chunks, int64_t c) {
  const int64_t first = c * chunks.size, left = chunks.all.count - first;
  return {chunks.all.batch, chunks.all.length, chunks.all.first + first, chunks.size < left ? chunks.size : left};
}
/// The chunk of a token.
__device__ __forceinline__ int64_t chunk_of(const FastChunks& chunks, int64_t token) {
  return Split(Split(token, chunks.all.length).remainder - chunks.all.first, chunks.size).quotient;
}
/// Of row `row` over `width` entries of each of the chunk's tokens: token and entry of all tokens.
struct EntryOf {
  int64_t token, entry;

  __device__ EntryOf(const FastChunk& chunk, int64_t row, int64_t width) {
    const Split at(row, width);
    token = token_of(chunk, at.quotient);
    entry = token * width + at.remainder;
  }
};

}  // namespace hebb::HEBB_DEVICE
