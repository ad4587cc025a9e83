#include "core/weight_source.h"
#include "inspect/convert/folders.h"
#include "inspect/convert/new_folder.h"
#include "train/checkpoint.h"
#include "train/model_source.h"
#include "train/tensor_match.h"

namespace hebb {
namespace {

/// Of a folder that transformers loads with the classes of modeling_hebb.py. length: of training rows.
Json pytorch_config(const ModelSource& source, int64_t length, const std::string& dtype) {
  return Json::object({{"architectures", Json::array({"HebbForCausalLM"})},
                       {"model_type", kHebbType},
                       {"auto_map", Json::object({{"AutoConfig", "modeling_hebb.HebbConfig"},
                                                  {"AutoModelForCausalLM", "modeling_hebb.HebbForCausalLM"}})},
                       {"model", Fields::write(source.model)},
                       {"vocab_size", source.model.vocab_size},
                       {"hidden_size", source.model.hidden_size},
                       {"num_hidden_layers", source.model.num_layers},
                       {"max_position_embeddings", length},
                       {"tie_word_embeddings", false},  // a tied model has one tensor, which `model` tells
                       {"dtype", dtype},
                       {"torch_dtype", dtype}});
}

}  // namespace

std::string to_pytorch(const fs::path& path, const fs::path& target, const ConvertOptions& options) {
  const ModelSource source = read_model_source(path);
  if (source.weights.empty()) {
    throw CheckpointError(path.string(), "no weights to convert", "a configuration", "a checkpoint or a run folder");
  }
  verify_weights(source.weights);
  const Model model(source.model);
  const WeightSource weights(source.weights);
  require_tensors(weights, tensors_of(model.params()));
  const Values values(weights);
  Tensors tensors(options.dtype, values);
  for (const ExpectedTensor& e : tensors_of(model.params())) {
    tensors.add({e.name, e.shape, {{e.name, 0, e.shape[0], 0}}});
  }
  Json config = pytorch_config(source, trained_length(source), tensors.torch_dtype());
  NewFolder folder(target);
  WrittenFiles written = write_for_transformers(source, tensors, config, options, folder);
  write_file_atomic(folder.add("modeling_hebb.py"), modeling_hebb());
  written.names.emplace_back("modeling_hebb.py");
  folder.commit();
  return summary(model, "for PyTorch", tensors, target, written);
}

}  // namespace hebb
