#include "train/metrics_file.h"

#include <fmt/core.h>

namespace hebb {
namespace {

/// Removes what does not belong to a run of `step` completed steps; returns the path.
const fs::path& trim(const fs::path& path, int64_t step, std::set<std::string>& validated, int64_t& removed) {
  if (!fs::exists(path)) { return path; }
  const std::string text = read_file(path, ExitCode::kCheckpoint);
  std::string kept;
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size(); ++number) {
    const size_t end = text.find('\n', begin);
    if (end == std::string::npos) {
      ++removed;
      break;
    }
    const std::string_view line(text.data() + begin, end - begin);
    begin = end + 1;
    Json json;
    try {
      json = parse_json(line, path.string());
    } catch (const ConfigError&) { json = Json(); }
    const Json* at = json.is_object() ? json.find("step") : nullptr;
    if (at == nullptr || !at->is_integer()) {
      throw CheckpointError(fmt::format("{}:{:d}", path.string(), number + 1), "no metrics line",
                            std::string(line.substr(0, 40)), "a JSON object with an integer \"step\"");
    }
    if (at->as_int() > step) {
      ++removed;
      continue;
    }
    if (const Json* name = json.find("val"); name != nullptr && at->as_int() == step && name->is_string()) {
      validated.insert(name->as_string());
    }
    kept.append(line).push_back('\n');
  }
  if (removed > 0) { write_file_atomic(path, kept); }
  return path;
}

}  // namespace

MetricsFile::MetricsFile(const fs::path& path, int64_t step) : file_(trim(path, step, validated_, removed_)) {}

void MetricsFile::add(const Json& line) { file_.append(line.dump() + "\n"); }

}  // namespace hebb
