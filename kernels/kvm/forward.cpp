#include <vector>

#include "kernels/dictionary/unit.h"
#include "kernels/gemm/gemm_cpu.h"
#include "kernels/kvm/scratch.h"
#include "kernels/kvm/slots.h"

namespace hebb {

namespace {

void plan_gpu(KvmForwardScratch& scratch, Workspace& workspace, const KvmForward& args) {
  const KvmRule& rule = args.rule;
  const int64_t batch = args.q.size(0), length = args.q.size(1), heads = args.q.size(2), kv_heads = args.k.size(2),
                d = args.q.size(3), dv = args.v.size(3), room = args.slots.keys.size(2);
  const int64_t group = kvm_group(length, rule, scratch.on_tensor_cores),
                tiles = (room + kDictionaryTile - 1) / kDictionaryTile;
  const auto take = [&](Shape shape, DType dtype) { return workspace.tensor(shape, dtype, "slot scratch"); };
  scratch.lo = take({batch, length}, DType::i32);
  scratch.hi = take({batch, length}, DType::i32);
  scratch.own_lse = take({batch, length, heads}, DType::f32);
  if (args.window_temp.defined()) { scratch.heated = take(args.q.shape, args.q.dtype); }
  scratch.steps = take({batch, dictionary_steps(length, rule.chunk), kStepWords}, DType::i32);
  scratch.partial = take({batch, kv_heads, tiles, rule.chunk, kScoreWords}, DType::f32);
  scratch.scores = take({batch, kv_heads, rule.chunk, kScoreWords}, DType::f32);
  scratch.gates = take({batch, kv_heads, rule.chunk}, DType::f32);
  scratch.codes = take({batch, kv_heads, rule.chunk}, DType::i32);
  scratch.founds = take({batch, kv_heads, rule.chunk}, DType::i32);
  if (args.q.dtype == DType::bf16) { scratch.key_copies = take({batch, kv_heads, rule.chunk, d}, DType::bf16); }
  scratch.parts =
      plan_dictionary_parts(workspace, args.q.shape, args.v.shape, rule.chunk, group, room, scratch.on_tensor_cores);
  if (group > 1) {
    scratch.old_table = take({batch, kv_heads, group, room}, DType::i32);
    scratch.old_keys = take({batch, kv_heads, group * rule.chunk, d}, DType::bf16);
    scratch.old_values = take({batch, kv_heads, group * rule.chunk, dv}, DType::bf16);
  }
}

}  // namespace

KvmForwardScratch plan(Workspace& workspace, const KvmForward& args) {
  const int64_t batch = args.k.size(0), kv_heads = args.k.size(2), room = args.slots.keys.size(2);
  const DType dtype = args.q.dtype;
  KvmForwardScratch scratch;
  const Cores cores = attention_cores(
      args.q, args.v, args.rule.scale,
      {args.q, args.k, args.v, args.o, args.window.k, args.window.v, args.slots.key_hats, args.slots.value_hats});
  scratch.on_tensor_cores = takes_tensor_cores(workspace.stream(), "kvm", cores);
  if (!workspace.on_gpu()) {
    scratch.logits = workspace.tensor({batch, kv_heads, kKvmTile, room + args.rule.window * args.rule.chunk},
                                      sum_dtype(dtype), "probabilities");
  }
  scratch.memory_keys =
      workspace.tensor({batch, kv_heads, args.rule.chunk, args.k.size(3)}, sum_dtype(dtype), "memory keys");
  if (workspace.on_gpu()) { plan_gpu(scratch, workspace, args); }
  return scratch;
}
HEBB_KERNEL_PLANNED(KvmForward)

namespace cpu {
namespace {

/// Memory of one thread, of the size of a chunk.
template <class S> struct KvmChunkMemory {
  std::vector<S> score, top, z;  // largest score over all slots, over slots that take tokens; a key
  std::vector<int32_t> target, order, codes;
};

template <class S> class KvmForwardUnit : DictionaryUnit {
 public:
  KvmForwardUnit(const KvmForward& a, const KvmForwardScratch& scratch, int64_t unit)
      : DictionaryUnit(a, a.rule.chunk, unit),
        a_(a),
        ring_(a.rule.chunk * a.rule.window),
        dictionary_(kvm_head_dictionary<S>(a.slots, unit)),
        norm_{a.norm_weight.as<S>(), a.norm_bias.as<S>(), d_, static_cast<S>(a.rule.eps)},
        ring_k_(a.window.k.as<S>() + unit * ring_ * d_),
        ring_v_(a.window.v.as<S>() + unit * ring_ * dv_),
        ring_gates_(a.window.gates.as<S>() + unit * ring_),
        memory_keys_(scratch.memory_keys.as<S>() + unit * chunk_ * d_),
        stride_(scratch.logits.size(3)),
        logits_(scratch.logits.as<S>() + unit * kKvmTile * stride_),
        sizes_(a.sizes.as<int32_t>()),
        routes_(a.routes.defined() ? a.routes.as<int32_t>() + unit * length_ : nullptr) {}

  void run() {
    if (routes_ != nullptr && !a_.forced) { std::fill(routes_, routes_ + length_, -1); }
    each_document([&](int64_t t, int64_t end) {
      const int64_t begin = doc_start_[t];
      while (t < end) {
        const int64_t chunk = (t - begin) / chunk_, at = (t - begin) % chunk_;
        if (at == 0 && chunk >= a_.rule.window) { fold(chunk, t); }
        const int64_t count = std::min(chunk_ - at, end - t);
        take(t, own_block(chunk) + at, count);
        for (int64_t i = 0; i < count; i += kKvmTile) { read(chunk, t + i, at + i, std::min(kKvmTile, count - i)); }
        t += count;
      }
    });
  }

 private:
  /// First token of the ring that holds tokens of `chunk`: of chunk - W before it begins.
  int64_t own_block(int64_t chunk) const { return chunk % a_.rule.window * chunk_; }

  void take(int64_t t, int64_t place, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t token = kv_item(t + i);
      std::copy_n(a_.k.as<S>() + token * d_, d_, ring_k_ + (place + i) * d_);
      std::copy_n(a_.v.as<S>() + token * dv_, dv_, ring_v_ + (place + i) * dv_);
      ring_gates_[place + i] = a_.gate.defined() ? one_plus_elu(a_.gate.as<S>()[token]) : S(1);
    }
  }

