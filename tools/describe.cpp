#include "tools/describe.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <vector>

#include "core/json_line.h"
#include "core/plural.h"
#include "core/progress.h"
#include "core/utf8.h"
#include "core/weight_source.h"
#include "data/shards/describe.h"
#include "data/shards/shard_format.h"
#include "data/shards/shard_index.h"
#include "tools/verbs.h"
#include "train/checkpoint.h"

namespace hebb {
namespace {

bool is_floating(const std::string& dtype) { return dtype[0] == 'F' || dtype[0] == 'B'; }  // F64, F32, F16, BF16

std::string statistics_of(const std::vector<double>& values) {
  double sum = 0, low = std::numeric_limits<double>::infinity(), high = -low;
  int64_t finite = 0;
  for (const double x : values) {
    if (std::isfinite(x)) {
      sum += x;
      low = std::min(low, x);
      high = std::max(high, x);
      ++finite;
    }
  }
  if (finite == 0) { return values.empty() ? "" : "no finite value"; }
  const double mean = sum / static_cast<double>(finite);
  double squares = 0;
  for (const double x : values) { squares += std::isfinite(x) ? (x - mean) * (x - mean) : 0; }
  std::string text = fmt::format("mean {:.4g} std {:.4g} min {:.4g} max {:.4g}", mean,
                                 std::sqrt(squares / static_cast<double>(finite)), low, high);
  const auto broken = static_cast<int64_t>(values.size()) - finite;
  return broken == 0 ? text : fmt::format("{} NOT FINITE {:d}", text, broken);
}

std::string tensor_table(const WeightSource& weights, bool statistics) {
  const std::vector<std::string> names = weights.names();
  size_t width = 4;
  for (const std::string& name : names) { width = std::max(width, name.size()); }
  std::string text;
  std::map<std::string, int64_t> elements;  // by dtype
  uint64_t bytes = 0;
  for (const std::string& name : names) {
    const SafetensorsFile::Entry& entry = *weights.find(name);
    elements[entry.dtype_text] += entry.numel();
    bytes += entry.end - entry.begin;
    std::string line = "  " + name + std::string(width + 2 - name.size(), ' ');
    line += fmt::format("{:<5} {:<20}", entry.dtype_text, entry.shape_text());
    if (statistics && is_floating(entry.dtype_text)) { line += " " + statistics_of(weights.doubles(name)); }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  std::string head = plural(names.size(), "tensor");
  for (const auto& [dtype, count] : elements) { head += fmt::format(", {:d} {}", count, dtype); }
  return head + ", " + format_bytes(static_cast<double>(bytes)) + "\n" + text;
}

std::string describe_safetensors(const fs::path& path, bool statistics) {
  const SafetensorsFile file(path);
  std::string text = path.string() + ": safetensors, ";
  text += tensor_table(WeightSource(path), statistics);
  for (const auto& [key, value] : file.metadata()) { text += "  metadata " + key + ": " + value + "\n"; }
  return text;
}

std::string describe_index(const fs::path& path, const MappedFile& file) {
  const std::span<const uint8_t> bytes(file.data(), file.size());
  const uint64_t tokens = bytes.size() >= kIndexHeaderBytes ? load_le<uint64_t>(bytes.data() + 16) : 0;
  const int64_t documents = check_index(bytes, path.string(), static_cast<int64_t>(tokens));
  uint64_t shortest = tokens, longest = 0;
  for (int64_t d = 0; d < documents; ++d) {
    const uint8_t* start = bytes.data() + kIndexHeaderBytes + 8 * d;
    const uint64_t length = load_le<uint64_t>(start + 8) - load_le<uint64_t>(start);
    shortest = std::min(shortest, length);
    longest = std::max(longest, length);
  }
  return fmt::format("{}: hebb document index, {}, {}, lengths {:d} to {:d}\n", path.string(),
                     plural(documents, "document"), plural(tokens, "token"), shortest, longest);
}

std::string describe_checkpoint(const fs::path& folder, bool statistics) {
  verify_checkpoint(folder);
  const Json state = parse_json_file((folder / "state.json").string());
  std::string text = folder.string() + ": checkpoint\n";
  for (const auto& [key, value] : state.members()) {
    if (!value.is_object() && !value.is_array()) { text += "  " + key + ": " + value.text() + "\n"; }
  }
  for (const char* name : {"model.safetensors", "optimizer.safetensors"}) {
    if (fs::exists(folder / name)) { text += describe_safetensors(folder / name, statistics); }
  }
  return text;
}

std::string describe_run(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder / "checkpoints")) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("step_")) { names.push_back(name); }
  }
  std::sort(names.begin(), names.end());
  std::string text = folder.string() + ": run folder, " + plural(names.size(), "checkpoint");
  const fs::path latest = folder / "checkpoints/latest";
  if (fs::exists(latest)) {
    std::string name = read_file(latest, ExitCode::kCheckpoint);
    name.erase(name.find_last_not_of(" \r\n") + 1);
    text += ", latest " + name;
  }
  text += "\n";
  std::string damage;
  for (const std::string& name : names) {
    try {
      const int64_t tokens = verify_checkpoint(folder / "checkpoints" / name).tokens;
      text += fmt::format("  checkpoints/{}, {}\n", name, plural(tokens, "token"));
    } catch (const CheckpointError& error) { damage += (damage.empty() ? "" : "; ") + std::string(error.what()); }
  }
  if (!damage.empty()) { throw CheckpointError(folder.string(), damage); }
  return text;
}

