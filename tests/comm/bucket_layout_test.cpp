#include "comm/bucket_layout.h"

#include "comm/lanes.h"
#include "core/random.h"
#include "tests/test.h"

namespace {

void check_layout(const std::vector<int64_t>& sizes, int lanes, int64_t mib) {
  const BucketLayout layout(sizes, lanes, mib);
  const int64_t unit = BucketLayout::kBlock * lanes;
  CHECK(layout.size() % unit == 0);
  // Parameters: reverse order, aligned, disjoint.
  int64_t end = 0;
  for (int p = layout.parameters(); p-- > 0;) {
    const ElementRange range = layout.parameter(p);
    CHECK(range.size() == sizes[static_cast<size_t>(p)]);
    CHECK(range.begin % BucketLayout::kAlign == 0);
    CHECK((range.begin >= end && range.begin - end < BucketLayout::kAlign));
    end = range.end;
  }
  CHECK((layout.size() >= end && layout.size() - end < unit));
  // Buckets cover the order; parts of ranks cover buckets in whole blocks.
  int64_t at = 0;
  for (int64_t b = 0; b < layout.buckets(); ++b) {
    const ElementRange bucket = layout.bucket(b);
    CHECK((bucket.begin == at && bucket.size() > 0 && bucket.size() % unit == 0));
    CHECK((b == layout.buckets() - 1 || bucket.size() >= mib << 18));
    CHECK(bucket.size() < (mib << 18) + unit);
    for (const int ranks : allowed_sizes(lanes)) {
      int64_t next = at;
      for (int r = 0; r < ranks; ++r) {
        const ElementRange part = layout.part(b, r, ranks);
        CHECK((part.begin == next && part.size() == bucket.size() / ranks && part.begin % BucketLayout::kBlock == 0));
        next = part.end;
      }
      CHECK(next == bucket.end);
    }
    at = bucket.end;
  }
  CHECK(at == layout.size());
}

}  // namespace

TEST_CASE("buckets cut the flat order into equal, aligned parts", "[fast]") {
  check_layout({1}, 1, 1);
  check_layout({16383, 16384, 16385}, 8, 1);
  check_layout({3000000, 64, 0, 65, 1 << 20}, 12, 1);
  Rng rng(5, "layouts");
  for (int round = 0; round < 30; ++round) {
    std::vector<int64_t> sizes(rng.below(12) + 1);
    for (int64_t& size : sizes) { size = static_cast<int64_t>(rng.below(400000)); }
    const int lanes = static_cast<int>(rng.below(24)) + 1;
    CAPTURE(round, lanes, sizes);
    check_layout(sizes, lanes, static_cast<int64_t>(rng.below(3)) + 1);
  }
}

TEST_CASE("bucket sizes follow from mebibytes and lanes", "[fast]") {
  const BucketLayout layout({10000000}, 12, 1);  // 1 MiB: 2^18 elements, rounded up to multiples of 196,608
  CHECK(layout.bucket(0).size() == 393216);
  CHECK(layout.size() == 51 * 196608);
  CHECK(layout.buckets() == 26);
  CHECK(layout.bucket(25).size() == 196608);
  CHECK(BucketLayout({10000000}, 8, 64).buckets() == 1);
  CHECK(BucketLayout({}, 4, 64).buckets() == 0);
}

TEST_CASE("a bucket knows its parameters", "[fast]") {
  const BucketLayout layout({100, 400000, 0, 7}, 1, 1);
  CHECK(layout.parameters_of(0) == std::vector{3, 1});
  CHECK(layout.parameters_of(1) == std::vector{1, 0});
}

TEST_CASE("segments are parameters cut at blocks, each with one owner for every number of ranks", "[fast]") {
  const std::vector<int64_t> sizes{70000, 1, 0, 16385, 300000, 63};
  const int lanes = 4;
  const BucketLayout layout(sizes, lanes, 1);
  std::vector<int64_t> counted(sizes.size());
  int64_t at = 0;
  for (const FlatSegment& s : layout.segments()) {
    CHECK((s.range.begin >= at && s.range.size() > 0));
    CHECK(s.range.begin / BucketLayout::kBlock == (s.range.end - 1) / BucketLayout::kBlock);
    at = s.range.end;
    counted[static_cast<size_t>(s.parameter)] += s.range.size();
    for (const int ranks : {1, 2, 4}) {
      bool is_owned = false;
      for (int64_t b = 0; b < layout.buckets(); ++b) {
        const ElementRange part = layout.part(b, layout.owner(s, ranks), ranks);
        is_owned = is_owned || (part.begin <= s.range.begin && s.range.end <= part.end);
      }
      CHECK(is_owned);
    }
  }
  CHECK(counted == sizes);
  CHECK(layout.segments().front().parameter == 5);
}
