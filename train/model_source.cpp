#include "train/model_source.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "core/read_all.h"
#include "data/tokenizer/tokenizer.h"
#include "train/checkpoint.h"
#include "train/run_config.h"
#include "train/tensor_match.h"

namespace hebb {

namespace {

constexpr const char* kIndex = "model.safetensors.index.json";

/// The file RUN/checkpoints/latest, which holds the name of a checkpoint.
bool is_latest(const fs::path& path) {
  std::error_code error;
  return path.filename() == "latest" && fs::is_regular_file(path, error);
}

}  // namespace

fs::path find_checkpoint(const fs::path& path) {
  std::error_code error;
  if (is_latest(path)) {
    const CheckpointFolder folder(path.parent_path());
    return folder.path_of(folder.latest().value());
  }
  if (fs::exists(path / "model.safetensors", error) && fs::exists(path / "config.json", error)) { return path; }
  const CheckpointFolder folder(path / "checkpoints");
  const auto step = folder.latest();
  return step ? folder.path_of(*step) : fs::path();
}

bool names_weights(const fs::path& path) {
  return fs::is_directory(path) || is_latest(path) || path.extension() == ".safetensors" || path.filename() == kIndex;
}

fs::path find_weights(const fs::path& path) {
  if (!fs::is_directory(path) && !is_latest(path)) { return path; }
  const fs::path checkpoint = find_checkpoint(path);
  if (!checkpoint.empty() && !fs::exists(checkpoint)) {
    if (find_checkpoint(path) != checkpoint) { return find_weights(path); }  // a run goes on there
    const std::vector<int64_t> all = CheckpointFolder(checkpoint.parent_path()).steps();
    throw CheckpointError((checkpoint.parent_path() / "latest").string(), "names a checkpoint that is not there",
                          checkpoint.filename().string(),
                          all.empty() ? "one of this folder, which has none"
                                      : "one of this folder, the newest is " + CheckpointFolder::name_of(all.back()));
  }
  const fs::path folder = checkpoint.empty() ? path : checkpoint;
  for (const char* name : {"model.safetensors", kIndex}) {
    if (fs::exists(folder / name)) { return folder / name; }
  }
  throw CheckpointError(path.string(), "no weights here", "a folder without model.safetensors or checkpoints/latest",
                        "a safetensors file, a checkpoint or a run folder");
}

bool has_moved_on(const fs::path& path, const fs::path& weights) {
  std::error_code error;
  if (fs::exists(weights, error)) { return false; }
  try {
    return find_weights(path) != weights;
  } catch (const Error&) { return false; }  // the first error says more
}

ModelConfig read_model(const Json& config) {
  ModelConfig model;
  read_all(config, [&](const Json& json) {
    const Json* inner = json.child("model");
    model = Fields::read<ModelConfig>(inner != nullptr ? *inner : json, inner != nullptr ? "model" : "");
  });
  return model;
}

void drop_idle_keys(Json& config) {
  const Json* steps = config.find_path("schedule.decay_steps");
  if (steps != nullptr && !steps->is_null()) { config.find("schedule")->erase("decay_fraction"); }
  if (Json* train = config.child("train"); train != nullptr && train->is_object()) { train->erase("deterministic"); }
  Json* model = config.child("model");
  Json* at = (model != nullptr ? model : &config)->child("at");
  if (at == nullptr || !at->is_object()) { return; }
  for (Json::Member& block : at->members()) {
    for (const char* key : {"mixer", "ffn", "memory"}) {
      if (const Json* name = block.second.child(key); name != nullptr && name->is_null()) { block.second.erase(key); }
    }
  }
}

ModelSource read_model_source(const fs::path& path, const std::vector<std::string>& overrides) {
  ModelSource source;
  fs::path file = path;
  std::error_code error;
  if (!fs::exists(path, error)) {
    throw ConfigError(path.string(), "nothing", "a configuration, a checkpoint, a run folder or a safetensors file");
  }
  if (names_weights(path)) {
    source.weights = fs::absolute(find_weights(path));
    verify_beside(source.weights);
    file = source.weights.parent_path() / "config.json";
    if (!fs::exists(file)) {
      throw CheckpointError(file.string(), "no configuration beside the weights", "nothing",
                            "config.json with the model");
    }
  }
  source.config = load_config(file.string());
  if (!source.weights.empty()) { drop_idle_keys(source.config); }
  for (const std::string& assignment : overrides) { apply_override(source.config, assignment); }
  require_no_sweep(source.config, path.string());
  source.is_run = source.config.child("model") != nullptr && source.config.child("train") != nullptr;
  source.model = read_model(source.config);
  return source;
}

int64_t max_positions(const ModelSource& source) {
  const char* const key = "max_position_embeddings";
  const Json* value = source.config.find(key);
  if (value == nullptr || value->is_null()) { return 0; }
  if (!value->is_integer() || value->as_int() < 1) {
    throw ConfigError(located(value->origin().str(), key), value->found(), "an integer >= 1");
  }
  return value->as_int();
}

fs::path find_tokenizer_file(const ModelSource& source) {
  std::vector<std::string> names{"tokenizer.json", "tokenizer.model"};
  fs::path named;
  if (const Json* json = source.config.find_path("data.tokenizer"); json != nullptr && json->is_object()) {
    const auto config = Fields::read<TokenizerConfig>(*json, "data.tokenizer");
    if (config.type == "bytes") { return {}; }
    names = {tokenizer_copy_name(config)};
    named = config.file;
  }
  std::vector<fs::path> places;
  std::error_code error;
  if (const fs::path folder = source.weights.parent_path(); !folder.empty()) {
    const fs::path checkpoints = folder.parent_path();
    places.push_back(folder);
    if (checkpoints.filename() == "checkpoints" && fs::exists(folder / "state.json", error)) {
      places.push_back(checkpoints.parent_path());
    }
  }
  for (const fs::path& place : places) {
    for (const std::string& name : names) {
      if (fs::is_regular_file(place / name, error)) { return place / name; }
    }
  }
  return !named.empty() && fs::exists(named, error) ? named : fs::path();
}

std::optional<TokenizerConfig> tokenizer_of(const ModelSource& source) {
  const fs::path file = find_tokenizer_file(source);
  const Json* json = source.config.find_path("data.tokenizer");
  if (json == nullptr || !json->is_object()) {
    return file.empty() ? std::nullopt : std::optional(tokenizer_named(file.string()));
  }
  auto config = Fields::read<TokenizerConfig>(*json, "data.tokenizer");
  config.file = file.string();
  return config;
}

void load_weights(const fs::path& path, Stream& stream, ParamStore& params) {
  const fs::path file = find_weights(path);
  verify_weights(file);
  read_weights(file, stream, params);
}

void require_finite(const fs::path& path, const ParamStore& params) {
  const WeightSource file(path);
  for (const auto& p : params.all()) {
    if (p->value.dtype == DType::i32) { continue; }
    const std::vector<double> values = file.doubles(p->name());
    const auto bad = std::find_if(values.begin(), values.end(), [](double x) { return !std::isfinite(x); });
    if (bad != values.end()) {
      throw CheckpointError(file.path().string() + ": " + p->name(), "weights that are no numbers",
                            fmt::format("{} at element {:d}", Json(*bad).dump(), bad - values.begin()),
                            "finite numbers");
    }
  }
}

void read_weights(const fs::path& path, Stream& stream, ParamStore& params) {
  const WeightSource file(path);
  require_tensors(file, tensors_of(params));
  for (const auto& p : params.all()) { load_tensor(file, p->name(), stream, p->value); }
  params.refresh_copies(stream);
}

}  // namespace hebb
