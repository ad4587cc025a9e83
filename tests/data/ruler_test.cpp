#include "data/tasks/ruler.h"

#include <algorithm>
#include <set>

#include "data/tasks/answer_scores.h"
#include "data/tasks/ruler_tasks.h"
#include "data/text/characters.h"
#include "data/text/white_space.h"
#include "tests/temp_folder.h"
#include "tests/test.h"

namespace {

using Texts = std::vector<std::string>;

int64_t count_words(std::string_view text) { return static_cast<int64_t>(split_words(text).size()); }

RulerMaker maker(const RulerFiles& files = {}, uint64_t seed = 42) {
  return RulerMaker(read_ruler_material(files), seed, count_words);
}

RulerSample sample(RulerMaker& m, const char* task, int64_t length, uint64_t j) {
  return m.sample(*find_ruler_task(task), length, j);
}

const char* const kSquad = R"({"version": "v2.0", "data": [
  {"title": "T", "paragraphs": [
    {"context": "p one", "qas": [{"question": "q1?", "is_impossible": false, "answers": [{"text": "one", "answer_start": 2}, {"text": "p"}]},
                                 {"question": "none?", "is_impossible": true, "answers": [], "plausible_answers": [{"text": "x"}]}]},
    {"context": "p two", "qas": [{"question": "q2?", "answers": [{"text": "two"}]}]},
    {"context": "p two", "qas": []}, {"context": "p three é", "qas": []}]},
  {"title": "U", "paragraphs": [{"context": "a four", "qas": [{"question": "q3?", "answers": [{"text": "four"}]}]},
                                {"context": "p one", "qas": []}]}]})";

const char* const kHotpot = R"([{"_id": "1", "question": "where?", "answer": "yes", "type": "x",
   "context": [["T1", ["A b.", " C d."]], ["T2", ["E."]]]},
  {"question": "who?", "answer": "Bo", "context": [["T3", ["Bo."]], ["T1", ["A b.", " C d."]]]}])";

}  // namespace

TEST_CASE("samples of seed 42 at length 4096 have the published sizes and answers", "[fast]") {
  RulerMaker m = maker();
  struct Published {
    const char* task;
    int64_t units, length;
    const char* answers;
  };
  for (const Published& p : {Published{"niah_single_1", 225, 3993, "5824246"},
                             Published{"niah_multikey_3", 550, 4018, "05c24b67-b05d-404c-9fa7-3d1b8ad48fd0"},
                             Published{"vt", 220, 4051, "TPMHI ZERVM BNKJF HGCSC JDEDD"},
                             Published{"cwe", 490, 4072, "nihu dizu zihu lamo wabe xiki gane ketu tadu mivu"},
                             Published{"fwe", 3968, 3978, "hatciy dhhuti vdefld"}}) {
    INFO(p.task);
    const RulerSample s = sample(m, p.task, 4096, 0);
    CHECK(s.units == p.units);
    CHECK(s.length == p.length);
    CHECK(join(s.outputs, " ") == p.answers);
  }
}

TEST_CASE("there are 13 tasks with their answers' lengths", "[fast]") {
  std::set<std::string> names;
  int64_t tokens = 0;
  for (const RulerTask& task : ruler_tasks()) {
    names.insert(task.name);
    tokens += task.new_tokens;
    CHECK(task.is_any_enough == task.name.starts_with("qa"));
  }
  CHECK(names.size() == 13);
  CHECK(tokens == 8 * 128 + 30 + 120 + 50 + 32 + 32);
  CHECK(find_ruler_task("niah") == nullptr);
}

TEST_CASE("an input fits, holds its answers, is the same in every run, and whoever copies them scores 1", "[fast]") {
  RulerMaker m = maker(), again = maker();
  for (const RulerTask& task : ruler_tasks()) {
    if (!m.has(task)) { continue; }
    for (const int64_t length : {1024, 2000, 4096}) {
      for (const uint64_t j : {uint64_t{5}, uint64_t{0}, uint64_t{499}}) {
        INFO(task.name << " " << length << " " << j);
        const RulerSample s = m.sample(task, length, j);
        CHECK(s.length <= length);
        CHECK(s.length == count_words(s.input + s.answer_prefix) + task.new_tokens);
        for (const std::string& answer : s.outputs) { CHECK_THAT(s.input, Contains(answer)); }
        CHECK(match_all_score(join(s.outputs, " "), s.outputs) == 1);
        CHECK(match_all_score("", s.outputs) == 0);
      }
    }
    const RulerSample s = m.sample(task, 2000, 1),
                      other = again.sample(task, 2000, 1);  // after other samples, and as the first one
    CHECK((s.input == other.input && s.answer_prefix == other.answer_prefix && s.outputs == other.outputs &&
           s.units == other.units));
    CHECK(s.input != m.sample(task, 2000, 2).input);
  }
}

