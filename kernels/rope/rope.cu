#include "kernels/rope/rope.h"

#include <algorithm>

#include "kernels/common/cuda/fast_divide.cuh"

namespace hebb::HEBB_DEVICE {
namespace {

constexpr int kPairs = 256;  // of one launch: their frequencies are kernel parameters

// Angles in double, as their fp32 rounding would show at distant positions. A thread makes one cosine and sine; bound:
// about 100 double instructions an entry, one table a pass.
struct FillTable {
  float* table;
  const int32_t* doc_start;
  int64_t first, length, pairs, from;
  double factor;
  double frequency[kPairs];

  __device__ void operator()(int64_t entry, int64_t pair) const {
    const int64_t position = doc_start != nullptr ? entry % length - doc_start[entry] : first + entry;
    const double angle = static_cast<double>(position) * frequency[pair];
    float* const out = table + 2 * entry * pairs + from + pair;
    out[0] = static_cast<float>(cos(angle) * factor);
    out[pairs] = static_cast<float>(sin(angle) * factor);
  }
};

// A thread rotates N pairs of a head or copies N channels behind the pairs. HBM: x in, y out (and in, to accumulate);
// the table stays in L2.
template <class T, int N> struct Rotate {
  T* y;
  const T* x;
  const float* table;
  const int32_t* doc_start;
  int64_t length, first, width;
  int head_width, pairs;
  float sign;
  bool by_token, accumulate;

  __device__ void operator()(int64_t token, int64_t item) const {
    constexpr bool kVector = N > 1;
    const unsigned packs = static_cast<unsigned>(head_width - pairs) / N, head = static_cast<unsigned>(item) / packs;
    const int64_t i = (static_cast<unsigned>(item) % packs) * N,
                  begin = token * width + static_cast<int64_t>(head) * head_width;
    float a[N];
    if (i >= pairs) {
      load_pack(a, x + begin, i + pairs, head_width, kVector);
      write_pack(y + begin, i + pairs, head_width, kVector, a, accumulate);
      return;
    }
    const int64_t position = by_token ? token : Split(token, length).remainder - doc_start[token] - first;
    const float* const entry = table + 2 * pairs * position;
    float b[N], c[N], s[N];
    load_pack(a, x + begin, i, pairs, kVector);
    load_pack(b, x + begin + pairs, i, pairs, kVector);
    load_pack(c, entry, i, pairs, kVector);
    load_pack(s, entry + pairs, i, pairs, kVector);
    float first_half[N], second_half[N];
    HEBB_UNROLL
    for (int j = 0; j < N; ++j) {
      first_half[j] = a[j] * c[j] - b[j] * sign * s[j];
      second_half[j] = b[j] * c[j] + a[j] * sign * s[j];
    }
    write_pack(y + begin, i, pairs, kVector, first_half, accumulate);
    write_pack(y + begin + pairs, i, pairs, kVector, second_half, accumulate);
  }
};

}  // namespace

void run(Stream& stream, const RopeTable& a) {
  FillTable fill{.table = a.table.as<float>(),
                 .doc_start = a.doc_start.as<int32_t>(),
                 .first = a.first,
                 .length = a.doc_start.defined() ? a.doc_start.size(1) : 1,
                 .pairs = a.table.size(2),
                 .from = 0,
                 .factor = a.spec.yarn ? a.spec.attention_factor : 1.0,
                 .frequency = {}};
  for (; fill.from < fill.pairs; fill.from += kPairs) {
    const int64_t count = std::min<int64_t>(kPairs, fill.pairs - fill.from);
    for (int64_t i = 0; i < count; ++i) { fill.frequency[i] = a.spec.frequency(fill.from + i); }
    each_element("rope_table", stream, a.table.size(0), count, fill);
  }
}

void run(Stream& stream, const Rope& a) {
  const int64_t heads = a.x.size(2), head_width = a.x.size(3), pairs = a.table.size(2);
  dispatch_float(a.x.dtype, [&]<class T>(T) {
    // One width for both kinds of parts of a head: its pairs and what is behind them.
    dispatch_pack<T>(pairs % kPack<T> == 0 ? head_width : 1, {a.y.data, a.x.data, a.table.data}, [&](auto pack) {
      each_element("rope", stream, a.x.size(0) * a.x.size(1), heads * (head_width - pairs) / pack(),
                   Rotate<T, pack()>{.y = a.y.as<T>(),
                                     .x = a.x.as<T>(),
                                     .table = a.table.as<float>(),
                                     .doc_start = a.doc_start.as<int32_t>(),
                                     .length = a.x.size(1),
                                     .first = a.first,
                                     .width = heads * head_width,
                                     .head_width = static_cast<int>(head_width),
                                     .pairs = static_cast<int>(pairs),
                                     .sign = a.inverse ? -1.0f : 1.0f,
                                     .by_token = a.by_token,
                                     .accumulate = a.accumulate});
    });
  });
}

}  // namespace hebb::HEBB_DEVICE
