#include "inspect/convert.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "core/bfloat.h"
#include "core/plural.h"
#include "core/retry.h"
#include "core/signal_cleanup.h"
#include "core/weight_source.h"
#include "data/tokenizer/tokenizer.h"
#include "layers/model.h"
#include "train/checkpoint.h"
#include "train/model_source.h"
#include "train/run_config.h"
#include "train/tensor_match.h"

namespace hebb {
namespace {

/// Beginnings of names in hebb, and what stands there in a foreign checkpoint.
struct Naming {
  std::string_view embed, mixer_norm, mixer, ffn_norm, conv;
};
/// Of transformers (llama, mistral, qwen3).
constexpr Naming kTransformers{"embed_tokens.", "input_layernorm.", "self_attn.", "post_attention_layernorm.",
                               "_conv."};
/// Of flash-linear-attention (gated_deltanet).
constexpr Naming kFla{"embeddings.", "attn_norm.", "attn.", "mlp_norm.", "_conv1d."};

constexpr const char* kGatedDeltaNet = "gated_deltanet";

const Naming& naming_of(const std::string& model_type) { return model_type == kGatedDeltaNet ? kFla : kTransformers; }

/// The foreign name of a tensor of hebb.
std::string foreign_name(const std::string& name, const Naming& naming) {
  const auto renamed = [](std::string_view whole, std::string_view from, std::string_view to) {
    return whole.starts_with(from) ? std::optional(std::string(to) + std::string(whole.substr(from.size())))
                                   : std::nullopt;
  };
  if (name == "lm_head.weight") { return name; }
  if (const auto embed = renamed(name, "embed.", naming.embed)) { return "model." + *embed; }
  if (const auto norm = renamed(name, "final_norm.", "norm.")) { return "model." + *norm; }
  constexpr std::string_view kBlocks = "blocks.";
  const size_t rest = name.find('.', kBlocks.size()) + 1;
  std::string tail = name.substr(rest);
  for (const auto& [from, to] : {std::pair<std::string_view, std::string_view>{"mixer_norm.", naming.mixer_norm},
                                 {"mixer.", naming.mixer},
                                 {"ffn_norm.", naming.ffn_norm},
                                 {"ffn.", "mlp."}}) {
    if (const auto found = renamed(tail, from, to)) {
      tail = *found;
      break;
    }
  }
  if (const size_t at = tail.find("_conv."); at != std::string::npos) { tail.replace(at, 6, naming.conv); }
  return "model.layers." + name.substr(kBlocks.size(), rest - kBlocks.size()) + tail;
}

/// Taps of convolutions are [channels, taps] in hebb and [channels, 1, taps] elsewhere.
bool has_middle_one(const std::string& name) { return name.ends_with("_conv.weight"); }

/// Tables that old files carry and that hebb computes.
bool is_computed(std::string_view name) { return name.ends_with("rotary_emb.inv_freq"); }

// ---- config.json ----------------------------------------------------------------------------------------------------

/// Reads members of a config.json of Hugging Face; every key must be asked for or be known to say nothing about values.
class HfConfig {
 public:
  explicit HfConfig(const Json& json) : json_(json) {}

