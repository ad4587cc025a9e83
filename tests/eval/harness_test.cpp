// Numbers of lm-evaluation-harness 0.4.13 (tests/reference/lm_eval_tasks.py). tools/records.py made the records;
// tests/check_records.py holds it to that.
#include "core/files.h"
#include "core/json.h"
#include "data/tasks/answer_scores.h"
#include "data/tasks/records.h"
#include "eval/fewshot.h"
#include "tests/paths.h"
#include "tests/temp_folder.h"
#include "tests/test.h"

namespace {

fs::path harness(const std::string& name) { return fs::path(HEBB_TEST_DATA) / "golden/lm-eval" / name; }

std::vector<std::string> texts(const Json& list) {
  std::vector<std::string> all;
  for (const Json& text : list.items()) { all.push_back(text.as_string()); }
  return all;
}

}  // namespace

FOLDER_TEST("prompts of generated tasks, their ends and their scores are the harness's", "[fast]") {
  struct Task {
    const char *golden, *rows;
    bool has_split;  // of solved examples, so that none is taken for the one that is asked
    InFront front;
    std::vector<std::pair<const char*, const char*>> filters;  // of the harness, and our metric
  };
  const std::string open = "Answer these questions:\n\n";
  FewShot two, joined;
  two.k = joined.k = 2;
  joined.separator = "\n";
  for (const Task& task :
       {Task{"triviaqa", "triviaqa", false, {"", two}, {{"remove_whitespace", "exact"}}},
        Task{"nq_open", "nq_open", false, {open, joined}, {{"remove_whitespace", "nq_open"}}},
        Task{"nq_open-0", "nq_open", false, {open, std::nullopt}, {{"remove_whitespace", "nq_open"}}},
        Task{"gsm8k", "gsm8k", true, {"", two}, {{"strict-match", "gsm8k"}, {"flexible-extract", "gsm8k_flexible"}}}}) {
    INFO(task.golden);
    const Json golden = parse_json_file(harness("answers.json").string()).at(task.golden);
    const fs::path file = harness(std::string(task.rows) + ".records.jsonl");
    InFront front = task.front;
    if (front.fewshot) {
      front.fewshot->file = task.has_split ? folder.write("shots.jsonl", read_file(file)).string() : file.string();
    }
    const auto records = read_records<GenerateRecord>(file.string());
    const Shots shots = Shots::read<GenerateRecord>(front, file.string(), 42);
    REQUIRE(records.size() == golden.at("prompts").items().size());
    for (size_t i = 0; i < records.size(); ++i) {
      CHECK(shots.before(i) + records[i].prompt == golden.at("prompts").items()[i].as_string());
      CHECK(records[i].until == texts(golden.at("until")));
      CHECK(records[i].score == task.filters[0].second);
      const std::vector<std::string> given = texts(golden.at("texts").items()[i]);
      for (const auto& [filter, metric] : task.filters) {
        for (size_t k = 0; k < given.size(); ++k) {
          INFO(metric << ": \"" << given[k] << "\" for " << records[i].answers[0]);
          const double expected = golden.at("scores").at(filter).items()[i].items()[k].as_double();
          CHECK(find_answer_score(metric)(given[k], records[i].answers, {}) == expected);
        }
      }
    }
  }
}

TEST_CASE("race asks what the harness asks", "[fast]") {
  const Json golden = parse_json_file(harness("answers.json").string()).at("race");
  const auto records = read_records<ChoiceRecord>(harness("race.records.jsonl").string());
  size_t pair = 0;
  REQUIRE(records.size() == golden.at("gold").items().size());
  for (size_t i = 0; i < records.size(); ++i) {
    CHECK(records[i].gold == std::vector<int64_t>{golden.at("gold").items()[i].as_int()});
    for (const std::string& choice : records[i].choices) {
      const std::vector<std::string> expected = texts(golden.at("pairs").items().at(pair++));
      CHECK(records[i].context == expected[0]);
      CHECK(records[i].delimiter + choice == expected[1]);
    }
  }
  CHECK(pair == golden.at("pairs").items().size());
}
