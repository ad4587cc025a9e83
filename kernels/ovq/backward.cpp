#include <algorithm>

#include "kernels/dictionary/unit.h"
#include "kernels/gemm/gemm_cpu.h"
#include "kernels/ovq/dictionary.h"
#include "kernels/ovq/scratch.h"

namespace hebb {

namespace {

void plan_gpu(OvqBackwardScratch& scratch, Workspace& workspace, const OvqBackward& args) {
  const int64_t batch = args.q.size(0), length = args.q.size(1), kv_heads = args.k.size(2), chunk = args.rule.chunk,
                group = dictionary_group(length, chunk);
  const Cores cores =
      attention_cores(args.q, args.v, 1.0, {args.q, args.k, args.v, args.o, args.d_o, args.d_q, args.d_k, args.d_v});
  scratch.on_tensor_cores = takes_tensor_cores(workspace.stream(), "ovq", cores);
  const auto take = [&](Shape shape, DType dtype) { return workspace.tensor(shape, dtype, "dictionary scratch"); };
  scratch.lo = take({batch, length}, DType::i32);
  scratch.hi = take({batch, length}, DType::i32);
  scratch.steps = take({batch, dictionary_steps(length, chunk), kStepWords}, DType::i32);
  scratch.table = take({batch, kv_heads, group, args.room}, DType::i32);
  scratch.counts = take({batch, kv_heads, length}, DType::i32);
  if (scratch.on_tensor_cores) {
    scratch.statistics = take({attention_statistics(args.q.shape, true)}, DType::f32);
    scratch.key_copies = take({batch, kv_heads, length, args.q.size(3)}, DType::bf16);
    scratch.value_copies = take({batch, kv_heads, length, args.v.size(3)}, DType::bf16);
    scratch.log_counts = take({batch, kv_heads, length}, DType::f32);
    scratch.parts = plan_dictionary_parts(workspace, args.q.shape, args.v.shape, chunk, group, args.room, true);
  }
}

}  // namespace

OvqBackwardScratch plan(Workspace& workspace, const OvqBackward& args) {
  const Shape &k = args.k.shape, &v = args.v.shape;
  const DType dtype = args.q.dtype, sums = sum_dtype(dtype);
  const int64_t room = args.room;
  const auto per_unit = [&](int64_t count, int64_t width, DType type, const char* name) {
    return workspace.tensor({k[0], k[2], count, width}, type, name);
  };
  const auto flat = [&](int64_t count, DType type, const char* name) {
    return workspace.tensor({k[0], k[2], count}, type, name);
  };
  OvqBackwardScratch scratch;
  scratch.dictionary = {.keys = per_unit(room, k[3], sums, "centroid keys"),
                        .values = per_unit(room, v[3], sums, "centroid values"),
                        .log_counts = flat(room, sums, "log counts"),
                        .counts = flat(room, DType::i32, "counts")};
  if (dtype == DType::bf16) {
    scratch.dictionary.key_copies = per_unit(room, k[3], dtype, "copies of centroids");
    scratch.dictionary.value_copies = per_unit(room, v[3], dtype, "copies of centroids");
  }
  scratch.d_dictionary.keys = per_unit(room, k[3], sums, "centroid gradients");
  scratch.d_dictionary.values = per_unit(room, v[3], sums, "centroid gradients");
  scratch.versions = per_unit(k[1], k[3] + v[3], sums, "centroid versions");
  scratch.inverse_norms = per_unit(k[1], 2, sums, "centroid norms");
  if (workspace.on_gpu()) {
    plan_gpu(scratch, workspace, args);
  } else {
    scratch.previous = flat(k[1], DType::i32, "earlier versions");
    scratch.latest = flat(room, DType::i32, "latest versions");
    scratch.probabilities = workspace.tensor({k[0], k[2], 2, kOvqTile, room + args.rule.chunk}, sums, "probabilities");
  }
  return scratch;
}
HEBB_KERNEL_PLANNED(OvqBackward)

namespace cpu {
namespace {

template <class S> class OvqBackwardUnit : DictionaryUnit {
 public:
  OvqBackwardUnit(const OvqBackward& a, const OvqBackwardScratch& scratch, int64_t unit)
      : DictionaryUnit(a, a.rule.chunk, unit),
        a_(a),
        dictionary_(ovq_head_dictionary<S>(scratch.dictionary, unit)),
        d_dictionary_(ovq_head_dictionary<S>(scratch.d_dictionary, unit)),
        versions_(scratch.versions.as<S>() + unit * length_ * (d_ + dv_)),
        inverse_norms_(scratch.inverse_norms.as<S>() + unit * length_ * 2),
        previous_(scratch.previous.as<int32_t>() + unit * length_),
        latest_(scratch.latest.as<int32_t>() + unit * scratch.latest.size(2)),
        ids_(a.ids.as<int32_t>() + unit * length_),
        stride_(scratch.probabilities.size(4)),
        p_(scratch.probabilities.as<S>() + unit * 2 * kOvqTile * stride_),
        ds_(p_ + kOvqTile * stride_) {}

  void run() {
    clear<S>(a_.d_k, d_, a_.accumulate_k);
    clear<S>(a_.d_v, dv_, a_.accumulate_v);
    each_document([&](int64_t t, int64_t end) { document(t, end); });
  }

 private:
  OvqRows<S> keys(int64_t t) const { return {a_.k.as<S>() + kv_item(t) * d_, kv_heads_ * d_, d_}; }
  OvqRows<S> values(int64_t t) const { return {a_.v.as<S>() + kv_item(t) * dv_, kv_heads_ * dv_, dv_}; }

  void document(int64_t begin, int64_t end) {
    dictionary_.n = 0;
    const int64_t folded = (end - begin) / chunk_ * chunk_;
    for (int64_t t = begin; t < begin + folded; t += chunk_) { fold(t, a_.rule.size(t + chunk_ - begin)); }
    std::fill_n(d_dictionary_.keys, dictionary_.n * d_, S(0));
    std::fill_n(d_dictionary_.values, dictionary_.n * dv_, S(0));
    if (begin + folded < end) { read(begin + folded, end - begin - folded); }
    for (int64_t t = begin + folded - chunk_; t >= begin; t -= chunk_) {
      undo(t, a_.rule.size(t - begin));
      read(t, chunk_);
    }
  }

  /// Folds the chunk at t in again and keeps the versions that it makes.
  void fold(int64_t t, int64_t size) {
    const int64_t before = dictionary_.n;
    ovq_fold(a_.rule, dictionary_, keys(t), values(t), ids_ + t, size, work_,
             [&](int64_t r, int64_t first, S key_scale, S value_scale) {
               const int64_t version = t + first;
               std::copy_n(dictionary_.key(r), d_, versions_ + version * (d_ + dv_));
               std::copy_n(dictionary_.value(r), dv_, versions_ + version * (d_ + dv_) + d_);
               inverse_norms_[2 * version] = key_scale;
               inverse_norms_[2 * version + 1] = value_scale;
               previous_[version] = r < before ? latest_[r] : -1;
               latest_[r] = static_cast<int32_t>(version);
             });
  }

  /// Takes the chunk at t out again, which leaves n centroids, and hands the slots' gradients to its keys and values.
  void undo(int64_t t, int64_t n) {
    ovq_groups(chunk_, ids_ + t, work_, [&](int64_t r, const int32_t* members, int64_t hits) {
      const bool fresh = r >= n;
      const int64_t version = t + members[0], before = dictionary_.counts[r] - hits;
      const S w = ovq_rate<S>(a_.rule, fresh, before, hits);
      share(d_dictionary_.key(r), dictionary_.key(r), a_.rule.normalize_keys, inverse_norms_[2 * version], w, a_.d_k, t,
            members, hits, d_);
      share(d_dictionary_.value(r), dictionary_.value(r), a_.rule.normalize_values, inverse_norms_[2 * version + 1], w,
            a_.d_v, t, members, hits, dv_);
      if (!fresh) {
        const S* old = versions_ + previous_[version] * (d_ + dv_);
        std::copy_n(old, d_, dictionary_.key(r));
        std::copy_n(old + d_, dv_, dictionary_.value(r));
        latest_[r] = previous_[version];
        dictionary_.set_count(r, before);
      }
    });
    dictionary_.n = n;
  }

  /// d_slot of the updated `slot` to the members of its update; leaves the gradient of the slot before it.
  void share(S* d_slot, const S* slot, bool normalized, S inverse, S w, const Tensor& d_items, int64_t t,
             const int32_t* members, int64_t hits, int64_t width) const {
    if (normalized) {
      const S along = dot(width, slot, d_slot);
      for (int64_t c = 0; c < width; ++c) { d_slot[c] = inverse * (d_slot[c] - slot[c] * along); }
    }
    const S part = w / static_cast<S>(hits);
    for (int64_t i = 0; i < hits; ++i) {
      S* d = d_items.as<S>() + kv_item(t + members[i]) * width;
      for (int64_t c = 0; c < width; ++c) { d[c] += part * d_slot[c]; }
    }
    for (int64_t c = 0; c < width; ++c) { d_slot[c] *= S(1) - w; }
  }

  /// Backward of the readout of `length` tokens of the chunk that begins at t.
  void read(int64_t t, int64_t length) {
    const int64_t group = heads_ / kv_heads_;
    for (int64_t at = 0; at < length; at += kOvqTile) {
      for (int64_t h = kv_head_ * group; h < (kv_head_ + 1) * group; ++h) {
        tile(t, at, std::min(kOvqTile, length - at), h);
      }
    }
  }

  void tile(int64_t t, int64_t at, int64_t count, int64_t h) {
    const int64_t n = dictionary_.n, own = at + count, item = (row_ * length_ + t + at) * heads_ + h;
    const int64_t q_stride = heads_ * d_, o_stride = heads_ * dv_;
    const OvqRows<S> k = keys(t), v = values(t);
    const S *q = a_.q.as<S>() + item * d_, *d_o = a_.d_o.as<S>() + item * dv_;
    if (n > 0) {
      gemm_serial<S>(false, true, count, n, d_, S(1), q, q_stride, dictionary_.keys, d_, false, p_, stride_);
      gemm_serial<S>(false, true, count, n, dv_, S(1), d_o, o_stride, dictionary_.values, dv_, false, ds_, stride_);
    }
    gemm_serial<S>(false, true, count, own, d_, S(1), q, q_stride, k.data, k.stride, false, p_ + n, stride_);
    gemm_serial<S>(false, true, count, own, dv_, S(1), d_o, o_stride, v.data, v.stride, false, ds_ + n, stride_);
    for (int64_t i = 0; i < count; ++i) { softmax(i, n, at + i + 1, own, item + i * heads_); }
    S *d_q = a_.d_q.as<S>() + item * d_, *d_k = a_.d_k.as<S>() + kv_item(t) * d_,
      *d_v = a_.d_v.as<S>() + kv_item(t) * dv_;
    gemm_serial<S>(false, false, count, d_, own, S(1), ds_ + n, stride_, k.data, k.stride, a_.accumulate_q, d_q,
                   q_stride);
    gemm_serial<S>(true, false, own, d_, count, S(1), ds_ + n, stride_, q, q_stride, true, d_k, k.stride);
    gemm_serial<S>(true, false, own, dv_, count, S(1), p_ + n, stride_, d_o, o_stride, true, d_v, v.stride);
    if (n > 0) {
      gemm_serial<S>(false, false, count, d_, n, S(1), ds_, stride_, dictionary_.keys, d_, true, d_q, q_stride);
      gemm_serial<S>(true, false, n, d_, count, S(1), ds_, stride_, q, q_stride, true, d_dictionary_.keys, d_);
      gemm_serial<S>(true, false, n, dv_, count, S(1), p_, stride_, d_o, o_stride, true, d_dictionary_.values, dv_);
    }
  }

  /// Row i of the tile: logits to probabilities, their gradients to the logits' gradients.
  void softmax(int64_t i, int64_t n, int64_t visible, int64_t own, int64_t item) {
    S *p = p_ + i * stride_, *ds = ds_ + i * stride_;
    const S lse = a_.lse.as<S>()[item];
    const S mean = dot(dv_, a_.d_o.as<S>() + item * dv_, a_.o.as<S>() + item * dv_);
    for (int64_t r = 0; r < n; ++r) { p[r] += dictionary_.log_counts[r]; }
    for (int64_t r = 0; r < n + visible; ++r) {
      p[r] = exp_(p[r] - lse);
      ds[r] = p[r] * (ds[r] - mean);
    }
    std::fill(p + n + visible, p + n + own, S(0));
    std::fill(ds + n + visible, ds + n + own, S(0));
  }

  const OvqBackward& a_;
  OvqHeadDictionary<S> dictionary_, d_dictionary_;
  S *versions_, *inverse_norms_;
  int32_t *previous_, *latest_;
  const int32_t* ids_;
  int64_t stride_;
  S *p_, *ds_;
  OvqWork<S> work_;
};

}  // namespace

void run(Stream&, const OvqBackward& args, const OvqBackwardScratch& scratch) {
  dispatch_real(args.q.dtype, [&]<class S>(S) { run_units<OvqBackwardUnit<S>>(args, scratch); });
}

}  // namespace cpu
}  // namespace hebb
