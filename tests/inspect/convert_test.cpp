#include "inspect/convert/convert.h"

#include <regex>
#include <set>

#include "core/bfloat.h"
#include "core/folder_lock.h"
#include "core/weight_source.h"
#include "inspect/convert/export_plan.h"
#include "layers/model.h"
#include "tests/test.h"
#include "tests/thrown.h"
#include "tests/train/run_fixture.h"
#include "train/model_source.h"

using Catch::EndsWith;
using Catch::StartsWith;

namespace {

const std::string kLlama =
    R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 29, "hidden_size": 12,
  "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 3, "num_key_value_heads": 1, "hidden_act": "silu",
  "rms_norm_eps": 1e-6, "rope_theta": 5000.0, "rope_scaling": null, "max_position_embeddings": 64, "tie_word_embeddings": false,
  "attention_bias": false, "torch_dtype": "float16", "bos_token_id": 1, "initializer_range": 0.03})";

/// Blocks 0 and 1 of gdn and attention in a model of trained().
const char* const kDelta =
    R"({"layers": {"gdn": {"type": "gdn", "num_heads": 1, "num_value_heads": 2, "key_head_dim": 6,
  "value_head_dim": 9, "chunk_size": 16}}, "at": {"0": {"mixer": "gdn"}}})";

ModelConfig read_model_of(const Json& json) { return Fields::read<ModelConfig>(json, "model"); }

Json changed(const std::string& text, const std::string& changes) {
  Json json = parse_json(text, "config.json");
  merge_json(json, parse_json(changes, "changes.json"));
  return json;
}

/// A checkpoint of hebb after a step of training.
fs::path trained(const TempFolder& folder, const std::string& attention, const std::string& model = "{}") {
  Json json =
      json_in(folder, R"({"name": "m", "model": {"vocab_size": 29, "hidden_size": 12, "num_layers": 2, "layers": {
      "att": {"type": "attention", "num_heads": 3, "num_kv_heads": 1, "head_dim": 4, "rope": {"theta": 5000.0}},
      "mlp": {"type": "swiglu", "intermediate_size": 20}}, "pattern": [{"mixer": "att", "ffn": "mlp"}]},
    "data": {"sources": [{"path": "tokens.bin", "format": "raw_u16", "split_token": 0}]},
    "train": {"steps": 1, "batch_size": 2, "sequence_length": 19, "device": "cpu"}, "optimizer": {"lr": 0.01}})");
  merge_json(*json.find("model")->find("layers")->find("att"), parse_json(attention, "attention.json"));
  merge_json(*json.find("model"), parse_json(model, "model.json"));
  REQUIRE(run_in(folder / "run", resolved_run(json)) == 0);
  return checkpoint_in(folder / "run", 1);
}

}  // namespace

TEST_CASE("configurations of Hugging Face become models, with what they leave out", "[fast]") {
  const Json model = model_of_hf(parse_json(kLlama, "config.json"));
  const Json expected = parse_json(R"({"vocab_size": 29, "hidden_size": 12, "num_layers": 2, "norm_eps": 1e-6,
    "tie_embeddings": false, "init_std": 0.03, "layers": {
      "attention": {"type": "attention", "num_heads": 3, "num_kv_heads": 1, "head_dim": 4, "rope": {"theta": 5000.0}},
      "mlp": {"type": "swiglu", "intermediate_size": 20}}, "pattern": [{"mixer": "attention", "ffn": "mlp"}]})",
                                   "expected.json");
  CHECK(model == expected);
  const Json mistral = model_of_hf(changed(kLlama, R"({"model_type": "mistral", "sliding_window": 7, "head_dim": 6,
    "rope_theta": null, "rope_parameters": {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0,
    "original_max_position_embeddings": 16}, "tie_word_embeddings": true})"));
  const Json& layer = mistral.at("layers").at("attention");
  CHECK(layer.at("window") == Json(7));
  CHECK(layer.at("head_dim") == Json(6));
  CHECK(layer.at("rope") == parse_json(R"({"theta": 100.0, "yarn": {"factor": 4.0, "original": 16}})", "rope.json"));
  CHECK(mistral.at("tie_embeddings") == Json(true));
  const Json qwen =
      model_of_hf(changed(kLlama, R"({"model_type": "qwen3", "sliding_window": 4096, "use_sliding_window": false,
    "layer_types": ["full_attention", "full_attention"], "max_window_layers": 2})"));
  CHECK(qwen.at("layers").at("attention").at("qk_norm") == Json("rms"));
  CHECK(qwen.at("layers").at("attention").find("window") == nullptr);
}

