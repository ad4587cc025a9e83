#pragma once
// State slots of kvm on the GPU: the plan of a pass, memory keys, and what tokens do to slots (docs/layers/kvm.md). One
// warp has one token of the chunk that leaves the window, or one slot.
#include "kernels/common/cuda/load_store.cuh"
#include "kernels/dictionary/slot_attention.cuh"
#include "kernels/kvm/scratch.h"

namespace hebb::HEBB_DEVICE::kvm {

using slots::kNone, slots::ReadLayout, slots::Step;

/// Fills the steps of a pass. A warp makes one step.
struct MakeSteps {
  Step* steps;
  const int32_t *doc_start, *sizes;
  int64_t length, count, chunk, window;

  __device__ void operator()(int64_t item, int lane) const {
    const int64_t row = item / count;
    int32_t read = kNone, fold = kNone;
    slots::each_chunk_start(doc_start + row * length, length, chunk, item % count, lane, [&](int64_t t, int64_t begin) {
      const int64_t c = (t - begin) / chunk, oldest = c - window + 1;
      if (c >= window ||
          begin + (oldest > 0 ? oldest : 0) * chunk < 0) {  // there are slots, or earlier tokens in the window
        read = static_cast<int32_t>(t);
      }
      if (c >= window && t >= 0) { fold = static_cast<int32_t>(t); }
    });
    read = warp_max(read);
    fold = warp_max(fold);
    if (lane == 0) {
      const auto chunk_at = [&](int64_t t) { return (t - doc_start[row * length + (t < 0 ? 0 : t)]) / chunk; };
      Step s{read, 0, fold, 0, 0};
      if (read != kNone) { s.slots = sizes[chunk_at(read)]; }
      if (fold != kNone) {
        const int64_t c = chunk_at(fold);
        s.before = c > window ? sizes[c - 1] : 0;
        s.after = sizes[c];
      }
      steps[item] = s;
    }
  }
};

/// Keys, values and gates by token of this pass, and of the tokens before it as a ring by position.
struct Tokens {
  Elements k, v;
  const float* gate;  // logits, or null
  Elements ring_k = {}, ring_v = {};
  const float* ring_gates = nullptr;
  int64_t ring = 1;  // tokens that it holds

  /// One token; `token` is its line among all of this pass, `place` in the ring where it is of an earlier one.
  struct One {
    int64_t token, place;
    bool is_earlier;
  };
  __device__ One at(const ReadLayout& n, int64_t unit, int64_t t) const {
    const int64_t row = unit / n.kv_heads;
    if (t >= 0) { return {(row * n.length + t) * n.kv_heads + unit % n.kv_heads, 0, false}; }
    return {0, unit * ring + (t - n.doc_start[row * n.length]) % ring, true};
  }
  __device__ float key(const ReadLayout& n, const One& one, int64_t c) const {
    return one.is_earlier ? ring_k[one.place * n.d + c] : k[one.token * n.d + c];
  }
  __device__ float value(const ReadLayout& n, const One& one, int64_t c) const {
    return one.is_earlier ? ring_v[one.place * n.dv + c] : v[one.token * n.dv + c];
  }
  __device__ float gate_at(const One& one) const {
    return one.is_earlier ? ring_gates[one.place] : gate != nullptr ? one_plus_elu(gate[one.token]) : 1.0f;
  }
};

/// LayerNorm over `width` channels by one warp; x(c) gives a channel.
struct Norm {
  const float *weight, *bias;
  int64_t width;
  float eps;

  struct Statistics {
    float mean, rstd;
  };
  template <class X> __device__ Statistics statistics(int lane, X&& x) const {
    float sum = 0, squares = 0;
    for (int64_t c = lane; c < width; c += 32) { sum += x(c); }
    const float mean = warp_sum(sum) / static_cast<float>(width);
    for (int64_t c = lane; c < width; c += 32) { squares += (x(c) - mean) * (x(c) - mean); }
    return {mean, 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(width) + eps)};
  }
  /// Calls put(c, y).
  template <class X, class Put> __device__ void forward(int lane, X&& x, Put&& put) const {
    const Statistics s = statistics(lane, x);
    for (int64_t c = lane; c < width; c += 32) { put(c, (x(c) - s.mean) * s.rstd * weight[c] + bias[c]); }
  }
  /// Calls put(c, d_x) with the gradients at x, given those d(c) at y; adds to d_weight and d_bias [width].
  template <class X, class D, class Put>
  __device__ void backward(int lane, float* d_weight, float* d_bias, X&& x, D&& d, Put&& put) const {
    const Statistics s = statistics(lane, x);
    float sum = 0, along = 0;
    for (int64_t c = lane; c < width; c += 32) {
      const float normed = (x(c) - s.mean) * s.rstd;
      d_weight[c] += d(c) * normed;
      d_bias[c] += d(c);
      sum += d(c) * weight[c];
      along += d(c) * weight[c] * normed;
    }
    const float mean = warp_sum(sum) / static_cast<float>(width);
    along = warp_sum(along) / static_cast<float>(width);
    for (int64_t c = lane; c < width; c += 32) {
      put(c, s.rstd * (d(c) * weight[c] - mean - (x(c) - s.mean) * s.rstd * along));
    }
  }
};

