#include "data/tasks/needles.h"

#include <algorithm>
#include <set>

#include "core/join.h"
#include "data/text/white_space.h"
#include "tests/temp_folder.h"
#include "tests/test.h"

namespace {

using Texts = std::vector<std::string>;

NeedleOptions options_of(const std::string& keys) {
  return Fields::read<NeedleOptions>(parse_json("{" + keys + "}", "eval.json"), "");
}

/// All pieces of a text file or of JSONL, as lines.
Texts pieces(const std::string& path, int64_t words) {
  HaystackWords text({.path = path});
  Texts all, piece;
  while (text.piece(words, piece)) { all.push_back(join(piece, " ")); }
  return all;
}

}  // namespace

TEST_CASE("sample 0 of the built-in text has the published needles", "[fast]") {
  HaystackWords text{HaystackSource()};
  NeedleMaker maker({.seed = 1});
  Texts words;
  REQUIRE(text.piece(1000, words));
  const NeedleSample s = maker.next(words);
  CHECK(s.keys == Texts{"ID-5357", "ID-e601", "ID-68db", "ID-f7d3", "ID-d168"});
  CHECK(s.values == Texts{"768318", "819641", "997304", "059710", "095205"});
  CHECK(s.words == std::vector<int64_t>{542, 931, 116, 480, 949});
  CHECK(s.question == "The code of ID-e601 is ");
  CHECK(s.answer == "819641");
  CHECK(s.prompt() == s.haystack + " The code of ID-e601 is ");
  CHECK(s.haystack.starts_with("The pale corner feared the apple. The modest magnet doubted the meadow. "));
  CHECK(split_words(s.haystack).size() == 1000 + 5 * 6);
  std::string before;  // needle 2 stands before word 116
  for (size_t i = 0; i < 116; ++i) { before += words[i] + " "; }
  CHECK(s.haystack.starts_with(before + "The code of ID-68db is 997304. " + words[116]));
}

FOLDER_TEST("the name of a folder of texts is no pattern", "[fast]") {
  folder.write("essays [1]/a.txt", "right words");
  folder.write("essays 1/a.txt", "wrong words");
  CHECK(pieces((folder / "essays [1]").string(), 2) == Texts{"right words"});
}

TEST_CASE("samples are the same in every run, and no key comes twice", "[fast]") {
  NeedleMaker first({.seed = 7}), second({.seed = 7}), other({.seed = 8});
  std::set<std::string> keys;
  for (int i = 0; i < 300; ++i) {
    const NeedleSample s = first.next({"a", "b", "c"}), again = second.next({"a", "b", "c"});
    CHECK(s.prompt() == again.prompt());
    CHECK(s.answer == again.answer);
    CHECK(s.prompt() != other.next({"a", "b", "c"}).prompt());
    CHECK_THAT(s.haystack, Contains(s.answer));
    keys.insert(s.keys.begin(), s.keys.end());
  }
  CHECK(keys.size() == 300 * 5);
}

TEST_CASE("given depths place the needles; of two at one word the lower number stands behind", "[fast]") {
  NeedleMaker maker(
      options_of(R"("depths": [0.5, 0.0, 1.0, 0.5, 0.24], "needle": "{key}={value}", "question": "{key}?")"));
  const NeedleSample s = maker.next({"w0", "w1", "w2", "w3"});
  const auto needle = [&](size_t i) { return s.keys[i] + "=" + s.values[i]; };
  CHECK(s.words == std::vector<int64_t>{2, 0, 4, 2, 0});
  CHECK(s.haystack == needle(4) + " " + needle(1) + " w0 w1 " + needle(3) + " " + needle(0) + " w2 w3 " + needle(2));
  CHECK(s.question == s.keys[static_cast<size_t>(s.asked)] + "?");
}

FOLDER_TEST("documents are cut into pieces of words; rests of at least half a piece count", "[fast]") {
  folder.write("a.txt", " one two\tthree\nfour five\u00a0 six seven ");
  folder.write("b.txt", "\u6c34 \U0001F600\u3000x");
  CHECK(pieces((folder / "a.txt").string(), 3) == Texts{"one two three", "four five six"});
  CHECK(pieces((folder / "a.txt").string(), 4) == Texts{"one two three four", "five six seven"});
  CHECK(pieces((folder / "*.txt").string(), 5) == Texts{"one two three four five", "\u6c34 \U0001F600 x"});
  CHECK(pieces((folder / "a.txt").string(), 20).empty());
  const auto lines = folder.write("c.jsonl", "{\"text\": \"a b\"}\n{\"text\": \"c d e\"}\n");
  CHECK(pieces(lines.string(), 2) == Texts{"a b", "c d", "e"});
  CHECK_THROWS_AS(pieces((folder / "none.txt").string(), 2), MissingFileError);
}

TEST_CASE("wording and depths that cannot work are refused", "[fast]") {
  CHECK_THROWS_WITH(options_of(R"("needle": "{key}")"), Contains("needle") && Contains("{value}"));
  CHECK_THROWS_WITH(options_of(R"("question": "what?")"), Contains("question") && Contains("{key}"));
  CHECK_THROWS_WITH(options_of(R"("depths": [0.5])"), Contains("5 depths"));
  CHECK_THROWS_WITH(options_of(R"("depths": [0, 0.2, 0.4, 0.6, 1.1])"), Contains("depths.4"));
  const auto source = [](const char* json) {
    const auto s = Fields::read<HaystackSource>(parse_json(json, "eval.json"), "text");
  };
  CHECK_THROWS_WITH(source(R"({"path": "x", "seed": 1})"), Contains("built-in"));
  CHECK_THROWS_WITH(source(R"({"field": "x"})"), Contains("path"));
}

FOLDER_TEST("ready-made samples are read with their own question", "[fast]") {
  const std::string line = R"({"haystack": "h", "question_key": "K", "answer": "12", "all_inserted_needles":
      [{"key": "K", "value": "12", "target_depth_percent": 3.5}, {"key": "J", "value": "34"}], "metadata": {"target_depth": 1}})";
  std::string flat = line;
  flat.erase(std::remove(flat.begin(), flat.end(), '\n'), flat.end());
  const std::string path = folder.write("niah.jsonl", flat + "\n" + flat + "\n").string();
  const auto samples = read_needle_samples(path, "number of {key} is ");
  REQUIRE(samples.size() == 2);
  CHECK(samples[1].prompt() == "h number of K is ");
  CHECK(samples[1].answer == "12");
  CHECK(samples[1].values == Texts{"12", "34"});
  const auto refused = [&](const std::string& text) {
    return read_needle_samples(folder.write("bad.jsonl", text).string(), "{key}");
  };
  CHECK_THROWS_WITH(refused(R"({"haystack": "h", "question_key": "K", "answer": 12, "all_inserted_needles": []})"),
                    Contains("bad.jsonl:1:") && Contains("answer") && Contains("a string"));
  CHECK_THROWS_WITH(refused(R"({"haystack": "h", "question_key": "K", "answer": " ", "all_inserted_needles": []})"),
                    Contains("no text"));
  CHECK_THROWS_WITH(refused(R"({"haystack": "h", "question_key": "K", "answer": "1"})"),
                    Contains("all_inserted_needles"));
  CHECK_THROWS_WITH(refused(R"({"haystack": "h", "question_key": "K", "answer": "1", "all_inserted_needles": ["1"]})"),
                    Contains("an object"));
  CHECK_THROWS_AS(refused(""), DataError);
  CHECK_THROWS_AS(read_needle_samples((folder / "none.jsonl").string(), "{key}"), MissingFileError);
}
