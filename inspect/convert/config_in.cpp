#include <algorithm>

#include "core/join.h"
#include "inspect/convert/classes.h"
#include "inspect/convert/convert.h"

namespace hebb {
namespace {

/// A name for each distinct mixer: its type, or where a model has several kinds of attention what tells them apart.
std::string name_of(const Json& mixer, bool is_only) {
  const std::string type = mixer.at("type").as_string();
  if (type != "attention" || is_only) { return type; }
  const std::string window = mixer.integer_at("window", 0) > 0 ? "swa" : "full";
  return mixer.find("rope") == nullptr || mixer.at("rope").is_null() ? window + "_nope" : window;
}

}  // namespace

int64_t num_layers_of(HfConfig& config, int64_t absent) {
  constexpr int64_t kMost = 10000;
  const int64_t layers = config.positive("num_hidden_layers", absent);
  if (layers > kMost) { config.fail("num_hidden_layers", config.find("num_hidden_layers"), "at most 10000 layers"); }
  return layers;
}

Json assembled(const ForeignModel& foreign) {
  std::vector<Json> kinds;
  std::vector<size_t> kind_of;
  for (const Json& mixer : foreign.mixers) {
    const auto it = std::find(kinds.begin(), kinds.end(), mixer);
    kind_of.push_back(static_cast<size_t>(it - kinds.begin()));
    if (it == kinds.end()) { kinds.push_back(mixer); }
  }
  const auto is_attention = [](const Json& kind) { return kind.at("type") == Json("attention"); };
  const bool is_only = std::count_if(kinds.begin(), kinds.end(), is_attention) == 1;
  Json layers = Json::object();
  std::vector<std::string> names;
  for (const Json& kind : kinds) {
    const std::string name = name_of(kind, is_only);
    names.push_back(name);
    for (int i = 2; layers.find(names.back()) != nullptr; ++i) { names.back() = name + "_" + std::to_string(i); }
    layers.set(names.back(), kind);
  }
  layers.set("mlp", foreign.ffn);
  // The shortest pattern.
  const size_t count = kind_of.size();
  size_t period = 1;
  while (period < count &&
         !std::equal(kind_of.begin() + static_cast<int64_t>(period), kind_of.end(), kind_of.begin())) {
    ++period;
  }
  Json pattern = Json::array(), model = foreign.model;
  for (size_t i = 0; i < period; ++i) { pattern.push(Json::object({{"mixer", names[kind_of[i]]}, {"ffn", "mlp"}})); }
  model.set("layers", layers);
  model.set("pattern", pattern);
  return model;
}

Json language_model(const Json& config) {
  const Json* type = config.find("model_type");
  if (type == nullptr || !(*type == Json("qwen3_5"))) { return config; }
  HfConfig whole(config);
  const Json* text = whole.object("text_config");
  if (text == nullptr) { whole.fail("text_config", text, "the configuration of the language model"); }
  HfConfig inner(*text, "text_config");
  inner.require("model_type", "qwen3_5_text");
  // The outer class ties.
  const bool is_tied = whole.flag("tie_word_embeddings", false);
  inner.require("tie_word_embeddings", is_tied);
  for (const char* key : {"image_token_id", "model_type", "video_token_id", "vision_config", "vision_end_token_id",
                          "vision_start_token_id"}) {
    whole.has(key);
  }
  whole.finish({});
  Json found = *text;
  found.set("model_type", "qwen3_5_text");
  found.set("tie_word_embeddings", is_tied);
  return found;
}

Json model_of_hf(const Json& json) {
  const Json language = language_model(json);
  HfConfig config(language);
  const std::string type = config.text("model_type", "");
  const TransformersClass* c = find_transformers_class(type);
  if (c == nullptr && type != kGatedDeltaNet) {
    config.fail("model_type", config.find("model_type"),
                join(transformers_classes(), ", ", [](const auto& k) { return "\"" + std::string(k.type) + "\""; }) +
                    " or \"" + kGatedDeltaNet + "\"");
  }
  const ForeignModel foreign = c == nullptr ? read_gated_deltanet(config) : read_transformers(config, *c);
  config.finish({});
  return assembled(foreign);
}

}  // namespace hebb
