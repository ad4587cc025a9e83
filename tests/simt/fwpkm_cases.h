#pragma once
// Sizes and tensors of product-key memories that are rewritten while they are read, for tests against their CPU twin.
#include "twins.h"

namespace hebb_test {

using namespace hebb;

struct Sizes {
  FastChunk chunk;
  int64_t size;  // of the chunks into which it is cut, where it is
  int64_t heads, n, half, k, dv;

  FastChunks chunks() const { return {chunk, size}; }
  int64_t tokens() const { return chunk.batch * chunk.length; }
  int64_t rows() const { return chunk.tokens(); }
  int64_t entries() const { return heads * k; }
  int64_t table() const { return n * n; }
  Shape book_shape() const { return {tokens(), heads, 2, k}; }
  Shape slot_shape() const { return {tokens(), heads, k}; }
  /// Distinct slots of chunk c, and of all, at most.
  int64_t capacity(int64_t c) const { return fast_capacity(chunks().at(c).tokens() * entries(), table()); }
  int64_t capacity() const {
    int64_t sum = 0;
    for (int64_t c = 0; c < chunks().count(); ++c) { sum += capacity(c); }
    return sum;
  }
};

// More than a tile of tokens (32), two groups of keys (64) and several groups of channels; three chunks, the last one
// shorter.
inline constexpr Sizes kWide{{2, 21, 3, 17}, 7, 2, 67, 37, 3, 13};
// More slots per head than lanes.
inline constexpr Sizes kDeep{{1, 4, 0, 3}, 2, 1, 41, 5, 35, 4};
// More tokens than a row of the batch has a warp's entries for, more channels than a block's sum takes at once.
inline constexpr Sizes kLong{{3, 60, 0, 60}, 23, 1, 61, 133, 5, 3};
inline constexpr Sizes kSmall{{1, 5, 1, 3}, 2, 1, 4, 3, 2, 5};
// More slots than a round of the scans over them holds (4,096).
inline constexpr Sizes kMany{{1, 601, 0, 600}, 400, 2, 131, 2, 15, 2};

/// How many kernels f launches in one run; it runs everything both ways.
template <class F> int64_t launches(F&& f) {
  const int64_t before = simt::runs_of("");
  f();
  return (simt::runs_of("") - before) / 2;
}

/// Lookups of a chunk; other tokens hold numbers that nobody may touch.
struct Looked {
  Twins& t;
  const Sizes& s;
  Twin entries = t.integer_output(s.book_shape()), scores = t.float_sum(s.book_shape()),
       probs = t.float_sum(s.book_shape()), slots = t.integer_output(s.slot_shape()),
       weights = t.float_sum(s.slot_shape()), q = t.input({s.tokens(), s.heads, 2, s.half}),
       keys = t.parameter({s.heads, 2, s.n, s.half}), norms = t.scratch({s.heads, 2, s.n});

  template <class At> FastLookup at(At&& at) const {
    return {at(entries), at(scores), at(probs), at(slots), at(weights)};
  }
  auto make(FastScore score, bool keep_entries = false, bool keep_slots = false, bool keep_norms = false) const {
    return [this, score, keep_norms, keep_entries, keep_slots](auto at_twin) {
      return FastLookupKeys{at(at_twin), at_twin(norms), at_twin(q),   at_twin(keys), s.chunk,
                            score,       keep_norms,     keep_entries, keep_slots};
    };
  }
  auto select(bool keep_slots = false) const {
    return [this, keep_slots](auto at_twin) { return FastSelectSlots{at(at_twin), s.chunk, s.n, keep_slots}; };
  }
};

/// v, w and targets of every token: one token later in its row; every fifth token has none.
struct Taught {
  Twins& t;
  const Sizes& s;
  bool weighted, pairs_only;
  Twin v = t.input({s.tokens(), s.dv}), w = weighted ? t.input({s.tokens()}) : Twin{},
       targets = t.integers({s.tokens()}, list());

  std::vector<int64_t> list() const {
    std::vector<int64_t> out;
    for (int64_t i = 0; i < s.tokens(); ++i) {
      out.push_back(i % 5 == 2 || i % s.chunk.length + 1 == s.chunk.length ? -1 : i + 1);
    }
    return out;
  }
  template <class At> FastPairs at(At&& at) const { return {at(v), at(w), at(targets), pairs_only}; }
};

struct Listed {
  Twins& t;
  const Sizes& s;
  Twin slots = t.integer_output({s.capacity()}), starts = t.integer_output({s.capacity() + s.chunks().count()}),
       readers = t.integer_output({s.rows() * s.entries()}), local = t.integer_output({s.tokens() * s.entries()}),
       count = t.integer_output({s.chunks().count()});

  template <class At> FastReaders at(At&& at) const {
    return {at(slots), at(starts), at(readers), at(local), at(count)};
  }
  template <class At> FastReaders of_chunk(At&& at_twin, int64_t c) const {
    return readers_of(at(at_twin), s.chunks(), c, s.entries(), s.table());
  }
};

}  // namespace hebb_test
