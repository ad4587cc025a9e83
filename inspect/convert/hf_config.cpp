#include "inspect/convert/hf_config.h"

#include <cmath>

#include "core/join.h"

namespace hebb {

HfConfig::HfConfig(const Json& json, std::string place) : json_(json), place_(std::move(place)) {
  if (!json.is_object()) { throw ConfigError(located(json.origin().str(), place_), json.found(), "an object"); }
}

bool HfConfig::has(std::string_view key) {
  asked_.emplace(key);
  return json_.find(key) != nullptr;
}

const Json* HfConfig::find(std::string_view key) {
  asked_.emplace(key);
  const Json* value = json_.find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

const Json* HfConfig::object(std::string_view key) {
  const Json* value = find(key);
  if (value != nullptr && !value->is_object()) { fail(key, value, "an object"); }
  return value;
}

const Json* HfConfig::array(std::string_view key) {
  const Json* value = find(key);
  if (value != nullptr && !value->is_array()) { fail(key, value, "an array"); }
  return value;
}

std::string HfConfig::text(std::string_view key, const std::string& absent) {
  const Json* value = find(key);
  if (value != nullptr && !value->is_string()) { fail(key, value, "a string"); }
  return value == nullptr ? absent : value->as_string();
}

int64_t HfConfig::integer(std::string_view key) {
  const Json* value = find(key);
  if (value == nullptr || !value->is_integer()) { fail(key, value, "an integer"); }
  return value->as_int();
}

int64_t HfConfig::positive(std::string_view key) {
  const int64_t value = integer(key);
  if (value < 1) { fail(key, json_.find(key), "an integer >= 1"); }
  return value;
}

double HfConfig::number(std::string_view key) {
  const Json* value = find(key);
  if (value == nullptr || !value->is_number()) { fail(key, value, "a number"); }
  return value->as_double();
}

bool HfConfig::flag(std::string_view key, bool absent) {
  const Json* value = find(key);
  if (value != nullptr && !value->is_bool()) { fail(key, value, "true or false"); }
  return value == nullptr ? absent : value->as_bool();
}

int64_t HfConfig::size(std::string_view key, double value) {
  if (!(std::abs(value) < 0x1p31)) { fail(key, find(key), "a number that makes a size below 2^31"); }
  return static_cast<int64_t>(value);
}

void HfConfig::require(std::string_view key, const Json& only) {
  const Json* value = find(key);
  if (value != nullptr && !(*value == only)) { fail(key, value, only.dump()); }
}

void HfConfig::require_one(std::string_view key, const std::vector<std::string>& values) {
  const Json* value = find(key);
  if (value == nullptr) { return; }
  for (const std::string& allowed : values) {
    if (*value == Json(allowed)) { return; }
  }
  fail(key, value, join(values, " or ", [](const std::string& v) { return "\"" + v + "\""; }));
}

void HfConfig::finish(const std::set<std::string_view>& harmless) const {
  for (const auto& [key, value] : json_.members()) {
    if (!value.is_null() && asked_.count(key) == 0 && harmless.count(key) == 0 &&
        !(place_.empty() && is_harmless(key))) {
      fail(key, &value, "no such key: hebb does not know what it does to the model");
    }
  }
}

void HfConfig::fail(std::string_view key, const Json* value, const std::string& expected) const {
  const Origin& origin = value != nullptr ? value->origin() : json_.origin();
  throw ConfigError(located(origin.str(), (place_.empty() ? "" : place_ + ".") + std::string(key)),
                    value == nullptr ? "nothing" : value->found(), expected);
}

bool is_harmless(std::string_view key) {
  static const std::set<std::string_view> keys{
      // names, versions, number formats
      "_name_or_path", "architectures", "auto_map", "custom_pipelines", "dtype", "is_llama_config", "mamba_ssm_dtype",
      "model_max_length", "name_or_path", "torch_dtype", "transformers.js_config", "transformers_version",
      // tokens and tokenizers
      "bos_token_id", "decoder_start_token_id", "eos_token_id", "pad_token_id", "prefix", "sep_token_id",
      "tokenizer_class",
      // what a call returns
      "output_attentions", "output_hidden_states", "return_dict", "return_dict_in_generate", "output_scores",
      "use_cache", "use_return_dict",
      // heads of other tasks
      "finetuning_task", "id2label", "label2id", "num_labels", "problem_type", "task_specific_params",
      // generation
      "bad_words_ids", "begin_suppress_tokens", "diversity_penalty", "do_sample", "early_stopping",
      "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "forced_bos_token_id", "forced_eos_token_id",
      "length_penalty", "max_length", "min_length", "no_repeat_ngram_size", "num_beam_groups", "num_beams",
      "num_return_sequences", "remove_invalid_values", "repetition_penalty", "suppress_tokens", "temperature", "top_k",
      "top_p", "typical_p",
      // training, and how a library computes the same values
      "_attn_implementation", "_attn_implementation_autoset", "_experts_implementation", "attention_dropout",
      "attn_implementation", "chunk_size_feed_forward", "gradient_checkpointing", "pretraining_tp", "tf_legacy_loss",
      "torchscript", "use_bfloat16"};
  return keys.count(key) > 0 || key.starts_with("unsloth_");
}

}  // namespace hebb
