#pragma once
// One dictionary of ovq: choosing the centroids of a chunk's keys and folding the keys in.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "core/random.h"
#include "kernels/common/cpu/lane_products.h"
#include "kernels/common/cpu/math.h"
#include "kernels/ovq/ovq.h"

namespace hebb::cpu {

/// Rows of `width` numbers, `stride` apart.
template <class S> struct OvqRows {
  const S* data;
  int64_t stride, width;
  const S* operator[](int64_t i) const { return data + i * stride; }
};

/// The dictionary of one row and kv head; n centroids.
template <class S> struct OvqHeadDictionary {
  S *keys, *values, *log_counts;
  int32_t* counts;
  int64_t key_dim, value_dim, n;

  S* key(int64_t r) const { return keys + r * key_dim; }
  S* value(int64_t r) const { return values + r * value_dim; }
  void set_count(int64_t r, int64_t count) {
    counts[r] = static_cast<int32_t>(count);
    log_counts[r] = count > 0 ? std::log(static_cast<S>(count)) : S(0);
  }
};

template <class S> OvqHeadDictionary<S> ovq_head_dictionary(const OvqDictionary& d, int64_t unit) {
  const int64_t room = d.keys.size(2), key_dim = d.keys.size(3), value_dim = d.values.size(3);
  return {d.keys.as<S>() + unit * room * key_dim,
          d.values.as<S>() + unit * room * value_dim,
          d.log_counts.defined() ? d.log_counts.as<S>() + unit * room : nullptr,
          d.counts.defined() ? d.counts.as<int32_t>() + unit * room : nullptr,
          key_dim,
          value_dim,
          0};
}

/// Memory of one thread, of the size of a chunk or of a slot.
template <class S> struct OvqWork {
  std::vector<S> best, mean, similarities;
  std::vector<uint64_t> scores;
  std::vector<int32_t> ids, order;
};

/// ids[j] of a full chunk's keys (docs/layers/ovq.md, Selection). `size` centroids after the chunk; `position` of its
/// first key in the document.
template <class S>
void ovq_assign(const OvqRule& rule, const OvqHeadDictionary<S>& dictionary, const OvqRows<S>& keys, int64_t size,
                int64_t position, int64_t kv_head, OvqWork<S>& work, int32_t* ids) {
  const int64_t count = rule.chunk;
  const bool empty = dictionary.n == 0;
  const int64_t founder = empty ? (rule.second_founds && count > 1 ? 1 : 0) : -1;
  work.best.resize(static_cast<size_t>(count));
  work.order.clear();
  work.similarities.resize(static_cast<size_t>(std::max<int64_t>(1, dictionary.n)));
  S *best = work.best.data(), *similarities = work.similarities.data();
  for (int64_t j = 0; j < count; ++j) {
    const int64_t known = empty ? 1 : dictionary.n;
    dot_rows(dictionary.key_dim, keys[j], known, empty ? keys[founder] : dictionary.keys, similarities);
    best[j] = largest_of(known, similarities);
    const S* found = std::find(similarities, similarities + known, best[j]);
    ids[j] = found == similarities + known ? 0 : static_cast<int32_t>(found - similarities);  // NaN: none is found
    if (j != founder) { work.order.push_back(static_cast<int32_t>(j)); }
  }
  const int64_t first_new = empty ? 1 : dictionary.n;
  const auto founders = work.order.begin() + (size - first_new);
  if (rule.random) {
    const std::string label = "ovq/" + std::to_string(rule.layer) + "/" + std::to_string(kv_head);
    work.scores.resize(static_cast<size_t>(count));
    for (int64_t j = 0; j < count; ++j) {
      work.scores[static_cast<size_t>(j)] = Rng(0, label, static_cast<uint64_t>(position + j)).u64();
    }
    const uint64_t* scores = work.scores.data();
    std::sort(work.order.begin(), work.order.end(),
              [=](int32_t a, int32_t b) { return scores[a] != scores[b] ? scores[a] < scores[b] : a < b; });
  } else {
    std::sort(work.order.begin(), work.order.end(),
              [=](int32_t a, int32_t b) { return best[a] != best[b] ? best[a] < best[b] : a < b; });
  }
  std::sort(work.order.begin(), founders);
  int32_t next = static_cast<int32_t>(first_new);
  for (auto j = work.order.begin(); j != founders; ++j) { ids[*j] = next++; }
}

/// Calls each(slot, members, count) for every slot that the keys of a chunk hit; members in order of position.
template <class S, class F> void ovq_groups(int64_t count, const int32_t* ids, OvqWork<S>& work, F&& each) {
  work.order.resize(static_cast<size_t>(count));
  std::iota(work.order.begin(), work.order.end(), 0);
  int32_t* order = work.order.data();
  std::sort(order, order + count, [=](int32_t a, int32_t b) { return ids[a] != ids[b] ? ids[a] < ids[b] : a < b; });
  for (int64_t begin = 0, end = 0; begin < count; begin = end) {
    while (end < count && ids[order[end]] == ids[order[begin]]) { ++end; }
    each(static_cast<int64_t>(ids[order[begin]]), order + begin, end - begin);
  }
}

/// Step size w of a slot that `hits` keys of the chunk hit (docs/layers/ovq.md, Update).
template <class S> S ovq_rate(const OvqRule& rule, bool fresh, int64_t count_before, int64_t hits) {
  if (fresh) { return S(1); }
  return rule.rate > 0 ? static_cast<S>(std::min(1.0, static_cast<double>(hits) * rule.rate))
                       : static_cast<S>(hits) / static_cast<S>(count_before + hits);
}

/// slot += w (mean of the members - slot), then unit norm where asked for; returns 1 / norm.
template <class S>
S ovq_blend(S* slot, const OvqRows<S>& source, const int32_t* members, int64_t hits, S w, bool fresh, bool normalize,
            std::vector<S>& mean) {
  const int64_t width = source.width;
  mean.assign(static_cast<size_t>(width), S(0));
  for (int64_t i = 0; i < hits; ++i) {
    const S* item = source[members[i]];
    for (int64_t c = 0; c < width; ++c) { mean[static_cast<size_t>(c)] += item[c]; }
  }
  for (int64_t c = 0; c < width; ++c) {
    const S average = mean[static_cast<size_t>(c)] / static_cast<S>(hits);
    slot[c] = fresh ? average : slot[c] + w * (average - slot[c]);
  }
  if (!normalize) { return S(1); }
  const S inverse = S(1) / std::sqrt(dot(width, slot, slot) + S(1e-6));
  for (int64_t c = 0; c < width; ++c) { slot[c] *= inverse; }
  return inverse;
}

/// Folds a full chunk in: `size` centroids after it. touched(slot, first key, 1 / norm of key, of value) is told of
/// every slot that changed.
template <class S, class F>
void ovq_fold(const OvqRule& rule, OvqHeadDictionary<S>& dictionary, const OvqRows<S>& keys, const OvqRows<S>& values,
              const int32_t* ids, int64_t size, OvqWork<S>& work, F&& touched) {
  ovq_groups(rule.chunk, ids, work, [&](int64_t r, const int32_t* members, int64_t hits) {
    const bool fresh = r >= dictionary.n;
    const int64_t before = fresh ? 0 : dictionary.counts[r];
    const S w = ovq_rate<S>(rule, fresh, before, hits);
    const S key_scale = ovq_blend(dictionary.key(r), keys, members, hits, w, fresh, rule.normalize_keys, work.mean);
    const S value_scale =
        ovq_blend(dictionary.value(r), values, members, hits, w, fresh, rule.normalize_values, work.mean);
    dictionary.set_count(r, before + hits);
    touched(r, static_cast<int64_t>(members[0]), key_scale, value_scale);
  });
  dictionary.n = size;
}

}  // namespace hebb::cpu