struct Dictionary {
  float *keys, *values, *radii;
  int32_t* counts;
  Elements key_hats, value_hats;
  int64_t room;

  explicit Dictionary(const KvmSlots& r)
      : keys(r.keys.as<float>()),
        values(r.values.as<float>()),
        radii(r.radii.as<float>()),
        counts(r.counts.as<int32_t>()),
        key_hats(r.key_hats),
        value_hats(r.value_hats),
        room(r.keys.size(2)) {}

  static constexpr float kTiny = 1e-12f;

  /// max(|value sum|, tiny) of a slot, by one warp.
  __device__ float clamped_norm(int64_t slot, int64_t dv, int lane) const {
    float squares = 0;
    for (int64_t c = lane; c < dv; c += 32) { squares += values[slot * dv + c] * values[slot * dv + c]; }
    const float norm = sqrtf(warp_sum(squares));
    return norm > kTiny ? norm : kTiny;
  }
  /// Factor from the sum of a slot's values to what queries of `chunk` read.
  __device__ float value_scale(const KvmRule& rule, int64_t slot, int64_t dv, int64_t chunk, int lane) const {
    switch (rule.value_norm) {
      case KvmValueNorm::radius: return radii[slot] / clamped_norm(slot, dv, lane);
      case KvmValueNorm::mean: return 1.0f / static_cast<float>(1 + counts[slot]);
      case KvmValueNorm::updates: return 1.0f / static_cast<float>(1 + chunk - counts[slot]);
    }
    return 1.0f;
  }
  __device__ void read_value(const KvmRule& rule, int64_t slot, int64_t dv, int64_t chunk, int lane) const {
    const float scale = value_scale(rule, slot, dv, chunk, lane);
    for (int64_t c = lane; c < dv; c += 32) { value_hats.set(slot * dv + c, scale * values[slot * dv + c]); }
  }
  __device__ void read_slot(const KvmRule& rule, const Norm& norm, int64_t slot, int64_t dv, int64_t chunk,
                            int lane) const {
    const float* const key = keys + slot * norm.width;
    norm.forward(
        lane, [&](int64_t c) { return key[c]; }, [&](int64_t c, float y) { key_hats.set(slot * norm.width + c, y); });
    read_value(rule, slot, dv, chunk, lane);
  }
};

/// Routes of the step's chunk: [B, K, C], or where the tokens are in [B, K, T].
struct Codes {
  int32_t* data;
  bool by_token;

  __device__ int32_t* chunk(const ReadLayout& n, int64_t unit, int64_t first) const {
    return data + (by_token ? unit * n.length + first : unit * n.chunk);
  }
};

/// Slots as updates made them, by the token by which the update first touched the slot (backward only: keys null
/// otherwise).
struct Versions {
  float *keys = nullptr, *values = nullptr, *radii = nullptr;         // [B, K, T, D], [B, K, T, Dv], [B, K, T]
  int32_t *counts = nullptr, *previous = nullptr, *latest = nullptr;  // [B, K, T], [B, K, T], [B, K, R]
};

/// What was read of slots before updates changed it, in bf16, by version: the place in its chunk of the token by which
/// the update first touched the slot, of the chunks of a group of steps (null: not kept).
struct OldHats {
  int32_t* table = nullptr;  // [B, K, group, R]
  bf16 *keys = nullptr, *values = nullptr;
  int64_t versions = 0, group = 1;

  slots::OldSlots slots() const { return {table, keys, values, nullptr, versions, group}; }
};

/// A token of the chunk that leaves the window; t counts from the row's first and is negative for tokens before this
/// pass.
struct Member {
  int64_t unit, place, t;
  Step step;

  __device__ bool exists() const { return step.fold != kNone; }
  __device__ int64_t first() const { return t - place; }  // token of the chunk
};

