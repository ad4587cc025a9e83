#include "study/read_metrics.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

#include "core/json.h"

namespace hebb {
namespace {

double value_of(const Json& line, const char* key) {
  return line.number_at(key, NAN);  // "nan" and "inf" are strings
}

/// Appends what the layers report to the curves of each statistic.
void add_statistics(RunMetrics& m, const Json& line, double step) {
  const Json* layers = line.find("layers");
  if (layers == nullptr || !layers->is_object()) { return; }
  for (const auto& [layer, values] : layers->members()) {
    for (const auto& [name, value] : values.is_object() ? values.members() : std::vector<Json::Member>{}) {
      std::vector<Curve>& curves = m.statistics[name];
      auto it = std::find_if(curves.begin(), curves.end(), [&key = layer](const Curve& c) { return c.name == key; });
      it = it != curves.end() ? it : curves.insert(curves.end(), Curve{layer, {}, {}});
      it->add(step, value.is_number() ? value.as_double() : NAN);
    }
  }
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
  std::map<std::string, size_t> validation;
  std::string line;
  for (int64_t number = 1; std::getline(lines, line); ++number) {
    Json j;
    try {
      j = parse_json(line, path.string());
    } catch (const Error& e) {
      throw DataError(fmt::format("{}:{:d}", path.string(), number), std::string("not a metrics line: ") + e.what());
    }
    const double step = value_of(j, "step");
    if (step > static_cast<double>(last_step)) { continue; }
    if (const Json* val = j.find("val"); val != nullptr && val->is_string()) {
      const auto [it, fresh] = validation.insert({val->as_string(), m.validation.size()});
      if (fresh) { m.validation.push_back({val->as_string(), {}, {}}); }
      m.validation[it->second].add(step, value_of(j, "loss"));
      continue;
    }
    for (const auto& [curve, key] :
         {std::pair{&m.loss, "loss"}, std::pair{&m.lr, "lr"}, std::pair{&m.grad_norm, "grad_norm"}}) {
      curve->add(step, value_of(j, key));
    }
    m.tokens.push_back(value_of(j, "tokens"));
    m.tokens_per_s.push_back(value_of(j, "tokens_per_s"));
    if (const double bytes = value_of(j, "mem_bytes"); bytes > static_cast<double>(m.mem_bytes)) {
      m.mem_bytes = static_cast<int64_t>(bytes);
    }
    add_statistics(m, j, step);
  }
  m.loss.name = "training loss";
  m.lr.name = "learning rate";
  m.grad_norm.name = "gradient norm";
  return m;
}

}  // namespace hebb
