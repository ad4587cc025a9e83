#include <algorithm>
#include <utility>

#include "core/join.h"
#include "inspect/convert/export_plan.h"

namespace hebb {
namespace {

/// What every class holds.
void require_common(const ModelConfig& model, const Json& whole) {
  const std::vector<Json>& blocks = whole.at("blocks").items();
  for (size_t i = 0; i < blocks.size(); ++i) {
    const Json &mixer = blocks[i].at("mixer"), &ffn = blocks[i].at("ffn"), &memory = blocks[i].at("memory");
    const BlockSpec spec = model.block(static_cast<int64_t>(i));
    const auto refuse = [&](const std::optional<std::string>& name, const Json& layer, const char* expected) {
      throw ConfigError(
          "model.layers." + name.value_or("") + ".type", layer.at("type").found(),
          std::string(expected) + ", which classes of other libraries have; --to pytorch exports every model");
    };
    if (!memory.is_null()) { refuse(spec.memory, memory, "no memory"); }
    if (!(mixer.at("type") == Json("attention") || mixer.at("type") == Json("gdn"))) {
      refuse(spec.mixer, mixer, "\"attention\" or \"gdn\"");
    }
    if (!(ffn.at("type") == Json("swiglu"))) { refuse(spec.ffn, ffn, "\"swiglu\""); }
  }
}

/// A place in a model written out, "blocks.3.mixer.window", as its configuration has it.
std::string place(const ModelConfig& model, const std::string& path) {
  std::vector<std::string> parts = split_path(path);
  if (parts.size() < 3 || parts[0] != "blocks") { return "model." + path; }
  const BlockSpec block = model.block(std::stoll(parts[1]));
  const auto& name = parts[2] == "mixer" ? block.mixer : parts[2] == "ffn" ? block.ffn : block.memory;
  parts.erase(parts.begin(), parts.begin() + 3);
  return "model.layers." + name.value_or("") + (parts.empty() ? "" : "." + join(parts, "."));
}

Json keys_of(const ModelConfig& model, const Json& whole, int64_t length, const std::string& type) {
  const TransformersClass* c = find_transformers_class(type);
  Json hf = Json::object({{"model_type", type},
                          {"architectures", Json::array({c != nullptr ? c->architecture : "GatedDeltaNetForCausalLM"})},
                          {"vocab_size", model.vocab_size},
                          {"hidden_size", model.hidden_size},
                          {"intermediate_size", whole.at("blocks").items().front().at("ffn").at("intermediate_size")},
                          {"num_hidden_layers", model.num_layers},
                          {"max_position_embeddings", length},
                          {"initializer_range", model.init_std},
                          {"tie_word_embeddings", model.tie_embeddings}});
  // Written even where there is none: defaults of some classes lie beyond the vocabulary.
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) { hf.set(key, Json()); }
  if (c != nullptr) {
    write_transformers(whole, *c, length, hf);
  } else {
    write_gated_deltanet(whole, hf);
  }
  return hf;
}

struct Attempt {
  ExportPlan plan;
  std::vector<ConfigDifference> lost;
};
Attempt attempt(const ModelConfig& model, int64_t length, const std::string& type) {
  Json whole = written_out(model);
  Attempt found{{type, {}, {}, fold_options(whole, type)}, {}};
  found.plan.config = keys_of(model, whole, length, type);
  // What the file says, read again, must be the whole model.
  found.plan.model = model_of_hf(found.plan.config);
  found.lost = all_differences(whole, written_out(Fields::read<ModelConfig>(found.plan.model, "model")));
  return found;
}

}  // namespace

Json written_out(const ModelConfig& model) {
  Json json = Fields::write(model), blocks = Json::array();
  const Json layers = json.at("layers");
  for (int64_t i = 0; i < model.num_layers; ++i) {
    const BlockSpec spec = model.block(i);
    Json block = Json::object();
    for (const auto& [role, name] : {std::pair{"memory", &spec.memory}, {"mixer", &spec.mixer}, {"ffn", &spec.ffn}}) {
      Json& layer = block.set(role, *name ? layers.at(**name) : Json());
      if (!layer.is_object()) { continue; }
      if (layer.at("type") == Json("gdn")) {
        for (const char* key : {"dt_bias_init", "chunk_size"}) { layer.erase(key); }
        if (layer.at("num_value_heads").is_null()) { layer.set("num_value_heads", layer.at("num_heads")); }
      }
      if (layer.at("type") == Json("attention")) {
        if (layer.at("num_kv_heads").is_null()) { layer.set("num_kv_heads", layer.at("num_heads")); }
        if (layer.at("value_head_dim").is_null()) { layer.set("value_head_dim", layer.at("head_dim")); }
        Json& rope = *layer.find("rope");
        if (!rope.is_null() && !rope.at("yarn").is_null() && rope.at("yarn").at("truncate") == Json(true)) {
          rope.find("yarn")->set("truncate", Json());
        }
      }
    }
    blocks.push(block);
  }
  for (const char* key : {"layers", "pattern", "at", "init", "init_std"}) { json.erase(key); }
  json.set("blocks", blocks);
  return json;
}

std::vector<Json> mixers_of_type(const Json& whole, const char* type) {
  std::vector<Json> found;
  for (const Json& block : whole.at("blocks").items()) {
    const Json& mixer = block.at("mixer");
    if (mixer.at("type") == Json(type) && std::find(found.begin(), found.end(), mixer) == found.end()) {
      found.push_back(mixer);
    }
  }
  return found;
}

const std::vector<std::string>& export_classes() {
  static const std::vector<std::string> types{"llama",   "mistral",      "qwen3",        "qwen2",
                                              "smollm3", kGatedDeltaNet, "qwen3_5_text", "qwen3_next"};
  return types;
}

ExportPlan plan_export(const ModelConfig& model, int64_t length, const std::string& wanted) {
  require_common(model, written_out(model));
  std::vector<std::string> reasons;
  for (const std::string& type : export_classes()) {
    if (wanted.empty() ? type == "qwen3_next" : type != wanted) { continue; }
    Attempt found;
    try {
      found = attempt(model, length, type);
    } catch (const ConfigError& error) {
      reasons.push_back(type + ": " + error.what());
      continue;
    }
    if (found.lost.empty()) { return std::move(found.plan); }
    // All keys of the class that is asked for, the first of every other.
    found.lost.resize(wanted.empty() ? 1 : found.lost.size());
    for (const ConfigDifference& d : found.lost) {
      const std::string reason =
          type + ": " + place(model, d.path) + ": found " + d.stored + ", the class has " + d.current;
      // Blocks share layers.
      if (std::find(reasons.begin(), reasons.end(), reason) == reasons.end()) { reasons.push_back(reason); }
    }
  }
  const std::string beginning =
      wanted.empty() ? "no class of another library holds it exactly: " : "the class does not hold it exactly: ";
  throw ConfigError("model", beginning + join(reasons, "; ") + "; --to pytorch exports every model");
}

Json hf_of_model(const ModelConfig& model, int64_t length) { return plan_export(model, length, "").config; }

}  // namespace hebb