TEST_CASE("configurations of flash-linear-attention become models, with its defaults", "[fast]") {
  const Json model = model_of_hf(parse_json(
      R"({"model_type": "gated_deltanet", "vocab_size": 29, "hidden_size": 64, "num_hidden_layers": 3, "fuse_norm": true})",
      "config.json"));
  const Json& gdn = model.at("layers").at("gdn");
  CHECK(gdn.at("num_heads") == Json(6));
  CHECK(gdn.at("key_head_dim") == Json(256));
  CHECK(gdn.at("value_head_dim") == Json(512));
  CHECK(gdn.at("conv_size") == Json(4));
  CHECK(model.at("layers").at("mlp").at("intermediate_size") == Json(256));  // 64 * 4 * 2 / 3 = 170, rounded up
  CHECK(model.find("at") == nullptr);
  const Json hybrid = model_of_hf(parse_json(
      R"({"model_type": "gated_deltanet", "vocab_size": 29, "hidden_size": 64, "num_hidden_layers": 3, "use_gate": false,
          "use_short_conv": false, "head_dim": 16, "expand_v": 1.5, "num_heads": 2, "num_v_heads": 4, "intermediate_size": 70,
          "attn": {"layers": [1], "num_heads": 4, "num_kv_heads": 2, "window_size": null, "rope_theta": 500.0}})",
      "config.json"));
  const ModelConfig config = read_model_of(hybrid);
  CHECK(*config.block(0).mixer == "gdn");
  CHECK(*config.block(1).mixer == "attention");
  CHECK(hybrid.at("layers").at("gdn").at("value_head_dim") == Json(24));
  CHECK(hybrid.at("layers").at("gdn").at("output_gate") == Json("none"));
  CHECK(hybrid.at("layers").at("gdn").at("conv_size") == Json(0));
  CHECK(hybrid.at("layers").at("attention").at("head_dim") == Json(16));
  CHECK(hybrid.at("layers").at("attention").at("window") == Json(0));
}

TEST_CASE("what a foreign model has and hebb has not is an error that names it", "[fast]") {
  const auto [changes, error] = GENERATE(table<std::string, std::string>(
      {{R"({"model_type": "gpt2"})",
        R"(model_type: found "gpt2", expected "llama", "mistral", "qwen2", "qwen3", "smollm3", "qwen3_5_text", "qwen3_next" or)"},
       {R"({"attention_bias": true})", "attention_bias: found true, expected false"},
       {R"({"hidden_act": "gelu"})", R"(hidden_act: found "gelu", expected "silu")"},
       {R"({"rope_scaling": {"rope_type": "longrope", "factor": 8.0}})", R"(rope_type: found "longrope")"},
       {R"({"rope_scaling": {"rope_type": "yarn"}})", "rope_scaling.factor: found nothing, expected a number"},
       {R"({"rope_interleaved": true})", "rope_interleaved: found true, expected false"},
       {R"({"num_experts": 8})", "num_experts: found 8, expected no such key"},
       {R"({"vocab_size": "29"})", R"(vocab_size: found "29", expected an integer)"},
       {R"({"num_attention_heads": 0})", "num_attention_heads: found 0"},
       {R"({"model_type": "gated_deltanet", "num_hidden_layers": 2, "conv_bias": true})",
        "conv_bias: found true, expected false"},
       {R"({"model_type": "gated_deltanet", "hidden_act": "swish", "attn": {"layers": [0], "num_heads": 2, "qkv_bias": true}})",
        "qkv_bias: found true, expected false"},
       {R"({"model_type": "qwen3", "use_sliding_window": 1})",
        "use_sliding_window: found 1, expected true or false"}}));
  CHECK_THROWS_WITH(model_of_hf(changed(kLlama, changes)), Contains(error));
}