  /// Entry of `chunk`, whose first token is t: chunk - W goes from the ring to the slots.
  void fold(int64_t chunk, int64_t t) {
    static thread_local KvmChunkMemory<S> work;
    const int64_t place = own_block(chunk), before = chunk > a_.rule.window ? sizes_[chunk - 1] : 0;
    const int64_t fresh = sizes_[chunk] - before;
    work.z.resize(static_cast<size_t>(d_));
    for (int64_t i = 0; i < chunk_; ++i) {
      kvm_clear_rotary(a_.rule, d_, ring_k_ + (place + i) * d_, work.z.data());
      norm_.forward(work.z.data(), memory_keys_ + i * d_);
    }
    work.codes.assign(static_cast<size_t>(chunk_), -1);
    int32_t* codes = routes_ != nullptr ? routes_ + t - a_.rule.window * chunk_ : work.codes.data();
    if (!a_.forced) { choose_founders(work, before, fresh, codes); }
    const bool gated = before > 0 && a_.rule.gate_appends;
    for (int64_t i = 0; i < chunk_; ++i) {
      if ((codes[i] & 1) != 0 && codes[i] >= 0) {
        const S g = gated ? ring_gates_[place + i] : S(1);
        dictionary_.found(a_.rule, codes[i] >> 1, memory_keys_ + i * d_, ring_v_ + (place + i) * dv_,
                          a_.rule.gate_keys ? g : S(1), a_.rule.gate_values ? g : S(1), chunk);
        dictionary_.read_slot(a_.rule, norm_, codes[i] >> 1, chunk);
      }
    }
    if (!a_.forced) { choose_targets(work, before, fresh, codes); }
    merge(place, codes, chunk);
    if (a_.rule.value_norm == KvmValueNorm::updates) {
      for (int64_t r = 0; r < sizes_[chunk]; ++r) { dictionary_.read_value(a_.rule, r, chunk); }
    }
  }