TEST_CASE("one more step of text would not fit", "[fast]") {
  const RulerMaterial material = read_ruler_material({});
  RulerMaker m = maker();
  const auto tokens = [](const RulerSample& s, int64_t answer) {
    return count_words(s.input + s.answer_prefix) + answer;
  };
  for (const int64_t length : {1024, 3000, 8192}) {
    for (const uint64_t j : {uint64_t{0}, uint64_t{3}}) {
      INFO(length << " " << j);
      const auto streams = [&](const std::string& task) {
        return ruler::Streams{42, j, "ruler/" + task + "/" + std::to_string(length)};
      };
      const int64_t list = length < 4096 ? 5 : 25;
      for (const char* task : {"niah_single_1", "niah_multikey_2"}) {
        const int64_t next = sample(m, task, length, j).units + list;
        CHECK(tokens(ruler::needle_input(material, *ruler::find_needle_task(task), streams(task), next, ""), 128) >
              length);
      }
      CHECK(tokens(ruler::variable_input(material, streams("vt"), sample(m, "vt", length, j).units + 10), 30) > length);
      CHECK(tokens(ruler::common_words_input(material, streams("cwe"), sample(m, "cwe", length, j).units + 10, length),
                   120) > length);
      CHECK(tokens(ruler::frequent_words_input(material, streams("fwe"),
                                               sample(m, "fwe", length, j).units + length / 32, length),
                   50) > length);
      const RulerSample essay = sample(m, "niah_single_2", length, j);
      CHECK(essay.length + 500 > length);
    }
  }
}

TEST_CASE("several keys and values are asked for in one list", "[fast]") {
  RulerMaker m = maker();
  const RulerSample values = sample(m, "niah_multivalue", 2000, 0), keys = sample(m, "niah_multiquery", 2000, 0);
  CHECK(values.outputs.size() == 4);
  CHECK(values.answer_prefix.starts_with(" The special numbers of "));
  CHECK(keys.outputs.size() == 4);
  CHECK(std::count(keys.answer_prefix.begin(), keys.answer_prefix.end(), ',') == 3);
  CHECK_THAT(keys.answer_prefix, Contains(", and "));
  const RulerSample uuid = sample(m, "niah_multikey_3", 2000, 0);
  CHECK(uuid.answer_prefix.starts_with(" The special uuid of "));
  CHECK(uuid.outputs[0].size() == 36);
  CHECK(uuid.outputs[0][14] == '4');
  CHECK(std::string("89ab").find(uuid.outputs[0][19]) != std::string::npos);
}

FOLDER_TEST("essays are cut at ends of sentences only", "[fast]") {
  RulerFiles files;
  files.essays =
      folder.write("essays.json", R"({"text": "He said \"No!\" then left. (Why?) v1.5 stays... whole 水。x end"})")
          .string();
  RulerMaker m = maker(files);
  const RulerSample s = sample(m, "niah_multikey_1", 2000, 0);
  const std::string text = s.input.substr(s.input.find('\n') + 1);
  REQUIRE(std::count(text.begin(), text.end(), '\n') == 1);
  for (size_t at = text.find("The special number of "); at != std::string::npos && at < text.rfind('\n');
       at = text.find("The special number of ", at + 1)) {
    if (at == 0) { continue; }
    const std::string before = text.substr(0, at - 1);
    INFO(before.substr(before.size() > 30 ? before.size() - 30 : 0));
    CHECK(text[at - 1] == ' ');
    const bool after_sentence = before.ends_with("No!\"") || before.ends_with("left.") || before.ends_with("(Why?)") ||
                                before.ends_with("stays...") ||
                                std::isdigit(static_cast<unsigned char>(before[before.size() - 2])) != 0;
    CHECK(after_sentence);
  }
}

