#include "kernels/common/cuda/column_sums.cuh"
#include "kernels/dictionary/own_tokens.cuh"
#include "kernels/kvm/slots.cuh"

// Windows first, by the attention kernels with the log-sum-exp of everything read. Then the updates run again with the
// routes of the forward pass, each slot's versions kept, and are taken back step by step: the gradients of the chunk's
// readout (dictionary/slot_attention.cuh), through the norms of the slots that the update touched, to its tokens, and
// the slots before it. FLOPs: 3.5 times the readout. Bound: fp32 multiply-adds for long chunks and many slots; on
// tensor cores in bf16, and else, the latency of five launches a step.
namespace hebb::HEBB_DEVICE {
namespace {

using namespace kvm;

/// Gradients of what was read of the slots (hats), and running gradients of their sums.
struct SlotGradients {
  float *keys, *values, *radii, *key_hats, *value_hats;
  float* norm;  // [B, K, C, 2 D]: of the norm's weight and bias, by the warp's item
};

struct UpdateBackward : Update {
  SlotGradients d;

  /// The slot whose version the token names, among all: that of its founder, or of the first that joined it; -1: none.
  __device__ int64_t touched(const Member& m, int lane) const {
    if (!m.exists()) { return -1; }
    const int32_t* const of = routes(m);
    const int32_t code = of[m.place];
    const bool joined = (code & 1) == 0;
    if (joined && (slots::is_among(of, m.place, code, lane) || slots::is_among(of, rule.chunk, code + 1, lane))) {
      return -1;
    }
    return m.unit * dictionary.room + (code >> 1);
  }
  /// Adds the gradient of what was read of the slot's value to those of its sum and radius.
  __device__ void values_to_sums(int64_t slot, int64_t chunk, int lane) const {
    const int64_t dv = n.dv;
    const float scale = dictionary.value_scale(rule, slot, dv, chunk, lane);
    float along = 0;  // of d on the slot's direction, which the radius takes
    if (rule.value_norm == KvmValueNorm::radius) {
      const float norm = dictionary.clamped_norm(slot, dv, lane);
      float product = 0;
      for (int64_t c = lane; c < dv; c += 32) {
        product += dictionary.values[slot * dv + c] * d.value_hats[slot * dv + c];
      }
      const float projection = warp_sum(product) / norm;
      if (lane == 0) { d.radii[slot] += projection; }
      along = norm > Dictionary::kTiny ? projection / norm : 0.0f;
    }
    for (int64_t at = slot * dv + lane; at < (slot + 1) * dv; at += 32) {
      d.values[at] += scale * (d.value_hats[at] - along * dictionary.values[at]);
      d.value_hats[at] = 0;
    }
  }
};

/// Slots that the update touched: hats' gradients to those of the sums.
struct ToSums : UpdateBackward {
  __device__ void operator()(int64_t item, int lane) const {
    const Member m = member(item);
    const int64_t width = n.d, slot = touched(m, lane);
    if (slot < 0) { return; }
    float *const hat = d.key_hats + slot * width, *const sum = d.keys + slot * width;
    const float* const key = dictionary.keys + slot * width;
    norm.backward(
        lane, d.norm + item * 2 * width, d.norm + (item * 2 + 1) * width, [&](int64_t c) { return key[c]; },
        [&](int64_t c) { return hat[c]; },
        [&](int64_t c, float value) {
          sum[c] += value;
          hat[c] = 0;
        });
    values_to_sums(slot, chunk_of(m), lane);
  }
};

/// Value norm "updates": every update changes what is read of every slot.
struct AllValuesToSums : UpdateBackward {
  __device__ void operator()(int64_t slot, int lane) const {
    const int64_t unit = slot / dictionary.room, at = unit / n.kv_heads;
    const Step s = n.at(at, step);
    if (s.read != kNone && slot % dictionary.room < s.slots) {
      values_to_sums(slot, (s.read - n.doc_start[at * n.length + s.read]) / rule.chunk, lane);
    }
  }
};

/// The running gradients of the slot that a token founded or joined, to the token.
struct HandOut : UpdateBackward {
  Elements d_k, d_v;
  float* d_gate;

