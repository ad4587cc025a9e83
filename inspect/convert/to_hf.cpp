#include "core/weight_source.h"
#include "inspect/convert/folders.h"
#include "inspect/convert/names.h"
#include "inspect/convert/new_folder.h"
#include "train/checkpoint.h"
#include "train/model_source.h"

namespace hebb {
std::string to_hf(const fs::path& path, const fs::path& target, const ConvertOptions& options) {
  const ModelSource source = read_model_source(path);
  if (source.weights.empty()) {
    throw CheckpointError(path.string(), "no weights to convert", "a configuration", "a checkpoint or a run folder");
  }
  verify_weights(source.weights);
  Json config = hf_of_model(source.model, trained_length(source));
  const Model model(source.model);
  const WeightSource weights(source.weights);
  require_tensors(weights, tensors_of(model.params()));
  Tensors tensors(options.dtype);
  const std::string type = config.at("model_type").as_string();
  for (const ExpectedTensor& e : tensors_of(model.params())) {
    tensors.add(foreign_name(e.name, type), foreign_shape(e), *weights.file_of(e.name), e.name);
  }
  config.set("torch_dtype", tensors.torch_dtype());
  NewFolder folder(target);
  const WrittenFiles written = write_for_transformers(source, tensors, config, options, folder);
  folder.commit();
  return summary(model, "as " + type, tensors, target, written);
}

}  // namespace hebb
