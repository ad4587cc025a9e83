#pragma once
// The entries of a chunk's tokens by the key that they name, for sums over keys in the order of the entries.
#include <algorithm>

#include "kernels/cuda/common/fast_chunk.h"
#include "kernels/cuda/common/sort.h"

namespace hebb::HEBB_DEVICE {

/// Entries of some tokens, sorted by row of keys [heads, 2, n]. An entry is (token * heads * 2 + head * 2 + codebook) * k + j.
struct KeyLists {
  const int32_t *starts, *positions;
  int64_t first, width;  // first: token of position 0, within the chunk; width: entries of a token
  FastChunk chunk;

  __device__ int64_t begin(int64_t row) const { return starts[row]; }
  __device__ int64_t entry(int64_t i) const {
    const Split at(positions[i], width);
    return token_of(chunk, first + at.quotient) * width + at.remainder;
  }
};

/// Row: token of the run.
struct GatherRows {
  int32_t* rows;
  const int32_t *index, *targets;  // index < 0: none; targets: null, or only tokens with a pair count
  FastChunk chunk;
  int64_t first, width, k, n, none;  // none: a row behind the last

  __device__ void operator()(int64_t r, int64_t e) const {
    const int64_t token = token_of(chunk, first + r);
    const int32_t i = index[token * width + e];
    const bool counts = i >= 0 && (targets == nullptr || targets[token] >= 0);
    rows[r * width + e] = static_cast<int32_t>(counts ? Split(e, k).quotient * n + i : none);
  }
};

/// Where the entries of each row begin, for the rows and the one behind the last. Column: row of keys. Once a list: the search is a chain
/// of 16 loads, each as long as the sum over a row's entries.
struct FindStarts {
  int32_t* starts;
  const int32_t* rows;
  int64_t count;

  __device__ void operator()(int64_t, int64_t row) const {
    int64_t low = 0, high = count;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (rows[middle] < row) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    starts[row] = static_cast<int32_t>(low);
  }
};

/// Sorts in the stream's workspace; chunks that do not fit are cut into runs of tokens.
class KeySorter {
 public:
  /// index [., heads, 2, k]: entries of keys [heads, 2, n].
  KeySorter(Stream& stream, const FastChunk& chunk, const int32_t* index, const int32_t* targets, int64_t width, int64_t k, int64_t n)
      : stream_(stream), gather_{nullptr, index, targets, chunk, 0, width, k, n, width / k * n}, tokens_(chunk.tokens()), run_(tokens_) {
    while (run_ > 1 && bytes_of(run_ * width) > workspace(stream).bytes) {
      run_ = (run_ + 1) / 2;
    }
  }

  /// f(lists, is_first) for each run.
  template <class F>
  void each(F&& f) {
    for (int64_t first = 0; first < tokens_; first += run_) {
      if (first != sorted_) {
        lists_ = sort(first);
        sorted_ = first;
      }
      f(lists_, first == 0);
    }
  }

 private:
  static int64_t keys_bytes(int64_t count) { return (count + 3) / 4 * 16; }
  int64_t starts_bytes() const { return keys_bytes(gather_.none + 1); }
  int64_t bytes_of(int64_t count) const { return starts_bytes() + keys_bytes(count) + sort_scratch_bytes(count); }
  KeyLists sort(int64_t first) {
    auto* const memory = static_cast<char*>(workspace(stream_).data);
    const int64_t tokens = std::min(run_, tokens_ - first), count = tokens * gather_.width;
    auto* const starts = reinterpret_cast<int32_t*>(memory);
    gather_.rows = reinterpret_cast<int32_t*>(memory + starts_bytes());
    gather_.first = first;
    each_element("fast_key_rows", stream_, tokens, gather_.width, gather_);
    const SortedKeys sorted = sort_keys(stream_, gather_.rows, count, gather_.none + 1, memory + starts_bytes() + keys_bytes(count));
    each_element("fast_key_starts", stream_, 1, gather_.none + 1, FindStarts{starts, sorted.keys, count});
    return {starts, sorted.positions, first, gather_.width, gather_.chunk};
  }

  Stream& stream_;
  GatherRows gather_;
  int64_t tokens_, run_, sorted_ = -1;
  KeyLists lists_{};
};

}  // namespace hebb::HEBB_DEVICE
