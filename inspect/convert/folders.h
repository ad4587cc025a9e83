#pragma once
#include <map>
#include <string>
#include <vector>

#include "inspect/convert/convert.h"
#include "inspect/convert/new_folder.h"
#include "inspect/convert/tensors.h"
#include "layers/model.h"
#include "train/model_source.h"

namespace hebb {

/// convert_checkpoint from a foreign folder with this config.json.
std::string from_hf(const fs::path& source, const Json& config, const fs::path& target, const ConvertOptions& options);

/// convert_checkpoint from a checkpoint or run folder of hebb.
std::string to_hf(const fs::path& path, const fs::path& target, const ConvertOptions& options);

/// `model_type` of folders that to_pytorch writes.
inline constexpr const char* kHebbType = "hebb";

/// convert_checkpoint from a checkpoint or run folder of hebb, or from a folder of this function: weights by hebb's
/// names, the `model` object, and modeling_hebb().
std::string to_pytorch(const fs::path& path, const fs::path& target, const ConvertOptions& options);

/// inspect/convert/modeling_hebb.py, the models in PyTorch.
const std::string& modeling_hebb();

/// Writes model.safetensors, or shards of at most `shard_bytes` (one tensor at least) with their index. Returns the
/// names of the files.
std::vector<std::string> write_weights(const Tensors& tensors, const ConvertOptions& options,
                                       const std::map<std::string, std::string>& metadata, NewFolder& folder);

/// Files of a folder, and what the user should know.
struct WrittenFiles {
  std::vector<std::string> names, notes;
};

/// Tokens in a row of training; of a converted folder its max_position_embeddings; else 4,096.
int64_t trained_length(const ModelSource& source);

/// Writes a folder that transformers opens: weights, tokenizer, generation_config.json, README.md, and `config`, which
/// gets max_position_embeddings and the ids of special tokens; with `model_type` "hebb" also hebb's tokenizer.
WrittenFiles write_for_transformers(const ModelSource& source, const Tensors& tensors, Json& config,
                                    const ConvertOptions& options, NewFolder& folder);

/// What to tell of a conversion.
std::string summary(const Model& model, const std::string& what, const Tensors& tensors, const fs::path& target,
                    const WrittenFiles& written);

}  // namespace hebb
