// The examples of docs/training.md, docs/verbs/train.md, docs/formats/checkpoint.md and docs/formats/metrics.md.
#include "tests/paths.h"
#include "tests/temp_folder.h"
#include "tests/test.h"
#include "train/checkpoint.h"
#include "train/metrics.h"
#include "train/run_config.h"

using namespace hebb;

namespace {

std::string block(const std::string& page, const std::string& language) {
  const std::string text = read_file(fs::path(HEBB_SOURCE) / "docs" / page), fence = "\n```" + language + "\n";
  const size_t at = text.find(fence);
  REQUIRE(at != std::string::npos);
  return text.substr(at + fence.size(), text.find("```", at + fence.size()) - at - fence.size());
}

}  // namespace

TEST_CASE("the documented train, optimizer and schedule sections are valid", "[fast]") {
  const Json json = parse_json(block("training.md", "json"), "training.md");
  TrainConfig train;
  OptimizerConfig optimizer;
  ScheduleConfig schedule;
  Fields::read(json.at("train"), "train", train);
  Fields::read(json.at("optimizer"), "optimizer", optimizer);
  Fields::read(json.at("schedule"), "schedule", schedule);
  CHECK(std::regex_search("blocks.12.memory.keys", std::regex(optimizer.groups.at(0).match)));
}

TEST_CASE("the documented state.json is one", "[fast]") {
  const TempFolder folder;
  folder.write("state.json", block("formats/checkpoint.md", "json"));
  CHECK_THROWS_WITH(verify_checkpoint(folder.path()), Catch::Contains("model.safetensors is missing"));
}

TEST_CASE("the documented metrics are read", "[fast]") {
  const TempFolder folder;
  const std::string lines = block("formats/metrics.md", "json");
  const fs::path path = folder.write("metrics.jsonl", lines);
  CHECK(MetricsFile(path, 1000).validated() == std::set<std::string>{"lc64"});
  CHECK(MetricsFile(path, 10).removed_lines() == 1);
}

TEST_CASE("train --help and its page name the same options", "[fast]") {
  const std::string page = read_file(fs::path(HEBB_SOURCE) / "docs/verbs/train.md"),
                    code = read_file(fs::path(HEBB_SOURCE) / "tools/verb_train.cpp");
  size_t found = 0;
  for (size_t at = code.find("\"--"); at != std::string::npos; at = code.find("\"--", at + 1)) {
    const std::string option = code.substr(at + 1, code.find('"', at + 1) - at - 1);
    INFO(option);
    CHECK(page.find("`" + option) != std::string::npos);
    ++found;
  }
  CHECK(found == 7);
}
