// The `model` object itself (spec 00, section 1): patterns, changes at single blocks, references to layers.
#include "layers/model_config.h"
#include "tests/layers/harness.h"

using namespace hebb;
using namespace hebb::testing;

namespace {

/// A model of five blocks with layers a and b (attention), mlp and wide (swiglu) and fast (fwmlp); `rest`: pattern and what
/// else there is.
ModelConfig read(const std::string& rest) {
  ModelConfig config;
  Fields::read(parse_json(R"({"vocab_size": 11, "hidden_size": 6, "num_layers": 5, "layers": {
    "a": {"type": "attention", "num_heads": 2, "head_dim": 3}, "b": {"type": "attention", "num_heads": 1, "head_dim": 5},
    "fast": {"type": "fwmlp"}, "mlp": {"type": "swiglu", "intermediate_size": 7},
    "wide": {"type": "swiglu", "intermediate_size": 9}}, )" + rest + "}", "test.json"), "model", config);
  return config;
}

const char* kPattern = R"("pattern": [{"mixer": "a", "ffn": "mlp"}, {"mixer": "b", "ffn": "mlp", "memory": "fast"}])";

void check_refused(const std::string& rest, const std::string& message) {
  INFO(rest);
  CHECK_THROWS_WITH(read(rest), Catch::Contains("model." + message));
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
  CHECK(read(kPattern).unused() == std::vector<std::string>{"wide"});
}

TEST_CASE("blocks that name no layer, or a layer of another role, are refused", "[model][fast]") {
  check_refused(R"("pattern": [])", "pattern: found an array, expected at least one block");
  check_refused(R"("pattern": [{"ffn": "mlp"}])", "pattern.0.mixer: found nothing, expected the name of a layer (required)");
  check_refused(R"("pattern": [{"mixer": "a", "ffn": "mlp"}, {"mixer": "a"}])",
                "pattern.1.ffn: found nothing, expected the name of a layer (required)");
  check_refused(R"("pattern": [{"mixer": "c", "ffn": "mlp"}])",
                R"(pattern.0.mixer: found "c", expected the name of a layer defined in model.layers (a, b, fast, mlp, wide))");
  check_refused(R"("pattern": [{"mixer": "a", "ffn": "b"}])",
                R"(pattern.0.ffn: found "b" of type attention, a mixer, expected a layer that can be an ffn)");
  check_refused(std::string(kPattern) + R"(, "at": {"2": {"memory": "mlp"}})",
                R"(at.2.memory: found "mlp" of type swiglu, an ffn, expected a layer that can be a memory)");
}

TEST_CASE("indices of at are those of blocks, each written in one way", "[model][fast]") {
  const auto at = [](const std::string& index) {
    return std::string(kPattern) + R"(, "at": {")" + index + R"(": {"mixer": "a"}})";
  };
  CHECK(read(at("4")).block(4).mixer == "a");
  for (const char* index : {"5", "-1", "01", "+1", "1.0", "", "x", "99999999999999999999"}) {
    check_refused(at(index), "at." + std::string(index) + ": found \"" + index + "\", expected a block index from 0 to 4");
  }
}
