#include "kernels/dictionary/read.h"
#include "kernels/dictionary/unit.h"
#include "kernels/ovq/dictionary.h"
#include "kernels/ovq/scratch.h"

namespace hebb {

namespace {

OvqForwardScratch plan_gpu(Workspace& workspace, const OvqForward& args) {
  const OvqDictionary& dictionary = args.dictionary;
  const int64_t batch = args.q.size(0), length = args.q.size(1), heads = args.q.size(2), kv_heads = args.k.size(2),
                d = args.q.size(3), dv = args.v.size(3), chunk = args.rule.chunk, room = dictionary.keys.size(2);
  const Cores cores = attention_cores(
      args.q, args.v, 1.0,
      {args.q, args.k, args.v, args.o, args.pending_k, args.pending_v, dictionary.key_copies, dictionary.value_copies});
  OvqForwardScratch scratch;
  scratch.on_tensor_cores = takes_tensor_cores(workspace.stream(), "ovq", cores);
  const int64_t group = scratch.on_tensor_cores ? dictionary_group(length, chunk) : 1, folders = ovq_folders(chunk),
                tiles = (room + kDictionaryTile - 1) / kDictionaryTile;
  const auto take = [&](Shape shape, DType dtype) { return workspace.tensor(shape, dtype, "dictionary scratch"); };
  scratch.lo = take({batch, length}, DType::i32);
  scratch.hi = take({batch, length}, DType::i32);
  scratch.own_lse = take({batch, length, heads}, DType::f32);
  scratch.steps = take({batch, dictionary_steps(length, chunk), kStepWords}, DType::i32);
  scratch.partial = take({batch, kv_heads, tiles, chunk, kScoreWords}, DType::f32);
  scratch.order = take({batch, kv_heads, folders, chunk, 2}, DType::i32);
  scratch.ids = take({batch, kv_heads, folders, chunk}, DType::i32);
  scratch.founds = take({batch, kv_heads, folders, (chunk + 31) / 32}, DType::i32);
  scratch.stream_keys = take({kv_heads, 2}, DType::i32);
  scratch.parts =
      plan_dictionary_parts(workspace, args.q.shape, args.v.shape, chunk, group, room, scratch.on_tensor_cores);
  if (group > 1) {
    scratch.table = take({batch, kv_heads, group, room}, DType::i32);
    scratch.key_copies = take({batch, kv_heads, group * chunk, d}, DType::bf16);
    scratch.value_copies = take({batch, kv_heads, group * chunk, dv}, DType::bf16);
    scratch.log_counts = take({batch, kv_heads, group * chunk}, DType::f32);
  }
  return scratch;
}

}  // namespace

OvqForwardScratch plan(Workspace& workspace, const OvqForward& args) {
  if (workspace.on_gpu()) { return plan_gpu(workspace, args); }
  OvqForwardScratch scratch;
  scratch.logits =
      workspace.tensor({args.k.size(0), args.k.size(2), kOvqTile, args.dictionary.keys.size(2) + args.rule.chunk},
                       sum_dtype(args.q.dtype), "probabilities");
  return scratch;
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
