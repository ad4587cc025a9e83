#include <limits>

#include "core/parallel.h"
#include "kernels/dictionary/read.h"
#include "kernels/vq/scratch.h"

namespace hebb {

VqReadScratch plan(Workspace& workspace, const VqRead& args) {
  const Shape &q = args.q.shape, &v = args.v.shape;
  const int64_t points = args.points.size(1);
  VqReadScratch scratch;
  if (workspace.on_gpu()) {
    scratch.work = workspace.tensor({vq_read_work(q, v, args.chunk, points)}, DType::f32, "quantized keys");
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
template <class S> class Reader {
 public:
  Reader(const VqRead& a, const VqReadScratch& scratch, int64_t unit)
      : a_(a),
        length_(a.q.size(1)),
        heads_(a.q.size(2)),
        kv_heads_(a.v.size(2)),
        d_(a.q.size(3)),
        dv_(a.v.size(3)),
        n_(a.points.size(1)),
        row_(unit / kv_heads_),
        kv_head_(unit % kv_heads_),
        points_(a.points.as<S>() + kv_head_ * n_ * d_),
        ids_(a.ids.as<int32_t>() + unit * length_),
        counts_(a.dictionary.counts.as<int32_t>() + unit * n_),
        log_counts_(a.dictionary.log_counts.as<S>() + unit * n_),
        means_(a.dictionary.means.as<S>() + unit * n_ * dv_),
        own_(scratch.own.as<S>() + unit * a.chunk * d_),
        stride_(scratch.logits.size(3)),
        logits_(scratch.logits.as<S>() + unit * kVqTile * stride_) {}

  void run() {
    const int32_t* start = a_.doc_start.as<int32_t>() + row_ * length_;
    is_filled_ = start[0] < 0;
    for (int64_t t = 0; t < length_;) {
      const int64_t begin = start[t];
      int64_t end = t;
      while (end < length_ && start[end] == begin) { ++end; }
      if (begin == t) { clear(); }
      while (t < end) {
        const int64_t count = std::min(a_.chunk, end - t);
        read_chunk(t, count);
        t += count;
      }
    }
  }

 private:
  const S* value(int64_t t) const { return a_.v.as<S>() + ((row_ * length_ + t) * kv_heads_ + kv_head_) * dv_; }

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
  int64_t length_, heads_, kv_heads_, d_, dv_, n_, row_, kv_head_;
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
  dispatch_real(args.q.dtype, [&]<class S>(S) {
    parallel_each(args.v.size(0) * args.v.size(2), 1, [&](int64_t unit) { Reader<S>(args, scratch, unit).run(); });
  });
}

}  // namespace cpu
}  // namespace hebb
