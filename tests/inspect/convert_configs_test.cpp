// config.json of transformers beside what its own configuration classes make of them.
#include "inspect/convert/convert.h"
#include "layers/rope_config.h"
#include "tests/test.h"
#include "tests/thrown.h"

using Catch::EndsWith;
using Catch::StartsWith;

namespace {

Json with(const std::string& text, const std::string& changes) {
  Json json = parse_json(text, "config.json");
  const Json over = parse_json(changes, "changes.json");
  for (const auto& [key, value] : over.members()) { json.set(key, value); }  // null stays
  return json;
}

const std::string kSmall =
    R"({"model_type": "llama", "vocab_size": 29, "hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 2,
  "num_attention_heads": 2, "max_position_embeddings": 64})";

std::string error_of(const std::string& changes) {
  return thrown<ConfigError>([&] { model_of_hf(with(kSmall, changes)); });
}

Json rope_of(const std::string& changes) {
  return model_of_hf(with(kSmall, changes)).at("layers").at("attention").at("rope");
}

/// The mixers of the blocks.
std::vector<Json> mixers_of(const Json& model) {
  const auto config = Fields::read<ModelConfig>(model, "model");
  std::vector<Json> mixers;
  for (int64_t i = 0; i < config.num_layers; ++i) { mixers.push_back(model.at("layers").at(*config.block(i).mixer)); }
  return mixers;
}

void check_rope(const Json& attention, const Json& expected) {
  const Json& rope = attention.at("rope");
  auto config = Fields::read<RopeConfig>(rope, "rope");
  config.dims = config.dims.value_or(attention.at("head_dim").as_int());
  const RopeSpec spec = config.spec();
  const std::vector<Json>& frequencies = expected.at("frequencies").items();
  REQUIRE(spec.dims == 2 * std::ssize(frequencies));
  for (int64_t i = 0; i < std::ssize(frequencies); ++i) {
    CHECK(spec.frequency(i) == Approx(frequencies[static_cast<size_t>(i)].as_double()).epsilon(1e-12));
  }
  CHECK((spec.yarn ? spec.attention_factor : 1.0) == Approx(expected.at("rope_factor").as_double()).epsilon(1e-14));
}

}  // namespace

TEST_CASE("configurations mean what transformers' own classes make of them", "[golden][fast]") {
  const Json cases = parse_json_file(std::string(HEBB_TEST_DATA) + "/golden/foreign-configs.json");
  for (const Json& c : cases.items()) {
    INFO(c.at("name").as_string());
    const Json& expected = c.at("expected");
    const Json model = model_of_hf(c.at("config"));
    const auto equal = [&](const Json& found, const char* key) {
      INFO(key);
      CHECK(found == expected.at(key));
    };
    equal(model.at("vocab_size"), "vocab_size");
    equal(model.at("hidden_size"), "hidden_size");
    equal(model.at("norm_eps"), "rms_norm_eps");
    equal(model.at("tie_embeddings"), "tie_word_embeddings");
    equal(model.at("layers").at("mlp").at("intermediate_size"), "intermediate_size");
    const std::vector<Json> mixers = mixers_of(model);
    const std::vector<Json>& windows = expected.at("windows").items();
    REQUIRE(mixers.size() == windows.size());
    for (size_t i = 0; i < mixers.size(); ++i) {
      INFO("block " << i);
      const Json& mixer = mixers[i];
      if (windows[i] == Json(-1)) {
        equal(mixer.at("num_heads"), "linear_num_key_heads");
        equal(mixer.at("num_value_heads"), "linear_num_value_heads");
        equal(mixer.at("key_head_dim"), "linear_key_head_dim");
        equal(mixer.at("value_head_dim"), "linear_value_head_dim");
        equal(mixer.at("conv_size"), "linear_conv_kernel_dim");
        continue;
      }
      equal(mixer.at("num_heads"), "num_heads");
      equal(mixer.at("num_kv_heads"), "num_kv_heads");
      equal(mixer.at("head_dim"), "head_dim");
      CHECK(mixer.integer_at("window", 0) == windows[i].as_int());
      const Json* has_rope = expected.find("has_rope");
      const bool rotates = has_rope == nullptr || has_rope->items()[i].as_bool();
      CHECK((mixer.find("rope") != nullptr && !mixer.at("rope").is_null()) == rotates);
      if (rotates) { check_rope(mixer, expected); }
    }
  }
}

