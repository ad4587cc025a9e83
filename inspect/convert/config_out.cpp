#include <optional>
#include <utility>
#include <vector>

#include "inspect/convert/classes.h"
#include "inspect/convert/convert.h"
#include "train/run_config.h"

namespace hebb {
namespace {

/// Model objects with every default filled in, one entry a block, without what matters to initial values or speed
/// alone.
Json written_out(const ModelConfig& model) {
  Json json = Fields::write(model), blocks = Json::array();
  const Json layers = json.at("layers");
  for (int64_t i = 0; i < model.num_layers; ++i) {
    const BlockSpec spec = model.block(i);
    Json block = Json::object();
    for (const auto& [role, name] : {std::pair{"memory", &spec.memory}, {"mixer", &spec.mixer}, {"ffn", &spec.ffn}}) {
      Json& layer = block.set(role, *name ? layers.at(**name) : Json());
      if (!layer.is_object() || !(layer.at("type") == Json("gdn"))) { continue; }
      for (const char* key : {"dt_bias_init", "chunk_size"}) { layer.erase(key); }
      if (layer.at("num_value_heads").is_null()) { layer.set("num_value_heads", layer.at("num_heads")); }
    }
    blocks.push(block);
  }
  for (const char* key : {"layers", "pattern", "at", "init", "init_std"}) { json.erase(key); }
  json.set("blocks", blocks);
  return json;
}

/// The first block whose mixer is of a type, its mixer written out, or null.
const Json* mixer_of_type(const Json& blocks, const char* type) {
  for (const Json& block : blocks.items()) {
    const Json& mixer = block.at("mixer");
    if (!mixer.is_null() && mixer.at("type") == Json(type)) { return &mixer; }
  }
  return nullptr;
}

}  // namespace

Json hf_of_model(const ModelConfig& model, int64_t length) {
  const Json whole = written_out(model);
  const Json& blocks = whole.at("blocks");
  const Json *gdn = mixer_of_type(blocks, "gdn"), *attention = mixer_of_type(blocks, "attention");
  const Json &first = blocks.items().front().at("mixer"), &ffn = blocks.items().front().at("ffn");
  if (gdn == nullptr && attention == nullptr) {
    throw ConfigError("model, block 0, mixer", first.is_null() ? "nothing" : first.at("type").found(),
                      "\"attention\" or \"gdn\", which foreign formats have");
  }
  if (ffn.is_null() || !(ffn.at("type") == Json("swiglu"))) {
    throw ConfigError("model, block 0, ffn", ffn.is_null() ? "nothing" : ffn.at("type").found(), "\"swiglu\"");
  }
  const std::string type = gdn != nullptr                            ? kGatedDeltaNet
                           : attention->at("qk_norm") == Json("rms") ? "qwen3"
                           : attention->at("window").as_int() > 0    ? "mistral"
                                                                     : "llama";
  Json hf = Json::object({{"model_type", type},
                          {"vocab_size", model.vocab_size},
                          {"hidden_size", model.hidden_size},
                          {"intermediate_size", ffn.at("intermediate_size")},
                          {"num_hidden_layers", model.num_layers},
                          {"max_position_embeddings", length},
                          {"initializer_range", model.init_std},
                          {"tie_word_embeddings", model.tie_embeddings}});
  if (gdn != nullptr) {
    add_gated_deltanet_keys(model, *gdn, attention, blocks, hf);
  } else {
    add_transformer_keys(model, *attention, type, hf);
  }
  // What the file says, read again, must be the whole model.
  const auto back = Fields::read<ModelConfig>(model_of_hf(hf), "model");
  const std::vector<ConfigDifference> lost = all_differences(whole, written_out(back));
  if (!lost.empty()) {
    throw ConfigError("model." + lost.front().path, lost.front().stored,
                      lost.front().current + ", all that a file of model type \"" + type + "\" can say");
  }
  return hf;
}

}  // namespace hebb
