#include "kernels/dictionary/read.h"
#include "kernels/dictionary/unit.h"
#include "kernels/ovq/dictionary.h"
#include "kernels/ovq/scratch.h"

namespace hebb {

OvqForwardScratch plan(Workspace& workspace, const OvqForward& args) {
  const int64_t room = args.dictionary.keys.size(2);
  if (workspace.on_gpu()) {
    const OvqDictionary& dictionary = args.dictionary;
    const Cores cores = attention_cores(args.q, args.v, 1.0,
                                        {args.q, args.k, args.v, args.o, args.pending_k, args.pending_v,
                                         dictionary.key_copies, dictionary.value_copies});
    const bool on_tensor_cores = takes_tensor_cores(workspace.stream(), "ovq", cores);
    const int64_t work = ovq_forward_work(args.q.shape, args.v.shape, args.rule, room, on_tensor_cores);
    return {.logits = {},
            .work = workspace.tensor({work}, DType::f32, "dictionary scratch"),
            .on_tensor_cores = on_tensor_cores};
  }
  return {.logits = workspace.tensor({args.k.size(0), args.k.size(2), kOvqTile, room + args.rule.chunk},
                                     sum_dtype(args.q.dtype), "probabilities"),
          .work = {}};
}
HEBB_KERNEL_PLANNED(OvqForward)

namespace cpu {
namespace {

template <class S> class OvqForwardUnit : DictionaryUnit {
 public:
  OvqForwardUnit(const OvqForward& a, const OvqForwardScratch& scratch, int64_t unit)
      : DictionaryUnit(a, a.rule.chunk, unit),
        a_(a),
        dictionary_(ovq_head_dictionary<S>(a.dictionary, unit)),
        pending_k_(a.pending_k.as<S>() + unit * chunk_ * d_),
        pending_v_(a.pending_v.as<S>() + unit * chunk_ * dv_),
        logits_stride_(scratch.logits.size(3)),
        logits_(scratch.logits.as<S>() + unit * kOvqTile * logits_stride_),
        ids_(a.ids.defined() ? a.ids.as<int32_t>() + unit * length_ : nullptr) {}

  void run() {
    if (ids_ != nullptr && !a_.forced) { std::fill(ids_, ids_ + length_, -1); }
    each_document([&](int64_t t, int64_t end) {
      const int64_t begin = doc_start_[t];
      int64_t pending = (t - begin) % chunk_;
      dictionary_.n = a_.rule.size(t - begin - pending);
      while (t < end) {
        const int64_t count = std::min(chunk_ - pending, end - t);
        append(t, pending, count);
        for (int64_t i = 0; i < count; i += kOvqTile) { read(t + i, pending + i, std::min(kOvqTile, count - i)); }
        t += count;
        pending += count;
        if (pending == chunk_) {
          fold(t, t - begin);
          pending = 0;
        }
      }
    });
  }

 private:
  void append(int64_t t, int64_t at, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t token = kv_item(t + i);
      std::copy_n(a_.k.as<S>() + token * d_, d_, pending_k_ + (at + i) * d_);
      std::copy_n(a_.v.as<S>() + token * dv_, dv_, pending_v_ + (at + i) * dv_);
    }
  }

  /// Reads out `count` tokens from t on, the first of which is number `at` of its chunk.
  void read(int64_t t, int64_t at, int64_t count) {
    const int64_t group = heads_ / kv_heads_;
    const ReadSource<S> from{dictionary_.keys,
                             dictionary_.values,
                             dictionary_.log_counts,
                             dictionary_.n,
                             pending_k_,
                             d_,
                             pending_v_,
                             dv_,
                             d_,
                             dv_};
    for (int64_t h = kv_head_ * group; h < (kv_head_ + 1) * group; ++h) {
      const int64_t item = (row_ * length_ + t) * heads_ + h;
      const ReadQueries<S> to{a_.q.as<S>() + item * d_,
                              heads_ * d_,
                              a_.o.as<S>() + item * dv_,
                              heads_ * dv_,
                              a_.lse.defined() ? a_.lse.as<S>() + item : nullptr,
                              heads_,
                              count};
      read_dictionary(from, to, at + 1, logits_, logits_stride_);
    }
  }

  /// Folds the full chunk in that ended before token t, `position` tokens into the document.
  void fold(int64_t t, int64_t position) {
    static thread_local OvqWork<S> work;
    const OvqRows<S> keys{pending_k_, d_, d_}, values{pending_v_, dv_, dv_};
    const int64_t size = a_.rule.size(position);
    const int32_t* ids = nullptr;
    if (a_.forced) {
      ids = ids_ + t - chunk_;
    } else {
      work.ids.resize(static_cast<size_t>(chunk_));
      ovq_assign(a_.rule, dictionary_, keys, size, position - chunk_, kv_head_, work, work.ids.data());
      if (ids_ != nullptr) { std::copy(work.ids.begin(), work.ids.end(), ids_ + t - chunk_); }
      ids = work.ids.data();
    }
    ovq_fold(a_.rule, dictionary_, keys, values, ids, size, work, [](int64_t, int64_t, S, S) {});
  }

  const OvqForward& a_;
  OvqHeadDictionary<S> dictionary_;
  S *pending_k_, *pending_v_;
  int64_t logits_stride_;
  S* logits_;
  int32_t* ids_;
};

}  // namespace

void run(Stream&, const OvqForward& args, const OvqForwardScratch& scratch) {
  dispatch_real(args.q.dtype, [&]<class S>(S) { run_units<OvqForwardUnit<S>>(args, scratch); });
}

}  // namespace cpu
}  // namespace hebb