TEST_CASE("values of another kind in a foreign configuration are errors with their place", "[fast]") {
  const auto error = [](const std::string& members) {
    return thrown<ConfigError>([&] { model_of_hf(parse_json("{" + members + "}", "config.json")); });
  };
  const std::string llama =
      R"("model_type": "llama", "vocab_size": 8, "hidden_size": 8, "num_hidden_layers": 1, "intermediate_size": 8, )";
  const std::string fla =
      R"("model_type": "gated_deltanet", "vocab_size": 8, "hidden_size": 8, "num_hidden_layers": 1, )";
  for (const char* value : {"3", "true", "\"yarn\"", "[1]"}) {
    for (const char* key : {"rope_scaling", "rope_parameters"}) {
      INFO(key << " " << value);
      CHECK_THAT(error(llama + "\"num_attention_heads\": 2, \"" + key + "\": " + value),
                 StartsWith("config.json:1:") && EndsWith(", expected an object"));
    }
    CHECK_THAT(error(fla + "\"attn\": " + value), StartsWith("config.json:1:") && EndsWith(", expected an object"));
  }
  CHECK_THAT(error(llama + R"("num_attention_heads": 18446744073709551615)"),
             StartsWith("config.json:1:") && EndsWith("found 18446744073709551615, expected an integer below 2^63"));
  CHECK_THAT(error(fla + R"("expand_v": 1e300)"),
             Contains("expand_v: found 1e+300, expected a number that makes a size below 2^31"));
}

TEST_CASE("positions of an exported model reach as far as its rotary extension", "[fast]") {
  const auto positions = [](double factor, int64_t length) {
    Json json = model_of_hf(parse_json(kLlama, "config.json"));
    const Json yarn = Json::object({{"factor", factor}, {"original", 64}});
    set_path(json, "layers.attention.rope.yarn", yarn);
    return hf_of_model(read_model_of(json), length).at("max_position_embeddings").as_int();
  };
  CHECK(positions(4, 64) == 256);
  CHECK(positions(4, 1000) == 1000);
  CHECK(positions(2.5, 64) == 160);
}

TEST_CASE("a model that no foreign file describes is an error that names the key", "[fast]") {
  const auto error_of = [](const std::string& attention, const std::string& model = "{}") {
    Json json = model_of_hf(parse_json(kLlama, "config.json"));
    merge_json(*json.find("layers")->find("attention"), parse_json(attention, "a.json"));
    merge_json(json, parse_json(model, "m.json"));
    return thrown<ConfigError>([&] { hf_of_model(read_model_of(json), 64); });
  };
  CHECK(error_of("{}") == "");
  CHECK(error_of(R"({"window": 5})") == "");
  CHECK(error_of(R"({"qk_norm": "rms"})") == "");
  CHECK(error_of(R"({"rope": {"yarn": {"factor": 2, "original": 8}}})") == "");
  CHECK(error_of(R"({"rope": null})") == "");
  CHECK(error_of(R"({"qk_norm": "rms", "window": 5})") == "");
  const std::string gate = error_of(R"({"gate": "head"})");
  for (const char* type : {"llama", "mistral", "qwen2", "smollm3"}) {
    CHECK_THAT(gate, Contains(std::string(" ") + type +
                              ": model.layers.attention.gate: found \"head\", the class has \"none\""));
  }
  CHECK_THAT(gate, StartsWith("model: no class of another library holds it exactly: llama: ") &&
                       Contains("; qwen3: model.layers.attention.qk_norm: found \"none\", the class has \"rms\""));
  CHECK(gate.find("llama: ") == gate.rfind("llama: "));  // once, though two blocks have the layer
  CHECK_THAT(error_of(R"({"rope": {"dims": 2}})"), Contains("model.layers.attention.rope.dims: found 2"));
  CHECK_THAT(error_of("{}", R"({"norm": "layer"})"), Contains("model.norm: found \"layer\", the class has \"rms\""));
  CHECK(
      error_of("{}", R"({"layers": {"r": {"type": "relu2", "intermediate_size": 4}},
                           "pattern": [{"mixer": "attention", "ffn": "mlp"}, {"mixer": "attention", "ffn": "r"}]})") ==
      R"(model.layers.r.type: found "relu2", expected "swiglu", which classes of other libraries have; --to pytorch exports every model)");
  CHECK_THAT(error_of("{}", R"({"layers": {"o": {"type": "ovq", "num_heads": 1, "head_dim": 4, "max_centroids": 8}},
                                "pattern": [{"mixer": "o", "ffn": "mlp"}]})"),
             Contains("model.layers.o.type: found \"ovq\", expected \"attention\" or \"gdn\""));
  CHECK_THAT(error_of("{}", R"({"layers": {"p": {"type": "fwpkm"}},
                                "pattern": [{"memory": "p", "mixer": "attention", "ffn": "mlp"}]})"),
             Contains("model.layers.p.type: found \"fwpkm\", expected no memory"));
}

