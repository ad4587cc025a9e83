#include <limits>

#include "kernels/dictionary/read.h"
#include "kernels/dictionary/unit.h"
#include "kernels/vq/scratch.h"

namespace hebb {

VqReadScratch plan(Workspace& workspace, const VqRead& args) {
  const Shape &q = args.q.shape, &v = args.v.shape;
  const int64_t points = args.points.size(1);
  VqReadScratch scratch;
  if (workspace.on_gpu()) {
    const auto take = [&](Shape shape, DType dtype) { return workspace.tensor(shape, dtype, "dictionary scratch"); };
    scratch.keys = workspace.tensor({q[0], q[1], v[2], q[3]}, DType::f32, "quantized keys");
    scratch.lo = take({q[0], q[1]}, DType::i32);
    scratch.hi = take({q[0], q[1]}, DType::i32);
    scratch.own_lse = take({q[0], q[1], q[2]}, DType::f32);
    scratch.steps = take({q[0], (q[1] + args.chunk - 1) / args.chunk, kStepWords}, DType::i32);
    scratch.parts = plan_dictionary_parts(workspace, q, v, args.chunk, 1, points, false);
  } else {
    scratch.own = workspace.tensor({q[0], v[2], args.chunk, q[3]}, args.q.dtype, "keys of the chunk");
    scratch.logits = workspace.tensor({q[0], v[2], kVqTile, points + args.chunk}, args.q.dtype, "probabilities");
  }
  return scratch;
}
HEBB_KERNEL_PLANNED(VqRead)

namespace cpu {
namespace {

/// The linear form of one row and kv head.
template <class S> class Reader : DictionaryUnit {
 public:
  Reader(const VqRead& a, const VqReadScratch& scratch, int64_t unit)
      : DictionaryUnit(a, a.chunk, unit),
        a_(a),
        n_(a.points.size(1)),

        points_(a.points.as<S>() + kv_head_ * n_ * d_),
        ids_(a.ids.as<int32_t>() + unit * length_),
        counts_(a.dictionary.counts.as<int32_t>() + unit * n_),
        log_counts_(a.dictionary.log_counts.as<S>() + unit * n_),
        means_(a.dictionary.means.as<S>() + unit * n_ * dv_),
        own_(scratch.own.as<S>() + unit * chunk_ * d_),
        stride_(scratch.logits.size(3)),
        logits_(scratch.logits.as<S>() + unit * kVqTile * stride_) {}

  void run() {
    is_filled_ = doc_start_[0] < 0;
    each_document([&](int64_t t, int64_t end) {
      if (doc_start_[t] == t) { clear(); }
      for (; t < end; t += chunk_) { read_chunk(t, std::min(chunk_, end - t)); }
    });
  }

 private:
  const S* value(int64_t t) const { return a_.v.as<S>() + kv_item(t) * dv_; }

  void clear() {
    for (int64_t r = 0; r < n_; ++r) {
      if (!is_filled_ || counts_[r] > 0) {
        counts_[r] = 0;
        log_counts_[r] = -std::numeric_limits<S>::infinity();
        std::fill_n(means_ + r * dv_, dv_, S(0));
      }
    }
    is_filled_ = true;
  }

  void read_chunk(int64_t t, int64_t count) {
    if (count == 1) {
      merge(t, 1);
      read(t, 0, 1);
      return;
    }
    for (int64_t i = 0; i < count; ++i) { std::copy_n(points_ + ids_[t + i] * d_, d_, own_ + i * d_); }
    for (int64_t i = 0; i < count; i += kVqTile) { read(t, i + 1, std::min(kVqTile, count - i)); }
    merge(t, count);
  }

  /// Queries of the chunk that began at token t, of which the first sees `own` own keys: 0 where the dictionary holds
  /// them already.
  void read(int64_t t, int64_t own, int64_t count) {
    const int64_t group = heads_ / kv_heads_, first = row_ * length_ + t + std::max<int64_t>(0, own - 1);
    const ReadSource<S> from{points_, means_, log_counts_, n_, own_, d_, value(t), kv_heads_ * dv_, d_, dv_};
    for (int64_t h = kv_head_ * group; h < (kv_head_ + 1) * group; ++h) {
      const int64_t item = first * heads_ + h;
      const ReadQueries<S> to{
          a_.q.as<S>() + item * d_, heads_ * d_, a_.o.as<S>() + item * dv_, heads_ * dv_, nullptr, 0, count};
      read_dictionary(from, to, own, logits_, stride_);
    }
  }

  void merge(int64_t t, int64_t count) {
    for (int64_t i = t; i < t + count; ++i) {
      const int64_t r = ids_[i];
      const S *v = value(i), rate = S(1) / static_cast<S>(++counts_[r]);
      S* mean = means_ + r * dv_;
      for (int64_t x = 0; x < dv_; ++x) { mean[x] += rate * (v[x] - mean[x]); }
    }
    for (int64_t i = t; i < t + count; ++i) { log_counts_[ids_[i]] = std::log(static_cast<S>(counts_[ids_[i]])); }
  }

  const VqRead& a_;
  int64_t n_;
  const S* points_;
  const int32_t* ids_;
  int32_t* counts_;
  S *log_counts_, *means_, *own_;
  int64_t stride_;
  S* logits_;
  bool is_filled_ = false;  // the dictionary holds counts
};

}  // namespace

void run(Stream&, const VqRead& args, const VqReadScratch& scratch) {
  dispatch_real(args.q.dtype, [&]<class S>(S) { run_units<Reader<S>>(args, scratch); });
}

}  // namespace cpu
}  // namespace hebb
