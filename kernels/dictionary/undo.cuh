#pragma once
// Taking chunks out of the dictionaries of ovq again (docs/layers/ovq.md, Gradients).
#include "kernels/dictionary/fold.cuh"

namespace hebb::HEBB_DEVICE::ovq {

/// Hands the gradients of slots that a step changed to the keys and values of its chunk and restores what was there
/// before. A warp does a slot.
struct Undo : SlotChanges {
  static constexpr bool kUndoes = true;
  const int32_t* ids;  // [B, K, T]
  float *d_slot_keys, *d_slot_values;
  Elements d_k, d_v;

  /// Place of the slot's first key in the step's chunk; -1 where the step left it alone. The table is resolved.
  __device__ int32_t place_of(int64_t unit, int64_t step_number, int64_t slot) const {
    const Step step = n.at(unit / n.kv_heads, step_number);
    const int64_t place = *kept.entry(unit, step_number, dictionary.room, slot) - int64_t{step.fold};
    return step.fold != kNone && place >= 0 && place < rule.chunk ? static_cast<int32_t>(place) : -1;
  }
  __device__ void operator()(int64_t unit, int64_t step_number, int64_t first, int lane) const {
    const Step step = n.at(unit / n.kv_heads, step_number);
    const Change c = change(unit, step, first, ids + unit * n.length + step.fold, true, lane);
    const int64_t version = unit * kept.versions + step.fold + first, slot = c.slot;
    const float* const norms = kept.inverse_norms + 2 * version;
    share(d_slot_keys + slot * n.d, dictionary.keys + slot * n.d, rule.normalize_keys, norms[0], d_k, c, n.d, lane);
    share(d_slot_values + slot * n.dv, dictionary.values + slot * n.dv, rule.normalize_values, norms[1], d_v, c, n.dv,
          lane);
    for (int64_t i = lane; i < n.d; i += 32) { dictionary.keys[slot * n.d + i] = kept.keys[version * n.d + i]; }
    for (int64_t i = lane; i < n.dv; i += 32) { dictionary.values[slot * n.dv + i] = kept.values[version * n.dv + i]; }
    dictionary.copy_slot(slot, n.d, n.dv, lane);
    if (lane == 0) {
      dictionary.counts[slot] = kept.counts[version];
      dictionary.log_counts[slot] = logf(static_cast<float>(kept.counts[version]));
    }
  }

 private:
  /// d_slot of the updated `slot` to the keys that entered it; leaves the gradient of the slot before them.
  __device__ void share(float* d_slot, const float* slot, bool normalized, float inverse, const Elements& d_items,
                        const Change& change, int64_t width, int lane) const {
    float along = 0;
    if (normalized) {
      along = warp_sum_of(width, lane, [&](int64_t c) { return slot[c] * d_slot[c]; });
    }
    const int64_t first =
        (change.unit / n.kv_heads * n.length + change.step.fold) * n.kv_heads + change.unit % n.kv_heads;
    const float w = step_size(change), part = w / static_cast<float>(change.hits);
    for (int64_t base = 0; base < width; base += 32) {
      const int64_t c = base + lane;
      const bool exists = c < width;
      float d = exists ? d_slot[c] : 0.0f;
      d = normalized && exists ? inverse * (d - slot[c] * along) : d;
      change.each_key(rule.chunk, lane, [&](int64_t i) {
        if (exists) {
          const int64_t at = (first + i * n.kv_heads) * width + c;
          d_items.set(at, d_items[at] + part * d);
        }
      });
      if (exists) { d_slot[c] = (1.0f - w) * d; }
    }
  }
};

}  // namespace hebb::HEBB_DEVICE::ovq