TEST_CASE("every key that a class cannot hold is an error of its own", "[fast]") {
  const auto error_of = [](const std::string& type, const Json& model) {
    return thrown<ConfigError>([&] { plan_export(read_model_of(model), 64, type); });
  };
  const Json base = parse_json(R"({"vocab_size": 13, "hidden_size": 12, "num_layers": 2, "layers": {
    "x": {"type": "attention", "num_heads": 2, "head_dim": 6, "rope": {"theta": 100.0}},
    "mlp": {"type": "swiglu", "intermediate_size": 10}}, "pattern": [{"mixer": "x", "ffn": "mlp"}]})",
                               "model.json");
  const Json delta =
      parse_json(R"({"type": "gdn", "num_heads": 2, "key_head_dim": 4, "value_head_dim": 6})", "gdn.json");
  const auto refused = [&](const std::string& types, const Json& model, const std::string& key) {
    std::stringstream list(types);
    for (std::string type; list >> type;) {
      INFO(type << ": " << model.dump());
      CHECK_THAT(error_of(type, model), StartsWith("model: the class does not hold it exactly: " + type + ": model.") &&
                                            Contains("model." + key + ": found "));
    }
  };
  const auto with = [](Json json, const std::string& changes) {
    merge_json(json, parse_json("{" + changes + "}", "changes.json"));
    return json;
  };
  const auto with_x = [&](const std::string& changes) { return with(base, R"("layers": {"x": {)" + changes + "}}"); };
  const auto of_gdn = [&](const std::string& changes) {
    Json model = base;
    model.find("layers")->set("x", with(delta, changes));
    return model;
  };
  /// Block 1 has another layer, y: x with changes.
  const auto beside = [&](Json model, const std::string& changes) {
    model.find("layers")->set("y", with(model.at("layers").at("x"), changes));
    return with(model, R"("at": {"1": {"mixer": "y"}})");
  };
  const std::string plain = "llama mistral qwen2 smollm3", full = plain + " qwen3", fla = "gated_deltanet",
                    qwen = "qwen3_5_text qwen3_next", all = full + " " + fla + " " + qwen;
  // The model.
  refused(all, with(base, R"("norm": "layer")"), "norm");
  refused(all, with(base, R"("embed_norm": true, "tie_embeddings": true)"), "embed_norm");
  refused(all, with(base, R"("layers": {"m": {"type": "swiglu", "intermediate_size": 6}}, "at": {"1": {"ffn": "m"}})"),
          "layers.m.intermediate_size");
  // attention
  refused(all, with_x(R"("value_head_dim": 4)"), "layers.x.value_head_dim");
  refused(all, with_x(R"("block_window": {"size": 4, "blocks": 2})"), "layers.x.block_window");
  refused(all, with_x(R"("token_shift": true)"), "layers.x.token_shift");
  refused(all, with_x(R"("value_residual": "lambda")"), "layers.x.value_residual");
  refused(all, with_x(R"("rope": {"endpoint": true})"), "layers.x.rope.endpoint");
  for (const char* norm : {"layer", "l2"}) {
    refused(all, with_x(std::string("\"qk_norm\": \"") + norm + "\""), "layers.x.qk_norm");
  }
  refused(plain + " " + fla, with_x(R"("qk_norm": "rms")"), "layers.x.qk_norm");
  refused("qwen3 " + qwen, base, "layers.x.qk_norm");
  refused(full + " " + fla, with_x(R"("gate": "element")"), "layers.x.gate");
  refused(full + " " + fla, with_x(R"("rope": {"dims": 4})"), "layers.x.rope.dims");
  refused("llama mistral qwen2 qwen3 " + fla, with_x(R"("rope": null)"), "layers.x.rope");
  refused("llama " + qwen, with_x(R"("window": 5)"), "layers.x.window");
  refused(fla, with_x(R"("head_dim": 8)"), "layers.x.head_dim");
  refused(fla, with_x(R"("rope": {"yarn": {"factor": 2, "original": 8}})"), "layers.x.rope.yarn");
  refused(fla,
          with_x(R"("rope": {"llama3": {"factor": 2, "original": 8, "low_freq_factor": 1, "high_freq_factor": 4}})"),
          "layers.x.rope.llama3");
  refused("mistral", beside(with_x(R"("window": 5)"), R"("window": 0)"), "layers.y.window");
  refused("qwen2 smollm3", beside(with_x(R"("window": 7)"), R"("window": 5)"), "layers.y.window");
  refused("qwen3", beside(with_x(R"("window": 7, "qk_norm": "rms")"), R"("window": 5)"), "layers.y.window");
  for (const auto& [change, key] : {std::pair{R"("num_heads": 4)", "num_heads"},
                                    {R"("num_kv_heads": 1)", "num_kv_heads"},
                                    {R"("head_dim": 8)", "head_dim"},
                                    {R"("rope": {"theta": 7.0})", "rope.theta"}}) {
    refused(full + " " + qwen, beside(base, change), std::string("layers.y.") + key);
  }
  refused(qwen, beside(with_x(R"("qk_norm": "rms")"), R"("rope": null)"), "layers.y.rope");
  // gdn
  const std::string both = fla + " " + qwen;
  refused(full, of_gdn(""), "layers.x.type");
  refused(both, of_gdn(R"("conv_bias": true)"), "layers.x.conv_bias");
  refused(both, of_gdn(R"("activation": "none")"), "layers.x.activation");
  refused(both, of_gdn(R"("qk_norm": "none")"), "layers.x.qk_norm");
  refused(both, of_gdn(R"("output_norm": "none")"), "layers.x.output_norm");
  refused(both, of_gdn(R"("initial_state": "learned")"), "layers.x.initial_state");
  refused(qwen, of_gdn(R"("output_gate": "sigmoid")"), "layers.x.output_gate");
  refused(qwen, of_gdn(R"("output_gate": "none")"), "layers.x.output_gate");
  refused(qwen, of_gdn(R"("allow_neg_eigval": true)"), "layers.x.allow_neg_eigval");
  refused(fla, beside(of_gdn(""), R"("conv_size": 2)"), "layers.y.conv_size");
  for (const auto& [change, key] : {std::pair{R"("num_heads": 1)", "num_heads"},
                                    {R"("num_value_heads": 4)", "num_value_heads"},
                                    {R"("key_head_dim": 8)", "key_head_dim"},
                                    {R"("value_head_dim": 8)", "value_head_dim"}}) {
    refused(both, beside(of_gdn(""), change), std::string("layers.y.") + key);
  }
}

