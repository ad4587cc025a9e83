#include <algorithm>
#include <limits>
#include <set>

#include "core/plural.h"
#include "core/weight_source.h"
#include "data/tokenizer/tokenizer.h"
#include "inspect/convert/folders.h"
#include "inspect/convert/names.h"
#include "inspect/convert/new_folder.h"
#include "inspect/convert/tokenizer_files.h"

namespace hebb {

std::string from_hf(const fs::path& source, const Json& config, const fs::path& target, const ConvertOptions& options) {
  const Json object = model_of_hf(config);
  const auto model_config = Fields::read<ModelConfig>(object, "model");
  const Model model(model_config);
  const std::string type = config.at("model_type").as_string();
  const WeightSource weights(source);
  std::set<std::string> foreign;
  for (const std::string& name : weights.names()) {
    if (!is_computed(name)) { foreign.insert(name); }
  }
  if (model_config.tie_embeddings) { foreign.erase("lm_head.weight"); }  // a second copy of the embedding
  Tensors tensors(options.dtype);
  for (const ExpectedTensor& e : tensors_of(model.params())) {
    const std::string name = foreign_name(e.name, type);
    const SafetensorsFile* file = weights.file_of(name);
    if (file == nullptr) { throw CheckpointError(weights.path().string(), "the tensor " + name + " is missing"); }
    const Shape shape = foreign_shape(e);
    const SafetensorsFile::Entry& entry = file->at(name);
    if (!std::equal(entry.shape.begin(), entry.shape.end(), shape.dims.begin(), shape.dims.begin() + shape.rank)) {
      throw CheckpointError(weights.path().string(), "the tensor " + name + " has the wrong shape", entry.shape_text(),
                            shape.str());
    }
    tensors.add(e.name, e.shape, *file, name);
    foreign.erase(name);
  }
  if (!foreign.empty()) {
    throw CheckpointError(
        weights.path().string(),
        plural(foreign.size(), "tensor") + " that the model of config.json has not, first " + *foreign.begin());
  }
  NewFolder folder(target);
  // In one file: a folder of hebb has no shards.
  ConvertOptions whole = options;
  whole.shard_bytes = std::numeric_limits<int64_t>::max();
  WrittenFiles written{write_weights(tensors, whole, {}, folder), {}};
  const TokenizerFiles tokenizer = import_tokenizer(source, model_config.vocab_size, folder);
  Json named = Json::object({{"model", object}});
  if (!tokenizer.config.is_null()) { named.set("data", Json::object({{"tokenizer", tokenizer.config}})); }
  write_file_atomic(folder.add("config.json"), named.dump(1) + "\n");
  written.names.emplace_back("config.json");
  written.names.insert(written.names.end(), tokenizer.names.begin(), tokenizer.names.end());
  written.notes = tokenizer.notes;
  folder.commit();
  return summary(model, "from " + type, tensors, target, written);
}

}  // namespace hebb