[[noreturn]] void unknown(const fs::path& path, const std::string& found) {
  throw DataError(path.string(), "nothing that hebb knows", found,
                  "a safetensors file, shard, index, data set, tokenizer model, checkpoint or run folder");
}

std::string describe_folder(const fs::path& folder, bool statistics) {
  if (fs::exists(folder / "dataset.json")) { return describe_shards(folder.string()); }
  if (fs::exists(folder / "state.json")) { return describe_checkpoint(folder, statistics); }
  if (fs::is_directory(folder / "checkpoints")) { return describe_run(folder); }
  if (fs::exists(folder / "model.safetensors") || fs::exists(folder / "model.safetensors.index.json")) {
    return folder.string() + ": weights, " + tensor_table(WeightSource(folder), statistics);
  }
  unknown(folder, "a folder without dataset.json, state.json, checkpoints or model.safetensors");
}

std::string describe_json(const fs::path& path, bool statistics) {
  Json json;
  as_data([&] { json = parse_json_file(path.string()); });
  if (json.is_object() && json.find("shards") != nullptr) { return describe_shards(path.string()); }
  if (json.is_object() && json.find("weight_map") != nullptr) {
    return path.string() + ": safetensors index, " + tensor_table(WeightSource(path), statistics);
  }
  if (json.is_object() && json.find("files") != nullptr && json.find("step") != nullptr) {
    return describe_checkpoint(fs::absolute(path).parent_path(), statistics);
  }
  if (json.is_object() && json.find("pre_tokenizer") != nullptr) {
    return path.string() + "\n" + describe_tokenizer(path.string());
  }
  unknown(path, "another JSON file");
}

bool starts_safetensors(const MappedFile& file) {
  if (file.size() < 10) { return false; }
  const uint64_t header = load_le<uint64_t>(file.data());
  return header >= 2 && header <= file.size() - 8 && file.data()[8] == '{';
}

std::string describe_file(const fs::path& path, bool statistics) {
  const MappedFile file(path);
  const std::string_view head(reinterpret_cast<const char*>(file.data()), std::min<uint64_t>(file.size(), 16));
  const int32_t magic = file.size() >= 4 ? load_le<int32_t>(file.data()) : 0;
  if (head.starts_with(kIndexMagic)) { return describe_index(path, file); }
  if (head.starts_with(kMegatronMagic)) {
    return describe_shards(fs::path(path).replace_extension(".bin").string(), "megatron");
  }
  if (magic == kShardMagic16 || magic == kShardMagic32) { return describe_shards(path.string()); }
  if (starts_safetensors(file) || path.extension() == ".safetensors") { return describe_safetensors(path, statistics); }
  if (head.starts_with("{")) { return describe_json(path, statistics); }
  if (path.extension() == ".model" || head.starts_with("\x0A")) {
    return path.string() + "\n" + describe_tokenizer(path.string());
  }
  unknown(path, head.empty() ? "an empty file" : "a file that starts with " + hex_bytes(head, 8));
}

}  // namespace

std::string describe_path(const std::string& path, bool statistics) {
  std::error_code error;
  if (fs::is_directory(path, error)) { return describe_folder(path, statistics); }
  if (fs::exists(path, error)) { return describe_file(path, statistics); }
  return describe_shards(path);  // a pattern, or the error for a missing file
}

}  // namespace hebb