TEST_CASE("a model whose width is no multiple of its heads goes to mistral, which allows it", "[fast]") {
  const auto model = read_model_of(changed(R"({"vocab_size": 13, "hidden_size": 10, "num_layers": 1, "layers": {
    "x": {"type": "attention", "num_heads": 3, "head_dim": 6, "rope": {"theta": 100.0}},
    "mlp": {"type": "swiglu", "intermediate_size": 10}}, "pattern": [{"mixer": "x", "ffn": "mlp"}]})",
                                           "{}"));
  const Json hf = hf_of_model(model, 64);
  CHECK(hf.at("model_type") == Json("mistral"));
  CHECK((hf.find("sliding_window") != nullptr && hf.at("sliding_window").is_null()));
  CHECK_THROWS_WITH(plan_export(model, 64, "llama"),
                    Contains("llama: model.hidden_size: found 10, expected a multiple of num_heads"));
}

TEST_CASE("sizes of heads come back from the factors of a foreign configuration", "[fast]") {
  for (int64_t key = 1; key <= 512; ++key) {
    for (int64_t value = 1; value <= 512; ++value) {
      const double factor = product_to(key, value);
      if (static_cast<int64_t>(static_cast<double>(key) * factor) != value) { FAIL(key << " " << value); }
    }
  }
  const Json model = parse_json(R"({"vocab_size": 13, "hidden_size": 12, "num_layers": 1, "layers": {
    "g": {"type": "gdn", "num_heads": 1, "key_head_dim": 88, "value_head_dim": 120},
    "mlp": {"type": "swiglu", "intermediate_size": 10}}, "pattern": [{"mixer": "g", "ffn": "mlp"}]})",
                                "model.json");
  const Json hf = plan_export(read_model_of(model), 64, "gated_deltanet").config;
  CHECK(hf.at("expand_v").as_double() > 120.0 / 88.0);
  CHECK(model_of_hf(hf).at("layers").at("gdn").at("value_head_dim") == Json(120));
}

