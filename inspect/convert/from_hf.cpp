#include <algorithm>
#include <cstring>
#include <limits>
#include <set>

#include "core/plural.h"
#include "core/weight_source.h"
#include "data/tokenizer/tokenizer.h"
#include "inspect/convert/classes.h"
#include "inspect/convert/folders.h"
#include "inspect/convert/names.h"
#include "inspect/convert/new_folder.h"
#include "inspect/convert/tokenizer_files.h"

namespace hebb {

namespace {

/// max_position_embeddings, else the default of the class.
int64_t positions_of(const Json& language) {
  HfConfig config(language);
  const TransformersClass* c = find_transformers_class(language.at("model_type").as_string());
  return config.positive("max_position_embeddings", c != nullptr ? c->positions : kGatedDeltaNetPositions);
}

/// A head beside tied embeddings must be a second copy of them.
void require_tied(const WeightSource& weights, const std::string& embed) {
  const std::string head = "lm_head.weight";
  const SafetensorsFile *head_file = weights.file_of(head), *embed_file = weights.file_of(embed);
  if (embed_file == nullptr) { return; }  // reported with the other tensors
  const SafetensorsFile::Entry &a = head_file->at(head), &b = embed_file->at(embed);
  const bool has_same_bytes = a.dtype_text == b.dtype_text && a.shape == b.shape &&
                              a.end - a.begin == b.end - b.begin &&
                              std::memcmp(head_file->data(a), embed_file->data(b), a.end - a.begin) == 0;
  if (!has_same_bytes && !(a.shape == b.shape && weights.doubles(head) == weights.doubles(embed))) {
    throw CheckpointError(weights.path().string(), "lm_head.weight is not " + embed +
                                                       ", although tie_word_embeddings of config.json is true or its "
                                                       "default; with false the model has a head of its own");
  }
}

/// The file must hold the tensors of the recipes and, but for what is ignored, no others.
void require_foreign(const WeightSource& weights, const std::vector<Recipe>& recipes, const std::string& type,
                     bool is_tied) {
  std::set<std::string> foreign;
  for (const std::string& name : weights.names()) {
    if (!is_ignored(type, name)) { foreign.insert(name); }
  }
  if (is_tied && foreign.erase("lm_head.weight") > 0) { require_tied(weights, recipes.front().name); }
  for (const Recipe& recipe : recipes) {
    const SafetensorsFile::Entry* entry = weights.find(recipe.name);
    if (entry == nullptr) {
      if (recipe.pieces.empty()) { continue; }  // zeros
      throw CheckpointError(weights.path().string(), "the tensor " + recipe.name + " is missing");
    }
    const auto& dims = recipe.shape.dims;
    if (!std::equal(entry->shape.begin(), entry->shape.end(), dims.begin(), dims.begin() + recipe.shape.rank)) {
      throw CheckpointError(weights.path().string(), "the tensor " + recipe.name + " has the wrong shape",
                            entry->shape_text(), recipe.shape.str());
    }
    if (recipe.pieces.empty()) {
      const std::vector<double> values = weights.doubles(recipe.name);
      if (std::any_of(values.begin(), values.end(), [](double x) { return x != 0; })) {
        throw CheckpointError(weights.path().string(),
                              "the tensor " + recipe.name + " is not all zeros: hebb's projections have no biases");
      }
    }
    foreign.erase(recipe.name);
  }
  if (!foreign.empty()) {
    throw CheckpointError(
        weights.path().string(),
        plural(foreign.size(), "tensor") + " that the model of config.json has not, first " + *foreign.begin());
  }
}

}  // namespace

std::string from_hf(const fs::path& source, const Json& config, const fs::path& target, const ConvertOptions& options) {
  const Json object = model_of_hf(config);
  const auto model_config = Fields::read<ModelConfig>(object, "model");
  const Model model(model_config);
  const std::string type = language_model(config).at("model_type").as_string();
  const WeightSource weights(source);
  const std::vector<ExpectedTensor> expected = tensors_of(model.params());
  std::vector<Recipe> recipes = foreign_tensors(type, model_config, expected);
  if (config.at("model_type") == Json("qwen3_5")) {
    for (Recipe& recipe : recipes) {
      if (recipe.name.starts_with("model.")) { recipe.name.insert(6, "language_model."); }
    }
  }
  require_foreign(weights, recipes, type, model_config.tie_embeddings);
  const Values values(weights);
  Tensors tensors(options.dtype, values);
  for (const Recipe& recipe : inverted(recipes, expected)) { tensors.add(recipe); }
  NewFolder folder(target);
  // In one file: a folder of hebb has no shards.
  ConvertOptions whole = options;
  whole.shard_bytes = std::numeric_limits<int64_t>::max();
  WrittenFiles written{write_weights(tensors, whole, {}, folder), {}};
  const TokenizerFiles tokenizer = import_tokenizer(source, model_config.vocab_size, folder);
  Json named = Json::object({{"model", object}, {"max_position_embeddings", positions_of(language_model(config))}});
  if (!tokenizer.config.is_null()) { named.set("data", Json::object({{"tokenizer", tokenizer.config}})); }
  write_file_atomic(folder.add("config.json"), named.dump(1) + "\n");
  written.names.emplace_back("config.json");
  written.names.insert(written.names.end(), tokenizer.names.begin(), tokenizer.names.end());
  written.notes = tokenizer.notes;
  folder.commit();
  return summary(model, "from " + type, tensors, target, written);
}

}  // namespace hebb
