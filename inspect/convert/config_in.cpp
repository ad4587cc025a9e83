#include <set>

#include "inspect/convert/classes.h"
#include "inspect/convert/convert.h"

namespace hebb {
namespace {

std::string type_of_hf(HfConfig& config) {
  const Json* type = config.find("model_type");
  const std::set<std::string> known{"llama", "mistral", "qwen3", kGatedDeltaNet};
  if (type == nullptr || !type->is_string() || known.count(type->as_string()) == 0) {
    config.fail("model_type", type, "\"llama\", \"mistral\", \"qwen3\" or \"gated_deltanet\"");
  }
  return type->as_string();
}

}  // namespace

Json model_of_hf(const Json& json) {
  HfConfig config(json);
  const std::string type = type_of_hf(config);
  Json model = Json::object({{"vocab_size", config.integer("vocab_size")},
                             {"hidden_size", config.integer("hidden_size")},
                             {"num_layers", config.integer("num_hidden_layers")},
                             {"tie_embeddings", config.flag("tie_word_embeddings", false)},
                             {"init_std", config.number("initializer_range", 0.02)}});
  if (type == kGatedDeltaNet) {
    add_gated_deltanet(config, model);
  } else {
    add_transformer(config, type, model);
  }
  config.finish();
  return model;
}

}  // namespace hebb
