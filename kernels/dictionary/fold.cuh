#pragma once
// Dictionaries of ovq on the GPU: the plan of a pass, and folding a chunk in (docs/layers/ovq.md, Update).
#include "kernels/common/cuda/load_store.cuh"
#include "kernels/dictionary/slot_attention.cuh"
#include "kernels/ovq/ovq.h"

namespace hebb::HEBB_DEVICE::ovq {

using slots::kNone, slots::ReadLayout, slots::Step;

/// Fills the steps of a pass. A warp makes one step.
struct MakeSteps {
  Step* steps;
  const int32_t* doc_start;
  OvqRule rule;
  int64_t length, count;

  __device__ void operator()(int64_t item, int lane) const {
    const int32_t* const start = doc_start + item / count * length;
    int32_t read = kNone, fold = kNone;
    slots::each_chunk_start(start, length, rule.chunk, item % count, lane, [&](int64_t t, int64_t begin) {
      if (t < 0 || t > begin) {  // the keys of earlier tokens count, as centroids or pending
        read = static_cast<int32_t>(t);
      }
      if (t + rule.chunk <= length && start[t + rule.chunk - 1] == begin) { fold = static_cast<int32_t>(t); }
    });
    read = warp_max(read);
    fold = warp_max(fold);
    if (lane == 0) {
      const auto size_at = [&](int64_t t, int64_t more) {
        return static_cast<int32_t>(rule.size(t - start[t < 0 ? 0 : t] + more));
      };
      steps[item] = {read, read == kNone ? 0 : size_at(read, 0), fold, fold == kNone ? 0 : size_at(fold, 0),
                     fold == kNone ? 0 : size_at(fold, rule.chunk)};
    }
  }
};

/// Keys or values of chunks: where the tokens are or, of a chunk that an earlier pass began, pending.
struct ChunkItems {
  Elements tokens, pending;
  int64_t width;

  /// A chunk's: first element of its first item, and elements from one item to the next.
  struct Items {
    Elements data;
    int64_t from, stride;
  };
  __device__ Items chunk(const ReadLayout& n, int64_t unit, const Step& step) const {
    const int64_t row = unit / n.kv_heads, head = unit % n.kv_heads;
    return step.fold < 0
               ? Items{pending, unit * n.chunk * width, width}
               : Items{tokens, ((row * n.length + step.fold) * n.kv_heads + head) * width, n.kv_heads * width};
  }
};

struct Dictionary {
  float *keys, *values, *log_counts;
  int32_t* counts;
  bf16 *key_copies, *value_copies;  // or null
  int64_t room;

  explicit Dictionary(const OvqDictionary& d)
      : keys(d.keys.as<float>()),
        values(d.values.as<float>()),
        log_counts(d.log_counts.as<float>()),
        counts(d.counts.as<int32_t>()),
        key_copies(d.key_copies.as<bf16>()),
        value_copies(d.value_copies.as<bf16>()),
        room(d.keys.size(2)) {}

  /// After a slot has changed; lanes have written what they copy.
  __device__ void copy_slot(int64_t slot, int64_t d, int64_t dv, int lane) const {
    for (int64_t c = slot * d + lane; key_copies != nullptr && c < (slot + 1) * d; c += 32) {
      key_copies[c] = round_to_bf16(keys[c]);
    }
    for (int64_t c = slot * dv + lane; value_copies != nullptr && c < (slot + 1) * dv; c += 32) {
      value_copies[c] = round_to_bf16(values[c]);
    }
  }
};

/// The slots as queries of type T read them.
template <class T> slots::Slots<T> slots_of(const OvqDictionary& d) {
  if constexpr (std::is_same_v<T, bf16>) {
    HEBB_ASSERT(d.key_copies.defined() && d.value_copies.defined());
    return {d.key_copies.as<bf16>(), d.value_copies.as<bf16>(), d.log_counts.as<float>(), d.keys.size(2)};
  } else {
    return {d.keys.as<float>(), d.values.as<float>(), d.log_counts.as<float>(), d.keys.size(2)};
  }
}

/// Slots as updates found them, by version: of each slot that a step changes, the place of its first key in the step's
/// chunk (null: not kept).
struct Kept {
  int32_t* table = nullptr;  // [B, K, group, R]: version by step and slot where the step changed the slot, else -1
  float *keys = nullptr, *values = nullptr,
        *inverse_norms = nullptr;  // fp32, for undoing; norms [B, K, versions, 2] are the update's
  int32_t* counts = nullptr;
  bf16 *key_copies = nullptr, *value_copies = nullptr;  // for reading on tensor cores
  float* log_counts = nullptr;
  int64_t versions = 0, group = 1;
  bool by_token = false;  // versions: all tokens of the pass; else the places of a group's chunks

  __device__ int64_t version(int64_t step_number, const Step& step, int64_t chunk, int64_t place) const {
    return (by_token ? step.fold : step_number % group * chunk) + place;
  }
  __device__ int32_t* entry(int64_t unit, int64_t step_number, int64_t room, int64_t slot) const {
    return slots::version_entry(table, unit, step_number, group, room, slot);
  }
  slots::OldSlots slots() const { return {table, key_copies, value_copies, log_counts, versions, group}; }
};

/// What the step's chunk does to one slot: found by the slot's first key in it.
struct Change {
  int64_t unit, first, slot, before,
      hits;  // first: place of the key; slot: among all; before: keys that the slot holds already
  Step step;
  const int32_t* ids;
  bool fresh;

