#pragma once
// Dictionaries of ovq on the GPU: the plan of a pass, and folding a chunk in (spec 60, section 4.4).
#include "kernels/cuda/common/elements.h"
#include "kernels/cuda/common/row_attention.h"
#include "kernels/ovq.h"
#include "kernels/visible_keys.h"

namespace hebb::HEBB_DEVICE::ovq {

using rows::kNone, rows::Layout, rows::Step, rows::WorkParts;

/// Fills the steps of a pass. A warp makes one step.
struct MakeSteps {
  Step* steps;
  const int32_t* doc_start;
  OvqRule rule;
  int64_t length, count;

  __device__ void operator()(int64_t item, int lane) const {
    const int32_t* const start = doc_start + item / count * length;
    int32_t read = kNone, fold = kNone;
    rows::each_chunk_start(start, length, rule.chunk, item % count, lane, [&](int64_t t, int64_t begin) {
      if (t < 0 || t > begin) {  // the keys of earlier tokens count, as centroids or pending
        read = static_cast<int32_t>(t);
      }
      if (t + rule.chunk <= length && start[t + rule.chunk - 1] == begin) {
        fold = static_cast<int32_t>(t);
      }
    });
    read = rows::warp_max_of(read);
    fold = rows::warp_max_of(fold);
    if (lane == 0) {
      const auto size_at = [&](int64_t t, int64_t more) { return static_cast<int32_t>(rule.size(t - start[t < 0 ? 0 : t] + more)); };
      steps[item] = {read, read == kNone ? 0 : size_at(read, 0), fold, fold == kNone ? 0 : size_at(fold, 0),
                     fold == kNone ? 0 : size_at(fold, rule.chunk)};
    }
  }
};

/// Keys or values of a chunk: pending, or where the tokens are.
struct ChunkItems {
  Elements data;
  int64_t width;
  bool pending;

  /// First element of the chunk's first item.
  __device__ int64_t chunk(const Layout& n, int64_t unit, const Step& step) const {
    const int64_t row = unit / n.kv_heads, head = unit % n.kv_heads;
    return (pending ? unit * n.chunk : (row * n.length + step.fold) * n.kv_heads + head) * width;
  }
  __device__ int64_t stride(const Layout& n) const { return pending ? width : n.kv_heads * width; }
};

/// ids of the step's chunk: [B, K, L], or where the tokens are in [B, K, T].
struct ChunkIds {
  int32_t* data;
  bool by_token;

  __device__ int32_t* chunk(const Layout& n, int64_t unit, const Step& step) const {
    return data + (by_token ? unit * n.length + step.fold : unit * n.chunk);
  }
};

struct Book {
  float *keys, *values, *log_counts;
  int32_t* counts;
  bf16 *key_copies, *value_copies;  // or null
  int64_t room;

  explicit Book(const OvqDictionary& d)
      : keys(d.keys.as<float>()), values(d.values.as<float>()), log_counts(d.log_counts.as<float>()), counts(d.counts.as<int32_t>()),
        key_copies(d.key_copies.as<bf16>()), value_copies(d.value_copies.as<bf16>()), room(d.keys.size(2)) {}

  /// After a row has changed; lanes have written what they copy.
  __device__ void copy_row(int64_t row, int64_t d, int64_t dv, int lane) const {
    for (int64_t c = row * d + lane; key_copies != nullptr && c < (row + 1) * d; c += 32) {
      key_copies[c] = round_to_bf16(keys[c]);
    }
    for (int64_t c = row * dv + lane; value_copies != nullptr && c < (row + 1) * dv; c += 32) {
      value_copies[c] = round_to_bf16(values[c]);
    }
  }
};

/// The rows as queries of type T read them.
template <class T>
rows::Rows<T> rows_of(const OvqDictionary& d) {
  if constexpr (std::is_same_v<T, bf16>) {
    HEBB_ASSERT(d.key_copies.defined() && d.value_copies.defined());
    return {d.key_copies.as<bf16>(), d.value_copies.as<bf16>(), d.log_counts.as<float>(), d.keys.size(2)};
  } else {
    return {d.keys.as<float>(), d.values.as<float>(), d.log_counts.as<float>(), d.keys.size(2)};
  }
}

/// What updates made of the rows, by the token of a row's first key in the update (backward only: keys null otherwise).
struct Versions {
  float *keys = nullptr, *values = nullptr, *inverse_norms = nullptr;  // [B, K, T, D], [B, K, T, Dv], [B, K, T, 2]
  int32_t *previous = nullptr, *latest = nullptr, *counts = nullptr;   // [B, K, T], [B, K, R], [B, K, T]
};

/// The step size is a choice of the rule (section 4.4).
__device__ __forceinline__ float step_size(const OvqRule& rule, bool fresh, int64_t count_before, int64_t hits) {
  if (fresh) {
    return 1.0f;
  }
  const double constant = static_cast<double>(hits) * rule.rate;
  return rule.rate > 0 ? static_cast<float>(constant < 1.0 ? constant : 1.0)
                       : static_cast<float>(hits) / static_cast<float>(count_before + hits);
}

/// What the step's chunk does to one row: found by the row's first key in it.
struct Change {
  int64_t unit, first, row, before, hits;  // first: place of the key; row: among all; before: keys that the row holds already
  Step step;
  const int32_t* ids;
  bool fresh;

