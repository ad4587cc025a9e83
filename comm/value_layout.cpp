#include "comm/value_layout.h"

#include <algorithm>
#include <numeric>

namespace hebb {

ValueLayout::ValueLayout(const BucketLayout& layout, int ranks, std::span<const int64_t> element_bytes)
    : ranks_(ranks) {
  for (int64_t b = 0; b < layout.buckets(); ++b) {
    const std::vector<int> parameters = layout.parameters_of(b);
    int64_t at = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const ElementRange part = layout.part(b, rank, ranks);
      const int64_t begin = at;
      std::vector<Piece>& pieces = pieces_.emplace_back();
      for (const int p : parameters) {
        const ElementRange whole = layout.parameter(p);
        const ElementRange flat{std::max(part.begin, whole.begin), std::min(part.end, whole.end)};
        if (flat.begin >= flat.end) { continue; }
        pieces.push_back({p, flat, at});
        at += (flat.size() * element_bytes[static_cast<size_t>(p)] + kAlign - 1) / kAlign * kAlign;
      }
      part_bytes_.push_back(at - begin);
    }
  }
}

int64_t ValueLayout::bytes() const { return std::accumulate(part_bytes_.begin(), part_bytes_.end(), int64_t{0}); }

}  // namespace hebb
