#include "inspect/convert/classes.h"

namespace hebb {

void add_gated_deltanet(HfConfig& config, Json& model) {
  const int64_t hidden = config.integer("hidden_size"), heads = config.integer("num_heads", 6),
                key_dim = config.integer("head_dim", 256);
  const bool has_conv = config.flag("use_short_conv", true), has_gate = config.flag("use_gate", true);
  const int64_t taps = config.integer("conv_size", 4);
  const Json gdn = Json::object(
      {{"type", "gdn"},
       {"num_heads", heads},
       {"num_value_heads", config.integer("num_v_heads", heads)},
       {"key_head_dim", key_dim},
       {"value_head_dim", config.size("expand_v", static_cast<double>(key_dim) * config.number("expand_v", 2))},
       {"conv_size", has_conv ? taps : 0},
       {"allow_neg_eigval", config.flag("allow_neg_eigval", false)},
       {"output_gate", has_gate ? "silu" : "none"}});
  config.require("conv_bias", false);
  config.require("hidden_act", "swish");
  model.set("norm_eps", config.number("norm_eps", 1e-6));
  const double ratio = config.number("hidden_ratio", 4);
  const int64_t two_thirds = config.size("hidden_ratio", static_cast<double>(hidden) * ratio * 2 / 3);
  Json layers = Json::object({{"gdn", gdn}});
  layers.set("mlp", Json::object(
                        {{"type", "swiglu"},
                         {"intermediate_size", config.integer("intermediate_size", (two_thirds + 255) / 256 * 256)}}));
  Json at = Json::object();
  if (const Json* attn = config.find("attn")) {
    HfConfig inner(*attn);
    const int64_t attention_heads = inner.positive("num_heads");
    const Json attention = Json::object({{"type", "attention"},
                                         {"num_heads", attention_heads},
                                         {"num_kv_heads", inner.integer("num_kv_heads", attention_heads)},
                                         {"head_dim", hidden / attention_heads},
                                         {"window", inner.integer("window_size", 0)},
                                         {"rope", Json::object({{"theta", inner.number("rope_theta", 10000.0)}})}});
    inner.require("qkv_bias", false);
    const Json* blocks = inner.find("layers");
    if (blocks == nullptr || !blocks->is_array()) { inner.fail("attn.layers", blocks, "an array of block numbers"); }
    for (const Json& block : blocks->items()) {
      if (!block.is_integer()) { inner.fail("attn.layers", &block, "block numbers"); }
      at.set(std::to_string(block.as_int()), Json::object({{"mixer", "attention"}}));
    }
    inner.finish();
    if (!blocks->items().empty()) { layers.set("attention", attention); }
  }
  model.set("layers", layers);
  model.set("pattern", Json::array({Json::object({{"mixer", "gdn"}, {"ffn", "mlp"}})}));
  if (!at.members().empty()) { model.set("at", at); }
}

void add_gated_deltanet_keys(const ModelConfig& model, const Json& gdn, const Json* attention, const Json& blocks,
                             Json& hf) {
  const int64_t key_dim = gdn.at("key_head_dim").as_int(), value_dim = gdn.at("value_head_dim").as_int();
  hf.set("architectures", Json::array({"GatedDeltaNetForCausalLM"}));
  hf.set("num_heads", gdn.at("num_heads"));
  hf.set("num_v_heads", gdn.at("num_value_heads"));
  hf.set("head_dim", key_dim);
  hf.set("expand_v", static_cast<double>(value_dim) / static_cast<double>(key_dim));
  const int64_t taps = gdn.at("conv_size").as_int();
  hf.set("use_short_conv", taps > 0);
  hf.set("conv_size", taps > 0 ? taps : 4);
  hf.set("use_gate", gdn.at("output_gate") == Json("silu"));
  hf.set("allow_neg_eigval", gdn.at("allow_neg_eigval"));
  hf.set("hidden_act", "swish");
  hf.set("norm_eps", model.norm_eps);
  if (attention == nullptr) { return; }
  Json numbers = Json::array();
  for (size_t i = 0; i < blocks.items().size(); ++i) {
    const Json& mixer = blocks.items()[i].at("mixer");
    if (!mixer.is_null() && mixer.at("type") == Json("attention")) { numbers.push(static_cast<int64_t>(i)); }
  }
  const int64_t window = attention->at("window").as_int();
  hf.set("attn", Json::object({{"layers", numbers},
                               {"num_heads", attention->at("num_heads")},
                               {"num_kv_heads", attention->at("num_kv_heads")},
                               {"qkv_bias", false},
                               {"window_size", window > 0 ? Json(window) : Json()},
                               {"rope_theta", rope_in(*attention).at("theta")}}));
}

}  // namespace hebb
