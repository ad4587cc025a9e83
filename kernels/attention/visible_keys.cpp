#include "kernels/attention/visible_keys.h"

#include <algorithm>
#include <cstring>

namespace hebb::cpu {
namespace {

/// Rows of bytes in a [B, count, C] tensor of any dtype.
struct Items {
  char* data;
  int64_t count, bytes;
  explicit Items(const Tensor& t)
      : data(static_cast<char*>(t.data)), count(t.size(1)), bytes(t.size(2) * dtype_bytes(t.dtype)) {}
  char* at(int64_t row, int64_t i) const { return data + (row * count + i) * bytes; }
};

void copy_item(char* to, const char* from, int64_t bytes) { std::memcpy(to, from, static_cast<size_t>(bytes)); }

}  // namespace

void run(Stream&, const VisibleKeys& a) {
  const int64_t length = a.doc_start.size(1);
  const int32_t* doc_start = a.doc_start.as<int32_t>();
  for (int64_t i = 0; i < a.doc_start.numel(); ++i) {
    const int64_t t = i % length, start = doc_start[i];
    a.lo.as<int32_t>()[i] = static_cast<int32_t>(std::max<int64_t>(0, start + a.range.first(t - start) + a.offset));
    a.hi.as<int32_t>()[i] = static_cast<int32_t>(t + 1 + a.offset);
  }
}

void run(Stream&, const RingAppend& a) {
  const Items ring(a.ring), x(a.x);
  const int64_t block = a.slots.range.block;
  for (int64_t b = 0; b < a.ring.size(0); ++b) {
    const int64_t position = -a.doc_start.as<int32_t>()[b] - a.first;
    if (block > 0 && a.slots.range.blocks > 1 && position > 0 && position % block == 0) {
      const int64_t from = a.slots.slot(position - block, position - 1), to = a.slots.slot(position - block, position);
      copy_item(ring.at(b, to), ring.at(b, from), block * ring.bytes);
    }
    copy_item(ring.at(b, a.slots.slot(position, position)), x.at(b, 0), x.bytes);
  }
}

void run(Stream&, const RingKeys& a) {
  for (int64_t b = 0; b < a.lo.size(0); ++b) {
    const int64_t position = -a.doc_start.as<int32_t>()[b];
    a.lo.as<int32_t>()[b] = static_cast<int32_t>(a.slots.begin(position));
    a.hi.as<int32_t>()[b] = static_cast<int32_t>(a.slots.end(position));
  }
}

void run(Stream&, const RingUnroll& a) {
  const Items line(a.line), ring(a.ring);
  const int64_t length = a.doc_start.size(1), before = a.slots.range.size() - 1;
  for (int64_t b = 0; b < a.ring.size(0); ++b) {
    const int64_t next = -a.doc_start.as<int32_t>()[b * length];  // position of the row's first token
    const int64_t kept = next > 0 ? a.slots.range.first(next - 1) : 0;
    for (int64_t p = std::max(kept, next - before); p < next; ++p) {
      copy_item(line.at(b, before - next + p), ring.at(b, a.slots.slot(p, next - 1)), ring.bytes);
    }
  }
}

void run(Stream&, const RingStore& a) {
  const Items line(a.line), ring(a.ring);
  const int64_t length = a.doc_start.size(1), before = a.slots.range.size() - 1;
  for (int64_t b = 0; b < a.ring.size(0); ++b) {
    const int64_t start = a.doc_start.as<int32_t>()[(b + 1) * length - 1], newest = length - 1 - start;
    for (int64_t p = a.slots.range.first(newest); p <= newest; ++p) {
      copy_item(ring.at(b, a.slots.slot(p, newest)), line.at(b, before + start + p), ring.bytes);
    }
  }
}

}  // namespace hebb::cpu
