#pragma once
#include <string>

#include "inspect/convert/convert.h"
#include "inspect/convert/tensors.h"
#include "layers/model.h"

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

/// Copies the file with a tokenizer; returns its name, which tells its type, or nothing where there is none.
std::string copy_tokenizer(const fs::path& file, const fs::path& to);

/// What to tell of a conversion.
std::string summary(const Model& model, const std::string& what, const Tensors& tensors, const fs::path& target,
                    const std::string& tokenizer);

}  // namespace hebb
