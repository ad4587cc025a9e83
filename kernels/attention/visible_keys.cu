#include "kernels/attention/visible_keys.h"

#include "kernels/common/cuda/prelude.cuh"

// Integers of one pass, and copies between a ring of recent tokens and a line: bound by HBM, the bytes copied in and
// out.
namespace hebb::HEBB_DEVICE {
namespace {

struct Intervals {
  int32_t *lo, *hi;
  const int32_t* doc_start;
  KeyRange range;
  int64_t length, offset;

  __device__ void operator()(int64_t row, int64_t t) const {
    const int64_t at = row * length + t, start = doc_start[at], from = start + range.first(t - start) + offset;
    lo[at] = static_cast<int32_t>(from > 0 ? from : 0);
    hi[at] = static_cast<int32_t>(t + 1 + offset);
  }
};

struct RingIntervals {
  int32_t *lo, *hi;
  const int32_t* doc_start;
  RingSlots slots;

  __device__ void operator()(int64_t, int64_t row) const {
    lo[row] = static_cast<int32_t>(slots.begin(-doc_start[row]));
    hi[row] = static_cast<int32_t>(slots.end(-doc_start[row]));
  }
};

/// Vectors of `width` elements in a [B, count, width] tensor.
template <class T> struct Items {
  T* data;
  int64_t count, width;

  explicit Items(const Tensor& t) : data(t.as<T>()), count(t.size(1)), width(t.size(2)) {}
  __device__ T& at(int64_t row, int64_t i, int64_t c) const { return data[(row * count + i) * width + c]; }
};

// A thread holds one channel of one row.
template <class T> struct Append {
  Items<T> ring, x;
  const int32_t* doc_start;
  RingSlots slots;
  int64_t first;

  __device__ void operator()(int64_t row, int64_t c) const {
    const int64_t position = -doc_start[row] - first, block = slots.range.block;
    if (block > 0 && slots.range.blocks > 1 && position > 0 && position % block == 0) {
      const int64_t from = slots.slot(position - block, position - 1), to = slots.slot(position - block, position);
      for (int64_t i = 0; i < block; ++i) { ring.at(row, to + i, c) = ring.at(row, from + i, c); }
    }
    ring.at(row, slots.slot(position, position), c) = x.at(row, 0, c);
  }
};

// Item: a row and one of the `before` places ahead of it.
template <class T> struct Unroll {
  Items<T> line, ring;
  const int32_t* doc_start;
  RingSlots slots;
  int64_t length, before;

  __device__ void operator()(int64_t item, int64_t c) const {
    const int64_t row = item / before, i = item % before;
    const int64_t next = -doc_start[row * length], p = next - before + i;  // the position that belongs there
    if (next > 0 && p >= slots.range.first(next - 1)) { line.at(row, i, c) = ring.at(row, slots.slot(p, next - 1), c); }
  }
};

// Item: a row and the i-th newest of the tokens that one after it could see.
template <class T> struct Store {
  Items<T> ring, line;
  const int32_t* doc_start;
  RingSlots slots;
  int64_t length, size;

  __device__ void operator()(int64_t item, int64_t c) const {
    const int64_t row = item / size, i = item % size;
    const int64_t start = doc_start[(row + 1) * length - 1], newest = length - 1 - start, p = newest - i;
    if (p >= slots.range.first(newest)) {
      ring.at(row, slots.slot(p, newest), c) = line.at(row, size - 1 + start + p, c);
    }
  }
};

}  // namespace

void run(Stream& stream, const VisibleKeys& a) {
  each_element("visible_keys", stream, a.doc_start.size(0), a.doc_start.size(1),
               Intervals{a.lo.as<int32_t>(), a.hi.as<int32_t>(), a.doc_start.as<int32_t>(), a.range,
                         a.doc_start.size(1), a.offset});
}

void run(Stream& stream, const RingKeys& a) {
  each_element("ring_keys", stream, 1, a.lo.size(0),
               RingIntervals{a.lo.as<int32_t>(), a.hi.as<int32_t>(), a.doc_start.as<int32_t>(), a.slots});
}

void run(Stream& stream, const RingAppend& a) {
  dispatch_float(a.ring.dtype, [&]<class T>(T) {
    each_element("ring_append", stream, a.ring.size(0), a.ring.size(2),
                 Append<T>{Items<T>(a.ring), Items<T>(a.x), a.doc_start.as<int32_t>(), a.slots, a.first});
  });
}

void run(Stream& stream, const RingUnroll& a) {
  const int64_t before = a.slots.range.size() - 1;
  dispatch_float(a.ring.dtype, [&]<class T>(T) {
    each_element(
        "ring_unroll", stream, a.ring.size(0) * before, a.ring.size(2),
        Unroll<T>{Items<T>(a.line), Items<T>(a.ring), a.doc_start.as<int32_t>(), a.slots, a.doc_start.size(1), before});
  });
}

void run(Stream& stream, const RingStore& a) {
  const int64_t size = a.slots.range.size();
  dispatch_float(a.ring.dtype, [&]<class T>(T) {
    each_element(
        "ring_store", stream, a.ring.size(0) * size, a.ring.size(2),
        Store<T>{Items<T>(a.ring), Items<T>(a.line), a.doc_start.as<int32_t>(), a.slots, a.doc_start.size(1), size});
  });
}

}  // namespace hebb::HEBB_DEVICE
