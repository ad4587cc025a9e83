#include "kernels/attention/scratch.h"
#include "kernels/dictionary/slot_attention.cuh"
#include "kernels/vq/scratch.h"

// The linear form. Each row is cut into chunks of tokens wherever its documents begin: any cut gives the same sums. Own
// chunks of quantized keys first, by the attention kernels; then chunk by chunk, a document that goes on reads the
// counts and means of its earlier chunks, and the chunk joins them. Two launches a chunk: the readout's blocks
// (dictionary/slot_attention.cuh) and a warp a codeword. FLOPs a token: 2 H (D + Dv)(N + chunk / 2). Bound: fp32
// multiply-adds, or the latency of the launches where B K is small.
namespace hebb::HEBB_DEVICE {
namespace {

using slots::kNone, slots::ReadLayout, slots::Step;

/// The document that a chunk begins with reads, if it began earlier; the one that it ends with is kept.
struct MakeSteps {
  Step* steps;
  const int32_t* doc_start;
  int64_t length, chunk, count;
  int32_t points;

  __device__ void operator()(int64_t row, int64_t s) const {
    const int64_t t = s * chunk;
    const bool goes_on = doc_start[row * length + t] < t;
    steps[row * count + s] = {goes_on ? static_cast<int32_t>(t) : kNone, points, static_cast<int32_t>(t), points,
                              points};
  }
};

/// First key that a token sees of its chunk, and the end.
struct Intervals {
  int32_t *lo, *hi;
  const int32_t* doc_start;
  int64_t length, chunk;

  __device__ void operator()(int64_t row, int64_t t) const {
    const int64_t at = row * length + t, begin = doc_start[at], first = t - t % chunk;
    lo[at] = static_cast<int32_t>(begin > first ? begin : first);
    hi[at] = static_cast<int32_t>(t + 1);
  }
};

/// Adds the chunk's last document to counts and means. A warp has one codeword of one unit.
struct Join {
  ReadLayout n;
  int32_t* counts;
  float *log_counts, *means;
  const float* v;
  const int32_t* ids;
  int64_t points, step;

  __device__ void operator()(int64_t item, int lane) const {
    const int64_t unit = item / points, row = unit / n.kv_heads, head = unit % n.kv_heads, first = step * n.chunk;
    const int64_t end = first + n.chunk < n.length ? first + n.chunk : n.length,
                  begin = n.doc_start[row * n.length + end - 1];
    const int64_t from = begin > first ? begin : first;
    const bool starts = begin >= first;
    const int32_t* const chunk_ids = ids + unit * n.length + from;
    const auto id = static_cast<int32_t>(item % points);
    const int32_t before = starts ? 0 : counts[item];
    int32_t count = before;
    for (int64_t base = 0; base < n.dv; base += 32) {
      const int64_t c = base + lane;
      const bool exists = c < n.dv;
      float mean = exists && !starts ? means[item * n.dv + c] : 0.0f;
      count = before;
      slots::each_member(chunk_ids, end - from, 0, id, lane, [&](int64_t i) {
        ++count;
        const float value = exists ? v[((row * n.length + from + i) * n.kv_heads + head) * n.dv + c] : 0.0f;
        mean += (value - mean) / static_cast<float>(count);
      });
      if (exists && (starts || count > before)) { means[item * n.dv + c] = mean; }
    }
    __syncwarp();  // every lane has read the count
    if (lane == 0 && (starts || count > before)) {
      counts[item] = count;
      log_counts[item] = count > 0 ? logf(static_cast<float>(count)) : -INFINITY;
    }
  }
};

void read(Stream& stream, const VqRead& a, const VqReadScratch& scratch) {
  const int64_t batch = a.q.size(0), length = a.q.size(1), kv_heads = a.v.size(2);
  const int64_t points = a.points.size(1), count = scratch.steps.size(1);
  auto* const steps = slots::items_of<Step>(scratch.steps);
  const auto* const doc_start = a.doc_start.as<int32_t>();
  HEBB_DEVICE::run(stream, VqGather{scratch.keys, a.points, a.ids});
  each_element("vq_intervals", stream, batch, length,
               Intervals{scratch.lo.as<int32_t>(), scratch.hi.as<int32_t>(), doc_start, length, a.chunk});
  HEBB_DEVICE::run(stream,
                   AttentionForward{.o = a.o,
                                    .lse = scratch.own_lse,
                                    .q = a.q,
                                    .k = scratch.keys,
                                    .v = a.v,
                                    .lo = scratch.lo,
                                    .hi = scratch.hi,
                                    .bias = {},
                                    .scale = 1.0},
                   AttentionForwardScratch{});
  each_element("vq_steps", stream, batch, count,
               MakeSteps{steps, doc_start, length, a.chunk, count, static_cast<int32_t>(points)});
  const ReadLayout n = slots::layout_of(a, a.chunk, steps, count);
  auto *const means = a.dictionary.means.as<float>(), *const log_counts = a.dictionary.log_counts.as<float>();
  slots::SlotRead<float> read{.n = n,
                              .slots = {a.points.as<float>(), means, log_counts, points, true},
                              .q = a.q.as<float>(),
                              .o = a.o.as<float>(),
                              .lse = nullptr,
                              .own_lse = scratch.own_lse.as<float>(),
                              .scale = 1.0f,
                              .parts = slots::parts_of(n, batch, 1, scratch.parts)};
  for (int64_t step = 0; step < count; ++step) {
    read.steps.first = step;
    slots::read_slots(stream, batch, read);
    each_warp("vq_join", stream, batch * kv_heads * points,
              Join{n, a.dictionary.counts.as<int32_t>(), log_counts, means, a.v.as<float>(), a.ids.as<int32_t>(),
                   points, step});
  }
}

}  // namespace

void run(Stream& stream, const VqRead& a, const VqReadScratch& scratch) {
  if (a.q.numel() > 0) { read(stream, a, scratch); }
}

}  // namespace hebb::HEBB_DEVICE
