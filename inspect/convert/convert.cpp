#include "inspect/convert/convert.h"

#include <fmt/core.h>

#include "core/plural.h"
#include "inspect/convert/folders.h"

namespace hebb {

std::string copy_tokenizer(const fs::path& file, const fs::path& to) {
  if (file.empty()) { return ""; }
  const std::string name = file.extension() == ".json" ? "tokenizer.json" : "tokenizer.model";
  write_file_atomic(to / name, read_file(file));
  return name;
}

std::string summary(const Model& model, const std::string& what, const Tensors& tensors, const fs::path& target,
                    const std::string& tokenizer) {
  int64_t parameters = 0;
  for (const auto& p : model.params().all()) { parameters += p->spec.shape.numel(); }
  return fmt::format("{}: {}, {:d} parameters, {}\nconfig.json, model.safetensors{}{} in {}\n", what,
                     plural(tensors.list.size(), "tensor"), parameters, tensors.torch_dtype(),
                     tokenizer.empty() ? "" : ", ", tokenizer, target.string());
}

std::string convert_checkpoint(const fs::path& source, const fs::path& target, const ConvertOptions& options) {
  const fs::path file = source / "config.json";
  if (fs::is_directory(source) && fs::exists(file)) {
    const Json config = parse_json_file(file.string());
    const Json* type = config.is_object() ? config.find("model_type") : nullptr;
    if (type != nullptr && !(*type == Json(kHebbType))) {
      if (options.to != ConvertOptions().to) {
        throw ConfigError("--to", options.to, "nothing: " + source.string() + " goes to hebb's format");
      }
      return from_hf(source, config, target, options);
    }
  }
  if (options.to == "pytorch") { return to_pytorch(source, target, options); }
  return to_hf(source, target, options);
}

}  // namespace hebb