  /// The tokens that found slots: those least like any of the `before` slots. Leaves the best slot of the others in
  /// `work`.
  void choose_founders(KvmChunkMemory<S>& work, int64_t before, int64_t fresh, int32_t* codes) {
    work.order.resize(static_cast<size_t>(chunk_));
    for (int64_t i = 0; i < chunk_; ++i) { work.order[static_cast<size_t>(i)] = static_cast<int32_t>(i); }
    if (fresh < chunk_) {
      work.score.resize(static_cast<size_t>(chunk_));
      work.top.resize(static_cast<size_t>(chunk_));
      work.target.resize(static_cast<size_t>(chunk_));
      const int64_t sinks = a_.rule.sinks;
      each_score(0, before, [&](int64_t i, const S* x) {
        const size_t at = static_cast<size_t>(i);
        work.top[at] = largest_of(before - sinks, x + sinks);
        work.target[at] = static_cast<int32_t>(first_of(x, sinks, before, work.top[at]));
        work.score[at] = std::max(work.top[at], largest_of(sinks, x));
      });
      const S* score = work.score.data();
      std::sort(work.order.begin(), work.order.end(),
                [=](int32_t a, int32_t b) { return score[a] != score[b] ? score[a] < score[b] : a < b; });
    }
    std::sort(work.order.begin(), work.order.begin() + fresh);
    for (int64_t n = 0; n < fresh; ++n) {
      codes[work.order[static_cast<size_t>(n)]] = static_cast<int32_t>(2 * (before + n) + 1);
    }
  }

  /// The slots that the other tokens join: new slots take part, old ones win ties.
  void choose_targets(KvmChunkMemory<S>& work, int64_t before, int64_t fresh, int32_t* codes) {
    if (fresh == chunk_) { return; }
    if (fresh > 0) {
      each_score(before, fresh, [&](int64_t i, const S* x) {
        const S top = largest_of(fresh, x);
        if (top > work.top[static_cast<size_t>(i)]) {
          work.target[static_cast<size_t>(i)] = static_cast<int32_t>(before + first_of(x, 0, fresh, top));
        }
      });
    }
    for (int64_t i = 0; i < chunk_; ++i) {
      if (codes[i] < 0) { codes[i] = 2 * work.target[static_cast<size_t>(i)]; }
    }
  }

  /// Calls each(token of the chunk, its scores against slots [first, first + count)).
  template <class F> void each_score(int64_t first, int64_t count, F&& each) {
    for (int64_t i = 0; i < chunk_; i += kKvmTile) {
      const int64_t tokens = std::min(kKvmTile, chunk_ - i);
      gemm_serial<S>(false, true, tokens, count, d_, S(1), memory_keys_ + i * d_, d_, dictionary_.key_hat(first), d_,
                     false, logits_, stride_);
      for (int64_t j = 0; j < tokens; ++j) { each(i + j, logits_ + j * stride_); }
    }
  }

  /// First index in [begin, end) with this value; `begin` where there is none (NaN).
  static int64_t first_of(const S* x, int64_t begin, int64_t end, S value) {
    const S* found = std::find(x + begin, x + end, value);
    return found == x + end ? begin : found - x;
  }

  void merge(int64_t place, const int32_t* codes, int64_t chunk) {
    const auto each = [&](auto&& f) {
      for (int64_t i = 0; i < chunk_; ++i) {
        if ((codes[i] & 1) == 0) { f(i, static_cast<int64_t>(codes[i] >> 1)); }
      }
    };
    each([&](int64_t i, int64_t r) {
      const S g = ring_gates_[place + i];
      dictionary_.merge(a_.rule, r, memory_keys_ + i * d_, ring_v_ + (place + i) * dv_, a_.rule.gate_keys ? g : S(1),
                        a_.rule.gate_values ? g : S(1));
    });
    each([&](int64_t, int64_t r) { dictionary_.read_slot(a_.rule, norm_, r, chunk); });
  }