/// What the kernels of an update share.
struct Update {
  ReadLayout n;
  KvmRule rule;
  Dictionary dictionary;
  Norm norm;
  Tokens tokens;
  Codes codes;
  Versions versions;
  float* memory_keys;  // [B, K, C, D]
  bf16* key_copies;    // of the memory keys, or null
  float* gates;        // [B, K, C]
  int64_t step;
  OldHats old = {};

  __device__ Member member(int64_t item) const {
    const int64_t unit = item / rule.chunk, place = item % rule.chunk;
    const Step s = n.at(unit / n.kv_heads, step);
    return {unit, place, s.fold - rule.window * rule.chunk + place, s};
  }
  __device__ const int32_t* routes(const Member& m) const { return codes.chunk(n, m.unit, m.first()); }
  /// Of the document: the chunk on whose entry the member's leaves.
  __device__ int64_t chunk_of(const Member& m) const {
    return (m.step.fold - n.doc_start[m.unit / n.kv_heads * n.length + m.step.fold]) / rule.chunk;
  }
  /// The key without its rotary channels, which the memory key is the norm of.
  __device__ float z(const Tokens::One& one, int64_t c) const { return c < rule.rotary ? 0.0f : tokens.key(n, one, c); }

  /// Keeps what is read of the slot, which the member is the first to touch.
  __device__ void keep_hats(const Member& m, int64_t slot, int lane) const {
    if (old.table == nullptr) { return; }
    const int64_t version = step % old.group * rule.chunk + m.place, to = m.unit * old.versions + version;
    for (int64_t c = lane; c < n.d; c += 32) {
      old.keys[to * n.d + c] = round_to_bf16(dictionary.key_hats[slot * n.d + c]);
    }
    for (int64_t c = lane; c < n.dv; c += 32) {
      old.values[to * n.dv + c] = round_to_bf16(dictionary.value_hats[slot * n.dv + c]);
    }
    if (lane == 0) {
      *slots::version_entry(old.table, m.unit, step, old.group, dictionary.room, slot - m.unit * dictionary.room) =
          static_cast<int32_t>(version);
    }
  }
  /// Keeps the slot as version `token`.
  __device__ void keep(int64_t unit, int64_t slot, int64_t token, int lane) const {
    const int64_t version = unit * n.length + token;
    for (int64_t c = lane; c < n.d; c += 32) { versions.keys[version * n.d + c] = dictionary.keys[slot * n.d + c]; }
    for (int64_t c = lane; c < n.dv; c += 32) {
      versions.values[version * n.dv + c] = dictionary.values[slot * n.dv + c];
    }
    if (lane == 0) {
      versions.radii[version] = dictionary.radii[slot];
      versions.counts[version] = dictionary.counts[slot];
    }
  }
};

/// Memory keys and gates of the chunk.
struct MemoryKeys : Update {
  __device__ void operator()(int64_t item, int lane) const {
    const Member m = member(item);
    if (!m.exists()) { return; }
    const auto one = tokens.at(n, m.unit, m.t);
    norm.forward(
        lane, [&](int64_t c) { return z(one, c); },
        [&](int64_t c, float y) {
          memory_keys[item * n.d + c] = y;
          if (key_copies != nullptr) { key_copies[item * n.d + c] = round_to_bf16(y); }
        });
    if (lane == 0) { gates[item] = tokens.gate_at(one); }
  }
};

/// The tokens that found slots.
struct Found : Update {
  __device__ void operator()(int64_t item, int lane) const {
    const Member m = member(item);
    const int32_t code = m.exists() ? routes(m)[m.place] : -1;
    if (code < 0 || (code & 1) == 0) { return; }
    const int64_t slot = m.unit * dictionary.room + (code >> 1), chunk = chunk_of(m);
    keep_hats(m, slot, lane);
    const auto one = tokens.at(n, m.unit, m.t);
    const float gate = m.step.before > 0 && rule.gate_appends ? gates[item] : 1.0f;
    for (int64_t c = lane; c < n.d; c += 32) {
      dictionary.keys[slot * n.d + c] = (rule.gate_keys ? gate : 1.0f) * memory_keys[item * n.d + c];
    }
    float squares = 0;
    for (int64_t c = lane; c < n.dv; c += 32) {
      const float v = (rule.gate_values ? gate : 1.0f) * tokens.value(n, one, c);
      dictionary.values[slot * n.dv + c] = v;
      squares += v * v;
    }
    squares = warp_sum(squares);
    if (lane == 0) {
      dictionary.radii[slot] = sqrtf(squares);
      dictionary.counts[slot] = rule.value_norm == KvmValueNorm::updates ? static_cast<int32_t>(chunk) : 0;
    }
    __syncwarp();
    dictionary.read_slot(rule, norm, slot, n.dv, chunk, lane);
    if (versions.keys != nullptr) {
      keep(m.unit, slot, m.t, lane);
      if (lane == 0) {
        versions.previous[m.unit * n.length + m.t] = versions.latest[slot];  // of an earlier document, too
        versions.latest[slot] = static_cast<int32_t>(m.t);
      }
    }
  }
};

