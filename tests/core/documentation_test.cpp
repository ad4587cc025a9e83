// The examples of docs/configuration.md and docs/formats/safetensors.md.
#include "core/json.h"
#include "tests/page_blocks.h"
#include "tests/temp_folder.h"

TEST_CASE("the documented example of extends gives the documented result", "[fast]") {
  const std::vector<std::string> blocks = page_blocks("configuration.md");
  REQUIRE(blocks.size() == 3);
  const TempFolder folder;
  folder.write("base.json", blocks[0]);
  const Json merged = load_config(folder.write("runs/long.json", blocks[1]).string());
  CHECK(merged == parse_json(blocks[2], "result"));
}

TEST_CASE("the documented index of shards is valid JSON", "[fast]") {
  const std::vector<std::string> blocks = page_blocks("formats/safetensors.md");
  REQUIRE(blocks.size() == 1);
  CHECK(parse_json(blocks[0], "index").at("weight_map").members().size() == 2);
}
