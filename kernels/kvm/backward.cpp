#include <vector>

#include "kernels/dictionary/unit.h"
#include "kernels/gemm/gemm_cpu.h"
#include "kernels/kvm/scratch.h"
#include "kernels/kvm/slots.h"

namespace hebb {

namespace {

void plan_gpu(KvmBackwardScratch& scratch, Workspace& workspace, const KvmBackward& args) {
  const int64_t batch = args.q.size(0), length = args.q.size(1), heads = args.q.size(2), kv_heads = args.k.size(2),
                d = args.q.size(3), chunk = args.rule.chunk;
  const Cores cores = attention_cores(args.q, args.v, args.rule.scale,
                                      {args.q, args.k, args.v, args.o, args.d_o, args.d_q, args.d_k, args.d_v});
  scratch.on_tensor_cores = takes_tensor_cores(workspace.stream(), "kvm", cores);
  const auto take = [&](Shape shape, DType dtype) { return workspace.tensor(shape, dtype, "slot scratch"); };
  scratch.lo = take({batch, length}, DType::i32);
  scratch.hi = take({batch, length}, DType::i32);
  if (const int64_t count = attention_statistics(args.q.shape, scratch.on_tensor_cores); count > 0) {
    scratch.statistics = take({count}, DType::f32);
  }
  if (args.window_temp.defined()) {
    scratch.heated = take(args.q.shape, args.q.dtype);
    scratch.d_heated = take(args.q.shape, args.q.dtype);
    scratch.sums = take({batch, length, heads}, DType::f32);
  }
  if (args.sizes.size(0) <= args.rule.window) { return; }
  scratch.steps = take({batch, dictionary_steps(length, chunk), kStepWords}, DType::i32);
  scratch.d_norm = take({batch, kv_heads, chunk, 2 * d}, DType::f32);
  scratch.radii = take({batch, kv_heads, length}, DType::f32);
  scratch.counts = take({batch, kv_heads, length}, DType::i32);
  scratch.memory_keys = take({batch, kv_heads, chunk, d}, DType::f32);
  scratch.gates = take({batch, kv_heads, chunk}, DType::f32);
  if (args.d_state_temp.defined()) {
    scratch.temp_sums = take({(d + kDictionarySlice - 1) / kDictionarySlice, batch, length, heads}, DType::f32);
  }
  if (scratch.on_tensor_cores) {
    scratch.parts = plan_dictionary_parts(workspace, args.q.shape, args.v.shape, chunk, 1, args.room, true);
  }
}

}  // namespace

KvmBackwardScratch plan(Workspace& workspace, const KvmBackward& args) {
  const Shape &q = args.q.shape, &k = args.k.shape, &v = args.v.shape;
  const DType dtype = args.q.dtype, sums = sum_dtype(dtype);
  const int64_t room = args.room, heads = q[2] / k[2];
  const auto per_unit = [&](int64_t count, int64_t width, DType type, const char* name) {
    return workspace.tensor({k[0], k[2], count, width}, type, name);
  };
  const auto flat = [&](int64_t count, DType type, const char* name) {
    return workspace.tensor({k[0], k[2], count}, type, name);
  };
  const bool reads_slots = args.sizes.size(0) > args.rule.window;
  KvmBackwardScratch scratch;
  scratch.slots = {.keys = per_unit(room, k[3], sums, "state slots"),
                   .values = per_unit(room, v[3], sums, "state slots"),
                   .radii = flat(room, sums, "state slots"),
                   .counts = flat(room, DType::i32, "state slots"),
                   .key_hats = per_unit(room, k[3], dtype, "state slots"),
                   .value_hats = per_unit(room, v[3], dtype, "state slots")};
  scratch.d_slots = {.keys = per_unit(room, k[3], sums, "slot gradients"),
                     .values = per_unit(room, v[3], sums, "slot gradients"),
                     .radii = flat(room, sums, "slot gradients"),
                     .counts = {},
                     .key_hats = per_unit(room, k[3], sums, "slot gradients"),
                     .value_hats = per_unit(room, v[3], sums, "slot gradients")};
  scratch.versions = per_unit(reads_slots ? k[1] : 1, k[3] + v[3], sums, "slot versions");
  scratch.previous = flat(k[1], DType::i32, "earlier versions");
  scratch.latest = flat(room, DType::i32, "latest versions");

  if (workspace.on_gpu()) {
    plan_gpu(scratch, workspace, args);
  } else {
    scratch.probabilities =
        workspace.tensor({k[0], k[2], 2, kKvmTile, room + args.rule.window * args.rule.chunk}, sums, "probabilities");
    scratch.partial = flat(2 * k[3] + 2 * heads, sums, "partial sums");
  }
  return scratch;
}
HEBB_KERNEL_PLANNED(KvmBackward)

namespace cpu {
namespace {

template <class S> class KvmBackwardUnit : DictionaryUnit {
 public:
  KvmBackwardUnit(const KvmBackward& a, const KvmBackwardScratch& scratch, int64_t unit)
      : DictionaryUnit(a, a.rule.chunk, unit),
        a_(a),
        dictionary_(kvm_head_dictionary<S>(scratch.slots, unit)),
        d_dictionary_(kvm_head_dictionary<S>(scratch.d_slots, unit)),
        norm_{a.norm_weight.as<S>(), a.norm_bias.as<S>(), d_, static_cast<S>(a.rule.eps)},
        versions_(scratch.versions.as<S>() + unit * scratch.versions.size(2) * (d_ + dv_)),
        previous_(scratch.previous.as<int32_t>() + unit * scratch.previous.size(2)),
        latest_(scratch.latest.as<int32_t>() + unit * scratch.latest.size(2)),
        sizes_(a.sizes.as<int32_t>()),
        routes_(a.routes.as<int32_t>() + unit * length_),
        stride_(scratch.probabilities.size(4)),
        p_(scratch.probabilities.as<S>() + unit * 2 * kKvmTile * stride_),
        ds_(p_ + kKvmTile * stride_),
        partial_(scratch.partial.as<S>() + unit * scratch.partial.size(2)),
        z_(static_cast<size_t>(d_)),
        memory_key_(static_cast<size_t>(d_)),
        d_key_(static_cast<size_t>(d_)),
        d_value_(static_cast<size_t>(dv_)) {}

  void run() {
    clear<S>(a_.d_k, d_, a_.accumulate_k);
    clear<S>(a_.d_v, dv_, a_.accumulate_v);
    clear<S>(a_.d_gate, 1, a_.accumulate_gate);
    std::fill_n(partial_, 2 * d_ + 2 * heads_ / kv_heads_, S(0));
    each_document([&](int64_t t, int64_t end) { document(t, end); });
  }

 private:
  bool by_updates() const { return a_.rule.value_norm == KvmValueNorm::updates; }
  const S* key(int64_t t) const { return a_.k.as<S>() + kv_item(t) * d_; }
  const S* value(int64_t t) const { return a_.v.as<S>() + kv_item(t) * dv_; }

  void document(int64_t begin, int64_t end) {
    const int64_t last = (end - begin - 1) / chunk_, window = a_.rule.window, n = sizes_[last];
    for (int64_t c = window; c <= last; ++c) { replay(c, begin + (c - window) * chunk_); }
    for (int64_t r = 0; r < n; ++r) { dictionary_.read_slot(a_.rule, norm_, r, last); }
    std::fill_n(d_dictionary_.keys, n * d_, S(0));
    std::fill_n(d_dictionary_.values, n * dv_, S(0));
    std::fill_n(d_dictionary_.radii, n, S(0));
    std::fill_n(d_dictionary_.key_hats, n * d_, S(0));
    std::fill_n(d_dictionary_.value_hats, n * dv_, S(0));
    for (int64_t c = last; c >= 0; --c) {
      // With the value norm "updates" every update changes what is read of every slot.
      for (int64_t r = 0; by_updates() && r < sizes_[c]; ++r) { dictionary_.read_value(a_.rule, r, c); }
      const int64_t first = begin + c * chunk_;
      for (int64_t t = first; t < std::min(end, first + chunk_); t += kKvmTile) {
        tile(c, begin, t, std::min(kKvmTile, std::min(end, first + chunk_) - t));
      }
      for (int64_t r = 0; by_updates() && r < sizes_[c]; ++r) { values_to_sums(r, c); }
      if (c >= window) { undo(c, first - window * chunk_); }
    }
  }

  /// The update on entry of chunk c, whose tokens begin at t, again; keeps the versions that it makes.
  void replay(int64_t c, int64_t t) {
    const bool gated = c > a_.rule.window && a_.rule.gate_appends;
    for (int64_t j = t; j < t + chunk_; ++j) {
      if ((routes_[j] & 1) != 0) {
        const int64_t r = routes_[j] >> 1;
        make_memory_key(j);
        const S g = gated ? gate(j) : S(1);
        dictionary_.found(a_.rule, r, memory_key_.data(), value(j), a_.rule.gate_keys ? g : S(1),
                          a_.rule.gate_values ? g : S(1), c);
        previous_[j] = -1;
        latest_[r] = static_cast<int32_t>(j);
      }
    }
    for (int64_t j = t; j < t + chunk_; ++j) {
      if ((routes_[j] & 1) == 0) {
        const int64_t r = routes_[j] >> 1;
        make_memory_key(j);
        const S g = gate(j);
        dictionary_.merge(a_.rule, r, memory_key_.data(), value(j), a_.rule.gate_keys ? g : S(1),
                          a_.rule.gate_values ? g : S(1));
        if (latest_[r] < t) {
          previous_[j] = latest_[r];
          latest_[r] = static_cast<int32_t>(j);
        }
      }
    }
    each_touched(t, [&](int64_t r, int64_t j) {
      std::copy_n(dictionary_.key(r), d_, versions_ + j * (d_ + dv_));
      std::copy_n(dictionary_.value(r), dv_, versions_ + j * (d_ + dv_) + d_);
    });
  }

  /// Calls each(slot, token that names its version) for the slots that the update of the tokens from t on touched.
  template <class F> void each_touched(int64_t t, F&& each) {
    for (int64_t j = t; j < t + chunk_; ++j) {
      const int64_t r = routes_[j] >> 1;
      if (latest_[r] == j) { each(r, j); }
    }
  }

  /// Takes the update on entry of chunk c, of the tokens from t on, back: their gradients, and the slots before it.
  void undo(int64_t c, int64_t t) {
    each_touched(t, [&](int64_t r, int64_t) {
      keys_to_sums(r);
      values_to_sums(r, c);
    });
    for (int64_t j = t; j < t + chunk_; ++j) { hand_out(c, j); }
    each_touched(t, [&](int64_t r, int64_t j) {
      if (previous_[j] >= 0) {
        const S* old = versions_ + previous_[j] * (d_ + dv_);
        std::copy_n(old, d_, dictionary_.key(r));
        std::copy_n(old + d_, dv_, dictionary_.value(r));
        latest_[r] = previous_[j];
        dictionary_.read_slot(a_.rule, norm_, r, c - 1);
      }
    });
  }

  /// Adds the gradient of what was read of slot r's key to the running gradient of its sum.
  void keys_to_sums(int64_t r) {
    S *d = d_dictionary_.key_hat(r), *sum = d_dictionary_.key(r);
    norm_.backward(dictionary_.key(r), d, partial_, partial_ + d_);
    for (int64_t c = 0; c < d_; ++c) {
      sum[c] += d[c];
      d[c] = 0;
    }
  }

  void values_to_sums(int64_t r, int64_t chunk) {
    S *d = d_dictionary_.value_hat(r), *sum = d_dictionary_.value(r);
    const S* v = dictionary_.value(r);
    const S scale = dictionary_.value_scale(a_.rule, r, chunk);
    S along = 0;  // of d on the slot's direction, which the radius takes
    if (a_.rule.value_norm == KvmValueNorm::radius) {
      const S norm = dictionary_.clamped_norm(r);
      const S projection = dot(dv_, v, d) / norm;
      d_dictionary_.radii[r] += projection;
      along = norm > static_cast<S>(KvmHeadDictionary<S>::kTiny) ? projection / norm : S(0);
    }
    for (int64_t c = 0; c < dv_; ++c) {
      sum[c] += scale * (d[c] - along * v[c]);
      d[c] = 0;
    }
  }

  S gate(int64_t t) const { return a_.gate.defined() ? one_plus_elu(a_.gate.as<S>()[kv_item(t)]) : S(1); }

  void make_memory_key(int64_t t) {
    kvm_clear_rotary(a_.rule, d_, key(t), z_.data());
    norm_.forward(z_.data(), memory_key_.data());
  }

  /// The running gradients of the slot that token t founded or joined on entry of `chunk`, to the token.
  void hand_out(int64_t chunk, int64_t t) {
    const int64_t r = routes_[t] >> 1;
    const bool founded = (routes_[t] & 1) != 0;
    const bool gated = !founded || (chunk > a_.rule.window && a_.rule.gate_appends);
    const S g = gated ? gate(t) : S(1);
    const S key_gate = a_.rule.gate_keys ? g : S(1), value_gate = a_.rule.gate_values ? g : S(1);
    const S* v = value(t);
    S *d_k = a_.d_k.as<S>() + kv_item(t) * d_, *d_v = a_.d_v.as<S>() + kv_item(t) * dv_;
    make_memory_key(t);
    std::copy_n(d_dictionary_.key(r), d_, d_key_.data());
    std::copy_n(d_dictionary_.value(r), dv_, d_value_.data());
    if (founded && a_.rule.value_norm == KvmValueNorm::radius && dictionary_.radii[r] > 0) {
      const S factor = d_dictionary_.radii[r] * value_gate / dictionary_.radii[r];
      for (int64_t c = 0; c < dv_; ++c) { d_value_[static_cast<size_t>(c)] += factor * v[c]; }
    }
    if (!founded && a_.rule.value_norm == KvmValueNorm::mean) { --dictionary_.counts[r]; }
    if (gated && a_.d_gate.defined()) {
      const S d_g = (a_.rule.gate_keys ? dot(d_, memory_key_.data(), d_key_.data()) : S(0)) +
                    (a_.rule.gate_values ? dot(dv_, v, d_value_.data()) : S(0));
      a_.d_gate.as<S>()[kv_item(t)] += d_g * (a_.gate.as<S>()[kv_item(t)] > 0 ? S(1) : g);
    }
    for (int64_t c = 0; c < dv_; ++c) { d_v[c] += value_gate * d_value_[static_cast<size_t>(c)]; }
    for (S& x : d_key_) { x *= key_gate; }
    norm_.backward(z_.data(), d_key_.data(), partial_, partial_ + d_);
    for (int64_t c = a_.rule.rotary; c < d_; ++c) { d_k[c] += d_key_[static_cast<size_t>(c)]; }
  }

  /// Backward of the readout of `count` tokens of chunk c from t on.
  void tile(int64_t c, int64_t begin, int64_t t, int64_t count) {
    const int64_t group = heads_ / kv_heads_, n = sizes_[c];
    const int64_t first = begin + std::max<int64_t>(0, c - a_.rule.window + 1) * chunk_, seen = t + count - first;
    const int64_t q_stride = heads_ * d_, o_stride = heads_ * dv_;
    const int64_t k_stride = kv_heads_ * d_, v_stride = kv_heads_ * dv_;
    const S scale = static_cast<S>(a_.rule.scale);
    S *d_k = a_.d_k.as<S>() + kv_item(first) * d_, *d_v = a_.d_v.as<S>() + kv_item(first) * dv_;
    for (int64_t h = kv_head_ * group; h < (kv_head_ + 1) * group; ++h) {
      const int64_t item = (row_ * length_ + t) * heads_ + h;
      const S *q = a_.q.as<S>() + item * d_, *d_o = a_.d_o.as<S>() + item * dv_;
      S* d_q = a_.d_q.as<S>() + item * d_;
      if (n > 0) {
        gemm_serial<S>(false, true, count, n, d_, scale, q, q_stride, dictionary_.key_hats, d_, false, p_, stride_);
        gemm_serial<S>(false, true, count, n, dv_, S(1), d_o, o_stride, dictionary_.value_hats, dv_, false, ds_,
                       stride_);
      }
      gemm_serial<S>(false, true, count, seen, d_, scale, q, q_stride, key(first), k_stride, false, p_ + n, stride_);
      gemm_serial<S>(false, true, count, seen, dv_, S(1), d_o, o_stride, value(first), v_stride, false, ds_ + n,
                     stride_);
      for (int64_t i = 0; i < count; ++i) { softmax(i, h, n, t + i - first + 1, seen, item + i * heads_); }
      gemm_serial<S>(false, false, count, d_, seen, S(1), ds_ + n, stride_, key(first), k_stride, a_.accumulate_q, d_q,
                     q_stride);
      gemm_serial<S>(true, false, seen, d_, count, S(1), ds_ + n, stride_, q, q_stride, true, d_k, k_stride);
      gemm_serial<S>(true, false, seen, dv_, count, S(1), p_ + n, stride_, d_o, o_stride, true, d_v, v_stride);
      if (n > 0) {
        gemm_serial<S>(false, false, count, d_, n, S(1), ds_, stride_, dictionary_.key_hats, d_, true, d_q, q_stride);
        gemm_serial<S>(true, false, n, d_, count, S(1), ds_, stride_, q, q_stride, true, d_dictionary_.key_hats, d_);
        gemm_serial<S>(true, false, n, dv_, count, S(1), p_, stride_, d_o, o_stride, true, d_dictionary_.value_hats,
                       dv_);
      }
    }
  }

  /// Line i of the tile: scores to probabilities, gradients of these to gradients of q k.
  void softmax(int64_t i, int64_t h, int64_t n, int64_t visible, int64_t seen, int64_t item) {
    S *p = p_ + i * stride_, *ds = ds_ + i * stride_;
    const S lse = a_.lse.as<S>()[item];
    const S mean = dot(dv_, a_.d_o.as<S>() + item * dv_, a_.o.as<S>() + item * dv_);
    const bool learned = a_.state_temp.defined();
    const S temps[] = {learned ? a_.state_temp.as<S>()[h] : S(1), learned ? a_.window_temp.as<S>()[h] : S(1)};
    const int64_t bounds[] = {0, n, n + visible}, group = heads_ / kv_heads_;
    for (int region = 0; region < 2; ++region) {
      const S temp = temps[region], factor = temp * static_cast<S>(a_.rule.scale);
      S *x = p + bounds[region], *y = ds + bounds[region];
      const int64_t count = bounds[region + 1] - bounds[region];
      partial_[2 * d_ + region * group + h % group] += lane_sum<S>(count, [&](int64_t r) {
        const S score = x[r];
        x[r] = exp_(temp * score - lse);
        const S d = x[r] * (y[r] - mean);
        y[r] = factor * d;
        return d * score;
      });
    }
    std::fill(p + n + visible, p + n + seen, S(0));
    std::fill(ds + n + visible, ds + n + seen, S(0));
  }

  const KvmBackward& a_;
  KvmHeadDictionary<S> dictionary_, d_dictionary_;
  KvmNorm<S> norm_;
  S* versions_;
  int32_t *previous_, *latest_;
  const int32_t *sizes_, *routes_;
  int64_t stride_;
  S *p_, *ds_, *partial_;  // partial: gradients of norm weight, norm bias, state and window temperatures
  std::vector<S> z_, memory_key_, d_key_, d_value_;
};

}  // namespace

void run(Stream&, const KvmBackward& args, const KvmBackwardScratch& scratch) {
  dispatch_real(args.q.dtype, [&]<class S>(S) {
    const int64_t batch = args.k.size(0), kv_heads = args.k.size(2), d = args.q.size(3),
                  group = args.q.size(2) / kv_heads, stride = scratch.partial.size(2);
    run_units<KvmBackwardUnit<S>>(args, scratch);
    const S* partial = scratch.partial.as<S>();
    add_blocks(args.d_norm_weight, batch * kv_heads, d, partial, stride);
    add_blocks(args.d_norm_bias, batch * kv_heads, d, partial + d, stride);
    for (int64_t head = 0; head < kv_heads; ++head) {
      const S* temps = partial + head * stride + 2 * d;
      add_blocks(args.d_state_temp, batch, group, temps, kv_heads * stride, head * group);
      add_blocks(args.d_window_temp, batch, group, temps + group, kv_heads * stride, head * group);
    }
  });
}

}  // namespace cpu
}  // namespace hebb
