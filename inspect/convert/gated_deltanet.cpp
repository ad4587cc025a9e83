#include "inspect/convert/classes.h"

namespace hebb {

namespace {

/// Blocks that one entry of `attn` makes attention.
void read_attn(HfConfig& attn, int64_t hidden, std::vector<Json>& mixers, std::vector<bool>& is_taken) {
  const int64_t heads = attn.positive("num_heads");
  const bool has_window = attn.find("window_size") != nullptr;
  const Json attention = Json::object({{"type", "attention"},
                                       {"num_heads", heads},
                                       {"num_kv_heads", attn.positive("num_kv_heads", heads)},
                                       {"head_dim", hidden / heads},
                                       {"window", has_window ? attn.positive("window_size") : 0},
                                       {"rope", Json::object({{"theta", attn.number("rope_theta", 10000.0)}})}});
  for (const char* key : {"qkv_bias", "qk_norm"}) { attn.require(key, false); }
  const Json* blocks = attn.array("layers");
  if (blocks == nullptr) { attn.fail("layers", blocks, "an array of block numbers"); }
  for (const Json& block : blocks->items()) {
    const bool is_block = block.is_integer() && block.as_int() >= 0 && block.as_int() < std::ssize(mixers);
    if (!is_block) { attn.fail("layers", &block, "numbers of blocks, below " + std::to_string(mixers.size())); }
    const auto at = static_cast<size_t>(block.as_int());
    if (is_taken[at]) { attn.fail("layers", &block, "each block once"); }
    is_taken[at] = true;
    mixers[at] = attention;
  }
  attn.finish({});
}

}  // namespace

ForeignModel read_gated_deltanet(HfConfig& config) {
  const int64_t hidden = config.positive("hidden_size", 2048), heads = config.positive("num_heads", 6),
                key_dim = config.positive("head_dim", 256), layers = num_layers_of(config, 21);
  const bool has_conv = config.flag("use_short_conv", true), has_gate = config.flag("use_gate", true);
  const int64_t taps = config.integer("conv_size", 4);
  config.require_one("output_gate_activation", {"swish", "silu", "sigmoid"});
  const bool is_sigmoid = config.text("output_gate_activation", "swish") == "sigmoid";
  const Json gdn = Json::object(
      {{"type", "gdn"},
       {"num_heads", heads},
       {"num_value_heads", config.positive("num_v_heads", heads)},
       {"key_head_dim", key_dim},
       {"value_head_dim", config.size("expand_v", static_cast<double>(key_dim) * config.number("expand_v", 2))},
       {"conv_size", has_conv ? taps : 0},
       {"allow_neg_eigval", config.flag("allow_neg_eigval", false)},
       {"output_gate", !has_gate    ? "none"
                       : is_sigmoid ? "sigmoid"
                                    : "silu"}});
  config.require("conv_bias", false);
  config.require_one("hidden_act", {"swish"});
  config.require("attnres_block_size", Json());
  ForeignModel found;
  found.mixers.assign(static_cast<size_t>(layers), gdn);
  if (const Json* attn = config.find("attn")) {
    std::vector<bool> is_taken(found.mixers.size(), false);
    if (attn->is_array()) {
      for (size_t i = 0; i < attn->items().size(); ++i) {
        HfConfig entry(attn->items()[i], "attn." + std::to_string(i));
        read_attn(entry, hidden, found.mixers, is_taken);
      }
    } else {
      HfConfig entry(*attn, "attn");
      read_attn(entry, hidden, found.mixers, is_taken);
    }
  }
  found.model = Json::object({{"vocab_size", config.positive("vocab_size", 32000)},
                              {"hidden_size", hidden},
                              {"num_layers", layers},
                              {"tie_embeddings", config.flag("tie_word_embeddings", false)},
                              {"init_std", config.number("initializer_range", 0.02)},
                              {"norm_eps", config.number("norm_eps", 1e-6)}});
  const double ratio = config.number("hidden_ratio", 4);
  const int64_t two_thirds = config.size("hidden_ratio", static_cast<double>(hidden) * ratio * 2 / 3);
  found.ffn = Json::object(
      {{"type", "swiglu"}, {"intermediate_size", config.integer("intermediate_size", (two_thirds + 255) / 256 * 256)}});
  // How flash-linear-attention computes, and what its training adds to the loss.
  for (const char* key : {"attn_mode", "fuse_cross_entropy", "fuse_linear_cross_entropy", "fuse_norm", "fuse_swiglu",
                          "max_position_embeddings", "use_l2warp"}) {
    config.has(key);
  }
  return found;
}

void write_gated_deltanet(const Json& whole, Json& hf) {
  const std::vector<Json> gdns = mixers_of_type(whole, "gdn"), attentions = mixers_of_type(whole, "attention");
  if (!gdns.empty()) {
    const Json& gdn = gdns.front();
    const int64_t key_dim = gdn.at("key_head_dim").as_int(), taps = gdn.at("conv_size").as_int();
    const Json& gate = gdn.at("output_gate");
    hf.set("num_heads", gdn.at("num_heads"));
    hf.set("num_v_heads", gdn.at("num_value_heads"));
    hf.set("head_dim", key_dim);
    hf.set("expand_v", product_to(key_dim, gdn.at("value_head_dim").as_int()));
    hf.set("use_short_conv", taps > 0);
    hf.set("conv_size", taps > 0 ? taps : 4);
    hf.set("use_gate", !(gate == Json("none")));
    hf.set("output_gate_activation", gate == Json("sigmoid") ? "sigmoid" : "swish");
    hf.set("allow_neg_eigval", gdn.at("allow_neg_eigval"));
  }
  hf.set("hidden_act", "swish");
  hf.set("norm_eps", whole.at("norm_eps"));
  const std::vector<Json>& blocks = whole.at("blocks").items();
  Json attn = Json::array();
  for (const Json& attention : attentions) {
    Json numbers = Json::array();
    for (size_t i = 0; i < blocks.size(); ++i) {
      if (blocks[i].at("mixer") == attention) { numbers.push(static_cast<int64_t>(i)); }
    }
    const Json &window = attention.at("window"), &rope = attention.at("rope");
    attn.push(Json::object({{"layers", numbers},
                            {"num_heads", attention.at("num_heads")},
                            {"num_kv_heads", attention.at("num_kv_heads")},
                            {"qkv_bias", false},
                            {"window_size", window == Json(0) ? Json() : window},
                            {"rope_theta", rope.is_null() ? Json(10000.0) : rope.at("theta")}}));
  }
  hf.set("attn", attn.items().empty() ? Json() : attn.items().size() == 1 ? attn.items().front() : attn);
}

}  // namespace hebb
