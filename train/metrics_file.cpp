#include "train/metrics_file.h"

#include <fmt/core.h>

#include <limits>

namespace hebb {

/// Removes what does not belong to a run of `step` completed steps; returns the path.
const fs::path& MetricsFile::trim(const fs::path& path, int64_t step) {
  if (!fs::exists(path)) { return path; }
  const std::string text = read_file(path, ExitCode::kCheckpoint);
  std::string kept;
  int64_t number = 0, highest = std::numeric_limits<int64_t>::min();
  for (size_t begin = 0; begin < text.size(); ++number) {
    const size_t end = text.find('\n', begin);
    if (end == std::string::npos) {
      ++removed_;
      break;
    }
    const std::string_view line(text.data() + begin, end - begin);
    begin = end + 1;
    Json json;
    try {
      json = parse_json(line, path.string());
    } catch (const ConfigError&) { json = Json(); }
    const Json* at = json.is_object() ? json.find("step") : nullptr;
    if (at == nullptr || at->kind() != Json::Kind::integer) {
      throw CheckpointError(fmt::format("{}:{:d}", path.string(), number + 1), "no metrics line",
                            std::string(line.substr(0, 40)), "a JSON object with an integer \"step\"");
    }
    if (at->as_int() < highest) {
      throw CheckpointError(fmt::format("{}:{:d}", path.string(), number + 1), "steps of metrics lines out of order",
                            fmt::format("step {:d} after step {:d}", at->as_int(), highest),
                            "steps that do not go back");
    }
    highest = at->as_int();
    if (highest > step) {
      ++removed_;
      continue;
    }
    if (const Json* name = json.find("val"); name != nullptr && at->as_int() == step && name->is_string()) {
      validated_.insert(name->as_string());
    }
    last_step_ = at->as_int();
    kept.append(line).push_back('\n');
  }
  if (removed_ > 0) { write_file_atomic(path, kept); }
  return path;
}

MetricsFile::MetricsFile(const fs::path& path, int64_t step) : file_(trim(path, step)) {}

void MetricsFile::add(const Json& line) { file_.append(line.dump() + "\n"); }

}  // namespace hebb