  /// Calls f(place), in order, for the keys that enter the row. All lanes of a warp.
  template <class F>
  __device__ void each_key(int64_t chunk, int lane, F&& f) const {
    rows::each_member(ids, chunk, first, ids[first], lane, f);
  }
};

/// What folding in and its undoing share. A warp has one key of the chunk; the first of a row does the row.
struct Walk {
  Layout n;
  OvqRule rule;
  Book book;
  ChunkIds ids;
  Versions versions;
  int64_t step;

  /// False: nothing is folded in, or an earlier key does the row. Counts are those after the chunk where it `is_done`.
  __device__ bool find(Change& c, int64_t item, bool is_done, int lane) const {
    c.unit = item / rule.chunk;
    c.first = item % rule.chunk;
    c.step = n.at(c.unit / n.kv_heads, step);
    if (c.step.fold == kNone) {
      return false;
    }
    c.ids = ids.chunk(n, c.unit, c.step);
    const int32_t id = c.ids[c.first];
    if (rows::is_among(c.ids, c.first, id, lane)) {
      return false;
    }
    c.fresh = id >= c.step.before;
    c.row = c.unit * book.room + id;
    c.hits = 0;
    c.each_key(rule.chunk, lane, [&](int64_t) { ++c.hits; });
    c.before = c.fresh ? 0 : book.counts[c.row] - (is_done ? c.hits : 0);
    __syncwarp();  // every lane has read the count
    return true;
  }
  __device__ float step_size_of(const Change& c) const { return step_size(rule, c.fresh, c.before, c.hits); }
};

/// Folds the step's chunk in.
struct Fold : Walk {
  ChunkItems keys, values;

  __device__ void operator()(int64_t item, int lane) const {
    Change c;
    if (!find(c, item, false, lane)) {
      return;
    }
    const float key_scale = blend(book.keys + c.row * n.d, keys, c, rule.normalize_keys, lane);
    const float value_scale = blend(book.values + c.row * n.dv, values, c, rule.normalize_values, lane);
    book.copy_row(c.row, n.d, n.dv, lane);
    const int64_t count = c.before + c.hits;
    if (lane == 0) {
      book.counts[c.row] = static_cast<int32_t>(count);
      book.log_counts[c.row] = logf(static_cast<float>(count));
    }
    if (versions.keys != nullptr) {
      keep(c.unit * n.length + c.step.fold + c.first, c.row, c.step.fold + c.first, static_cast<int32_t>(count), key_scale, value_scale, lane);
    }
  }

 private:
  /// row += w (mean of its keys - row), then unit norm where asked for; returns 1 / norm.
  __device__ float blend(float* row, const ChunkItems& items, const Change& change, bool normalize, int lane) const {
    const int64_t from = items.chunk(n, change.unit, change.step), stride = items.stride(n);
    const float w = step_size_of(change);
    float squares = 0;
    for (int64_t base = 0; base < items.width; base += 32) {
      const int64_t c = base + lane;
      const bool exists = c < items.width;
      float sum = 0;
      change.each_key(rule.chunk, lane, [&](int64_t i) { sum += exists ? items.data[from + i * stride + c] : 0.0f; });
      if (exists) {
        const float mean = sum / static_cast<float>(change.hits);
        row[c] = change.fresh ? mean : row[c] + w * (mean - row[c]);
        squares += row[c] * row[c];
      }
    }
    if (!normalize) {
      return 1.0f;
    }
    const float inverse = 1.0f / sqrtf(warp_sum(squares) + 1e-6f);
    for (int64_t c = lane; c < items.width; c += 32) {
      row[c] *= inverse;
    }
    return inverse;
  }

  /// slot: of the version among all; token: within the row of the batch.
  __device__ void keep(int64_t slot, int64_t at, int64_t token, int32_t count, float key_scale, float value_scale, int lane) const {
    for (int64_t c = lane; c < n.d; c += 32) {
      versions.keys[slot * n.d + c] = book.keys[at * n.d + c];
    }
    for (int64_t c = lane; c < n.dv; c += 32) {
      versions.values[slot * n.dv + c] = book.values[at * n.dv + c];
    }
    if (lane == 0) {
      versions.inverse_norms[2 * slot] = key_scale;
      versions.inverse_norms[2 * slot + 1] = value_scale;
      versions.counts[slot] = count;
      versions.previous[slot] = versions.latest[at];  // of an earlier document, too: undoing a founder brings that row back
      versions.latest[at] = static_cast<int32_t>(token);
    }
  }
};

}  // namespace hebb::HEBB_DEVICE::ovq