TEST_CASE("text that cannot fit is refused with what it needs", "[fast]") {
  RulerMaker m = maker();
  CHECK_THROWS_WITH(sample(m, "niah_single_2", 512, 0),
                    Contains("niah_single_2 at length 512") && Contains("tokens with the least text"));
  CHECK_THROWS_WITH(sample(m, "fwe", 150, 0), Contains("at least 200"));
  CHECK_THROWS_AS(sample(m, "vt", 40, 0), ConfigError);
}

FOLDER_TEST("questions of SQuAD and HotpotQA stand among their documents", "[fast]") {
  RulerFiles files;
  files.squad = folder.write("squad.json", kSquad).string();
  files.hotpotqa = folder.write("hotpot.json", kHotpot).string();
  const RulerMaterial material = read_ruler_material(files);
  CHECK(material.squad->documents == Texts{"a four", "p one", "p three é", "p two"});
  REQUIRE(material.squad->questions.size() == 3);
  CHECK(material.squad->questions[0].answers == Texts{"one", "p"});
  CHECK(material.squad->questions[0].own == std::vector<size_t>{1});
  CHECK(material.squad->questions[0].related == std::vector<size_t>{3, 2});  // file order, once each
  CHECK(material.hotpotqa->documents == Texts{"T1\nA b. C d.", "T2\nE.", "T3\nBo."});
  CHECK(material.hotpotqa->questions[0].own == std::vector<size_t>{0, 1});
  RulerMaker m = maker(files);
  const RulerSample s = sample(m, "qa_1", 200, 3);  // question 3 mod 3
  CHECK(s.units == 4);                              // capped at all documents
  CHECK(s.input.ends_with("Question: q1?"));
  CHECK(s.outputs == Texts{"one", "p"});
  for (const char* text : {"Document 1:\n", "Document 4:\n", "a four", "p three é"}) {
    CHECK_THAT(s.input, Contains(text));
  }
  CHECK(s.input.find("Document 5:") == std::string::npos);
  CHECK(match_part_score("I think ONE.", s.outputs) == 1);
  CHECK_THAT(sample(m, "qa_2", 200, 1).input, Contains("Document 3:\n"));
}

FOLDER_TEST("an article's other paragraphs come before those of other articles", "[fast]") {
  RulerFiles files;
  files.squad = folder.write("squad.json", kSquad).string();
  const RulerMaterial material = read_ruler_material(files);
  const RulerSample s = ruler::question_input(material, *material.squad, {42, 0, "ruler/qa_1/100"}, 3);
  CHECK(s.input.find("a four") == std::string::npos);
  CHECK_THAT(s.input, Contains("p two"));
  CHECK_THAT(s.input, Contains("p three"));
}

FOLDER_TEST("other strings and words take the place of the built-in ones", "[fast]") {
  RulerFiles files;
  CHECK(!files.replaces_any());
  files.text =
      folder.write("ruler.json", R"({"noise": "la {key} la", "needle": "{key} -> {value} [{type}]"})").string();
  files.words.adjectives = folder.write("a.txt", "wee\n\n  grand \r\nfíne").string();
  files.words.nouns = folder.write("n.txt", "eel\ncod").string();
  CHECK(files.replaces_any());
  RulerMaker m = maker(files);
  const RulerSample s = sample(m, "niah_single_1", 1000, 0);
  CHECK_THAT(s.input, Contains("\nla {key} la\n"));
  CHECK_THAT(s.input, Contains(" -> " + s.outputs[0] + " [number]"));
}

