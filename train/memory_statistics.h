#pragma once
// What `memory_stats` derives from the decisions that layers record (spec 81, section 11).
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "layers/layer.h"

namespace hebb {

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
};

/// What is derived for layers of a type; empty for types that only have statistics of their own, or none.
std::vector<std::unique_ptr<StatisticsCollector>> statistics_collectors(const std::string& layer_type,
                                                                        const StatisticsOptions& options);

}  // namespace hebb