FOLDER_TEST("a checkpoint goes to Hugging Face's format and comes back with the same bytes", "[fast]") {
  const auto [attention, model, type] = GENERATE(table<std::string, std::string, std::string>(
      {{"{}", "{}", "llama"},
       {R"({"window": 6})", R"({"tie_embeddings": true})", "mistral"},
       {R"({"qk_norm": "rms", "head_dim": 8})", R"({"norm_eps": 1e-6})", "qwen3"}}));
  const fs::path checkpoint = trained(folder, attention, model);
  const std::string said = convert_checkpoint(folder / "run", folder / "hf");
  CHECK_THAT(said, Contains("as " + type));
  const Json config = parse_json_file((folder / "hf/config.json").string());
  CHECK(config.at("model_type") == Json(type));
  CHECK(config.at("torch_dtype") == Json("float32"));
  CHECK(config.at("max_position_embeddings") == Json(19));
  const WeightSource hf(folder / "hf");
  CHECK((hf.find("lm_head.weight") == nullptr) == (type == "mistral"));
  CHECK(hf.doubles("model.layers.1.self_attn.k_proj.weight") ==
        WeightSource(checkpoint).doubles("blocks.1.mixer.k_proj.weight"));
  CHECK_THAT(convert_checkpoint(folder / "hf", folder / "back"), Contains("from " + type));
  const WeightSource before(checkpoint), after(folder / "back");
  const ModelSource source = read_model_source(folder / "back"), original = read_model_source(checkpoint);
  const Model converted(source.model);
  for (const auto& p : converted.params().all()) { CHECK(before.doubles(p->name()) == after.doubles(p->name())); }
  CHECK(hf_of_model(source.model, 19) == hf_of_model(original.model, 19));
  CHECK(max_positions(source) == 19);
  convert_checkpoint(folder / "back", folder / "again");
  CHECK(parse_json_file((folder / "again/config.json").string()) == config);
  CHECK_THROWS_WITH(convert_checkpoint(folder / "run", folder / "hf"), Contains("exists and is not an empty folder"));
}

