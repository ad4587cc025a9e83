#include "comm/value_layout.h"

#include "tests/test.h"

TEST_CASE("every value travels once, in the part of its owner", "[fast]") {
  const std::vector<int64_t> sizes{70000, 1, 0, 16385, 300000, 63, 77};
  const std::vector<int64_t> bytes{2, 4, 2, 2, 4, 2, 2};
  for (const int ranks : {1, 2, 4}) {
    CAPTURE(ranks);
    const BucketLayout layout(sizes, 4, 1);
    REQUIRE(layout.buckets() > 1);
    const ValueLayout values(layout, ranks, bytes);
    std::vector<int64_t> found(sizes.size());
    int64_t all = 0;
    for (int64_t b = 0; b < layout.buckets(); ++b) {
      int64_t at = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const int64_t end = at + values.part_bytes(b)[static_cast<size_t>(rank)];
        for (const ValueLayout::Piece& piece : values.pieces(b, rank)) {
          const ElementRange part = layout.part(b, rank, ranks), whole = layout.parameter(piece.parameter);
          const auto p = static_cast<size_t>(piece.parameter);
          CHECK((piece.flat.begin >= part.begin && piece.flat.end <= part.end));
          CHECK((piece.flat.begin >= whole.begin && piece.flat.end <= whole.end));
          CHECK((piece.at >= at && piece.at % ValueLayout::kAlign == 0));
          at = piece.at + piece.flat.size() * bytes[p];
          CHECK(at <= end);
          found[p] += piece.flat.size();
        }
        CHECK(end - at < ValueLayout::kAlign);
        at = end;
      }
      CHECK(at <= 4 * layout.bucket(b).size());  // there is room where gradients lie
      all += at;
    }
    CHECK(found == sizes);
    CHECK(values.bytes() == all);
    CHECK(all >= 2 * (70000 + 16385 + 63 + 77) + 4 * (1 + 300000));
    CHECK(all < 2 * (70000 + 16385 + 63 + 77) + 4 * (1 + 300000) + 64 * (5 + ranks * layout.buckets()));
  }
}
