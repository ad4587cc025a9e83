#include "kernels/cuda/common/attention_mma.h"
#include "kernels/cuda/common/ovq_fold.h"

// Own chunks first, by the attention kernels with the log-sum-exp of everything read. Then the chunks are folded in again, each row's
// versions kept, and walked back step by step: take the chunk out, handing the rows' gradients to its tokens, then the gradients of its
// readout (common/row_attention.h). Four launches a step, of B K L warps and of the readout's blocks.
// FLOPs: 3.5 times the readout. Bound: fp32 multiply-adds for long chunks and many rows, in bf16 on tensor cores the rows' gradients in
// memory (8 (D + Dv) bytes a row and step); else the latency of the launches.
namespace hebb::HEBB_DEVICE {
namespace {

using namespace ovq;

/// Takes the step's chunk out again.
struct Undo : Walk {
  float *d_book_keys, *d_book_values;
  Elements d_k, d_v;

  __device__ void operator()(int64_t item, int lane) const {
    Change c;
    if (!find(c, item, true, lane)) {
      return;
    }
    const int64_t slot = c.unit * n.length + c.step.fold + c.first, row = c.row;
    const float* const norms = versions.inverse_norms + 2 * slot;
    share(d_book_keys + row * n.d, book.keys + row * n.d, rule.normalize_keys, norms[0], d_k, c, n.d, lane);
    share(d_book_values + row * n.dv, book.values + row * n.dv, rule.normalize_values, norms[1], d_v, c, n.dv, lane);
    const int64_t old = versions.previous[slot], from = c.unit * n.length + old;
    if (lane == 0) {
      versions.latest[row] = static_cast<int32_t>(old);
    }
    if (old < 0) {
      return;  // the row goes
    }
    for (int64_t i = lane; i < n.d; i += 32) {
      book.keys[row * n.d + i] = versions.keys[from * n.d + i];
    }
    for (int64_t i = lane; i < n.dv; i += 32) {
      book.values[row * n.dv + i] = versions.values[from * n.dv + i];
    }
    book.copy_row(row, n.d, n.dv, lane);
    if (lane == 0) {
      book.counts[row] = versions.counts[from];
      book.log_counts[row] = logf(static_cast<float>(versions.counts[from]));
    }
  }