  const Json* find(const std::string& key) {
    asked_.insert(key);
    const Json* value = json_.find(key);
    return value == nullptr || value->is_null() ? nullptr : value;
  }
  int64_t integer(const std::string& key) {
    const Json* value = find(key);
    if (value == nullptr || !value->is_integer()) { fail(key, value, "an integer"); }
    return value->as_int();
  }
  int64_t integer(const std::string& key, int64_t absent) { return find(key) == nullptr ? absent : integer(key); }
  double number(const std::string& key) {
    const Json* value = find(key);
    if (value == nullptr || !value->is_number()) { fail(key, value, "a number"); }
    return value->as_double();
  }
  double number(const std::string& key, double absent) { return find(key) == nullptr ? absent : number(key); }
  int64_t positive(const std::string& key) {
    const int64_t value = integer(key);
    if (value < 1) { fail(key, json_.find(key), "an integer >= 1"); }
    return value;
  }
  /// A size that is `key` times another one.
  int64_t size(const std::string& key, double value) {
    if (!(std::abs(value) < 0x1p31)) { fail(key, find(key), "a number that makes a size below 2^31"); }
    return static_cast<int64_t>(value);
  }
  bool flag(const std::string& key, bool absent) {
    const Json* value = find(key);
    if (value != nullptr && !value->is_bool()) { fail(key, value, "true or false"); }
    return value == nullptr ? absent : value->as_bool();
  }
  /// Must be `only` where it is there.
  void require(const std::string& key, const Json& only) {
    const Json* value = find(key);
    if (value != nullptr && !(*value == only)) { fail(key, value, only.dump()); }
  }
  void finish() const {
    static const std::set<std::string, std::less<>> kSayNothing{
        "_name_or_path", "architectures", "attention_dropout", "attn_implementation", "bos_token_id", "dtype",
        "eos_token_id", "is_llama_config", "max_position_embeddings", "pad_token_id", "torch_dtype",
        "transformers.js_config", "transformers_version", "use_cache",
        // of the parallel form of training, and of windows that are off
        "pretraining_tp", "max_window_layers",
        // how flash-linear-attention computes, and what its training adds to the loss
        "attn_mode", "fuse_cross_entropy", "fuse_linear_cross_entropy", "fuse_norm", "fuse_swiglu", "use_l2warp"};
    for (const auto& [key, value] : json_.members()) {
      if (asked_.count(key) == 0 && kSayNothing.count(key) == 0) {
        fail(key, &value, "no such key: hebb does not know what it does to the model");
      }
    }
  }
  [[noreturn]] void fail(const std::string& key, const Json* value, const std::string& expected) const {
    throw ConfigError(located(value == nullptr ? "" : value->origin().str(), key),
                      value == nullptr ? "nothing" : value->found(), expected);
  }

