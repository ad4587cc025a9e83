#include "core/join.h"
#include "core/weight_source.h"
#include "inspect/convert/export_plan.h"
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
  const ExportPlan plan = plan_export(source.model, trained_length(source), options.model_class);
  Json config = plan.config;
  const Model model(source.model);
  const WeightSource weights(source.weights);
  require_tensors(weights, tensors_of(model.params()));
  Values values(weights);
  for (const Fold& fold : plan.folds) { fold.apply(values); }
  const auto folded_config = Fields::read<ModelConfig>(plan.model, "model");
  const Model folded(folded_config);
  Tensors tensors(options.dtype, values);
  for (const Recipe& recipe : foreign_tensors(plan.type, folded_config, tensors_of(folded.params()))) {
    tensors.add(recipe);
  }
  config.set("torch_dtype", tensors.torch_dtype());
  NewFolder folder(target);
  const WrittenFiles written = write_for_transformers(source, tensors, config, options, folder);
  folder.commit();
  const std::string folds = join(plan.folds, ", ", [](const Fold& fold) { return fold.said; });
  return summary(model, "as " + plan.type, tensors, target, written) +
         (folds.empty() ? "" : "in the weights: " + folds + "\n");
}

}  // namespace hebb