 private:
  /// d_row of the updated `row` to the keys that entered it; leaves the gradient of the row before them.
  __device__ void share(float* d_row, const float* row, bool normalized, float inverse, const Elements& d_items, const Change& change, int64_t width,
                        int lane) const {
    float along = 0;
    if (normalized) {
      for (int64_t c = lane; c < width; c += 32) {
        along += row[c] * d_row[c];
      }
      along = warp_sum(along);
    }
    const int64_t first = (change.unit / n.kv_heads * n.length + change.step.fold) * n.kv_heads + change.unit % n.kv_heads;
    const float w = step_size_of(change), part = w / static_cast<float>(change.hits);
    for (int64_t base = 0; base < width; base += 32) {
      const int64_t c = base + lane;
      const bool exists = c < width;
      float d = exists ? d_row[c] : 0.0f;
      d = normalized && exists ? inverse * (d - row[c] * along) : d;
      change.each_key(rule.chunk, lane, [&](int64_t i) {
        if (exists) {
          const int64_t at = (first + i * n.kv_heads) * width + c;
          d_items.set(at, d_items[at] + part * d);
        }
      });
      if (exists) {
        d_row[c] = (1.0f - w) * d;
      }
    }
  }
};

void attend_own(Stream& stream, const OvqBackward& a, int32_t* lo, int32_t* hi, const Tensor& statistics) {
  const Shape tokens{a.q.size(0), a.q.size(1)};
  const Tensor first{lo, DType::i32, tokens}, last{hi, DType::i32, tokens};
  HEBB_DEVICE::run(stream, VisibleKeys{first, last, a.doc_start, Sight{.window = 0, .block = a.rule.chunk, .blocks = 1}, 0});
  HEBB_DEVICE::run(stream, AttentionBackward{.d_q = a.d_q, .d_k = a.d_k, .d_v = a.d_v, .d_bias = {}, .d_o = a.d_o, .q = a.q, .k = a.k,
                                             .v = a.v, .o = a.o, .lse = a.lse, .lo = first, .hi = last, .bias = {}, .scale = 1.0,
                                             .accumulate_q = a.accumulate_q, .accumulate_k = a.accumulate_k,
                                             .accumulate_v = a.accumulate_v, .accumulate_bias = false, .statistics = statistics,
                                             .has_other_keys = true});
}

template <class T>
void backward(Stream& stream, const OvqBackward& a) {
  const int64_t batch = a.q.size(0), length = a.q.size(1), units = batch * a.k.size(2), chunk = a.rule.chunk;
  const int64_t count = rows::steps_of(length, chunk), d = a.q.size(3), dv = a.v.size(3);
  WorkParts work(a.work);
  auto *const lo = work.take<int32_t>(batch * length), *const hi = work.take<int32_t>(batch * length);
  auto* const steps = work.take<Step>(batch * count);
  auto* const versions = a.versions.as<float>();
  const Versions kept{versions, versions + units * length * d, a.inverse_norms.as<float>(), a.previous.as<int32_t>(),
                      a.latest.as<int32_t>(), work.take<int32_t>(units * length)};
  const int64_t statistics = attention_statistics(a.q.dtype, a.q.shape, a.v.shape);
  const Tensor of_queries{work.take<float>(statistics), DType::f32, {statistics}};
  attend_own(stream, a, lo, hi, of_queries);
  each_warp("ovq_steps", stream, batch * count, MakeSteps{steps, a.doc_start.as<int32_t>(), a.rule, length, count});
  rows::fill(stream, kept.latest, a.latest.numel(), -1);
  auto *const d_keys = a.d_dictionary.keys.as<float>(), *const d_values = a.d_dictionary.values.as<float>();
  rows::fill(stream, d_keys, a.d_dictionary.keys.numel(), 0.0f);
  rows::fill(stream, d_values, a.d_dictionary.values.numel(), 0.0f);
  const Layout n = rows::layout_of(a, steps, count);
  const Book book(a.dictionary);
  Walk walk{n, a.rule, book, {a.ids.as<int32_t>(), true}, kept, 0};
  for (walk.step = 0; walk.step < count; ++walk.step) {
    each_warp("ovq_fold", stream, units * chunk,
              Fold{walk, {Elements(a.k), d, false}, {Elements(a.v), dv, false}});
  }
  const rows::Rows<T> dictionary = rows_of<T>(a.dictionary);
  const bool on_tensor_cores = attention_mma::takes(a.q, a.v, 1.0, a.q.data, a.k.data, a.v.data, a.o.data, a.d_o.data, a.d_q.data, a.d_k.data,
                                                    a.d_v.data, dictionary.keys, dictionary.values);
  rows::Backward<T> read{.n = n, .rows = dictionary, .q = a.q.as<T>(), .d_o = a.d_o.as<T>(), .o = a.o.as<T>(), .lse = a.lse.as<float>(),
                         .row_temp = nullptr, .d_q = a.d_q.as<T>(), .d_keys = d_keys, .d_values = d_values, .temp_sums = nullptr,
                         .queries = a.lse.numel(), .scale = 1.0f, .step = 0};
  if (on_tensor_cores) {
    read.statistics = of_queries.as<float>();
    read.parts = rows::parts_of(n, batch, book.room, work.take<float>(dictionary_parts_work(a.q.shape, a.v.shape, chunk, book.room, a.q.dtype)), true);
  }
  for (walk.step = count - 1; walk.step >= 0; --walk.step) {
    each_warp("ovq_undo", stream, units * chunk,
              Undo{walk, d_keys, d_values, Elements(a.d_k), Elements(a.d_v)});
    read.step = walk.step;
    rows::read_rows_backward(stream, batch, read);
  }
}

}  // namespace

void run(Stream& stream, const OvqBackward& a) {
  if (a.q.numel() > 0) {
    dispatch_float(a.q.dtype, [&](auto zero) { backward<decltype(zero)>(stream, a); });
  }
}

}  // namespace hebb::HEBB_DEVICE