  __device__ void operator()(int64_t item, int lane) const {
    const Member m = member(item);
    if (!m.exists()) { return; }
    const int32_t code = routes(m)[m.place];
    const bool founded = (code & 1) != 0, gated = !founded || (m.step.before > 0 && rule.gate_appends);
    const int64_t slot = m.unit * dictionary.room + (code >> 1);
    const auto one = tokens.at(n, m.unit, m.t);
    const float g = gated ? tokens.gate_at(one) : 1.0f;
    const float key_gate = rule.gate_keys ? g : 1.0f, value_gate = rule.gate_values ? g : 1.0f;
    const float *const d_key = d.keys + slot * n.d, *const d_slot_value = d.values + slot * n.dv;
    const bool has_radius = founded && rule.value_norm == KvmValueNorm::radius && dictionary.radii[slot] > 0.0f;
    const float radius_part = has_radius ? d.radii[slot] * value_gate / dictionary.radii[slot] : 0.0f;
    const auto d_value = [&](int64_t c) { return d_slot_value[c] + radius_part * tokens.value(n, one, c); };
    if (gated && d_gate != nullptr) { gate_gradient(one, d_key, d_value, g, lane); }
    for (int64_t c = lane; c < n.dv; c += 32) {
      const int64_t at = one.token * n.dv + c;
      d_v.set(at, d_v[at] + value_gate * d_value(c));
    }
    norm.backward(
        lane, d.norm + item * 2 * n.d, d.norm + (item * 2 + 1) * n.d, [&](int64_t c) { return z(one, c); },
        [&](int64_t c) { return key_gate * d_key[c]; },
        [&](int64_t c, float value) {
          if (c >= rule.rotary) {
            const int64_t at = one.token * n.d + c;
            d_k.set(at, d_k[at] + value);
          }
        });
  }

 private:
  template <class D>
  __device__ void gate_gradient(const Tokens::One& one, const float* d_key, D&& d_value, float g, int lane) const {
    float sum = 0;
    if (rule.gate_keys) {
      const auto s = norm.statistics(lane, [&](int64_t c) { return z(one, c); });
      for (int64_t c = lane; c < n.d; c += 32) {
        sum += ((z(one, c) - s.mean) * s.rstd * norm.weight[c] + norm.bias[c]) * d_key[c];
      }
    }
    for (int64_t c = lane; rule.gate_values && c < n.dv; c += 32) { sum += tokens.value(n, one, c) * d_value(c); }
    sum = warp_sum(sum);
    if (lane == 0) { d_gate[one.token] += sum * (tokens.gate[one.token] > 0.0f ? 1.0f : g); }
  }
};

/// The slots as they were before the update.
struct Restore : UpdateBackward {
  __device__ void operator()(int64_t item, int lane) const {
    const Member m = member(item);
    const int64_t slot = touched(m, lane);
    if (slot < 0) { return; }
    const int64_t previous = versions.previous[m.unit * n.length + m.t];
    const bool founded = (routes(m)[m.place] & 1) != 0;
    for (int64_t c = lane; founded && c < n.d; c += 32) { d.keys[slot * n.d + c] = 0; }
    for (int64_t c = lane; founded && c < n.dv; c += 32) { d.values[slot * n.dv + c] = 0; }
    if (lane == 0) {
      d.radii[slot] = founded ? 0.0f : d.radii[slot];
      versions.latest[slot] = static_cast<int32_t>(previous);
    }
    if (previous < 0) {
      return;  // the slot goes
    }
    const int64_t version = m.unit * n.length + previous;
    for (int64_t c = lane; c < n.d; c += 32) { dictionary.keys[slot * n.d + c] = versions.keys[version * n.d + c]; }
    for (int64_t c = lane; c < n.dv; c += 32) {
      dictionary.values[slot * n.dv + c] = versions.values[version * n.dv + c];
    }
    if (lane == 0) {
      dictionary.radii[slot] = versions.radii[version];
      dictionary.counts[slot] = versions.counts[version];
    }
    __syncwarp();
    dictionary.read_slot(rule, norm, slot, n.dv, chunk_of(m) - 1, lane);
  }
};

/// From d_q of heated queries: d_q of the queries, and q . d_q.
struct CoolGradients {
  Elements d_q;
  float* sums;
  Elements d_heated, q;
  const float* temp;
  int64_t d;
  int heads;
  bool accumulate;

