#include "data/tasks/records.h"

#include "core/error.h"
#include "tests/temp_folder.h"
#include "tests/test.h"
#include "tests/thrown.h"

namespace {

struct Files {
  TempFolder folder;

  template <class R> std::vector<R> read(const std::string& text) const {
    return read_records<R>(folder.write("r.jsonl", text).string());
  }
  template <class R> std::string error(const std::string& text) const {
    const std::string message = thrown<DataError>([&] { read<R>(text); }), path = (folder / "r.jsonl").string();
    REQUIRE(message.starts_with(path));
    return message.substr(path.size());
  }
};

}  // namespace

TEST_CASE_METHOD(Files, "records of every kind are read", "[fast]") {
  const auto choice = read<ChoiceRecord>(
      "{\"context\": \"c\", \"choices\": [\"a\", \"b\"], \"gold\": 1}\n\n"
      "{\"context\": \"\", \"choices\": [\"a\", \"b\", \"d\"], \"gold\": [0, 2], \"delimiter\": \"\", \"group\": "
      "\"g\", \"id\": \"x\", \"_note\": {}}\n");
  REQUIRE(choice.size() == 2);
  CHECK(choice[0].gold == std::vector<int64_t>{1});
  CHECK(choice[0].delimiter == " ");
  CHECK_FALSE(choice[0].group);
  CHECK(choice[0].id == "0");
  CHECK(choice[1].where == (folder / "r.jsonl").string() + ":3");
  CHECK(choice[1].gold == std::vector<int64_t>{0, 2});
  CHECK(choice[1].delimiter.empty());
  CHECK(choice[1].group == "g");
  CHECK(choice[1].id == "x");

  const auto partial = read<PartialRecord>(R"({"contexts": ["a", ""], "continuation": "c", "gold": 0})");
  CHECK(partial[0].contexts == std::vector<std::string>{"a", ""});
  const auto cloze = read<ClozeRecord>(R"({"context": "a", "target": " b"})");
  CHECK(cloze[0].target == " b");
  const auto rolling = read<RollingRecord>(R"({"text": "a b", "words": 7})");
  CHECK(rolling[0].words == 7);
  CHECK_FALSE(rolling[0].bytes);
  const auto answer = read<AnswerRecord>(R"({"context": "c", "question": "q", "answers": ["a", "b"], "length": 12})");
  CHECK(answer[0].length == 12);
  const auto generate = read<GenerateRecord>(
      "{\"prompt\": \"p\", \"answers\": [\"a\"]}\n"
      R"({"prompt": "p", "answers": [], "until": [], "max_new_tokens": 9, "score": "classification", "classes": ["a"]})");
  CHECK_FALSE(generate[0].until);
  CHECK_FALSE(generate[0].score);
  CHECK(generate[1].until == std::vector<std::string>());
  CHECK(generate[1].score == "classification");
  CHECK(generate[1].classes == std::vector<std::string>{"a"});
}

TEST_CASE_METHOD(Files, "what does not fit is refused with file, line and key", "[fast]") {
  const std::string good = "{\"context\": \"c\", \"choices\": [\"a\", \"b\"], \"gold\": 1}\n";
  CHECK(
      error<ChoiceRecord>("First Citizen:\nBefore we proceed\n") ==
      ":1: records (found text (\"First Citizen:\"), expected a JSON object on every line (docs/formats/records.md))");
  CHECK(error<ChoiceRecord>(good + R"({"context": "c", "choices": ["a"], "gold": 0, "Group": "x"})") ==
        ":2:47: Group: found an unknown key, expected one of the known keys (did you mean \"group\"?)");
  CHECK(error<ChoiceRecord>(good + R"({"context": "c", "choices": ["a"]})") ==
        ":2:1: gold: found nothing, expected an index below 1, or a list of such indices (required)");
  CHECK(error<ChoiceRecord>(R"({"context": "c", "choices": ["a"], "gold": 1})") ==
        ":1:44: gold: found 1, expected an index below 1, or a list of such indices");
  CHECK(error<ChoiceRecord>(R"({"context": "c", "choices": ["a"], "gold": [-1]})") ==
        ":1:44: gold: found -1, expected an index below 1, or a list of such indices");
  CHECK(error<ChoiceRecord>(R"({"context": "c", "choices": ["a"], "gold": "0"})") ==
        ":1:44: gold: found \"0\", expected an index below 1, or a list of such indices");
  CHECK(error<ChoiceRecord>(R"({"context": "c", "choices": ["a"], "gold": []})") ==
        ":1:44: gold: found an array, expected an index below 1, or a list of such indices");
  CHECK(error<ChoiceRecord>(R"({"context": "c", "choices": [], "gold": 0})") ==
        ":1:29: choices: found an array, expected a list of at least one text");
  CHECK(error<ChoiceRecord>(R"({"context": "c", "choices": ["a", ""], "gold": 0})") ==
        ":1:29: choices: found an empty text, expected texts of at least one character");
  CHECK(error<ChoiceRecord>(R"({"context": 5, "choices": ["a"], "gold": 0})") ==
        ":1:13: context: found 5, expected a string");
  CHECK(error<ClozeRecord>(R"({"context": "", "target": ""})") ==
        ":1:27: target: found \"\", expected a text of at least one character");
  CHECK(error<RollingRecord>(R"({"text": "a", "words": 0})") == ":1:24: words: found 0, expected an integer >= 1");
  CHECK_THAT(error<GenerateRecord>(R"({"prompt": "", "answers": [], "score": "rouge"})"),
             Contains("score: found \"rouge\", expected"));
  CHECK(error<GenerateRecord>(R"({"prompt": "", "answers": [], "score": "classification"})") ==
        ":1:1: classes: found nothing, expected a list of the classes that the score asks for");
  CHECK(error<GenerateRecord>(R"({"prompt": "", "answers": [], "until": [""]})") ==
        ":1:40: until: found an empty text, expected texts of at least one character");
  CHECK(error<AnswerRecord>(R"({"context": "", "question": "", "answers": []})") ==
        ":1:44: answers: found an array, expected a list of at least one text");
  CHECK(error<ClozeRecord>(good) == ":1:1: target: found nothing, expected a string (required)");
  CHECK(error<ClozeRecord>("{\"context\": \"\", \"target\": \"a\"}\n[1]\n") ==
        ":2:1: found [1], expected a JSON object");
  CHECK(error<ClozeRecord>("{\"context\": \"\", \"target\": \"a\"}\n{\"context\" 5}\n").starts_with(":2:12: found "));
  CHECK(error<ClozeRecord>("\n \n") == ": no record (found nothing but blank lines, expected one JSON object a line)");
}

TEST_CASE_METHOD(Files, "a first line whose last character is cut off is refused with its bytes", "[fast]") {
  for (const char* cut : {"\xC3", "\xE2\x80", "\xF0\x9F\x98", "\xFF"}) {
    CHECK_THAT(error<RollingRecord>(std::string(R"({"text": "a"})") + cut), Catch::StartsWith(":1:14: "));
    CHECK_THAT(error<RollingRecord>(cut), Catch::StartsWith(":1:1: "));
    CHECK_THAT(error<RollingRecord>(cut + std::string("\n{}")), Catch::StartsWith(":1:1: "));
  }
}

TEST_CASE_METHOD(Files, "files that are missing are told from files that do not fit", "[fast]") {
  CHECK_THROWS_AS(read_records<ClozeRecord>((folder / "none.jsonl").string()), MissingFileError);
  CHECK_THROWS_AS(read_records<ClozeRecord>((folder / "*.jsonl").string()), MissingFileError);
}
