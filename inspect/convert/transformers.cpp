#include <algorithm>
#include <tuple>
#include <utility>

#include "inspect/convert/classes.h"

namespace hebb {
namespace {

constexpr const char *kFull = "full_attention", *kSliding = "sliding_attention", *kLinear = "linear_attention";

/// `layer_types`, one of `known` for each layer. Empty where the key is absent.
std::vector<std::string> written_layer_types(HfConfig& config, int64_t layers, const std::vector<std::string>& known) {
  std::vector<std::string> types;
  const Json* written = config.array("layer_types");
  if (written == nullptr) { return types; }
  if (static_cast<int64_t>(written->items().size()) != layers) {
    config.fail("layer_types", written, "an entry for each of " + std::to_string(layers) + " layers");
  }
  for (const Json& type : written->items()) {
    if (!type.is_string() || std::find(known.begin(), known.end(), type.as_string()) == known.end()) {
      config.fail("layer_types", &type, "\"" + known[0] + "\" or \"" + known[1] + "\"");
    }
    types.push_back(type.as_string());
  }
  return types;
}

/// no_rope_layers of smollm3: whether a layer has rotary positions.
std::vector<bool> rope_layers(HfConfig& config, int64_t layers) {
  std::vector<bool> has_rope;
  const int64_t interval = config.positive("no_rope_layer_interval", 4);
  const Json* written = config.array("no_rope_layers");
  if (written != nullptr && static_cast<int64_t>(written->items().size()) < layers) {
    config.fail("no_rope_layers", written, "an entry for each of " + std::to_string(layers) + " layers");
  }
  for (int64_t i = 0; i < layers; ++i) {
    if (written == nullptr) {
      has_rope.push_back((i + 1) % interval != 0);
      continue;
    }
    const Json& entry = written->items()[static_cast<size_t>(i)];
    if (!(entry == Json(0) || entry == Json(1))) { config.fail("no_rope_layers", &entry, "0 or 1"); }
    has_rope.push_back(entry == Json(1));
  }
  return has_rope;
}

/// Windows of qwen2, qwen3 and smollm3: 0 where a layer sees all.
struct Windows {
  std::vector<std::string> types;
  std::vector<int64_t> sizes;
};
Windows read_windows(HfConfig& config, const std::string& type, int64_t layers, const std::vector<bool>& has_rope) {
  const bool is_smol = type == "smollm3";
  const bool uses = config.flag("use_sliding_window", false);
  int64_t window = config.has("sliding_window") || is_smol ? 0 : 4096;
  if (config.find("sliding_window") != nullptr) { window = config.positive("sliding_window"); }
  if (!uses) { window = 0; }
  const int64_t first = config.integer("max_window_layers", 28);
  Windows found{written_layer_types(config, layers, {kFull, kSliding}), {}};
  const bool is_written = !found.types.empty();
  for (int64_t i = 0; i < layers; ++i) {
    const auto at = static_cast<size_t>(i);
    if (!is_written) {
      const bool slides = window > 0 && (is_smol ? !has_rope[at] : i >= first);
      found.types.emplace_back(slides ? kSliding : kFull);
    }
    const bool slides = found.types[at] == kSliding;
    if (slides && window == 0) {
      config.fail("layer_types", &config.array("layer_types")->items()[at],
                  "\"full_attention\" without sliding_window and use_sliding_window");
    }
    found.sizes.push_back(slides ? window : 0);
  }
  return found;
}

/// Whether the class has Gated DeltaNet in blocks without attention.
bool has_gdn(const std::string& type) { return type == "qwen3_5_text" || type == "qwen3_next"; }

/// Blocks of qwen3_5_text and qwen3_next: whether they have attention, or gdn.
std::vector<bool> attention_blocks(HfConfig& config, int64_t layers) {
  const std::vector<std::string> types = written_layer_types(config, layers, {kFull, kLinear});
  const int64_t interval = config.positive("full_attention_interval", 4);
  std::vector<bool> has_attention;
  for (int64_t i = 0; i < layers; ++i) {
    has_attention.push_back(types.empty() ? (i + 1) % interval == 0 : types[static_cast<size_t>(i)] == kFull);
  }
  return has_attention;
}

/// qwen3_next has experts in every block but those that it names.
void require_no_experts(HfConfig& config, int64_t layers) {
  const int64_t experts = config.integer("num_experts", 512), step = config.positive("decoder_sparse_step", 1);
  std::vector<bool> is_dense(static_cast<size_t>(layers), experts == 0);
  if (const Json* dense = config.array("mlp_only_layers")) {
    for (const Json& block : dense->items()) {
      const bool is_block = block.is_integer() && block.as_int() >= 0 && block.as_int() < layers;
      if (is_block) { is_dense[static_cast<size_t>(block.as_int())] = true; }
    }
  }
  for (int64_t i = 0; i < layers; ++i) {
    if (!is_dense[static_cast<size_t>(i)] && (i + 1) % step == 0) {
      config.fail("num_experts", config.find("num_experts"),
                  "0, or mlp_only_layers with all blocks: hebb has no experts");
    }
  }
  for (const char* key : {"moe_intermediate_size", "norm_topk_prob", "num_experts_per_tok", "output_router_logits",
                          "router_aux_loss_coef", "shared_expert_intermediate_size"}) {
    config.has(key);
  }
}

/// What older files say of models of any kind, as all that hebb reads have it.
void require_plain(HfConfig& config) {
  for (const char* key : {"add_cross_attention", "attention_bias", "is_decoder", "is_encoder_decoder", "mlp_bias",
                          "rope_interleaved", "tie_encoder_decoder", "use_mrope"}) {
    config.require(key, false);
  }
  config.require("cross_attention_hidden_size", Json());
  config.require("pruned_heads", Json::object());
  config.require_one("hidden_act", {"silu", "swish"});
}

}  // namespace

const std::vector<TransformersClass>& transformers_classes() {
  static const std::vector<TransformersClass> classes{
      {"llama", "LlamaForCausalLM", 32000, 4096, 11008, 32, 32, 0, 0, 2048, 1e4, false},
      {"mistral", "MistralForCausalLM", 32000, 4096, 14336, 32, 32, 8, 0, 131072, 1e4, false},
      {"qwen2", "Qwen2ForCausalLM", 151936, 4096, 22016, 32, 32, 32, 0, 32768, 1e4, false},
      {"qwen3", "Qwen3ForCausalLM", 151936, 4096, 22016, 32, 32, 32, 128, 32768, 1e4, false},
      {"smollm3", "SmolLM3ForCausalLM", 128256, 2048, 11008, 36, 16, 4, 0, 32768, 2e6, true},
      {"qwen3_5_text", "Qwen3_5ForCausalLM", 248320, 4096, 12288, 32, 16, 4, 256, 32768, 1e4, false},
      {"qwen3_next", "Qwen3NextForCausalLM", 151936, 2048, 5632, 48, 16, 2, 256, 32768, 1e4, false},
  };
  return classes;
}

const TransformersClass* find_transformers_class(const std::string& type) {
  const auto& all = transformers_classes();
  const auto it = std::find_if(all.begin(), all.end(), [&](const TransformersClass& c) { return c.type == type; });
  return it == all.end() ? nullptr : &*it;
}

ForeignModel read_transformers(HfConfig& config, const TransformersClass& c) {
  const std::string type = c.type;
  const int64_t hidden = config.positive("hidden_size", c.hidden_size), layers = num_layers_of(config, c.num_layers);
  const int64_t heads = config.positive("num_attention_heads", c.num_heads);
  const int64_t own = config.has("num_key_value_heads") || c.num_kv_heads == 0 ? heads : c.num_kv_heads;
  const int64_t head_dim = config.positive("head_dim", c.head_dim > 0 ? c.head_dim : hidden / heads);
  Json attention = Json::object({{"type", "attention"},
                                 {"num_heads", heads},
                                 {"num_kv_heads", config.positive("num_key_value_heads", own)},
                                 {"head_dim", head_dim}});
  if (type == "qwen3" || has_gdn(type)) { attention.set("qk_norm", "rms"); }
  const std::vector<bool> has_rope =
      type == "smollm3" ? rope_layers(config, layers) : std::vector<bool>(static_cast<size_t>(layers), true);
  Windows windows;
  std::vector<bool> has_attention(static_cast<size_t>(layers), true);
  if (type == "mistral") {
    const int64_t absent = config.has("sliding_window") ? 0 : 4096;
    const bool is_size = config.find("sliding_window") != nullptr;
    windows.sizes.assign(static_cast<size_t>(layers), is_size ? config.positive("sliding_window") : absent);
  } else if (type == "llama" || has_gdn(type)) {
    windows.sizes.assign(static_cast<size_t>(layers), 0);
  } else {
    windows = read_windows(config, type, layers, has_rope);
  }
  std::vector<std::string> types = windows.types;
  std::sort(types.begin(), types.end());
  types.erase(std::unique(types.begin(), types.end()), types.end());
  std::optional<double> partial;
  Json gdn;
  if (has_gdn(type)) {
    partial = 0.25;
    has_attention = attention_blocks(config, layers);
    attention.set("gate", "element");
    gdn = Json::object({{"type", "gdn"},
                        {"num_heads", config.positive("linear_num_key_heads", 16)},
                        {"num_value_heads", config.positive("linear_num_value_heads", 32)},
                        {"key_head_dim", config.positive("linear_key_head_dim", 128)},
                        {"value_head_dim", config.positive("linear_value_head_dim", 128)},
                        {"conv_size", config.positive("linear_conv_kernel_dim", 4)},
                        {"output_gate", "silu"}});
    config.require("attn_output_gate", true);
    config.require("use_sliding_window", false);
    config.has("mtp_num_hidden_layers");  // heads for later tokens, which is_ignored() leaves out
    config.has("mtp_use_dedicated_embeddings");
  }
  if (type == "qwen3_next") { require_no_experts(config, layers); }
  ForeignModel found;
  for (size_t i = 0; i < windows.sizes.size(); ++i) {
    Json mixer = attention;
    const Json rope = rope_of_hf(config, c, head_dim, partial, types, windows.types.empty() ? "" : windows.types[i]);
    if (has_rope[i] && !rope.is_null()) { mixer.set("rope", rope); }
    if (windows.sizes[i] > 0) { mixer.set("window", windows.sizes[i]); }
    found.mixers.push_back(has_attention[i] ? mixer : gdn);
  }
  require_plain(config);
  found.model = Json::object({{"vocab_size", config.positive("vocab_size", c.vocab_size)},
                              {"hidden_size", hidden},
                              {"num_layers", layers},
                              {"tie_embeddings", config.flag("tie_word_embeddings", c.is_tied)},
                              {"init_std", config.number("initializer_range", 0.02)},
                              {"norm_eps", config.number("rms_norm_eps", 1e-6)}});
  if (has_gdn(type)) { found.model.set("norm", "rms_unit_offset"); }
  found.ffn = Json::object(
      {{"type", "swiglu"}, {"intermediate_size", config.positive("intermediate_size", c.intermediate_size)}});
  return found;
}

void write_transformers(const Json& whole, const TransformersClass& c, int64_t length, Json& hf) {
  const std::string type = c.type;
  const std::vector<Json> attentions = mixers_of_type(whole, "attention"), gdns = mixers_of_type(whole, "gdn");
  const std::vector<Json>& blocks = whole.at("blocks").items();
  // A class wants numbers of attention even where no block has it.
  Json attention =
      Json::object({{"num_heads", 1}, {"num_kv_heads", 1}, {"head_dim", 64}, {"rope", Json()}, {"window", 0}});
  Json rope;
  int64_t window = 0;
  if (!attentions.empty()) { attention = attentions.front(); }
  for (const Json& kind : attentions) {
    rope = rope.is_null() ? kind.at("rope") : rope;
    window = std::max(window, kind.at("window").as_int());
  }
  if (type == "llama" && whole.at("hidden_size").as_int() % attention.at("num_heads").as_int() != 0) {
    throw ConfigError("model.hidden_size", whole.at("hidden_size").dump(),
                      "a multiple of num_heads, as the class asks");
  }
  hf.set("num_attention_heads", attention.at("num_heads"));
  hf.set("num_key_value_heads", attention.at("num_kv_heads"));
  hf.set("head_dim", attention.at("head_dim"));
  hf.set("hidden_act", "silu");
  hf.set("rms_norm_eps", whole.at("norm_eps"));
  hf.set("attention_bias", false);
  hf.set("max_position_embeddings", length);
  if (type == "llama" || type == "smollm3") { hf.set("mlp_bias", false); }
  const bool is_qwen = has_gdn(type);
  write_rope(rope, attention.at("head_dim").as_int(), is_qwen, hf);
  if (type == "mistral") {
    hf.set("sliding_window", window > 0 ? Json(window) : Json());
  } else if (type == "qwen2" || type == "qwen3" || type == "smollm3") {
    hf.set("use_sliding_window", window > 0);
    hf.set("sliding_window", window > 0 ? Json(window) : Json());
    hf.set("max_window_layers", window > 0 ? 0 : std::ssize(blocks));
  }
  Json types = Json::array(), ropes = Json::array();
  int64_t interval = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const Json& mixer = blocks[i].at("mixer");
    const bool is_gdn = mixer.at("type") == Json("gdn");
    const bool slides = !is_gdn && !is_qwen && mixer.at("window").as_int() > 0;
    if (!is_gdn && interval == 0) { interval = static_cast<int64_t>(i) + 1; }
    types.push(is_gdn && is_qwen ? kLinear : slides ? kSliding : kFull);
    ropes.push(is_gdn || mixer.at("rope").is_null() ? 0 : 1);
  }
  if (type != "llama" && type != "mistral") { hf.set("layer_types", types); }
  if (type == "smollm3") { hf.set("no_rope_layers", ropes); }
  if (!is_qwen) { return; }
  // Where attention stands in every n-th block, the number says so too: some tools know only that.
  bool is_regular = interval > 0;
  for (size_t i = 0; i < blocks.size() && is_regular; ++i) {
    is_regular = (types.items()[i] == Json(kFull)) == ((static_cast<int64_t>(i) + 1) % interval == 0);
  }
  if (is_regular) { hf.set("full_attention_interval", interval); }
  for (const auto& [key, from, otherwise] : {std::tuple{"linear_num_key_heads", "num_heads", 1},
                                             {"linear_num_value_heads", "num_value_heads", 1},
                                             {"linear_key_head_dim", "key_head_dim", 64},
                                             {"linear_value_head_dim", "value_head_dim", 64},
                                             {"linear_conv_kernel_dim", "conv_size", 4}}) {
    hf.set(key, gdns.empty() ? Json(otherwise) : gdns.front().at(from));
  }
  if (type == "qwen3_next") {
    Json all = Json::array();
    for (int64_t i = 0; i < std::ssize(blocks); ++i) { all.push(i); }
    hf.set("num_experts", 0);
    hf.set("mlp_only_layers", all);
    hf.set("decoder_sparse_step", 1);
  }
}

}  // namespace hebb