TEST_CASE("rotary parameters stand in one place, or say the same in two", "[fast]") {
  const Json theta = parse_json(R"({"theta": 5000.0})", "rope.json");
  CHECK(rope_of(R"({"rope_theta": 5000.0})") == theta);
  CHECK(rope_of(R"({"rope_parameters": {"rope_theta": 5000.0, "rope_type": "default"}})") == theta);
  CHECK(rope_of(R"({"rope_parameters": {"rope_type": "default"}, "rope_theta": 5000.0})") == theta);
  CHECK(rope_of(R"({"rope_parameters": {"rope_theta": 5000.0}, "rope_theta": 5000.0})") == theta);
  CHECK_THAT(error_of(R"({"rope_parameters": {"rope_theta": 5000.0}, "rope_theta": 6000.0})"),
             StartsWith("changes.json:1:") && Contains("rope_parameters.rope_theta: found 5000.0, expected 6000.0"));
  CHECK_THAT(
      error_of(R"({"rope_parameters": {"rope_theta": 5000.0}, "rope_scaling": {"rope_type": "yarn", "factor": 2}})"),
      Contains("rope_parameters: found an object, expected what rope_scaling says, or one of the two"));
  // By layer type where the class has layer types.
  const std::string qwen = R"({"model_type": "qwen3", "use_sliding_window": true, "sliding_window": 4,
    "layer_types": ["full_attention", "sliding_attention"], "num_key_value_heads": 1, "rope_parameters": {"full_attention": {"rope_theta": 7.0},
    "sliding_attention": {"rope_theta": 8.0, "rope_type": "yarn", "factor": 2.0}}})";
  const std::vector<Json> mixers = mixers_of(model_of_hf(with(kSmall, qwen)));
  CHECK(mixers[0].at("rope").at("theta") == Json(7.0));
  CHECK(mixers[1].at("rope").at("theta") == Json(8.0));
  CHECK(mixers[1].at("rope").at("yarn").at("original") == Json(64));
  CHECK(mixers[1].at("window") == Json(4));
  CHECK_THAT(error_of(R"({"rope_parameters": {"full_attention": {"rope_theta": 7.0}}})"),
             Contains("rope_parameters.full_attention: found an object, expected no such key"));
}

TEST_CASE("keys of rotary parameters that hebb does not know are errors", "[fast]") {
  const auto [changes, error] = GENERATE(table<std::string, std::string>(
      {{R"({"rope_scaling": {"rope_type": "yarn", "factor": 2, "what": 1}})",
        "rope_scaling.what: found 1, expected no such key"},
       {R"({"rope_parameters": {"what": 1}})", "rope_parameters.what: found 1, expected no such key"},
       {R"({"rope_parameters": {"rope_type": "default", "factor": 2}})",
        "rope_parameters.factor: found 2, expected no such key"},
       {R"({"rope_scaling": {"type": "linear", "factor": 2}})",
        R"(rope_scaling.type: found "linear", expected "default", "yarn" or "llama3")"},
       {R"({"rope_scaling": {"rope_type": "longrope", "type": "yarn"}})",
        R"(rope_scaling.rope_type: found "longrope")"},
       {R"({"rope_scaling": {"rope_type": "yarn"}})", "rope_scaling.factor: found nothing, expected a number"},
       {R"({"rope_scaling": {"rope_type": "yarn", "factor": 2, "truncate": 1}})",
        "rope_scaling.truncate: found 1, expected true or false"},
       {R"({"rope_scaling": {"rope_type": "llama3", "factor": 8}})",
        "rope_scaling.low_freq_factor: found nothing, expected a number"},
       {R"({"rope_scaling": {"rope_type": 3}})", "rope_scaling.rope_type: found 3, expected a string"},
       {R"({"partial_rotary_factor": 0.5})", "partial_rotary_factor: found 0.5, expected 1.0"},
       {R"({"rope_scaling": {"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": 0}})",
        "rope_scaling.original_max_position_embeddings: found 0, expected an integer >= 1"}}));
  CHECK_THAT(error_of(changes), Contains(error));
}

