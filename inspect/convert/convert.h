#pragma once
#include <string>
#include <vector>

#include "core/files.h"
#include "core/json.h"
#include "core/progress.h"
#include "layers/model_config.h"

namespace hebb {

/// The config.json of the language model alone: `text_config` of a class with images around it (qwen3_5), else
/// `config`.
Json language_model(const Json& config);

/// The `model` object that a config.json of transformers or flash-linear-attention describes (docs/verbs/convert.md).
/// Errors: ConfigError for models that hebb does not have.
Json model_of_hf(const Json& config);

/// The foreign config.json of a model. length: of training rows. Errors: ConfigError naming the first key that
/// such a file cannot say.
Json hf_of_model(const ModelConfig& model, int64_t length);

/// Model types that an export may be asked for.
const std::vector<std::string>& export_classes();

struct ConvertOptions {
  /// Of the tensors: "" as in the source (F16 becomes F32), "fp32" or "bf16".
  std::string dtype = "";
  /// Of a checkpoint of hebb: "hf", a class of transformers or flash-linear-attention; "pytorch".
  std::string to = "hf";
  /// Of that class: one of export_classes(), or "", the first that holds the model.
  std::string model_class = "";
  /// Of a file of weights, at most.
  int64_t shard_bytes = 5'000'000'000;
  Progress* progress = nullptr;
};

/// Writes the folder `target` with config.json and model.safetensors: from a foreign folder in hebb's format, from a
/// checkpoint or run folder of hebb in the foreign one. The folder must be new or empty; it appears when it is
/// complete. Returns what to tell. Errors: ConfigError, CheckpointError.
std::string convert_checkpoint(const fs::path& source, const fs::path& target, const ConvertOptions& options = {});

}  // namespace hebb