  /// Calls f(place), in order, for the keys that enter the slot. All lanes of a warp.
  template <class F> __device__ void each_key(int64_t chunk, int lane, F&& f) const {
    slots::each_member(ids, chunk, first, ids[first], lane, f);
  }
};

/// What folding in and its undoing share. A warp does a slot.
struct SlotChanges {
  ReadLayout n;
  OvqRule rule;
  Dictionary dictionary;
  Kept kept;

  /// The step's change of the slot that the key at `first` is the first to enter; counts are those after the chunk
  /// where it `is_done`.
  __device__ Change change(int64_t unit, const Step& step, int64_t first, const int32_t* ids, bool is_done,
                           int lane) const {
    const int32_t id = ids[first];
    Change c{unit, first, unit * dictionary.room + id, 0, 0, step, ids, id >= step.before};
    c.each_key(rule.chunk, lane, [&](int64_t) { ++c.hits; });
    c.before = c.fresh ? 0 : dictionary.counts[c.slot] - (is_done ? c.hits : 0);
    __syncwarp();  // every lane has read the count
    return c;
  }
  /// The step size is a choice of the rule.
  __device__ float step_size(const Change& c) const {
    if (c.fresh) { return 1.0f; }
    const double constant = static_cast<double>(c.hits) * rule.rate;
    return rule.rate > 0 ? static_cast<float>(constant < 1.0 ? constant : 1.0)
                         : static_cast<float>(c.hits) / static_cast<float>(c.before + c.hits);
  }
};

/// Folds a step's chunk in, slot by slot.
struct Fold : SlotChanges {
  ChunkItems keys, values;

  /// The slot that the key at `first` enters, unless an earlier key does it.
  __device__ void of_key(int64_t unit, int64_t step_number, int64_t first, const int32_t* ids, int lane) const {
    if (!slots::is_among(ids, first, ids[first], lane)) { of_slot(unit, step_number, first, ids, lane); }
  }
  __device__ void of_slot(int64_t unit, int64_t step_number, int64_t first, const int32_t* ids, int lane) const {
    const Change c = change(unit, n.at(unit / n.kv_heads, step_number), first, ids, false, lane);
    const int64_t version = kept.version(step_number, c.step, rule.chunk, first),
                  kept_version = unit * kept.versions + version;
    keep(c, kept_version, lane);
    const float key_scale = blend(dictionary.keys + c.slot * n.d, keys, c, rule.normalize_keys, lane);
    const float value_scale = blend(dictionary.values + c.slot * n.dv, values, c, rule.normalize_values, lane);
    dictionary.copy_slot(c.slot, n.d, n.dv, lane);
    if (lane > 0) { return; }
    const int64_t count = c.before + c.hits;
    dictionary.counts[c.slot] = static_cast<int32_t>(count);
    dictionary.log_counts[c.slot] = logf(static_cast<float>(count));
    if (kept.table != nullptr) {
      *kept.entry(unit, step_number, dictionary.room, ids[first]) = static_cast<int32_t>(version);
    }
    if (kept.inverse_norms != nullptr) {
      kept.inverse_norms[2 * kept_version] = key_scale;
      kept.inverse_norms[2 * kept_version + 1] = value_scale;
    }
  }

 private:
  /// slot += w (mean of its keys - slot), then unit norm where asked for; returns 1 / norm.
  __device__ float blend(float* slot, const ChunkItems& all, const Change& change, bool normalize, int lane) const {
    const ChunkItems::Items items = all.chunk(n, change.unit, change.step);
    const float w = step_size(change);
    float squares = 0;
    for (int64_t base = 0; base < all.width; base += 32) {
      const int64_t c = base + lane;
      const bool exists = c < all.width;
      float sum = 0;
      change.each_key(rule.chunk, lane,
                      [&](int64_t i) { sum += exists ? items.data[items.from + i * items.stride + c] : 0.0f; });
      if (exists) {
        const float mean = sum / static_cast<float>(change.hits);
        slot[c] = change.fresh ? mean : slot[c] + w * (mean - slot[c]);
        squares += slot[c] * slot[c];
      }
    }
    if (!normalize) { return 1.0f; }
    const float inverse = 1.0f / sqrtf(warp_sum(squares) + 1e-6f);
    for (int64_t c = lane; c < all.width; c += 32) { slot[c] *= inverse; }
    return inverse;
  }

  /// The slot before the change; of a new one what an earlier document left there, which undoing brings back.
  __device__ void keep(const Change& change, int64_t version, int lane) const {
    copy_channels(kept.keys, dictionary.keys, version, change.slot, n.d, lane);
    copy_channels(kept.values, dictionary.values, version, change.slot, n.dv, lane);
    copy_channels(kept.key_copies, dictionary.key_copies, version, change.slot, n.d, lane);
    copy_channels(kept.value_copies, dictionary.value_copies, version, change.slot, n.dv, lane);
    if (lane == 0 && kept.counts != nullptr) { kept.counts[version] = dictionary.counts[change.slot]; }
    if (lane == 0 && kept.log_counts != nullptr) { kept.log_counts[version] = dictionary.log_counts[change.slot]; }
  }
  template <class X>
  __device__ static void copy_channels(X* to, const X* from, int64_t version, int64_t slot, int64_t width, int lane) {
    for (int64_t c = lane; to != nullptr && c < width; c += 32) { to[version * width + c] = from[slot * width + c]; }
  }
};

}  // namespace hebb::HEBB_DEVICE::ovq
