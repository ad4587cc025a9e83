#include "eval/layer_overrides.h"

#include "data/shards/shard_writer.h"
#include "eval/evaluation.h"
#include "eval/generate.h"
#include "layers/ham_override.h"
#include "tests/eval/model_file.h"
#include "tests/test.h"

namespace {

const char* const kModel = R"({"vocab_size": 23, "hidden_size": 12, "num_layers": 2, "init_std": 0.4,
  "layers": {"g": {"type": "gdn", "num_heads": 2, "key_head_dim": 4, "value_head_dim": 4},
             "h": {"type": "ham", "rnn": {"num_heads": 2, "key_head_dim": 4, "value_head_dim": 4},
                   "kv": {"num_heads": 2, "key_head_dim": 4, "value_head_dim": 4}},
             "m": {"type": "swiglu", "intermediate_size": 16}},
  "pattern": [{"mixer": "g", "ffn": "m"}, {"mixer": "h", "ffn": "m"}]})";

LayerOverrides from_json(const std::string& text) {
  return Fields::read<LayerOverrides>(parse_json("{\"thresholds\": " + text + "}", "e.json"), "");
}

LayerOverrides from_options(const std::vector<std::string>& taus, const std::vector<std::string>& modes) {
  return parse_overrides({{"--tau", taus}, {"--select", modes}});
}

const HamOverride& for_all(const LayerOverrides& o) {
  return static_cast<const HamOverride&>(*o.by_type.at("ham").all);
}
const HamOverride& for_block(const LayerOverrides& o, int64_t block) {
  return static_cast<const HamOverride&>(*o.by_type.at("ham").blocks.at(block));
}

/// A random model with its weights in a file, and documents in shards.
struct Fixture {
  TempFolder folder;

  Fixture() {
    testing::write_random_model(folder, kModel, DType::f32);
    ShardWriterOptions options;
    options.directory = folder / "corpus";
    options.vocab_size = 23;
    ShardWriter writer(options);
    Rng rng(5, "documents");
    std::vector<int32_t> ids;
    for (int i = 0; i < 90; ++i) { ids.push_back(static_cast<int32_t>(rng.below(23))); }
    writer.add_document(ids);
    writer.finish();
  }
  ScoringModel load() {
    return ScoringModel(read_model_source(folder / "model.json"), folder / "w.safetensors",
                        {DeviceKind::cpu, DType::f64});
  }
};

}  // namespace

TEST_CASE("options replace the thresholds of all layers or of one", "[fast]") {
  const LayerOverrides o = from_options({"0.7", "3=1.25"}, {"5=none"});
  CHECK(for_all(o).tau == 0.7);
  CHECK(for_block(o, 3).tau == 1.25);
  CHECK(for_block(o, 5).mode == "none");
  CHECK(from_options({}, {}).by_type.empty());
  CHECK(for_all(from_options({}, {"all"})).mode == "all");
  for (const char* text : {"", "x", "-1", "nan", "3=", "x=0.5", "-1=0.5", "0.5 "}) {
    INFO(text);
    CHECK_THROWS_WITH(from_options({text}, {}),
                      "--tau: found " + std::string(text) + ", expected a number >= 0 or BLOCK=a number >= 0");
  }
  CHECK_THROWS_WITH(from_options({}, {"3=some"}), "--select: found 3=some, expected all or none or BLOCK=all or none");
}

TEST_CASE("evaluations name thresholds for all layers and for blocks", "[fast]") {
  const LayerOverrides o = from_json(R"({"tau": 0.8, "blocks": {"3": {"mode": "all"}}})");
  CHECK(for_all(o).tau == 0.8);
  CHECK(for_block(o, 3).mode == "all");
  CHECK_THROWS_WITH(from_json(R"({"mode": "some"})"), Catch::Contains("thresholds.mode: found \"some\""));
  CHECK_THROWS_WITH(from_json(R"({"tau": 0.5, "mode": "all"})"),
                    Catch::Contains("thresholds.tau: found 0.5, expected no value together with mode"));
  CHECK_THROWS_WITH(from_json(R"({"blocks": {"x": {"tau": 1}}})"), Catch::Contains("expected the index of a block"));
}

TEST_CASE_METHOD(Fixture, "thresholds are replaced while one evaluation runs", "[fast]") {
  const std::string shards = (folder / "corpus" / "*.bin").string();
  const std::string common = R"(, "kind": "stream_ppl", "data": {"path": ")" + shards + "\"}";
  const std::string list = R"({"name": "before")" + common + R"(}, {"name": "all", "thresholds": {"mode": "all"})" +
                           common + R"(}, {"name": "low", "thresholds": {"blocks": {"1": {"tau": 0}}})" + common +
                           R"(}, {"name": "none", "thresholds": {"mode": "none"})" + common + R"(}, {"name": "after")" +
                           common + R"(}, {"name": "wrong", "thresholds": {"blocks": {"0": {"tau": 0.5}}})" + common +
                           "}";
  ScoringModel s = load();
  CHECK(testing::run_list(s, list, folder / "out").failed == 1);
  const auto result = [&](const std::string& name) {
    return parse_json_file((folder / "out" / (name + ".json")).string());
  };
  const auto nll = [&](const std::string& name) {
    return result(name).at("metrics").at("nll").at("value").as_double();
  };
  CHECK(nll("after") == nll("before"));
  CHECK(nll("low") == nll("all"));
  CHECK(nll("none") != nll("all"));
  CHECK(nll("before") != nll("all"));
  CHECK(result("wrong").at("error").as_string() ==
        "thresholds.blocks.0: found a block without a ham layer, expected the index of a block with one");
}

TEST_CASE("a model without ham layers has no thresholds to replace", "[fast]") {
  Json json = parse_json(kModel, "model.json");
  apply_override(json, "pattern.1.mixer=g");
  const auto config = Fields::read<ModelConfig>(json, "model");
  Model model(config);
  apply(LayerOverrides(), model);
  CHECK_THROWS_WITH(apply(from_options({"0.5"}, {}), model),
                    "thresholds: found a model without ham layers, expected a model with thresholds to change");
}