 private:
  const Json& json_;
  std::set<std::string, std::less<>> asked_;
};

std::string type_of_hf(HfConfig& config) {
  const Json* type = config.find("model_type");
  const std::set<std::string> known{"llama", "mistral", "qwen3", kGatedDeltaNet};
  if (type == nullptr || !type->is_string() || known.count(type->as_string()) == 0) {
    config.fail("model_type", type, "\"llama\", \"mistral\", \"qwen3\" or \"gated_deltanet\"");
  }
  return type->as_string();
}

/// `rope_parameters` of files since transformers 5, `rope_theta` and `rope_scaling` of those before.
Json rope_of_hf(HfConfig& config) {
  Json rope = Json::object();
  const Json *both = config.find("rope_parameters"), *scaling = config.find("rope_scaling"),
             *theta = config.find("rope_theta");
  if (both != nullptr) {
    scaling = both;
    theta = both->find("rope_theta");
  }
  if (theta != nullptr && !theta->is_number()) { config.fail("rope_theta", theta, "a number"); }
  rope.set("theta", theta == nullptr ? 10000.0 : theta->as_double());
  if (scaling == nullptr) { return rope; }
  const Json* type = scaling->find("rope_type");
  if (type == nullptr) { type = scaling->find("type"); }
  if (type == nullptr || *type == Json("default")) { return rope; }
  if (!(*type == Json("yarn"))) { config.fail("rope_type", type, "\"default\" or \"yarn\""); }
  Json yarn = Json::object();
  const auto take = [&](const char* from, const char* to, bool is_required) {
    const Json* value = scaling->find(from);
    if (value != nullptr && value->is_number()) {
      yarn.set(to, *value);
    } else if (is_required) {
      config.fail(std::string("rope_scaling.") + from, value, "a number");
    }
  };
  take("factor", "factor", true);
  take("original_max_position_embeddings", "original", true);
  take("beta_fast", "beta_fast", false);
  take("beta_slow", "beta_slow", false);
  take("attention_factor", "attention_factor", false);
  for (const char* key : {"mscale", "mscale_all_dim"}) {
    if (const Json* value = scaling->find(key)) {
      config.fail(std::string("rope_scaling.") + key, value, "no such key");
    }
  }
  rope.set("yarn", yarn);
  return rope;
}

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

/// `attention` and its place in every block.
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

/// `gdn` in every block but those of `attn`, with the defaults of flash-linear-attention.
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

namespace {

/// The first block whose mixer is of a type, its mixer written out, or null.
const Json* mixer_of_type(const Json& blocks, const char* type) {
  for (const Json& block : blocks.items()) {
    const Json& mixer = block.at("mixer");
    if (!mixer.is_null() && mixer.at("type") == Json(type)) { return &mixer; }
  }
  return nullptr;
}

const Json& rope_in(const Json& attention) {
  if (attention.at("rope").is_null()) {
    throw ConfigError("model, rope of attention", "null", "rotary positions, as in Hugging Face's models");
  }
  return attention.at("rope");
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

namespace {

/// Tensors of a conversion: bytes of the source where the type stays, else values of their own.
class Tensors {
 public:
  explicit Tensors(std::string dtype) : dtype_(std::move(dtype)) {}

  void add(const std::string& name, const Shape& shape, const SafetensorsFile& file, const std::string& from) {
    const SafetensorsFile::Entry& entry = file.at(from);
    const bool stays = dtype_.empty() && entry.dtype != DType::u8;
    const DType dtype = stays ? entry.dtype : dtype_ == "bf16" ? DType::bf16 : DType::f32;
    if (dtype == entry.dtype) {
      list.push_back({name, {const_cast<uint8_t*>(file.data(entry)), dtype, shape}});  // only read
      return;
    }
    const std::vector<double> values = file.doubles(from);
    const size_t count = values.size();
    std::unique_ptr<char[]> memory(new char[count * static_cast<size_t>(dtype_bytes(dtype))]);
    if (dtype == DType::bf16) {
      std::transform(values.begin(), values.end(), reinterpret_cast<bf16*>(memory.get()),
                     [](double x) { return nearest_bf16(static_cast<float>(x)); });
    } else {
      std::transform(values.begin(), values.end(), reinterpret_cast<float*>(memory.get()),
                     [](double x) { return static_cast<float>(x); });
    }
    list.push_back({name, {memory.get(), dtype, shape}});
    memory_.push_back(std::move(memory));
  }
  /// "float32" of most of them, as config.json of Hugging Face says it.
  std::string torch_dtype() const {
    const DType dtype = list.empty() ? DType::f32 : list.front().tensor.dtype;
    return dtype == DType::bf16 ? "bfloat16" : dtype == DType::f64 ? "float64" : "float32";
  }

  std::vector<NamedTensor> list;

 private:
  std::string dtype_;
  std::vector<std::unique_ptr<char[]>> memory_;
};

/// A folder beside `target` that takes its name when commit() is called, and goes otherwise.
class NewFolder {
 public:
  explicit NewFolder(fs::path target)
      : target_(fs::absolute(std::move(target)).lexically_normal()),
        path_(target_.parent_path() / fmt::format(".tmp-{}-{}", ::getpid(), target_.filename().string())) {
    std::error_code error;
    if (fs::exists(target_) && !(fs::is_directory(target_) && fs::is_empty(target_, error))) {
      throw CheckpointError(target_.string(), "exists and is not an empty folder; a conversion overwrites nothing");
    }
    retried(error, [&] { fs::create_directories(path_, error); });
    if (error) { throw CheckpointError(path_.string(), "cannot make the folder: " + error.message()); }
    cleanup_ = std::make_unique<SignalCleanup>(
        std::vector<fs::path>{path_ / "model.safetensors", path_ / "config.json", path_});
  }
  ~NewFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const fs::path& path() const { return path_; }
  void commit() {
    std::error_code error;
    fs::remove(target_, error);  // empty
    retried(error, [&] { fs::rename(path_, target_, error); });
    if (error) {
      throw CheckpointError(target_.string(), "cannot rename the finished folder to it: " + error.message());
    }
    fsync_directory(target_.parent_path());
  }

 private:
  fs::path target_, path_;
  std::unique_ptr<SignalCleanup> cleanup_;
};

/// Copies the file with a tokenizer; returns its name, which tells its type, or nothing where there is none.
std::string copy_tokenizer(const fs::path& file, const fs::path& to) {
  if (file.empty()) { return ""; }
  const std::string name = file.extension() == ".json" ? "tokenizer.json" : "tokenizer.model";
  write_file_atomic(to / name, read_file(file));
  return name;
}

Shape foreign_shape(const ExpectedTensor& e) {
  return has_middle_one(e.name) ? Shape{e.shape[0], 1, e.shape[1]} : e.shape;
}

std::string summary(const Model& model, const std::string& what, const Tensors& tensors, const fs::path& target,
                    const std::string& tokenizer) {
  int64_t parameters = 0;
  for (const auto& p : model.params().all()) { parameters += p->spec.shape.numel(); }
  return fmt::format("{}: {}, {:d} parameters, {}\nconfig.json, model.safetensors{}{} in {}\n", what,
                     plural(tensors.list.size(), "tensor"), parameters, tensors.torch_dtype(),
                     tokenizer.empty() ? "" : ", ", tokenizer, target.string());
}

std::string from_hf(const fs::path& source, const Json& config, const fs::path& target, const std::string& dtype) {
  const Json object = model_of_hf(config);
  const auto model_config = Fields::read<ModelConfig>(object, "model");
  const Model model(model_config);
  const Naming& naming = naming_of(config.at("model_type").as_string());
  const WeightSource weights(source);
  std::set<std::string> foreign;
  for (const std::string& name : weights.names()) {
    if (!is_computed(name)) { foreign.insert(name); }
  }
  if (model_config.tie_embeddings) { foreign.erase("lm_head.weight"); }  // a second copy of the embedding
  Tensors tensors(dtype);
  for (const ExpectedTensor& e : tensors_of(model.params())) {
    const std::string name = foreign_name(e.name, naming);
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
  write_safetensors(folder.path() / "model.safetensors", tensors.list);
  write_file_atomic(folder.path() / "config.json", object.dump(1) + "\n");
  ModelSource foreign_source;
  foreign_source.weights = weights.path();
  const std::string tokenizer = copy_tokenizer(find_tokenizer_file(foreign_source), folder.path());
  folder.commit();
  return summary(model, "from " + config.at("model_type").as_string(), tensors, target, tokenizer);
}

std::string to_hf(const fs::path& path, const fs::path& target, const std::string& dtype) {
  const ModelSource source = read_model_source(path);
  if (source.weights.empty()) {
    throw CheckpointError(path.string(), "no weights to convert", "a configuration", "a checkpoint or a run folder");
  }
  verify_weights(source.weights);
  Json config =
      hf_of_model(source.model, source.is_run ? source.config.integer_at("train.sequence_length", 4096) : 4096);
  const Model model(source.model);
  const WeightSource weights(source.weights);
  require_tensors(weights, tensors_of(model.params()));
  Tensors tensors(dtype);
  const Naming& naming = naming_of(config.at("model_type").as_string());
  for (const ExpectedTensor& e : tensors_of(model.params())) {
    tensors.add(foreign_name(e.name, naming), foreign_shape(e), *weights.file_of(e.name), e.name);
  }
  config.set("torch_dtype", tensors.torch_dtype());
  NewFolder folder(target);
  // transformers asks for this member.
  write_safetensors(folder.path() / "model.safetensors", tensors.list, {{"format", "pt"}});
  write_file_atomic(folder.path() / "config.json", config.dump(1) + "\n");
  const std::string tokenizer = copy_tokenizer(find_tokenizer_file(source), folder.path());
  folder.commit();
  return summary(model, "as " + config.at("model_type").as_string(), tensors, target, tokenizer);
}

}  // namespace

std::string convert_checkpoint(const fs::path& source, const fs::path& target, const std::string& dtype) {
  const fs::path file = source / "config.json";
  if (fs::is_directory(source) && fs::exists(file)) {
    const Json config = parse_json_file(file.string());
    if (config.is_object() && config.find("model_type") != nullptr) { return from_hf(source, config, target, dtype); }
  }
  return to_hf(source, target, dtype);
}

}  // namespace hebb
