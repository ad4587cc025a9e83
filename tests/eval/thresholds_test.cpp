#include "eval/thresholds.h"

#include "tests/eval/eval_fixture.h"
#include "tests/test.h"

namespace {

const char* const kHamModel = R"({"vocab_size": 23, "hidden_size": 12, "num_layers": 2, "init_std": 0.4,
  "layers": {"g": {"type": "gdn", "num_heads": 2, "key_head_dim": 4, "value_head_dim": 4},
             "h": {"type": "ham", "rnn": {"num_heads": 2, "key_head_dim": 4, "value_head_dim": 4},
                   "kv": {"num_heads": 2, "key_head_dim": 4, "value_head_dim": 4}},
             "m": {"type": "swiglu", "intermediate_size": 16}},
  "pattern": [{"mixer": "g", "ffn": "m"}, {"mixer": "h", "ffn": "m"}]})";

ThresholdOverrides from_json(const std::string& text) {
  return Fields::read<ThresholdOverrides>(parse_json(text, "e.json"), "thresholds");
}

}  // namespace

TEST_CASE("options replace the thresholds of all layers or of one", "[fast]") {
  const ThresholdOverrides o = parse_thresholds({"0.7", "3=1.25"}, {"5=none"});
  CHECK(o.all.tau == 0.7);
  CHECK(o.blocks.at(3).tau == 1.25);
  CHECK(o.blocks.at(5).mode == "none");
  CHECK(parse_thresholds({}, {}).blocks.empty());
  CHECK(parse_thresholds({}, {"all"}).all.mode == "all");
  for (const char* text : {"", "x", "-1", "nan", "3=", "x=0.5", "-1=0.5", "0.5 "}) {
    INFO(text);
    CHECK_THROWS_WITH(parse_thresholds({text}, {}),
                      "--tau: found " + std::string(text) + ", expected a number >= 0 or BLOCK=a number >= 0");
  }
  CHECK_THROWS_WITH(parse_thresholds({}, {"3=some"}),
                    "--select: found 3=some, expected all or none or BLOCK=all or none");
}

TEST_CASE("evaluations name thresholds for all layers and for blocks", "[fast]") {
  const ThresholdOverrides o = from_json(R"({"tau": 0.8, "blocks": {"3": {"mode": "all"}}})");
  CHECK(o.all.tau == 0.8);
  CHECK(o.blocks.at(3).mode == "all");
  CHECK_THROWS_WITH(from_json(R"({"mode": "some"})"), Contains("thresholds.mode: found \"some\""));
  CHECK_THROWS_WITH(from_json(R"({"tau": 0.5, "mode": "all"})"),
                    Contains("thresholds.tau: found 0.5, expected no value together with mode"));
  CHECK_THROWS_WITH(from_json(R"({"blocks": {"x": {"tau": 1}}})"), Contains("expected the index of a block"));
}

TEST_CASE("thresholds are replaced while one evaluation runs", "[fast]") {
  const EvalFixture f(kHamModel, {90});
  const std::string common = R"(, "kind": "stream_ppl", )" + f.corpus();
  const std::string list = R"({"name": "before")" + common + R"(}, {"name": "all", "thresholds": {"mode": "all"})" +
                           common + R"(}, {"name": "low", "thresholds": {"blocks": {"1": {"tau": 0}}})" + common +
                           R"(}, {"name": "none", "thresholds": {"mode": "none"})" + common + R"(}, {"name": "after")" +
                           common + R"(}, {"name": "wrong", "thresholds": {"blocks": {"0": {"tau": 0.5}}})" + common +
                           "}";
  ScoringModel s = f.load();
  CHECK(run_list(s, list, f.folder / "out").failed == 1);
  const auto nll = [&](const char* name) {
    return result_in(f.folder / "out", name).number_at("metrics.nll.value", NAN);
  };
  CHECK(nll("after") == nll("before"));
  CHECK(nll("low") == nll("all"));
  CHECK(nll("none") != nll("all"));
  CHECK(nll("before") != nll("all"));
  CHECK(result_in(f.folder / "out", "wrong").at("error").as_string() ==
        "thresholds.blocks.0: found a block without a ham layer, expected the index of a block with one");
}

TEST_CASE("a model without ham layers has no thresholds to replace", "[fast]") {
  Json json = parse_json(kHamModel, "model.json");
  apply_override(json, "pattern.1.mixer=g");
  const auto config = Fields::read<ModelConfig>(json, "model");
  Model model(config);
  apply(ThresholdOverrides(), model);
  CHECK_THROWS_WITH(apply(parse_thresholds({"0.5"}, {}), model),
                    "thresholds: found a model without ham layers, expected a model with thresholds to change");
}