/// The tokens that join slots, in order; the first of a slot does the slot.
struct Merge : Update {
  __device__ void operator()(int64_t item, int lane) const {
    const Member m = member(item);
    if (!m.exists()) { return; }
    const int32_t* const of = routes(m);
    const int32_t code = of[m.place];
    if ((code & 1) != 0 || slots::is_among(of, m.place, code, lane)) { return; }
    const int64_t slot = m.unit * dictionary.room + (code >> 1), chunk_item = m.unit * rule.chunk;
    if ((code >> 1) < m.step.before) {  // else its founder has kept them
      keep_hats(m, slot, lane);
    }
    for (int64_t base = 0; base < n.d; base += 32) {
      const int64_t c = base + lane;
      float sum = c < n.d ? dictionary.keys[slot * n.d + c] : 0.0f;
      slots::each_member(of, rule.chunk, m.place, code, lane, [&](int64_t j) {
        const float g = rule.gate_keys ? gates[chunk_item + j] : 1.0f;
        sum += c < n.d ? g * memory_keys[(chunk_item + j) * n.d + c] : 0.0f;
      });
      if (c < n.d) { dictionary.keys[slot * n.d + c] = sum; }
    }
    int32_t members = 0;
    for (int64_t base = 0; base < n.dv; base += 32) {
      const int64_t c = base + lane;
      float sum = c < n.dv ? dictionary.values[slot * n.dv + c] : 0.0f;
      members = 0;
      slots::each_member(of, rule.chunk, m.place, code, lane, [&](int64_t j) {
        const float g = rule.gate_values ? gates[chunk_item + j] : 1.0f;
        sum += c < n.dv ? g * tokens.value(n, tokens.at(n, m.unit, m.first() + j), c) : 0.0f;
        ++members;
      });
      if (c < n.dv) { dictionary.values[slot * n.dv + c] = sum; }
    }
    if (lane == 0 && rule.value_norm == KvmValueNorm::mean) { dictionary.counts[slot] += members; }
    __syncwarp();
    dictionary.read_slot(rule, norm, slot, n.dv, chunk_of(m), lane);
    if (versions.keys != nullptr) {
      const int64_t latest = versions.latest[slot], t = latest < m.first() ? m.t : latest;  // or its founder's
      __syncwarp();                                                                         // every lane has read it
      keep(m.unit, slot, t, lane);
      if (lane == 0 && latest < m.first()) {
        versions.previous[m.unit * n.length + t] = static_cast<int32_t>(latest);
        versions.latest[slot] = static_cast<int32_t>(t);
      }
    }
  }
};

/// Value norm "updates": what queries of the step's chunk read of every slot.
struct ReadValues {
  ReadLayout n;
  KvmRule rule;
  Dictionary dictionary;
  int64_t step;

  __device__ void operator()(int64_t slot, int lane) const {
    const int64_t unit = slot / dictionary.room, at = unit / n.kv_heads;
    const Step s = n.at(at, step);
    if (s.read != kNone && slot % dictionary.room < s.slots) {
      const int64_t begin = n.doc_start[at * n.length + (s.read < 0 ? 0 : s.read)];
      dictionary.read_value(rule, slot, n.dv, (s.read - begin) / rule.chunk, lane);
    }
  }
};

/// to = q times its head's temperature. Item: [B T, H D].
struct HeatQueries {
  Elements to, q;
  const float* temp;
  int64_t d;
  int heads;

  __device__ void operator()(int64_t line, int64_t c) const {
    to.set(line * d + c, temp[line % heads] * q[line * d + c]);
  }
};

template <class Args> void make_steps(Stream& stream, const Args& a, Step* steps, int64_t count) {
  each_warp("kvm_steps", stream, a.q.size(0) * count,
            MakeSteps{steps, a.doc_start.template as<int32_t>(), a.sizes.template as<int32_t>(), a.q.size(1), count,
                      a.rule.chunk, a.rule.window});
}

}  // namespace hebb::HEBB_DEVICE::kvm
