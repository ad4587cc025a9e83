#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "comm/bucket_layout.h"

namespace hebb {

/// How new values of a bucket travel from their owners to all ranks (docs/design/data-parallel.md): the parts of the
/// ranks one after the other. A part holds what its rank owns of each parameter, in flat order, each from a multiple of
/// kAlign bytes on, in as many bytes an element as its readers take.
class ValueLayout {
 public:
  static constexpr int64_t kAlign = 64;

  struct Piece {
    int parameter = 0;
    ElementRange flat;
    int64_t at = 0;  // byte in the bucket
  };

  /// element_bytes: of the trained parameters in order of declaration. Where none has more than E, the parts of a
  /// bucket need no more than E bytes for each of its elements. ranks divides the lanes of the layout.
  ValueLayout(const BucketLayout& layout, int ranks, std::span<const int64_t> element_bytes);

  /// What a rank owns of a bucket.
  std::span<const Piece> pieces(int64_t bucket, int rank) const { return pieces_[index(bucket, rank)]; }
  /// Bytes of the parts of a bucket, by rank.
  std::span<const int64_t> part_bytes(int64_t bucket) const {
    return std::span(part_bytes_).subspan(index(bucket, 0), static_cast<size_t>(ranks_));
  }
  /// Of all parts of all buckets.
  int64_t bytes() const;

 private:
  size_t index(int64_t bucket, int rank) const { return static_cast<size_t>(bucket * ranks_ + rank); }

  int ranks_;
  std::vector<std::vector<Piece>> pieces_;  // by bucket and rank
  std::vector<int64_t> part_bytes_;         // likewise
};

}  // namespace hebb
