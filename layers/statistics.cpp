#include "layers/statistics.h"

#include "core/mean.h"
#include "layers/layer.h"

namespace hebb {

void StatisticsReport::set(const std::string& layer, const std::string& name, double value, int64_t n) {
  layers_[layer][name] = {value, n};
}

void StatisticsReport::set_all(const std::string& type, const std::string& name, double value, int64_t n) {
  all_[type][name] = {value, n};
}

void StatisticsReport::add_point(const std::string& series, Json point) {
  series_.try_emplace(series, Json::array()).first->second.push(std::move(point));
}

void StatisticsReport::add_point(const std::string& series, const std::string& layer,
                                 std::vector<Json::Member> members) {
  members.insert(members.begin(), {"layer", layer});
  add_point(series, Json::object(std::move(members)));
}

Json StatisticsReport::Number::json() const { return Json::object({{"value", value}, {"n", n}}); }

Json StatisticsReport::groups() const {
  Json groups = Json::object();
  for (const auto& [layer, numbers] : layers_) {
    Json& group = groups.set(layer, Json::object());
    for (const auto& [name, number] : numbers) { group.set(name, number.json()); }
  }
  return groups;
}

Json StatisticsReport::metrics(const std::map<std::string, std::string>& types) const {
  std::map<std::string, std::map<std::string, Mean>> means;
  for (const auto& [layer, numbers] : layers_) {
    for (const auto& [name, number] : numbers) { means[types.at(layer)][name].add(number.value); }
  }
  Json metrics = Json::object();
  for (const auto& [type, numbers] : means) {
    for (const auto& [name, mean] : numbers) { metrics.set(type + "." + name, Number{mean.value(), mean.n}.json()); }
  }
  for (const auto& [type, numbers] : all_) {
    for (const auto& [name, number] : numbers) { metrics.set(type + "." + name, number.json()); }
  }
  return metrics;
}

Json StatisticsReport::series() const {
  Json series = Json::object();
  for (const auto& [name, points] : series_) { series.set(name, points); }
  return series;
}

std::vector<StatisticsChart> statistics_charts() {
  std::map<std::string, StatisticsChart> by_series;
  for (const LayerType& type : layer_types()) {
    for (const auto& collector : type.make()->statistics({})) {
      for (StatisticsChart& chart : collector->charts()) { by_series.try_emplace(chart.series, std::move(chart)); }
    }
  }
  std::vector<StatisticsChart> charts;
  for (auto& [series, chart] : by_series) { charts.push_back(std::move(chart)); }
  return charts;
}

}  // namespace hebb