  /// Reads out `count` tokens from t on, the first of which is number `at` of `chunk`. Columns of the logits: slots,
  /// other chunks in the order of the ring, own chunk.
  void read(int64_t chunk, int64_t t, int64_t at, int64_t count) {
    const int64_t group = heads_ / kv_heads_, n = sizes_[chunk], own = own_block(chunk), next = own + chunk_;
    const int64_t after = chunk < a_.rule.window ? 0 : ring_ - next, others = own + after;
    struct Part {
      int64_t column, count;
      const S *k, *v;
    } const parts[] = {{n + others, at + count, ring_k_ + own * d_, ring_v_ + own * dv_},
                       {0, n, dictionary_.key_hats, dictionary_.value_hats},
                       {n, own, ring_k_, ring_v_},
                       {n + own, after, ring_k_ + next * d_, ring_v_ + next * dv_}};
    for (int64_t h = kv_head_ * group; h < (kv_head_ + 1) * group; ++h) {
      const int64_t item = (row_ * length_ + t) * heads_ + h;
      for (const Part& part : parts) {
        if (part.count > 0) {
          gemm_serial<S>(false, true, count, part.count, d_, static_cast<S>(a_.rule.scale), a_.q.as<S>() + item * d_,
                         heads_ * d_, part.k, d_, false, logits_ + part.column, stride_);
        }
      }
      S sums[kKvmTile];
      for (int64_t i = 0; i < count; ++i) {
        sums[i] =
            softmax(logits_ + i * stride_, h, n, n + others + at + i + 1, n + others + at + count, item + i * heads_);
      }
      S* o = a_.o.as<S>() + item * dv_;
      for (const Part& part : parts) {
        if (part.count > 0) {
          gemm_serial<S>(false, false, count, dv_, part.count, S(1), logits_ + part.column, stride_, part.v, dv_,
                         &part != parts, o, heads_ * dv_);
        }
      }
      for (int64_t i = 0; i < count; ++i) {
        for (int64_t c = 0; c < dv_; ++c) { o[i * heads_ * dv_ + c] /= sums[i]; }
      }
    }
  }

  /// Scores of n slots and of window tokens, `visible` columns in all, to exponentials of the logits; returns their
  /// sum.
  S softmax(S* x, int64_t h, int64_t n, int64_t visible, int64_t columns, int64_t item) const {
    if (a_.state_temp.defined()) {
      const S state = a_.state_temp.as<S>()[h], window = a_.window_temp.as<S>()[h];
      for (int64_t r = 0; r < n; ++r) { x[r] *= state; }
      for (int64_t r = n; r < visible; ++r) { x[r] *= window; }
    }
    const S largest = largest_of(visible, x);
    for (int64_t r = 0; r < visible; ++r) { x[r] = exp_(x[r] - largest); }
    const S sum = lane_sum<S>(visible, [&](int64_t r) { return x[r]; });
    std::fill(x + visible, x + columns, S(0));
    if (a_.lse.defined()) { a_.lse.as<S>()[item] = largest + std::log(sum); }
    return sum;
  }

  const KvmForward& a_;
  int64_t ring_;
  KvmHeadDictionary<S> dictionary_;
  KvmNorm<S> norm_;
  S *ring_k_, *ring_v_, *ring_gates_, *memory_keys_;
  int64_t stride_;
  S* logits_;
  const int32_t* sizes_;
  int32_t* routes_;
};

}  // namespace

void run(Stream&, const KvmForward& args, const KvmForwardScratch& scratch) {
  dispatch_real(args.q.dtype, [&]<class S>(S) { run_units<KvmForwardUnit<S>>(args, scratch); });
}

}  // namespace cpu
}  // namespace hebb
