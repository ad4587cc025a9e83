// Results of evaluations as text for the terminal.
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>

#include "core/terminal.h"
#include "eval/comparison.h"
#include "eval/evaluation.h"

namespace hebb {
namespace {

constexpr size_t kMostMetrics = 12, kMostRows = 32;  // the rest is left to the file
constexpr int kIndent = 4;

std::string cell(const Json* value) {
  if (value == nullptr || value->is_null()) { return "-"; }
  if (value->is_string()) { return value->as_string(); }
  return value->is_number() && !value->is_integer() ? fmt::format("{:.5g}", value->as_double()) : value->dump();
}

/// Series that say how a result depends on something; others are curves with many points.
bool is_table(const std::string& name) {
  return name.starts_with("by_") || name == "adaptation" || name == "decoding" || name == "skipped";
}

std::string rest_text(size_t rows) {
  return rows > kMostRows ? fmt::format("\n    and {:d} more rows in the file", rows - kMostRows) : "";
}

std::string table(const std::string& name, const std::vector<Json>& points) {
  std::vector<std::string> keys;
  for (const Json& point : points) {
    for (const auto& [key, value] : point.members()) {
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) { keys.push_back(key); }
    }
  }
  std::vector<std::vector<std::string>> rows{keys};
  for (size_t i = 0; i < std::min(points.size(), kMostRows); ++i) {
    rows.emplace_back();
    for (const std::string& key : keys) { rows.back().push_back(cell(points[i].find(key))); }
  }
  std::set<size_t> left;
  for (size_t k = 0; k < keys.size(); ++k) {
    const Json* first = points[0].find(keys[k]);
    if (first != nullptr && first->is_string()) { left.insert(k); }
  }
  const int columns = terminal_columns(STDOUT_FILENO, 0);
  std::istringstream lines(text_table(rows, std::max(0, columns - kIndent), left));
  std::string text = "  " + name;
  for (std::string line; std::getline(lines, line);) {
    text += "\n" + (line.empty() ? "" : std::string(kIndent, ' ') + line);
  }
  return text + rest_text(points.size());
}

}  // namespace

std::string result_text(const Json& result, bool is_kept) {
  std::string text = result.text_at("name") + " (" + result.text_at("kind") + "): " + result.text_at("status") +
                     (is_kept ? ", kept" : "");
  const auto& metrics = result.at("metrics").members();
  for (size_t i = 0; i < std::min(kMostMetrics, metrics.size()); ++i) {
    text += "  " + metrics[i].first + " " + metric_text(metrics[i].second);
  }
  if (metrics.size() > kMostMetrics) { text += fmt::format("  and {:d} more", metrics.size() - kMostMetrics); }
  const std::string reason = result.text_at("reason") + result.text_at("error");
  text += reason.empty() ? "" : ": " + reason;
  if (const Json* series = result.find("series"); series != nullptr) {
    for (const auto& [name, points] : series->members()) {
      if (is_table(name) && !points.items().empty()) { text += "\n" + table(name, points.items()); }
    }
  }
  return text;
}

}  // namespace hebb
