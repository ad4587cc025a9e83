#include "eval/comparison.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "data/text/characters.h"

namespace hebb {
namespace {

size_t width_of(const std::string& text) { return static_cast<size_t>(count_characters(text)); }

}  // namespace

std::string metric_text(const Json& metric) {
  const Json* deviation = metric.find("stderr");
  return fmt::format("{:.6g}", metric.at("value").as_double()) +
         (deviation != nullptr ? fmt::format(" ± {:.2g}", deviation->as_double()) : "");
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

std::string comparison_text(const std::vector<CheckpointResults>& checkpoints) {
  std::set<std::string> tokenizers;
  for (const CheckpointResults& c : checkpoints) {
    for (const Json& result : c.results) { tokenizers.insert(result.text_at("tokenizer")); }
  }
  std::vector<std::string> names;
  std::map<std::string, std::vector<std::string>> lines;
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
  size_t first = 0;
  for (const std::string& name : names) { first = std::max(first, name.size()); }
  std::vector<size_t> widths;
  for (size_t i = 0; i < checkpoints.size(); ++i) {
    widths.push_back(width_of(checkpoints[i].label));
    for (const auto& [name, line] : lines) { widths.back() = std::max(widths.back(), width_of(line[i])); }
  }
  std::string text(first, ' ');
  const auto add = [&](size_t i, const std::string& cell) {
    text += "  " + std::string(widths[i] - width_of(cell), ' ') + cell;
  };
  for (size_t i = 0; i < checkpoints.size(); ++i) { add(i, checkpoints[i].label); }
  for (const std::string& name : names) {
    text += "\n" + name + std::string(first - name.size(), ' ');
    for (size_t i = 0; i < checkpoints.size(); ++i) { add(i, lines[name][i]); }
  }
  return text;
}

}  // namespace hebb
