#include "study/report/read_metrics.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

#include "core/json_line.h"

namespace hebb {
namespace {

/// A number, or NaN where there is none: non-finite ones are strings.
double value_of(const Json& value) {
  const bool is_not_finite = value.is_string() && (value.as_string() == "nan" || value.as_string().ends_with("inf"));
  return value.is_null() || is_not_finite ? NAN : value.as_double();
}

double value_of(const Json& line, const char* key) {
  const Json* value = line.find(key);
  return value != nullptr ? value_of(*value) : NAN;
}

/// Appends what the layers report to the curves of each statistic.
void add_statistics(RunMetrics& m, const Json& line, double step) {
  const Json* layers = line.find("layers");
  if (layers == nullptr) { return; }
  for (const auto& [layer, values] : layers->members()) {
    for (const auto& [name, value] : values.members()) {
      std::vector<Curve>& curves = m.statistics[name];
      auto it = std::find_if(curves.begin(), curves.end(), [&key = layer](const Curve& c) { return c.name == key; });
      it = it != curves.end() ? it : curves.insert(curves.end(), Curve{layer, {}, {}});
      it->add(step, value_of(value));
    }
  }
}

void add_line(RunMetrics& m, const Json& line, int64_t last_step) {
  if (line.at("step").as_int() > last_step) { return; }
  const double step = line.at("step").as_double();
  if (const Json* val = line.find("val"); val != nullptr) {
    const std::string& name = val->as_string();
    auto it = std::find_if(m.validation.begin(), m.validation.end(), [&](const Curve& c) { return c.name == name; });
    it = it != m.validation.end() ? it : m.validation.insert(it, {name, {}, {}});
    it->add(step, value_of(line, "loss"));
    return;
  }
  for (const auto& [curve, key] :
       {std::pair{&m.loss, "loss"}, std::pair{&m.lr, "lr"}, std::pair{&m.grad_norm, "grad_norm"}}) {
    curve->add(step, value_of(line, key));
  }
  m.tokens.push_back(static_cast<double>(line.integer_at("tokens", 0)));
  m.tokens_per_s.push_back(value_of(line, "tokens_per_s"));
  m.mem_bytes = std::max(m.mem_bytes, line.integer_at("mem_bytes", 0));
  add_statistics(m, line, step);
}

/// `step` of a line of metrics, or -1.
int64_t step_of(std::string_view line, const std::string& path) {
  try {
    return parse_json(line, path).integer_at("step", -1);
  } catch (const ConfigError&) {
    return -1;  // a damaged line; read_metrics() names it
  }
}

}  // namespace

int64_t last_logged_step(const fs::path& run) {
  const fs::path path = run / "metrics.jsonl";
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) { return 0; }
  const auto size = static_cast<int64_t>(file.tellg());
  for (int64_t window = 1 << 14;; window *= 8) {  // lines with statistics of layers may be long
    const int64_t begin = std::max<int64_t>(0, size - window);
    std::string text(static_cast<size_t>(size - begin), '\0');
    file.seekg(begin).read(text.data(), static_cast<std::streamsize>(text.size()));
    const size_t end = file ? text.rfind('\n') : std::string::npos;  // trimmed meanwhile
    const size_t before = end == std::string::npos || end == 0 ? std::string::npos : text.rfind('\n', end - 1);
    if (end != std::string::npos && (before != std::string::npos || begin == 0)) {
      const size_t from = before == std::string::npos ? 0 : before + 1;
      return std::max<int64_t>(0, step_of(std::string_view(text).substr(from, end - from), path.string()));
    }
    if (begin == 0) { return 0; }
  }
}

RunMetrics read_metrics(const fs::path& run, int64_t last_step) {
  const fs::path path = run / "metrics.jsonl";
  std::string text = read_file(path);
  text.erase(text.rfind('\n') == std::string::npos
                 ? 0
                 : text.rfind('\n') + 1);  // a line that a running trainer has not finished
  std::istringstream lines(text);
  RunMetrics m;
  m.name = fs::absolute(run).lexically_normal().filename().string();
  m.name = m.name.empty() ? fs::absolute(run).lexically_normal().parent_path().filename().string() : m.name;
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    try {
      add_line(m, parse_json_line(line, path.string(), number), last_step);
    } catch (const ConfigError& e) { throw DataError("", std::string("not a metrics line: ") + e.what()); }
  }
  m.loss.name = "training loss";
  m.lr.name = "learning rate";
  m.grad_norm.name = "gradient norm";
  return m;
}

}  // namespace hebb
