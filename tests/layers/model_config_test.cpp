// The `model` object itself (docs/model.md, Blocks): patterns, changes at single blocks, references to layers.
#include "layers/model_config.h"
#include "tests/layers/harness.h"

namespace {

/// A model of five blocks with layers a and b (attention), mlp and wide (swiglu) and fast (fwmlp); `rest`: pattern and
/// what else there is.
ModelConfig read(const std::string& rest) {
  return read_model(R"({"vocab_size": 11, "hidden_size": 6, "num_layers": 5, "layers": {
    "a": {"type": "attention", "num_heads": 2, "head_dim": 3}, "b": {"type": "attention", "num_heads": 1, "head_dim": 5},
    "fast": {"type": "fwmlp"}, "mlp": {"type": "swiglu", "intermediate_size": 7},
    "wide": {"type": "swiglu", "intermediate_size": 9}}, )" +
                    rest + "}");
}

const char* kPattern = R"("pattern": [{"mixer": "a", "ffn": "mlp"}, {"mixer": "b", "ffn": "mlp", "memory": "fast"}])";

void check_refused(const std::string& rest, const std::string& message) {
  INFO(rest);
  CHECK_THROWS_WITH(read(rest), Contains("model." + message));
}

void check_block(const ModelConfig& config, int64_t i, const std::string& mixer, const std::string& ffn,
                 const std::optional<std::string>& memory) {
  INFO("block " << i);
  const BlockSpec b = config.block(i);
  CHECK(b.mixer == mixer);
  CHECK(b.ffn == ffn);
  CHECK(b.memory == memory);
}

}  // namespace

TEST_CASE("a pattern repeats over the blocks and single blocks differ where at says so", "[model][fast]") {
  const ModelConfig config =
      read(std::string(kPattern) + R"(, "at": {"0": {"memory": "fast"}, "3": {"mixer": "a"}, "4": {"ffn": "wide"}})");
  check_block(config, 0, "a", "mlp", "fast");
  check_block(config, 1, "b", "mlp", "fast");
  check_block(config, 2, "a", "mlp", std::nullopt);
  check_block(config, 3, "a", "mlp", "fast");
  check_block(config, 4, "a", "wide", std::nullopt);
  CHECK(config.unused().empty());
  CHECK(config.unused_text().empty());
  CHECK(read(kPattern).unused() == std::vector<std::string>{"wide"});
  ModelConfig short_one = read(kPattern);
  short_one.num_layers = 1;
  CHECK_THAT(short_one.unused_text(), Contains("model.layers.wide is used by no block\n") &&
                                          Contains("model.pattern has 2 entries for 1 of model.num_layers: from "
                                                   "model.pattern.1 on they are used by no block\n"));
}

TEST_CASE("blocks that name no layer, or a layer of another role, are refused", "[model][fast]") {
  check_refused(R"("pattern": [])",
                "pattern: found an empty list, expected a list of objects with at least one element");
  check_refused(R"("pattern": [{"ffn": "mlp"}])",
                "pattern.0.mixer: found nothing, expected the name of a layer (required)");
  check_refused(R"("pattern": [{"mixer": "a", "ffn": "mlp"}, {"mixer": "a"}])",
                "pattern.1.ffn: found nothing, expected the name of a layer (required)");
  check_refused(
      R"("pattern": [{"mixer": "c", "ffn": "mlp"}])",
      R"(pattern.0.mixer: found "c", expected the name of a layer defined in model.layers (a, b, fast, mlp, wide))");
  check_refused(R"("pattern": [{"mixer": "a", "ffn": "b"}])",
                R"(pattern.0.ffn: found "b" of type attention, a mixer, expected a layer that can be an ffn)");
  check_refused(std::string(kPattern) + R"(, "at": {"2": {"memory": "mlp"}})",
                R"(at.2.memory: found "mlp" of type swiglu, an ffn, expected a layer that can be a memory)");
}

TEST_CASE("null in at takes no layer of the pattern away and is refused, not ignored", "[model][fast]") {
  const auto at = [](const std::string& block) { return std::string(kPattern) + R"(, "at": {"1": )" + block + "}"; };
  const std::string no_such_key = ", expected the name of a layer, or no such key";
  check_refused(at(R"({"memory": null})"), "at.1.memory: found null where the pattern has \"fast\"" + no_such_key);
  check_refused(at(R"({"ffn": null, "mixer": "a"})"),
                "at.1.ffn: found null where the pattern has \"mlp\"" + no_such_key);
  check_refused(std::string(kPattern) + R"(, "at": {"2": {"mixer": "b", "memory": null}})",
                "at.2.memory: found null" + no_such_key);  // there the pattern has none
  const ModelConfig config = read(std::string(kPattern) + R"(, "at": {"2": {"mixer": "b"}})");
  check_block(config, 2, "b", "mlp", std::nullopt);
  CHECK(Fields::write(config).at("at").dump() == R"({"2":{"mixer":"b"}})");
}

