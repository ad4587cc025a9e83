#pragma once
// Dictionaries of ovq on the GPU: the plan of a pass, and folding a chunk in (spec 60, section 4.4).
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
template <class X>
struct ChunkItems {
  const X* data;
  int64_t width;
  bool pending;

  __device__ const X* chunk(const Layout& n, int64_t unit, const Step& step) const {
    const int64_t row = unit / n.kv_heads, head = unit % n.kv_heads;
    return data + (pending ? unit * n.chunk : (row * n.length + step.fold) * n.kv_heads + head) * width;
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
  int64_t room;

  explicit Book(const OvqDictionary& d)
      : keys(d.keys.as<float>()), values(d.values.as<float>()), log_counts(d.log_counts.as<float>()), counts(d.counts.as<int32_t>()),
        room(d.keys.size(2)) {}
};

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

__device__ __forceinline__ int64_t count_members(const int32_t* ids, int64_t count, int64_t first, int32_t id, int lane) {
  int64_t hits = 0;
  rows::each_member(ids, count, first, id, lane, [&](int64_t) { ++hits; });
  return hits;
}

/// Folds the step's chunk in. A warp has one key; the first of a row does the row. X: type of keys and values.
template <class X>
struct Fold {
  Layout n;
  OvqRule rule;
  Book book;
  ChunkItems<X> keys, values;
  ChunkIds ids;
  Versions versions;
  int64_t step;

  __device__ void operator()(int64_t item, int lane) const {
    const int64_t unit = item / rule.chunk, j = item % rule.chunk;
    const Step s = n.at(unit / n.kv_heads, step);
    if (s.fold == kNone) {
      return;
    }
    const int32_t* const chunk_ids = ids.chunk(n, unit, s);
    const int32_t r = chunk_ids[j];
    if (rows::is_among(chunk_ids, j, r, lane)) {
      return;
    }
    const bool fresh = r >= s.before;
    const int64_t at = unit * book.room + r, before = fresh ? 0 : book.counts[at];
    const int64_t hits = count_members(chunk_ids, rule.chunk, j, r, lane), count = before + hits;
    const float w = step_size(rule, fresh, before, hits);
    const float key_scale = blend(book.keys + at * n.d, keys, unit, s, chunk_ids, j, hits, w, fresh, rule.normalize_keys, lane);
    const float value_scale = blend(book.values + at * n.dv, values, unit, s, chunk_ids, j, hits, w, fresh, rule.normalize_values, lane);
    __syncwarp();  // every lane has read the count
    if (lane == 0) {
      book.counts[at] = static_cast<int32_t>(count);
      book.log_counts[at] = logf(static_cast<float>(count));
    }
    if (versions.keys != nullptr) {
      keep(unit * n.length + s.fold + j, at, s.fold + j, static_cast<int32_t>(count), key_scale, value_scale, lane);
    }
  }

 private:
  /// row += w (mean of the members - row), then unit norm where asked for; returns 1 / norm.
  __device__ float blend(float* row, const ChunkItems<X>& items, int64_t unit, const Step& s, const int32_t* chunk_ids, int64_t j,
                         int64_t hits, float w, bool fresh, bool normalize, int lane) const {
    const X* const from = items.chunk(n, unit, s);
    const int64_t stride = items.stride(n);
    float squares = 0;
    for (int64_t base = 0; base < items.width; base += 32) {
      const int64_t c = base + lane;
      const bool exists = c < items.width;
      float sum = 0;
      rows::each_member(chunk_ids, rule.chunk, j, chunk_ids[j], lane, [&](int64_t i) { sum += exists ? to_float(from[i * stride + c]) : 0.0f; });
      if (exists) {
        const float mean = sum / static_cast<float>(hits);
        row[c] = fresh ? mean : row[c] + w * (mean - row[c]);
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
