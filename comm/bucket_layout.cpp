#include "comm/bucket_layout.h"

#include <algorithm>

#include "core/error.h"

namespace hebb {
namespace {

int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

BucketLayout::BucketLayout(const std::vector<int64_t>& sizes, int lanes, int64_t bucket_mib)
    : lanes_(lanes), bucket_size_(round_up(bucket_mib << 18, kBlock * lanes)), parameters_(sizes.size()) {
  HEBB_ASSERT(lanes >= 1 && bucket_mib >= 1);
  int64_t at = 0;
  for (size_t p = sizes.size(); p-- > 0;) {
    at = round_up(at, kAlign);
    parameters_[p] = {at, at + sizes[p]};
    for (int64_t begin = at; begin < at + sizes[p];) {
      const int64_t end = std::min(at + sizes[p], (begin / kBlock + 1) * kBlock);
      segments_.push_back({static_cast<int>(p), {begin, end}});
      begin = end;
    }
    at += sizes[p];
  }
  size_ = round_up(at, kBlock * lanes);
}

int64_t BucketLayout::buckets() const { return (size_ + bucket_size_ - 1) / bucket_size_; }

ElementRange BucketLayout::bucket(int64_t index) const {
  HEBB_ASSERT(index >= 0 && index < buckets());
  return {index * bucket_size_, std::min(size_, (index + 1) * bucket_size_)};
}

ElementRange BucketLayout::part(int64_t index, int rank, int ranks) const {
  HEBB_ASSERT(ranks >= 1 && lanes_ % ranks == 0 && rank >= 0 && rank < ranks);
  const ElementRange whole = bucket(index);
  const int64_t size = whole.size() / ranks;
  return {whole.begin + rank * size, whole.begin + (rank + 1) * size};
}

std::vector<int> BucketLayout::parameters_of(int64_t index) const {
  const ElementRange whole = bucket(index);
  std::vector<int> found;
  for (int p = parameters(); p-- > 0;) {
    const ElementRange range = parameter(p);
    if (range.size() > 0 && range.begin < whole.end && range.end > whole.begin) { found.push_back(p); }
  }
  return found;
}

int BucketLayout::owner(const FlatSegment& segment, int ranks) const {
  HEBB_ASSERT(ranks >= 1 && lanes_ % ranks == 0);
  const ElementRange whole = bucket(segment.range.begin / bucket_size_);
  return static_cast<int>((segment.range.begin - whole.begin) / (whole.size() / ranks));
}

}  // namespace hebb