TEST_CASE("windows by layer", "[fast]") {
  const auto [changes, error] = GENERATE(table<std::string, std::string>(
      {{R"({"layer_types": "x"})", R"(layer_types: found "x", expected an array)"},
       {R"({"layer_types": ["full_attention"]})",
        "layer_types: found an array, expected an entry for each of 2 layers"},
       {R"({"layer_types": ["full_attention", 3]})",
        R"(layer_types: found 3, expected "full_attention" or "sliding_attention")"},
       {R"({"layer_types": ["full_attention", "chunked_attention"]})", R"(layer_types: found "chunked_attention")"},
       {R"({"layer_types": ["full_attention", "sliding_attention"]})",
        "expected \"full_attention\" without sliding_window and use_sliding_window"},
       {R"({"use_sliding_window": true, "sliding_window": 0})", "sliding_window: found 0, expected an integer >= 1"},
       {R"({"use_sliding_window": 1})", "use_sliding_window: found 1, expected true or false"},
       {R"({"model_type": "mistral", "sliding_window": 0})", "sliding_window: found 0, expected an integer >= 1"}}));
  Json json = with(kSmall, R"({"model_type": "qwen3"})");
  const Json over = parse_json(changes, "changes.json");
  for (const auto& [key, value] : over.members()) { json.set(key, value); }
  CHECK_THAT(thrown<ConfigError>([&] { model_of_hf(json); }), StartsWith("changes.json:1:") && Contains(error));
}

TEST_CASE("keys that change nothing are taken, others are errors that name them", "[fast]") {
  const Json plain = model_of_hf(parse_json(kSmall, "config.json"));
  for (const char* key :
       {"_attn_implementation_autoset", "unsloth_fixed", "unsloth_version", "auto_map", "tokenizer_class",
        "output_attentions", "id2label", "label2id", "torch_dtype", "dtype", "temperature", "top_p",
        "chunk_size_feed_forward", "task_specific_params", "gradient_checkpointing"}) {
    INFO(key);
    CHECK(model_of_hf(with(kSmall, std::string("{\"") + key + "\": {\"any\": 1}}")) == plain);
  }
  CHECK(model_of_hf(
            with(kSmall, R"({"is_decoder": false, "pruned_heads": {}, "use_mrope": false, "hidden_act": "swish"})")) ==
        plain);
  for (const char* key :
       {"quantization_config", "num_experts", "logit_scale", "embedding_multiplier", "attn_logit_softcapping", "_attn",
        "unslothed", "sliding_window", "use_sliding_window", "layer_types"}) {
    CHECK_THAT(error_of(std::string("{\"") + key + "\": 3}"),
               StartsWith("changes.json:1:") && Contains(std::string(key) + ": found 3, expected no such key"));
  }
  CHECK_THAT(error_of(R"({"is_decoder": true})"), Contains("is_decoder: found true, expected false"));
  CHECK_THAT(error_of(R"({"pruned_heads": {"0": [1]}})"), Contains("pruned_heads: found an object, expected {}"));
  CHECK_THAT(error_of(R"({"num_hidden_layers": 1000000000000})"),
             Contains("num_hidden_layers: found 1000000000000, expected at most 10000 layers"));
}
