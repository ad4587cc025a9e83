#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace hebb {

struct ElementRange {
  int64_t begin = 0, end = 0;

  int64_t size() const { return end - begin; }
  bool operator==(const ElementRange&) const = default;
};

/// Elements of one parameter in one block of the flat order: what one sum of squares takes.
struct FlatSegment {
  int parameter = 0;
  ElementRange range;  // in the flat order
};

/// The flat order of trained parameters, its buckets, and which rank owns what (docs/design/data-parallel.md).
/// Parameters lie in reverse order of declaration, each from a multiple of kAlign elements on. Buckets are ranges of
/// equal length, whatever parameters they cut; the last is shorter, and the order ends with padding. Every bucket is a
/// multiple of kBlock * lanes elements, so that each rank owns an equal, block-aligned part of it.
class BucketLayout {
 public:
  static constexpr int64_t kAlign = 64, kBlock = 16384;

  /// sizes: elements of the trained parameters in order of declaration. bucket_mib: MiB of fp32 gradients in a bucket.
  BucketLayout(const std::vector<int64_t>& sizes, int lanes, int64_t bucket_mib);

  int64_t size() const { return size_; }  // elements, padding included
  int64_t buckets() const;
  ElementRange bucket(int64_t index) const;
  /// The part of a bucket that `rank` of `ranks` owns; ranks divides the lanes.
  ElementRange part(int64_t bucket, int rank, int ranks) const;
  /// Where parameter `index` (order of declaration) lies.
  ElementRange parameter(int index) const { return parameters_[static_cast<size_t>(index)]; }
  int parameters() const { return static_cast<int>(parameters_.size()); }
  /// Parameters with elements in the bucket, in flat order.
  std::vector<int> parameters_of(int64_t bucket) const;

  /// All segments in flat order; empty parameters have none.
  const std::vector<FlatSegment>& segments() const { return segments_; }
  /// The rank that owns a segment.
  int owner(const FlatSegment& segment, int ranks) const;

 private:
  int lanes_;
  int64_t bucket_size_, size_ = 0;
  std::vector<ElementRange> parameters_;
  std::vector<FlatSegment> segments_;
};

}  // namespace hebb
