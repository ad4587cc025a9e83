// The examples of docs/data.md and docs/formats/shards.md.
#include "data/data_config.h"
#include "data/dataset.h"
#include "tests/temp_folder.h"
#include "tests/test.h"

using namespace hebb;

namespace {

std::string json_block(const std::string& page) {
  const std::string text = read_file(fs::path(HEBB_SOURCE) / "docs" / page);
  const std::string fence = "\n```json\n";
  const size_t at = text.find(fence);
  REQUIRE(at != std::string::npos);
  return text.substr(at + fence.size(), text.find("```", at + fence.size()) - at - fence.size());
}

}  // namespace

TEST_CASE("the documented data section is valid", "[fast]") {
  DataConfig config;
  Fields::read(parse_json(json_block("data.md"), "run.json"), "data", config);
  CHECK(config.sources.size() == 3);
  CHECK(resolve_packing(config.sources[1].packing, config.packing, false).packing == Packing::document);
  CHECK(resolve_task(config.sources[2].synthetic, "data.sources.2", 0, 64, 4).pairs == 8);
}

TEST_CASE("the documented dataset.json is valid", "[fast]") {
  const TempFolder folder;
  const Dataset dataset = read_dataset(folder.write("dataset.json", json_block("formats/shards.md")));
  CHECK(dataset.vocab_size == 259);
  CHECK(dataset.total_tokens == 1000);
  CHECK(dataset.shards[0].crc32 == 3993115916U);
  CHECK(read_dataset(folder.write("dataset.json", json_block("formats/dataset.md"))).shards.size() == 2);
}