TEST_CASE("keys that would have no effect beside the others are refused", "[model][fast]") {
  const auto layer = [](const std::string& keys) {
    read_model(
        R"({"vocab_size": 11, "hidden_size": 6, "num_layers": 1, "layers": {"mlp": {"type": "swiglu", "intermediate_size": 7},
      "a": {"type": "attention", "num_heads": 2, "head_dim": 3}, "x": {)" +
        keys + R"(}}, "pattern": [{"mixer": "a", "ffn": "mlp"}]})");
  };
  const std::string
      attention = R"("type": "attention", "num_heads": 2, "head_dim": 4, )",
      sdm = R"("type": "sdm", "slots_per_head": 4, "num_writes": 2, "num_reads": 2, )",
      mamba = R"("type": "mamba2", "num_heads": 2, "head_dim": 4, "state_dim": 4, "num_groups": 1, )",
      kvm = R"("type": "kvm", "num_heads": 2, "head_dim": 4, "chunk_size": 4, "state": {"mode": "fixed", "rows": 4}, )",
      heads = R"({"num_heads": 2, "key_head_dim": 4, "value_head_dim": 4})",
      ham = R"("type": "ham", "rnn": )" + heads + R"(, "kv": )" + heads + ", ",
      fwpkm = R"("type": "fwpkm", "num_subkeys": 8, )", no_gate = R"("weight_by_gate": false, "gate": )";
  struct Case {
    std::string base, idle, acting, key;  // with `idle` the key does nothing, with `acting` it does
    std::string name;                     // of the key in messages
  };
  const std::vector<Case> cases = {
      {attention, R"("value_residual": "lambda")", R"("value_residual": "gated")", R"("value_residual_rank": 3)",
       "value_residual_rank"},
      {attention, R"("value_residual": "none")", R"("value_residual": "lambda")", R"("value_residual_group": "g")",
       "value_residual_group"},
      {kvm, R"("value_residual": "none")", R"("value_residual": "lambda")", R"("value_residual_source": "embedding")",
       "value_residual_source"},
      {fwpkm, R"("score": "dot")", R"("score": "idw")", R"("idw_eps": 0.1)", "idw_eps"},
      {fwpkm, no_gate + "false", no_gate + "true", R"("gate_width": 3)", "gate_width"},
      {fwpkm, R"("key_update": "none")", R"("key_update": "memory")", R"("key_lr": 0.5)", "key_lr"},
      {R"("type": "fwmlp", )", R"("gate": false)", R"("gate": true)", R"("gate_width": 3)", "gate_width"},
      {sdm, R"("out_norm": "none")", R"("out_norm": "layer")", R"("out_norm_eps": 0.1)", "out_norm_eps"},
      {sdm, R"("learned_init": false)", R"("learned_init": true)", R"("memory_init_std": 0.1)", "memory_init_std"},
      {mamba, R"("output_norm": "none")", R"("output_norm": "rms")", R"("norm_groups": 2)", "norm_groups"},
      {R"("type": "lact", "num_heads": 1, "num_fast_heads": 1, )", R"("rank": 0)", R"("rank": 2)",
       R"("fast_init_gain": 0.3)", "fast_init_gain"},
      {ham + R"("threshold": {)", R"("mode": "all")", R"("mode": "fixed")", R"("tau": 0.3})", "threshold.tau"},
      {ham + R"("threshold": {)", R"("mode": "none")", R"("mode": "learned")", R"("target": 0.3})", "threshold.target"},
      {ham + R"("threshold": {)", R"("mode": "fixed")", R"("mode": "learned")", R"("scope": "layer"})",
       "threshold.scope"},
      {ham + R"("threshold": {)", R"("mode": "fixed")", R"("mode": "learned")", R"("freeze_steps": 3})",
       "threshold.freeze_steps"},
      {ham + R"("threshold": {)", R"("mode": "fixed")", R"("mode": "learned")", R"("betas": [0.5, 0.5]})",
       "threshold.betas"},
  };
  for (const Case& c : cases) {
    INFO(c.base << c.idle << ", " << c.key);
    CHECK_THROWS_WITH(layer(c.base + c.idle + ", " + c.key),
                      Contains("model.layers.x." + c.name + ": found ") && Contains(": it acts only with "));
    CHECK_NOTHROW(layer(c.base + c.acting + ", " + c.key));
    CHECK_NOTHROW(layer(c.base + c.idle + (c.key.ends_with("}") ? "}" : "")));
  }
}

TEST_CASE("indices of at are those of blocks, each written in one way", "[model][fast]") {
  const auto at = [](const std::string& index) {
    return std::string(kPattern) + R"(, "at": {")" + index + R"(": {"mixer": "a"}})";
  };
  CHECK(read(at("4")).block(4).mixer == "a");
  for (const char* index : {"5", "-1", "01", "+1", "1.0", "", "x", "99999999999999999999"}) {
    check_refused(at(index), "at." + std::string(index) + ": found \"" + index +
                                 "\", expected a block index from 0 to 4 (the override model.at." + index +
                                 "=null removes it)");
  }
}
