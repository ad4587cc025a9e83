#include "inspect/convert/convert.h"

#include <fmt/core.h>

#include "core/join.h"
#include "core/plural.h"
#include "inspect/convert/folders.h"

namespace hebb {

std::vector<std::string> write_weights(const Tensors& tensors, const ConvertOptions& options,
                                       const std::map<std::string, std::string>& metadata, NewFolder& folder) {
  std::vector<std::vector<NamedTensor>> shards(1);
  int64_t total = 0, in_shard = 0;
  for (const NamedTensor& named : tensors.list()) {
    const auto bytes = static_cast<int64_t>(named.tensor.bytes());
    if (!shards.back().empty() && in_shard + bytes > options.shard_bytes) {
      shards.emplace_back();
      in_shard = 0;
    }
    shards.back().push_back(named);
    in_shard += bytes;
    total += bytes;
  }
  Json places = Json::object();
  std::vector<std::string> files;
  int64_t done = 0;
  Progress silent, &progress = options.progress != nullptr ? *options.progress : silent;
  progress.begin("write", static_cast<uint64_t>(total), Progress::Unit::bytes);
  for (const std::vector<NamedTensor>& shard : shards) {
    files.push_back(shards.size() == 1
                        ? "model.safetensors"
                        : fmt::format("model-{:05d}-of-{:05d}.safetensors", files.size() + 1, shards.size()));
    for (const NamedTensor& named : shard) { places.members().emplace_back(named.name, files.back()); }
    write_safetensors(folder.add(files.back()), shard, metadata, [&](const NamedTensor& named, const TakeBytes& take) {
      tensors.read(named, take);
      done += static_cast<int64_t>(named.tensor.bytes());
      progress.update(static_cast<uint64_t>(done));
    });
  }
  progress.end();
  if (shards.size() > 1) {
    files.emplace_back("model.safetensors.index.json");
    const Json index = Json::object({{"metadata", Json::object({{"total_size", total}})}, {"weight_map", places}});
    write_file_atomic(folder.add(files.back()), index.dump(1) + "\n");
  }
  return files;
}

std::string summary(const Model& model, const std::string& what, const Tensors& tensors, const fs::path& target,
                    const WrittenFiles& written) {
  int64_t parameters = 0;
  for (const auto& p : model.params().all()) { parameters += p->spec.shape.numel(); }
  std::string text =
      fmt::format("{}: {}, {:d} parameters, {}\n{} in {}\n", what, plural(tensors.list().size(), "tensor"), parameters,
                  tensors.torch_dtype(), join(written.names, ", "), target.string());
  for (const std::string& note : written.notes) { text += note + "\n"; }
  return text;
}

std::string convert_checkpoint(const fs::path& source, const fs::path& target, const ConvertOptions& options) {
  const fs::path file = source / "config.json";
  if (fs::is_directory(source) && fs::exists(file)) {
    const Json config = parse_json_file(file.string());
    const Json* type = config.is_object() ? config.find("model_type") : nullptr;
    if (type != nullptr && !(*type == Json(kHebbType))) {
      if (options.to != ConvertOptions().to || !options.model_class.empty()) {
        throw ConfigError(options.model_class.empty() ? "--to" : "--class",
                          options.model_class.empty() ? options.to : options.model_class,
                          "nothing: " + source.string() + " goes to hebb's format");
      }
      return from_hf(source, config, target, options);
    }
  }
  if (options.to == "pytorch" && !options.model_class.empty()) {
    throw ConfigError("--class", options.model_class, "nothing together with --to pytorch, which takes every model");
  }
  if (options.to == "pytorch") { return to_pytorch(source, target, options); }
  return to_hf(source, target, options);
}

}  // namespace hebb