  __device__ void operator()(int64_t line, int lane) const {
    float sum = 0;
    for (int64_t at = line * d + lane; at < (line + 1) * d; at += 32) {
      const float value = d_heated[at];
      sum += q[at] * value;
      d_q.set(at, (accumulate ? d_q[at] : 0.0f) + temp[line % heads] * value);
    }
    sum = warp_sum(sum);
    if (lane == 0) { sums[line] = sum; }
  }
};

/// Gradients of the windows, and of their temperature.
void attend_window(Stream& stream, const KvmBackward& a, const KvmBackwardScratch& scratch) {
  const slots::OwnTokens own(stream, a, a.rule.window, scratch.lo.as<int32_t>(), scratch.hi.as<int32_t>());
  const bool heats = a.window_temp.defined();
  const int64_t d = a.q.size(3), lines = a.q.numel() / d, heads = a.q.size(2);
  Tensor q = a.q, d_q = a.d_q;
  if (heats) {
    q = scratch.heated;
    d_q = scratch.d_heated;
    each_element("kvm_heat", stream, lines, d,
                 HeatQueries{Elements(q), Elements(a.q), a.window_temp.as<float>(), d, static_cast<int>(heads)});
  }
  slots::attend_own_backward(stream, a, own, d_q, q, a.rule.scale, !heats && a.accumulate_q,
                             {.statistics = scratch.statistics, .on_tensor_cores = scratch.on_tensor_cores});
  if (!heats) { return; }
  auto* const sums = scratch.sums.as<float>();
  each_warp("kvm_cool", stream, lines,
            CoolGradients{Elements(a.d_q), sums, Elements(d_q), Elements(a.q), a.window_temp.as<float>(), d,
                          static_cast<int>(heads), a.accumulate_q});
  add_column_sums(stream, a.d_window_temp, sums, lines / heads, heads);
}

/// Runs the updates again, then takes them back from the last step to the first.
template <class T> struct ReverseScan {
  UpdateBackward update;
  slots::SlotReadBackward<T> read;
  Elements d_k, d_v;
  float* d_gate;
  int64_t units, count;

  void replay(Stream& stream) {
    const int64_t items = units * update.rule.chunk;
    for (int64_t step = 0; step < count; ++step) {
      update.step = step;
      each_warp("kvm_memory_keys", stream, items, MemoryKeys{update});
      each_warp("kvm_found", stream, items, Found{update});
      each_warp("kvm_merge", stream, items, Merge{update});
    }
  }
  void back(Stream& stream) {
    const int64_t items = units * update.rule.chunk;
    const bool by_updates = update.rule.value_norm == KvmValueNorm::updates;
    for (int64_t step = count - 1; step >= 0; --step) {
      update.step = read.steps.first = step;
      if (by_updates) {
        each_warp("kvm_read_values", stream, units * update.dictionary.room,
                  ReadValues{update.n, update.rule, update.dictionary, step});
      }
      slots::read_slots_backward(stream, units / update.n.kv_heads, read);
      if (by_updates) {
        each_warp("kvm_values_to_sums", stream, units * update.dictionary.room, AllValuesToSums{update});
      }
      each_warp("kvm_to_sums", stream, items, ToSums{update});
      each_warp("kvm_hand_out", stream, items, HandOut{update, d_k, d_v, d_gate});
      each_warp("kvm_restore", stream, items, Restore{update});
    }
  }
};

/// The gradients of the slots, zeros.
SlotGradients slot_gradients(Stream& stream, const KvmBackwardScratch& scratch) {
  const KvmSlots& of = scratch.d_slots;
  const SlotGradients d{of.keys.as<float>(),     of.values.as<float>(),     of.radii.as<float>(),
                        of.key_hats.as<float>(), of.value_hats.as<float>(), scratch.d_norm.as<float>()};
  for (const Tensor& t : {of.keys, of.values, of.radii, of.key_hats, of.value_hats, scratch.d_norm}) {
    slots::fill(stream, t.as<float>(), t.numel(), 0.0f);
  }
  return d;
}

template <class T> void backward(Stream& stream, const KvmBackward& a, const KvmBackwardScratch& scratch) {
  const int64_t batch = a.q.size(0), length = a.q.size(1), units = batch * a.k.size(2), d = a.q.size(3),
                heads = a.q.size(2);
  const int64_t queries = batch * length * heads, items = units * a.rule.chunk;
  if (a.d_gate.defined() && !a.accumulate_gate) { slots::fill(stream, a.d_gate.as<float>(), a.d_gate.numel(), 0.0f); }
  attend_window(stream, a, scratch);
  if (!scratch.steps.defined()) {
    return;  // no query saw a slot
  }
  const int64_t count = scratch.steps.size(1);
  auto* const steps = slots::items_of<Step>(scratch.steps);
  make_steps(stream, a, steps, count);
  const ReadLayout n = slots::layout_of(a, a.rule.chunk, steps, count);
  const SlotGradients gradients = slot_gradients(stream, scratch);
  auto* const versions = scratch.versions.as<float>();
  const Versions kept{versions,
                      versions + units * length * d,
                      scratch.radii.as<float>(),
                      scratch.counts.as<int32_t>(),
                      scratch.previous.as<int32_t>(),
                      scratch.latest.as<int32_t>()};
  slots::fill(stream, kept.latest, scratch.latest.numel(), -1);
  const Update update{n,
                      a.rule,
                      Dictionary(scratch.slots),
                      {a.norm_weight.as<float>(), a.norm_bias.as<float>(), d, static_cast<float>(a.rule.eps)},
                      {Elements(a.k), Elements(a.v), a.gate.as<float>()},
                      {a.routes.as<int32_t>(), true},
                      kept,
                      scratch.memory_keys.as<float>(),
                      nullptr,
                      scratch.gates.as<float>(),
                      0};
  auto* const temp_sums = scratch.temp_sums.as<float>();
  if (temp_sums != nullptr) { slots::fill(stream, temp_sums, scratch.temp_sums.numel(), 0.0f); }
  slots::SlotReadBackward<T> read{
      .n = n,
      .slots = {scratch.slots.key_hats.as<T>(), scratch.slots.value_hats.as<T>(), nullptr, update.dictionary.room},
      .q = a.q.as<T>(),
      .d_o = a.d_o.as<T>(),
      .o = a.o.as<T>(),
      .lse = a.lse.as<float>(),
      .slot_temp = a.state_temp.as<float>(),
      .d_q = a.d_q.as<T>(),
      .d_keys = gradients.key_hats,
      .d_values = gradients.value_hats,
      .temp_sums = temp_sums,
      .queries = queries,
      .scale = static_cast<float>(a.rule.scale)};
  if (scratch.on_tensor_cores) {
    read.statistics = scratch.statistics.as<float>();
    read.parts = slots::parts_of(n, batch, 1, scratch.parts);
  }
  ReverseScan<T> scan{{update, gradients}, read, Elements(a.d_k), Elements(a.d_v), a.d_gate.as<float>(), units, count};
  scan.replay(stream);
  scan.back(stream);
  add_column_sums(stream, a.d_state_temp, temp_sums, scratch.temp_sums.numel() / heads, heads);
  add_column_sums(stream, a.d_norm_weight, gradients.norm, items, 2 * d);
  add_column_sums(stream, a.d_norm_bias, gradients.norm + d, items, 2 * d);
}

}  // namespace

void run(Stream& stream, const KvmBackward& a, const KvmBackwardScratch& scratch) {
  if (a.q.numel() > 0) {
    dispatch_float(a.q.dtype, [&]<class S>(S) { backward<S>(stream, a, scratch); });
  }
}

}  // namespace hebb::HEBB_DEVICE