FOLDER_TEST("one process writes a converted folder, and what a killed one has left of it goes with the next",
            "[fast]") {
  trained(folder, "{}", "{}");
  for (const char* name : {".tmp-17-hf", ".tmp-17-other", ".tmp-x-hf", ".tmp--hf", ".tmp-17"}) {
    folder.write(std::string(name) + "/model.safetensors", "half");
  }
  {
    const FolderLock other(folder.path(), {.file = ".hf.lock"});
    CHECK_THROWS_WITH(convert_checkpoint(folder / "run", folder / "hf"),
                      Contains("the folder hf is in use by process " + std::to_string(::getpid())));
    CHECK(fs::exists(folder / ".tmp-17-hf"));
  }
  convert_checkpoint(folder / "run", folder / "hf/");
  CHECK(fs::exists(folder / "hf/model.safetensors"));
  CHECK_FALSE(fs::exists(folder / ".tmp-17-hf"));
  CHECK_FALSE(fs::exists(folder / ".hf.lock"));
  for (const char* name : {".tmp-17-other", ".tmp-x-hf", ".tmp--hf", ".tmp-17"}) {
    CHECK(fs::exists(folder / name / "model.safetensors"));
  }
}

FOLDER_TEST("decays stay in F32 among weights in BF16", "[fast]") {
  const fs::path checkpoint = trained(folder, R"({"qk_norm": "rms"})", kDelta);
  const SafetensorsFile exact(checkpoint / "model.safetensors");
  for (const std::string to : {"qwen3_5_text", "pytorch"}) {
    INFO(to);
    ConvertOptions options{.dtype = "bf16"};
    (to == "pytorch" ? options.to : options.model_class) = to;
    convert_checkpoint(checkpoint, folder / to, options);
    const SafetensorsFile narrow(folder / to / "model.safetensors");
    CHECK(parse_json_file((folder / to / "config.json").string()).at("torch_dtype") == Json("bfloat16"));
    const std::string mixer = to == "pytorch" ? "blocks.0.mixer." : "model.layers.0.linear_attn.";
    for (const char* name : {"A_log", "dt_bias"}) {
      CHECK(narrow.at(mixer + name).dtype == DType::f32);
      CHECK(narrow.doubles(mixer + name) == exact.doubles("blocks.0.mixer." + std::string(name)));
    }
    size_t wide = 0;
    for (const auto& [name, entry] : narrow.entries()) { wide += entry.dtype == DType::bf16 ? 0 : 1; }
    CHECK(wide == 2);
  }
  // Out again as they are.
  convert_checkpoint(folder / "pytorch", folder / "out", {.to = "pytorch"});
  CHECK(read_file(folder / "out/model.safetensors") == read_file(folder / "pytorch/model.safetensors"));
  CHECK(parse_json_file((folder / "out/config.json").string()).at("torch_dtype") == Json("bfloat16"));
  convert_checkpoint(folder / "qwen3_5_text", folder / "wide", {.dtype = "fp32"});
  CHECK(SafetensorsFile(folder / "wide/model.safetensors").at("blocks.0.mixer.q_proj.weight").dtype == DType::f32);
}

