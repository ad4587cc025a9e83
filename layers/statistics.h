#pragma once
// What the evaluation memory_stats derives from the decisions and states that layers record. A layer type names its
// collectors (LayerConfig::statistics); those that several types share are in layers/collectors.h.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/json.h"
#include "layers/inspector.h"

namespace hebb {

class Layer;

/// One layer and what it recorded, by names without the layer's own ("mask").
struct LayerReading {
  const std::string& name;  // "blocks.3.mixer"
  const Json& config;       // its definition, every default filled in
  const Layer& layer;
  std::map<std::string, const Inspector::Record*> records;

  const Inspector::Record* find(const std::string& record) const {
    const auto it = records.find(record);
    return it == records.end() ? nullptr : it->second;
  }
};

/// Sizes of memory_stats that statistics depend on.
struct StatisticsOptions {
  int64_t window_tokens = 32768;  // of collision, coverage and kld
  int64_t interval = 256;         // tokens between points of curves
  int64_t single = 4;             // sequences whose curves are reported one by one
};

/// Where statistics go.
class StatisticsReport {
 public:
  /// A number of one layer; replaces the one that the layer itself reported by that name.
  void set(const std::string& layer, const std::string& name, double value, int64_t n);
  /// The layer has no such number.
  void drop(const std::string& layer, const std::string& name) { layers_[layer].erase(name); }
  /// A number of all layers of `type` together, in place of the mean over layers.
  void set_all(const std::string& type, const std::string& name, double value, int64_t n);
  void add_point(const std::string& series, Json point);
  /// The same with "layer" as the first member.
  void add_point(const std::string& series, const std::string& layer, std::vector<Json::Member> members);

  /// layer -> name -> value. The mean over the layers of a type is the metric "TYPE.NAME" where nothing else was set.
  Json groups() const;
  Json metrics(const std::map<std::string, std::string>& types) const;  // types: of each layer
  Json series() const;

 private:
  struct Number {
    double value = 0;
    int64_t n = 0;
    Json json() const;
  };
  using Numbers = std::map<std::string, Number>;
  std::map<std::string, Numbers> layers_, all_;
  std::map<std::string, Json> series_;
};

/// How a report draws a series: y over x, a curve for each value of the member `by`.
struct StatisticsChart {
  std::string series, x, y, by;
  std::string title, x_title, y_title;
  /// Where they are set, members with the ends of a band around y. Then each value of `by` has a drawing of its own,
  /// and x is logarithmic.
  std::string low{}, high{};
};

/// One kind of statistic of all layers of one type.
class StatisticsCollector {
 public:
  virtual ~StatisticsCollector() = default;
  /// A sequence that was read as one row [1, T].
  virtual void add(const LayerReading&) {}
  /// A carried state after `tokens` tokens of a sequence.
  virtual void add_state(const LayerReading&, int64_t tokens) {}
  virtual bool needs_state() const { return false; }
  virtual void report(StatisticsReport& to) const = 0;
  /// The series among those it reports that are drawn.
  virtual std::vector<StatisticsChart> charts() const { return {}; }
};
using StatisticsCollectors = std::vector<std::unique_ptr<StatisticsCollector>>;

/// A list of the given collectors.
template <class... T> StatisticsCollectors collector_list(std::unique_ptr<T>... one) {
  StatisticsCollectors list;
  (list.push_back(std::move(one)), ...);
  return list;
}

/// The charts of all layer types in the registry, by series.
std::vector<StatisticsChart> statistics_charts();

}  // namespace hebb
