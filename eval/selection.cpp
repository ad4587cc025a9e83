// What a router selects of needles in repeated text (docs/evaluations/memories.md, selection).
#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "core/random.h"
#include "eval/evaluation.h"

namespace hebb {
namespace {

constexpr std::array<const char*, 4> kGroups = {"first", "repeated", "needle", "after"};

/// Tokens of a row, and the group of each.
struct NeedleRow {
  std::vector<int32_t> tokens;
  std::vector<size_t> groups;

  void add(uint32_t token, size_t group) {
    tokens.push_back(static_cast<int32_t>(token));
    groups.push_back(group);
  }
};

class Selection final : public EvalTask {
 public:
  void fields(Fields& f) override {
    f.field("length", length_).min(1).unit("tokens").help("Tokens of a row (default: that of training).");
    f.field("rows", rows_).min(1).help("Rows that are read.");
    f.field("pattern", pattern_).min(1).unit("tokens").help("Text that a row repeats.");
    f.field("needles", needles_).min(1).help("Needles of a row.");
    f.field("needle", needle_).min(1).unit("tokens").help("Tokens of a needle.");
    f.field("after", after_).min(0).unit("tokens").help("Tokens behind a needle that are a group of their own.");
    f.field("first_id", first_id_).min(0).help("Token ids from this one on are drawn.");
  }

  EvalResult run(EvalContext& c) override {
    const int64_t length = c.length_of(length_, "length", "a length"), vocab = c.model.source().model.vocab_size;
    if (length < least_length()) {
      throw ConfigError("length", std::to_string(length), fmt::format("at least {:d}", least_length()));
    }
    const int64_t drawn = pattern_ + needles_ * needle_;
    if (vocab - first_id_ < drawn) {
      throw ConfigError("first_id", std::to_string(first_id_),
                        fmt::format("at most {:d}: {:d} ids are drawn", vocab - drawn, drawn));
    }
    c.begin("selection", static_cast<uint64_t>(rows_));
    const auto compute = [&](size_t k) { return shares(c, row(c.seed, k, length, vocab)); };
    const std::vector<Json> found = c.items({.count = static_cast<size_t>(rows_), .compute = compute});
    c.progress.end();
    return result(found);
  }

 private:
  int64_t least_length() const { return 3 * pattern_ + needles_ * (needle_ + 1) + after_; }

  /// Row k: the pattern again and again, and needles between its tokens from the third time on.
  NeedleRow row(uint64_t seed, uint64_t k, int64_t length, int64_t vocab) const {
    Rng rng(seed, "selection", k);
    const auto pattern = static_cast<size_t>(pattern_), needle = static_cast<size_t>(needle_),
               filling = static_cast<size_t>(length - needles_ * needle_), after = static_cast<size_t>(after_);
    std::vector<uint32_t> ids =
        rng.sample(static_cast<uint32_t>(vocab - first_id_), static_cast<uint32_t>(pattern + needle * needles()));
    for (uint32_t& id : ids) { id += static_cast<uint32_t>(first_id_); }
    std::vector<uint32_t> places =
        rng.sample(static_cast<uint32_t>(filling - 2 * pattern - after), static_cast<uint32_t>(needles_));
    std::sort(places.begin(), places.end());
    NeedleRow made;
    size_t at = 0, since = after;  // the next needle; tokens since the last one
    for (size_t i = 0; i < filling; ++i) {
      for (; at < places.size() && 2 * pattern + places[at] == i; ++at) {
        for (size_t j = 0; j < needle; ++j) { made.add(ids[pattern + needle * at + j], 2); }
        since = 0;
      }
      made.add(ids[i % pattern], i < pattern ? 0 : since < after ? 3 : 1);
      ++since;
    }
    return made;
  }
  size_t needles() const { return static_cast<size_t>(needles_); }

  /// {LAYER: {"score": [mean of each group], "kept": [share of each group]}} of one row.
  static Json shares(EvalContext& c, const NeedleRow& row) {
    Inspector inspector;
    inspector.recording = true;
    c.model.read_rows(row.tokens, {.freeze = true, .inspector = &inspector});
    Json layers = Json::object();
    for (const auto& [name, record] : inspector.records) {
      if (!name.ends_with(".mask")) { continue; }
      const std::string layer = name.substr(0, name.size() - 5);
      Json of_layer = Json::object();
      const std::vector<double> mask(record.integers.begin(), record.integers.end());
      of_layer.set("kept", means(row, mask));
      const auto score = inspector.records.find(layer + ".score");
      if (score != inspector.records.end()) { of_layer.set("score", means(row, score->second.reals)); }
      layers.set(layer, of_layer);
    }
    if (layers.members().empty()) {
      throw ConfigError("selection", "a model without layers that select tokens", "a model with ham layers");
    }
    return layers;
  }

  static Json means(const NeedleRow& row, const std::vector<double>& values) {
    std::array<double, kGroups.size()> sums{}, counts{};
    for (size_t t = 0; t < values.size(); ++t) {
      sums[row.groups[t]] += values[t];
      ++counts[row.groups[t]];
    }
    Json list = Json::array();
    for (size_t g = 0; g < kGroups.size(); ++g) { list.push(counts[g] > 0 ? sums[g] / counts[g] : 0.0); }
    return list;
  }

  EvalResult result(const std::vector<Json>& rows) const {
    EvalResult r;
    for (const char* what : {"score", "kept"}) {
      for (size_t g = 0; g < kGroups.size(); ++g) {
        if (g == 3 && after_ == 0) { continue; }
        const std::string name = fmt::format("{}.{}", what, kGroups[g]);
        std::vector<double> values;  // means over layers
        for (const auto& [layer, of_layer] : rows[0].members()) {
          std::vector<double> own;
          for (const Json& row : rows) {
            const Json* found = row.at(layer).find(what);
            if (found != nullptr) { own.push_back(found->items()[g].as_double()); }
          }
          if (own.empty()) { continue; }
          Json group = r.groups.find(layer) != nullptr ? r.groups.at(layer) : Json::object();
          group.set(name, mean_metric(own));
          r.groups.set(layer, group);
          values.resize(own.size());
          for (size_t k = 0; k < own.size(); ++k) {
            values[k] += own[k] / static_cast<double>(rows[0].members().size());
          }
        }
        if (!values.empty()) { r.mean(name, values); }
      }
    }
    return r;
  }

  std::optional<int64_t> length_;
  int64_t rows_ = 100, pattern_ = 8, needles_ = 3, needle_ = 4, after_ = 3, first_id_ = 0;
};

}  // namespace

std::unique_ptr<EvalTask> make_selection() { return std::make_unique<Selection>(); }

}  // namespace hebb
