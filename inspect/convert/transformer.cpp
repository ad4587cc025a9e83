#include <map>

#include "inspect/convert/classes.h"

namespace hebb {

void add_transformer(HfConfig& config, const std::string& type, Json& model) {
  const int64_t hidden = config.integer("hidden_size"), heads = config.positive("num_attention_heads");
  Json attention = Json::object({{"type", "attention"},
                                 {"num_heads", heads},
                                 {"num_kv_heads", config.integer("num_key_value_heads", heads)},
                                 {"head_dim", config.integer("head_dim", hidden / heads)},
                                 {"rope", rope_of_hf(config)}});
  if (type == "qwen3") {
    attention.set("qk_norm", "rms");
    config.require("use_sliding_window", false);
    config.find("sliding_window");  // off
    if (const Json* types = config.find("layer_types")) {
      for (const Json& layer : types->items()) {
        if (!(layer == Json("full_attention"))) { config.fail("layer_types", &layer, "\"full_attention\""); }
      }
    }
  } else if (type == "mistral") {
    attention.set("window", config.integer("sliding_window", 0));
  }
  config.require("hidden_act", "silu");
  config.require("attention_bias", false);
  config.require("mlp_bias", false);
  config.require("rope_interleaved", false);
  model.set("norm_eps", config.number("rms_norm_eps", 1e-6));
  const Json ffn = Json::object({{"type", "swiglu"}, {"intermediate_size", config.integer("intermediate_size")}});
  model.set("layers", Json::object({{"attention", attention}, {"mlp", ffn}}));
  model.set("pattern", Json::array({Json::object({{"mixer", "attention"}, {"ffn", "mlp"}})}));
}

void add_transformer_keys(const ModelConfig& model, const Json& attention, const std::string& type, Json& hf) {
  const std::map<std::string, const char*> classes{
      {"llama", "LlamaForCausalLM"}, {"mistral", "MistralForCausalLM"}, {"qwen3", "Qwen3ForCausalLM"}};
  const Json& rope = rope_in(attention);
  hf.set("architectures", Json::array({classes.at(type)}));
  for (const auto& [key, from] : {std::pair{"num_attention_heads", "num_heads"},
                                  {"num_key_value_heads", "num_kv_heads"},
                                  {"head_dim", "head_dim"}}) {
    hf.set(key, attention.at(from));
  }
  hf.set("hidden_act", "silu");
  hf.set("rms_norm_eps", model.norm_eps);
  hf.set("attention_bias", false);
  hf.set("rope_theta", rope.at("theta"));
  hf.set("rope_scaling", Json());
  if (type == "llama") { hf.set("mlp_bias", false); }
  if (type == "mistral") { hf.set("sliding_window", attention.at("window")); }
  if (const Json& yarn = rope.at("yarn"); !yarn.is_null()) {
    hf.set("rope_scaling", Json::object({{"rope_type", "yarn"},
                                         {"factor", yarn.at("factor")},
                                         {"original_max_position_embeddings", yarn.at("original")},
                                         {"beta_fast", yarn.at("beta_fast")},
                                         {"beta_slow", yarn.at("beta_slow")},
                                         {"attention_factor", yarn.at("attention_factor")}}));
  }
}

}  // namespace hebb
