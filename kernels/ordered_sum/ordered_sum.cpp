#include "kernels/ordered_sum/ordered_sum.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "core/parallel.h"
#include "kernels/common/cpu/math.h"

namespace hebb::cpu {
namespace {

// Elements that are summed at once: a few of these runs fit into the first cache.
constexpr int64_t kRun = 1024;

template <class S> void add(int64_t n, S* __restrict to, const S* __restrict a, const S* __restrict b) {
  for (int64_t i = 0; i < n; ++i) { to[i] = a[i] + b[i]; }
}
template <class S> void add_to(int64_t n, S* __restrict to, const S* __restrict b) {
  for (int64_t i = 0; i < n; ++i) { to[i] += b[i]; }
}

/// Runs of `n` <= kRun elements, `stride` apart from part to part.
template <class S> struct Parts {
  const S* first;
  int64_t stride, n;

  Parts from(int64_t part) const { return {first + part * stride, stride, n}; }
};

/// to = the tree over `count` parts, a power of two. scratch: kRun elements for each level below the second.
template <class S> void tree_sum(S* to, const Parts<S>& parts, int64_t count, S* scratch) {
  if (count == 1) {
    std::copy_n(parts.first, parts.n, to);
  } else if (count == 2) {
    add(parts.n, to, parts.first, parts.first + parts.stride);
  } else {
    tree_sum(to, parts, count / 2, scratch);
    tree_sum(scratch, parts.from(count / 2), count / 2, scratch + kRun);
    add_to(parts.n, to, static_cast<const S*>(scratch));
  }
}

}  // namespace

void run(Stream&, const OrderedSum& a) {
  const int64_t parts = a.parts.size(0), count = a.to.numel(), leaves = tree_size(parts);
  HEBB_ASSERT(parts > 0 && a.parts.numel() == parts * count && a.to.dtype == a.parts.dtype);
  dispatch_real(a.to.dtype, [&]<class S>(S) {
    parallel_for(count, 16 * kRun, [&](int64_t begin, int64_t end) {
      std::vector<S> scratch(static_cast<size_t>(kRun * (std::countr_zero(static_cast<uint64_t>(leaves)) + 1)));
      for (int64_t at = begin; at < end; at += kRun) {
        const Parts<S> runs{a.parts.as<S>() + at, count, std::min(kRun, end - at)};
        S* to = a.to.as<S>() + at;
        tree_sum(to, runs, leaves, scratch.data());
        for (int64_t part = leaves; part < parts; part += leaves) {
          tree_sum(scratch.data(), runs.from(part), leaves, scratch.data() + kRun);
          add_to(runs.n, to, static_cast<const S*>(scratch.data()));
        }
      }
    });
  });
}

void run(Stream&, const SegmentSquares& a) {
  const int64_t *begins = a.begin.as<int64_t>(), *ends = a.end.as<int64_t>();
  double* partial = a.partial.as<double>();
  dispatch_real(a.x.dtype, [&]<class S>(S) {
    parallel_each(a.partial.numel(), 1, [&](int64_t s) {
      const S* x = a.x.as<S>() + begins[s];
      partial[s] = lane_sum<double>(ends[s] - begins[s], [&](int64_t i) { return double(x[i]) * double(x[i]); });
    });
  });
}

}  // namespace hebb::cpu
