#include "core/weight_source.h"

#include <fmt/core.h>

#include "core/json.h"
#include "core/suggest.h"

namespace hebb {
namespace {

constexpr const char* kWeights = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

fs::path inside_folder(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) { return path; }
  const bool has_weights = fs::exists(path / kWeights, error), has_index = fs::exists(path / kIndex, error);
  if (has_weights == has_index) {
    throw CheckpointError(path.string(), "cannot tell the weights of this folder", has_weights ? "both" : "neither",
                          std::string("either ") + kWeights + " or " + kIndex);
  }
  return path / (has_weights ? kWeights : kIndex);
}

/// The name of a file beside the index: an index must not reach outside its folder.
const std::string& shard_name(const std::string& where, const Json& json) {
  const bool is_name = json.is_string() && !json.as_string().empty() && json.as_string() != ".." &&
                       json.as_string() != "." && json.as_string().find('/') == std::string::npos &&
                       json.as_string().find('\0') == std::string::npos;
  if (!is_name) {
    throw CheckpointError(where, "the shard is not valid", json.found(), "the name of a file in the index's folder");
  }
  return json.as_string();
}

}  // namespace

WeightSource::WeightSource(const fs::path& path) : path_(inside_folder(path)) {
  if (path_.extension() == ".json") {
    open_index(path_);
    return;
  }
  files_.push_back(std::make_unique<SafetensorsFile>(path_));
  for (const auto& [name, entry] : files_[0]->entries()) { by_name_[name] = files_[0].get(); }
}

void WeightSource::open_index(const fs::path& path) {
  Json index;
  try {
    index = parse_json(read_file(path, ExitCode::kCheckpoint), path.string());
  } catch (const ConfigError& error) { throw CheckpointError("", error.what()); }
  const Json* map = index.is_object() ? index.find("weight_map") : nullptr;
  if (map == nullptr || !map->is_object()) {
    throw CheckpointError(path.string(), "weight_map is not valid", map == nullptr ? "nothing" : map->found(),
                          "an object");
  }
  std::map<std::string, const SafetensorsFile*> shards;
  for (const auto& [name, json] : map->members()) {
    const std::string where = json.origin().str() + ": " + Json(name).found();
    const SafetensorsFile*& shard = shards[shard_name(where, json)];
    if (shard == nullptr) {
      files_.push_back(std::make_unique<SafetensorsFile>(path.parent_path() / json.as_string()));
      shard = files_.back().get();
    }
    if (shard->find(name) == nullptr) {
      throw CheckpointError(where, "the shard lacks this tensor", "nothing", "it in " + shard->path().string());
    }
    by_name_[name] = shard;
  }
  for (const auto& [shard_file, shard] : shards) {
    for (const auto& [name, entry] : shard->entries()) {
      if (file_of(name) != shard) {
        throw CheckpointError(shard->path().string() + ": tensor " + Json(name).found(),
                              "the index does not place this tensor here", "it in the shard", "it in weight_map too");
      }
    }
  }
}

const SafetensorsFile* WeightSource::file_of(std::string_view name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : it->second;
}

const SafetensorsFile::Entry* WeightSource::find(std::string_view name) const {
  const SafetensorsFile* file = file_of(name);
  return file == nullptr ? nullptr : file->find(name);
}

const SafetensorsFile& WeightSource::file_at(std::string_view name) const {
  if (const SafetensorsFile* file = file_of(name)) { return *file; }
  const std::string nearest = nearest_name(name, names());
  throw CheckpointError(path_.string() + ": tensor " + Json(std::string(name)).found(), "no such tensor", "nothing",
                        nearest.empty() ? fmt::format("one of the {:d} tensors", by_name_.size())
                                        : "a known name (did you mean " + Json(nearest).found() + "?)");
}

std::vector<double> WeightSource::doubles(std::string_view name) const { return file_at(name).doubles(name); }
std::vector<int64_t> WeightSource::integers(std::string_view name) const { return file_at(name).integers(name); }

std::vector<std::string> WeightSource::names() const {
  std::vector<std::string> out;
  for (const auto& [name, file] : by_name_) { out.push_back(name); }
  return out;
}

}  // namespace hebb
