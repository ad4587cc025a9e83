// The examples of docs/training.md, docs/verbs/train.md, docs/verbs/eval.md, docs/evaluations, docs/verbs/ladder.md,
// docs/formats/checkpoint.md, docs/formats/metrics.md and docs/formats/safetensors.md.
#include <regex>
#include <set>

#include "data/tasks/ruler.h"
#include "eval/evaluation.h"
#include "layers/model.h"
#include "study/ladder/sweep.h"
#include "study/report/name_pattern.h"
#include "tests/page_blocks.h"
#include "tests/temp_folder.h"
#include "train/checkpoint.h"
#include "train/metrics_file.h"
#include "train/run_config.h"

TEST_CASE("the documented train, optimizer and schedule sections are valid", "[fast]") {
  const Json json = parse_json(page_blocks("training.md")[0], "training.md");
  Fields::read<TrainConfig>(json.at("train"), "train");
  Fields::read<ScheduleConfig>(json.at("schedule"), "schedule");
  const auto optimizer = Fields::read<OptimizerConfig>(json.at("optimizer"), "optimizer");
  CHECK(std::regex_search("blocks.12.memory.keys", std::regex(optimizer.groups.at(0).match)));
}

TEST_CASE("the documented evaluations are read, and every kind has one", "[fast]") {
  std::vector<std::string> pages = {"verbs/eval.md"};
  for (const auto& entry : fs::directory_iterator(fs::path(HEBB_SOURCE) / "docs/evaluations")) {
    pages.push_back("evaluations/" + entry.path().filename().string());
  }
  std::set<std::string> kinds;
  for (const std::string& page : pages) {
    INFO(page);
    for (const std::string& example : page_blocks(page)) {
      for (const Evaluation& e : read_evaluations(parse_json(example, page), "")) { kinds.insert(e.kind); }
    }
  }
  for (const EvalKind& kind : eval_kinds()) {
    INFO(kind.name);
    CHECK(kinds.count(kind.name) == 1);
  }
}

TEST_CASE("the documented strings of RULER are the built-in ones", "[fast]") {
  std::string lines;
  const Json strings = Fields::write(RulerStrings());
  for (const auto& [key, text] : strings.members()) {
    const std::string quoted = text.dump();
    lines += key + ": " + quoted.substr(1, quoted.size() - 2) + "\n";
  }
  CHECK(page_blocks("evaluations/ruler.md", "\n```text\n")[0] == lines);
}

FOLDER_TEST("the documented state.json is one", "[fast]") {
  folder.write("state.json", page_blocks("formats/checkpoint.md")[0]);
  CHECK_THROWS_WITH(verify_checkpoint(folder.path()), Contains("model.safetensors is missing"));
}

FOLDER_TEST("the documented metrics are read", "[fast]") {
  const std::string lines = page_blocks("formats/metrics.md")[0];
  const fs::path path = folder.write("metrics.jsonl", lines);
  CHECK(MetricsFile(path, 1000).validated() == std::set<std::string>{"lc64"});
  CHECK(MetricsFile(path, 10).removed_lines() == 1);
}

FOLDER_TEST("the documented sweep composes", "[fast]") {
  folder.write("base.json", R"({"name": "base", "model": {"vocab_size": 29, "hidden_size": 64, "num_layers": 2,
    "layers": {"full": {"type": "attention", "num_heads": 2, "head_dim": 8}, "gdn": {"type": "gdn", "num_heads": 2, "key_head_dim": 8, "value_head_dim": 8},
               "mlp": {"type": "swiglu", "intermediate_size": 20}}, "pattern": [{"mixer": "full", "ffn": "mlp"}]},
    "data": {"sources": [{"path": "tokens.bin"}]}, "train": {"steps": 1, "batch_size": 4, "sequence_length": 9}, "optimizer": {"lr": 0.01}})");
  folder.write("eval.json",
               R"({"evaluations": [{"name": "e", "kind": "stream_ppl", "data": {"path": "held-out.bin"}}]})");
  const Sweep sweep = read_sweep(folder.write("sweep.json", page_blocks("verbs/ladder.md")[0]));
  REQUIRE(sweep.runs.size() == 18);
  CHECK(sweep.runs[0].id == "full-small_seed=1");
  const SweepRun& last = sweep.runs[17];
  CHECK(last.id == "gdn-large_seed=3");
  CHECK(last.config.at("model").at("layers").at("gdn").at("key_head_dim").as_int() == 32);
  CHECK(last.solved.at(0).reached == Approx(last.solved.at(0).target).epsilon(0.02));
  CHECK(sweep.fit->level == "size");
  CHECK(matches_any(sweep.fit->predict_ids, last.id));
}