FOLDER_TEST("files that cannot be used are refused", "[fast]") {
  const auto read = [&](std::string RulerFiles::*member, const std::string& name, const std::string& text) {
    RulerFiles files;
    files.*member = folder.write(name, text).string();
    return read_ruler_material(files);
  };
  CHECK_THROWS_WITH(read(&RulerFiles::text, "t.json", R"({"niah": "x"})"), Contains("t.json:1:") && Contains("niah"));
  CHECK_THROWS_WITH(read(&RulerFiles::text, "t.json", R"({"needle": "x {key}"})"), Contains("{value}"));
  CHECK_THROWS_WITH(read(&RulerFiles::text, "t.json", R"({"noise": ""})"), Contains("noise"));
  CHECK_THROWS_WITH(read(&RulerFiles::essays, "e.json", R"({"words": "x"})"), Contains("\"text\""));
  CHECK_THROWS_WITH(read(&RulerFiles::essays, "e.txt", "ab\xff"), Contains("UTF-8"));
  CHECK_THROWS_WITH(read(&RulerFiles::essays, "e.txt", " \n"), Contains("no word"));
  CHECK_THROWS_WITH(read(&RulerFiles::squad, "s.json", R"({"data": [{"paragraphs": [{"context": 3, "qas": []}]}]})"),
                    Contains("s.json:1:") && Contains("context"));
  CHECK_THROWS_WITH(read(&RulerFiles::squad, "s.json", R"({"data": []})"), Contains("no question"));
  CHECK_THROWS_WITH(
      read(&RulerFiles::squad, "s.json",
           R"({"data": [{"paragraphs": [{"context": "c", "qas": [{"question": "q", "answers": []}]}]}]})"),
      Contains("has no answer"));
  CHECK_THROWS_WITH(read(&RulerFiles::hotpotqa, "h.json", R"([{"question": "q", "answer": "a", "context": [["t"]]}])"),
                    Contains("[title, [sentences]]"));
  RulerFiles files;
  files.words.cwe = folder.write("w.txt", "one\ntwo\none\n").string();
  CHECK_THROWS_WITH(read_ruler_material(files), Contains("\"one\" twice"));
  files.words.cwe = folder.write("w.txt", "one\ntwo\n").string();
  CHECK_THROWS_WITH(read_ruler_material(files), Contains("2 words") && Contains("at least 40"));
  files.words.cwe = (folder / "none.txt").string();
  CHECK_THROWS_AS(read_ruler_material(files), MissingFileError);
}

FOLDER_TEST("ready-made samples are read with their opening words", "[fast]") {
  const auto read = [&](const std::string& text) { return read_ruler_samples(folder.write("s.jsonl", text).string()); };
  const auto samples = read(
      "{\"index\": 0, \"input\": \"i\", \"outputs\": [\"a\", \"b\"], \"length\": 9, \"answer_prefix\": \" so\"}\n\n"
      "{\"input\": \"j\", \"outputs\": [\"c\"], \"gen_prefix\": \" is\", \"task\": \"vt\"}\n{\"input\": \"k\", "
      "\"outputs\": [\"d\"]}");
  REQUIRE(samples.size() == 3);
  CHECK(samples[0].first.empty());
  CHECK(samples[0].second.answer_prefix == " so");
  CHECK(samples[0].second.outputs == Texts{"a", "b"});
  CHECK((samples[1].first == "vt" && samples[1].second.answer_prefix == " is"));
  CHECK(samples[2].second.answer_prefix.empty());
  CHECK_THROWS_WITH(read("{\"input\": \"i\"}"), Contains("s.jsonl:1:") && Contains("outputs"));
  CHECK_THROWS_WITH(read("{\"input\": \"i\", \"outputs\": []}"), Contains("outputs"));
  CHECK_THROWS_WITH(read("{\"input\": \"i\", \"outputs\": [1]}"), Contains("a string with text"));
  CHECK_THROWS_WITH(read("{\"input\": \"i\", \"outputs\": [\" \"]}"), Contains("a string with text"));
  CHECK_THROWS_WITH(read("\n"), Contains("no RULER samples"));
}

TEST_CASE("no filler has the key that is asked for, however few keys there are", "[fast]") {
  TempFolder folder;
  RulerFiles files;
  files.words.adjectives = folder.write("adjectives.txt", "red\nblue\n").string();
  files.words.nouns = folder.write("nouns.txt", "cat\ndog\n").string();
  RulerMaker m = maker(files);
  for (uint64_t j = 0; j < 8; ++j) {
    const RulerSample s = sample(m, "niah_multikey_2", 2000, j);
    const std::string question = "does the text give for ";
    const size_t at = s.input.rfind(question) + question.size();
    const std::string key = s.input.substr(at, s.input.size() - 1 - at),
                      needle = "The special number of " + key + " is ";
    const size_t first = s.input.find(needle);
    INFO(key);
    REQUIRE(first != std::string::npos);
    CHECK(s.input.find(needle, first + 1) == std::string::npos);
    CHECK(s.input.substr(first + needle.size()).starts_with(s.outputs[0]));
  }
}
