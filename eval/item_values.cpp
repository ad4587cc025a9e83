#include "eval/item_values.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <sstream>

#include "core/json_line.h"
#include "core/statistics.h"
#include "eval/journal.h"

namespace hebb {
namespace {

template <class T> Json list_of(const std::vector<T>& values) { return Json::array({values.begin(), values.end()}); }

double number_of(const Json& value) { return value.is_null() ? NAN : kept_number(value); }

/// Examples with their sums and counts.
struct Item {
  double sum = 0, count = 1;
};
std::map<int64_t, Item> items_of(const ItemValues& values) {
  std::map<int64_t, Item> items;
  for (size_t i = 0; i < values.sums.size(); ++i) {
    items[values.examples.empty() ? static_cast<int64_t>(i) : values.examples[i]] = {
        values.sums[i], values.counts.empty() ? 1.0 : values.counts[i]};
  }
  return items;
}

/// Values whose mean is the metric and whose standard error is its: the metric linearised in each item.
std::vector<double> linearised(const std::vector<Item>& items, bool is_exponential) {
  double sum = 0, count = 0;
  for (const Item& item : items) {
    sum += item.sum;
    count += item.count;
  }
  const double mean = sum / count, value = is_exponential ? std::exp(mean) : mean,
               slope = (is_exponential ? value : 1) * static_cast<double>(items.size()) / count;
  std::vector<double> values;
  for (const Item& item : items) { values.push_back(value + slope * (item.sum - mean * item.count)); }
  return values;
}

}  // namespace

std::string item_lines(const std::vector<ItemValues>& items) {
  std::string text;
  for (const ItemValues& values : items) {
    Json line = Json::object();
    if (!values.mean.empty()) { line.set("mean", values.mean); }
    if (!values.exponential.empty()) { line.set("exponential", values.exponential); }
    if (!values.examples.empty()) { line.set("examples", list_of(values.examples)); }
    line.set("sums", list_of(values.sums));
    if (!values.counts.empty()) { line.set("counts", list_of(values.counts)); }
    text += line.dump() + "\n";
  }
  return text;
}

std::vector<ItemValues> read_item_values(const fs::path& file) {
  std::vector<ItemValues> items;
  std::istringstream text(read_file(file));
  as_data([&] {
    for (std::string line; std::getline(text, line);) {
      const Json json = parse_json(line, file.string());
      ItemValues& values = items.emplace_back();
      values.mean = json.text_at("mean");
      values.exponential = json.text_at("exponential");
      for (const Json& sum : json.at("sums").items()) { values.sums.push_back(number_of(sum)); }
      if (const Json* counts = json.find("counts"); counts != nullptr) {
        for (const Json& count : counts->items()) { values.counts.push_back(number_of(count)); }
      }
      if (const Json* examples = json.find("examples"); examples != nullptr) {
        for (const Json& example : examples->items()) { values.examples.push_back(example.as_int()); }
      }
      for (const size_t size : {values.counts.size(), values.examples.size()}) {
        if (size > 0 && size != values.sums.size()) {
          throw DataError(file.string(), "values of items", std::to_string(size),
                          "as many as \"sums\", " + std::to_string(values.sums.size()));
        }
      }
    }
  });
  return items;
}

std::vector<PairedDifference> paired_differences(const std::vector<ItemValues>& a, const std::vector<ItemValues>& b) {
  std::vector<PairedDifference> differences;
  for (const ItemValues& one : a) {
    const auto same = std::find_if(b.begin(), b.end(), [&](const ItemValues& other) {
      return other.mean == one.mean && other.exponential == one.exponential;
    });
    if (same == b.end()) { continue; }
    const std::map<int64_t, Item> of_a = items_of(one), of_b = items_of(*same);
    std::vector<Item> both_a, both_b;
    for (const auto& [example, item] : of_a) {
      const auto other = of_b.find(example);
      if (other == of_b.end()) { continue; }
      both_a.push_back(item);
      both_b.push_back(other->second);
    }
    if (both_a.empty()) { continue; }
    for (const bool is_exponential : {false, true}) {
      const std::string& metric = is_exponential ? one.exponential : one.mean;
      if (metric.empty()) { continue; }
      const PairedTest test = paired_test(linearised(both_b, is_exponential), linearised(both_a, is_exponential));
      if (!std::isfinite(test.difference.mean)) { continue; }
      differences.push_back(
          {metric, test.difference.mean, test.difference.standard_error(), test.p, test.difference.n});
    }
  }
  return differences;
}

}  // namespace hebb
