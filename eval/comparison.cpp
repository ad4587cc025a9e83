#include "eval/comparison.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "core/statistics.h"
#include "core/terminal.h"

namespace hebb {
namespace {

/// Names on the left, a column for each title, at most so many columns wide.
std::string table_text(const std::string& corner, const std::vector<std::string>& titles,
                       const std::vector<std::string>& names, std::map<std::string, std::vector<std::string>> lines,
                       int columns) {
  std::vector<std::vector<std::string>> rows(1 + names.size());
  rows[0] = titles;
  rows[0].insert(rows[0].begin(), corner);
  for (size_t i = 0; i < names.size(); ++i) {
    rows[i + 1] = lines[names[i]];
    rows[i + 1].insert(rows[i + 1].begin(), names[i]);
  }
  std::string text = text_table(rows, columns);
  text.pop_back();  // the last line break
  return text;
}

}  // namespace

std::string metric_text(const Json& metric) {
  const Json *error = metric.find("stderr"), *low = metric.find("low"), *of = metric.find("of");
  std::string text = fmt::format("{:.6g}", metric.at("value").as_double());
  if (error != nullptr && error->as_double() > 0) {
    text += fmt::format(" ± {:.2g}", error->as_double());
  } else if (low != nullptr) {
    text += fmt::format(" [{:.2g}, {:.2g}]", low->as_double(), metric.at("high").as_double());
  }
  if (of == nullptr) { return text; }
  const std::string parts = of->as_string();
  const int64_t n = metric.at("n").as_int();
  return text +
         fmt::format(" of {:d} {}", n, n == 1 && parts.ends_with('s') ? parts.substr(0, parts.size() - 1) : parts);
}

std::string p_text(double p) { return p < 1e-4 ? "< 0.0001" : fmt::format("{:.2g}", p); }

std::vector<PairedDifference> result_differences(const Json& a, const fs::path& folder_a, const Json& b,
                                                 const fs::path& folder_b) {
  const auto is_same = [&](const char* key) {
    const Json *of_a = a.find(key), *of_b = b.find(key);
    return of_a != nullptr && of_b != nullptr && *of_a == *of_b;
  };
  const std::string items_a = a.text_at("items"), items_b = b.text_at("items");
  if (items_a.empty() || items_b.empty() || !is_same("kind") || !is_same("inputs")) { return {}; }
  if (!fs::exists(folder_a / items_a) || !fs::exists(folder_b / items_b)) { return {}; }
  std::vector<PairedDifference> differences =
      paired_differences(read_item_values(folder_a / items_a), read_item_values(folder_b / items_b));
  if (a.text_at("tokenizer") != b.text_at("tokenizer")) {
    std::erase_if(differences, [&](const PairedDifference& d) { return is_per_token(a.text_at("kind"), d.metric); });
  }
  return differences;
}

bool is_per_token(const std::string& kind, const std::string& metric) {
  static const std::set<std::string> kinds = {"stream_ppl", "position_ppl", "answer_ppl", "adapt", "rolling"};
  return kinds.count(kind) > 0 && metric != "bits_per_byte" && metric != "word_ppl";
}

std::string checkpoint_label(const std::string& weights) {
  const std::filesystem::path folder = std::filesystem::absolute(weights).lexically_normal().parent_path();
  const std::string name = folder.filename().string(), start = "step_";
  if (folder.parent_path().filename() != "checkpoints" || !name.starts_with(start)) { return name; }
  const size_t digits = name.find_first_not_of('0', start.size());
  return folder.parent_path().parent_path().filename().string() + ":" +
         (digits == std::string::npos ? "0" : name.substr(digits));
}

std::string comparison_text(const std::vector<CheckpointResults>& checkpoints, int columns) {
  std::set<std::string> tokenizers;
  for (const CheckpointResults& c : checkpoints) {
    for (const Json& result : c.results) { tokenizers.insert(result.text_at("tokenizer")); }
  }
  std::vector<std::string> names, labels;
  std::map<std::string, std::vector<std::string>> lines;
  for (const CheckpointResults& c : checkpoints) { labels.push_back(c.label); }
  for (size_t i = 0; i < checkpoints.size(); ++i) {
    for (const Json& result : checkpoints[i].results) {
      for (const auto& [metric, value] : result.at("metrics").members()) {
        std::string name = result.text_at("name") + "." + metric;
        if (tokenizers.size() > 1 && is_per_token(result.text_at("kind"), metric)) {
          name += " (tokenizer " + result.text_at("tokenizer").substr(0, 6) + ")";
        }
        if (lines.find(name) == lines.end()) { names.push_back(name); }
        std::vector<std::string>& line = lines[name];
        line.resize(checkpoints.size(), "-");
        line[i] = metric_text(value);
      }
    }
  }
  return table_text("", labels, names, lines, columns);
}

std::string differences_text(const std::vector<CheckpointResults>& checkpoints, int columns) {
  std::vector<std::string> names, titles;
  std::map<std::string, std::vector<std::string>> lines;
  std::vector<double> ps;
  std::vector<std::pair<std::string, size_t>> places;  // of those
  const CheckpointResults& first = checkpoints[0];
  for (size_t i = 1; i < checkpoints.size(); ++i) {
    titles.push_back(checkpoints[i].label);
    titles.emplace_back("p");
    for (const Json& result : checkpoints[i].results) {
      const std::string evaluation = result.text_at("name");
      const auto base = std::find_if(first.results.begin(), first.results.end(),
                                     [&](const Json& r) { return r.text_at("name") == evaluation; });
      if (base == first.results.end()) { continue; }
      for (const PairedDifference& d : result_differences(*base, first.folder, result, checkpoints[i].folder)) {
        const std::string name = evaluation + "." + d.metric;
        if (!lines.contains(name)) { names.push_back(name); }
        std::vector<std::string>& line = lines[name];
        line.resize(2 * checkpoints.size() - 2, "-");
        line[2 * i - 2] =
            fmt::format("{:+.4g}", d.value) + (d.error.value_or(0) > 0 ? fmt::format(" ± {:.2g}", *d.error) : "");
        if (!d.p) { continue; }
        ps.push_back(*d.p);
        places.emplace_back(name, 2 * i - 1);
      }
    }
  }
  if (names.empty()) { return ""; }
  const std::vector<double> corrected = holm(ps);
  for (size_t k = 0; k < ps.size(); ++k) { lines[places[k].first][places[k].second] = p_text(corrected[k]); }
  return table_text("minus " + first.label, titles, names, lines, columns);
}

}  // namespace hebb