FOLDER_TEST("shards, other number formats, computed tables and tokenizers of a foreign checkpoint", "[fast]") {
  const fs::path checkpoint = trained(folder, "{}");
  convert_checkpoint(checkpoint, folder / "narrow", {"bf16"});
  const WeightSource narrow(folder / "narrow");
  CHECK(narrow.find("model.norm.weight")->dtype == DType::bf16);
  const std::vector<double> exact = WeightSource(checkpoint).doubles("embed.weight"),
                            rounded = narrow.doubles("model.embed_tokens.weight");
  for (size_t i = 0; i < exact.size(); ++i) {
    REQUIRE(rounded[i] == static_cast<double>(widened(nearest_bf16(static_cast<float>(exact[i])))));
  }
  // Two shards, one of them with a table that old versions wrote.
  std::vector<NamedTensor> first, second;
  const SafetensorsFile file(folder / "narrow/model.safetensors");
  Json map = Json::object();
  std::vector<float> table{1, 2};
  for (const auto& [name, entry] : file.entries()) {
    Shape shape;
    for (const int64_t size : entry.shape) { shape.dims[static_cast<size_t>(shape.rank++)] = size; }
    const bool is_first = name.find("layers.0") != std::string::npos;
    (is_first ? first : second).push_back({name, {const_cast<uint8_t*>(file.data(entry)), entry.dtype, shape}});
    map.set(name, is_first ? "a.safetensors" : "b.safetensors");
  }
  const std::string computed = "model.layers.0.self_attn.rotary_emb.inv_freq";
  first.push_back({computed, {table.data(), DType::f32, {2}}});
  map.set(computed, "a.safetensors");
  fs::create_directories(folder / "shards");
  write_safetensors(folder / "shards/a.safetensors", first);
  write_safetensors(folder / "shards/b.safetensors", second);
  const Json index = Json::object({{"weight_map", map}});
  folder.write("shards/model.safetensors.index.json", index.dump());
  fs::copy_file(folder / "narrow/config.json", folder / "shards/config.json");
  folder.write("shards/tokenizer.json", "{}");
  convert_checkpoint(folder / "shards", folder / "kept");
  convert_checkpoint(folder / "shards", folder / "wide", {"fp32"});
  CHECK_FALSE(fs::exists(folder / "kept/tokenizer.json"));  // none that hebb reads
  CHECK(WeightSource(folder / "kept").find("embed.weight")->dtype == DType::bf16);
  CHECK(WeightSource(folder / "wide").find("embed.weight")->dtype == DType::f32);
  CHECK(WeightSource(folder / "wide").doubles("embed.weight") == rounded);
  // Foreign, missing and wrong tensors leave nothing behind.
  second.push_back({"model.layers.0.self_attn.q_proj.bias", {table.data(), DType::f32, {2}}});
  fs::remove(folder / "shards/model.safetensors.index.json");
  std::vector<NamedTensor> all = first;
  all.insert(all.end(), second.begin(), second.end());
  write_safetensors(folder / "shards/model.safetensors", all);
  CHECK_THROWS_WITH(
      convert_checkpoint(folder / "shards", folder / "no"),
      Contains("1 tensor that the model of config.json has not, first model.layers.0.self_attn.q_proj.bias"));
  write_safetensors(folder / "shards/model.safetensors", first);
  CHECK_THROWS_WITH(convert_checkpoint(folder / "shards", folder / "no"), Contains("is missing"));
  Json config = parse_json_file((folder / "shards/config.json").string());
  config.set("vocab_size", 31);
  folder.write("shards/config.json", config.dump());
  write_safetensors(folder / "shards/model.safetensors", all);
  CHECK_THROWS_WITH(
      convert_checkpoint(folder / "shards", folder / "no"),
      Contains("the tensor model.embed_tokens.weight has the wrong shape (found [29, 12], expected [31, 12])"));
  CHECK(!fs::exists(folder / "no"));
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    CHECK_FALSE(entry.path().filename().string().starts_with(".tmp"));
  }
}

TEST_CASE("the names of the page are those of a model's tensors", "[fast]") {
  // Rows of three names: hebb, transformers, flash-linear-attention.
  const std::string page = read_file(fs::path(HEBB_SOURCE) / "docs/verbs/convert.md");
  const std::regex row("\n\\| `([^`]*)` \\|([^|]*)\\| `([^`]*)` \\|");
  const TempFolder folder;
  trained(folder, "{}", kDelta);
  convert_checkpoint(folder / "run", folder / "foreign");
  const std::vector<std::string> foreign = WeightSource(folder / "foreign").names();
  int rows = 0;
  for (std::sregex_iterator it(page.begin(), page.end(), row), end; it != end; ++it, ++rows) {
    std::string name = (*it)[3];
    if (const size_t brace = name.find('{'); brace != std::string::npos) { name.replace(brace, 7, "q"); }
    if (name.ends_with(".NAME")) { name.resize(name.size() - 4); }
    if (const size_t block = name.find(".I."); block != std::string::npos) { name.replace(block, 3, ".0."); }
    INFO(name);
    CHECK(std::any_of(foreign.begin(), foreign.end(), [&](const std::string& n) { return n.starts_with(name); }));
  }
  CHECK(rows == 8);
}
