// Evaluations that are interrupted go on where they were.
#include <fmt/core.h>

#include <limits>

#include "core/hash.h"
#include "tests/eval/corpus.h"

namespace {

int64_t kept_lines(const std::vector<std::string>& lines) {
  return std::count_if(lines.begin(), lines.end(),
                       [](const std::string& line) { return line.find(": ok, kept") != std::string::npos; });
}

}  // namespace

TEST_CASE("an evaluation that is interrupted anywhere ends with the files of an undisturbed one") {
  Corpus corpus;
  REQUIRE(corpus.run("whole", INT64_MAX));
  const auto expected = corpus.files("whole");
  CHECK(expected.size() == 14 + 13 + 13);     // results; samples and values of items of all but adapt: nothing else
  for (const double interval : {0.0, 1e9}) {  // fast weights kept behind every item, and only the first time
    const std::string out = interval == 0 ? "often" : "rarely";
    int64_t attempts = 1;
    for (; !corpus.run(out, 20 + 10 * attempts, interval); ++attempts) {
      REQUIRE(attempts < 100);
      if (attempts % 2 == 1) { continue; }
      for (const auto& entry : fs::directory_iterator(corpus.folder / out)) {
        if (entry.path().extension() == ".partial") {  // a kill in the middle of a line
          fs::resize_file(entry.path(), fs::file_size(entry.path()) - 3);
        }
      }
    }
    CHECK(attempts > 4);
    CHECK_THAT(corpus.stopped, Contains(": stopped by a signal"));
    CHECK(kept_lines(corpus.lines) > 5);
    CHECK(corpus.files(out) == expected);
  }
}

TEST_CASE("finished results stay until checkpoint, configuration or input differ") {
  Corpus corpus;
  REQUIRE(corpus.run("out", INT64_MAX, 60, false));
  CHECK(kept_lines(corpus.lines) == 0);
  const auto finished = corpus.files("out");
  for (const char* name : {"out/cloze.partial", "out/cloze.partial-weights"}) {
    corpus.folder.write(name, "of a process that was killed when the result was written");
  }
  REQUIRE(corpus.run("out", INT64_MAX, 60, false));
  CHECK(corpus.files("out") == finished);
  CHECK(kept_lines(corpus.lines) == 14);
  CHECK(corpus.heard.messages.empty());

  corpus.folder.write("targets.jsonl", "{\"context\": \"Other\", \"target\": \" word\"}\n");
  corpus.folder.write("out/rolling.json", "{\"status\": ");
  REQUIRE(corpus.run("out", INT64_MAX, 60, false));
  CHECK(kept_lines(corpus.lines) == 12);
  REQUIRE(corpus.heard.messages.size() == 3);
  CHECK_THAT(corpus.heard.messages[0], Contains("cloze.json is of another checkpoint, configuration or input"));
  CHECK_THAT(corpus.heard.messages[1], Contains("cloze.json is kept as cloze."));
  CHECK_THAT(corpus.heard.messages[2], Contains("rolling.json is damaged and not used"));

  for (const char* result : {"[]", "{\"status\": 3}", "{\"status\": \"ok\", \"fingerprint\": []}"}) {
    corpus.folder.write("out/rolling.json", result);
    REQUIRE(corpus.run("out", INT64_MAX, 60, false));
    CHECK_THAT(corpus.heard.messages.back(), Contains("rolling.json is damaged and not used"));
  }

  corpus.source.weights = Json("others");
  REQUIRE(corpus.run("out", INT64_MAX, 60, false));
  CHECK(kept_lines(corpus.lines) == 0);
}

FOLDER_TEST("what an interrupted evaluation has kept is not used when it is stale or damaged", "[fast]") {
  const fs::path file = folder / "x.partial";
  const Json key = Json::object({{"weights", "a"}, {"config", 1}});
  std::vector<std::string> notes;
  const auto note = [&](const std::string& text) { notes.push_back(text); };
  const auto kept = [&](const Json& wanted) {
    notes.clear();
    return EvalJournal(file, wanted, note).size();
  };
  {
    EvalJournal journal(file, key, note);
    CHECK_FALSE(fs::exists(file));
    for (int i = 0; i < 5; ++i) { journal.add(2 * i, {Json(i), "line\n"}); }
  }
  CHECK(kept(key) == 5);
  CHECK(kept(Json::object({{"weights", "b"}, {"config", 1}})) == 0);
  CHECK_THAT(notes.at(0), Contains("x.partial is of another evaluation (weights) and not used"));

  std::string text = read_file(file);
  text[text.size() / 2] ^= 1;
  folder.write("x.partial", text);
  CHECK(kept(key) == 0);
  CHECK_THAT(notes.at(0), Contains("x.partial is damaged (byte "));
  const auto line = [](const std::string& item) {
    return fmt::format("{:08x} {}\n", crc32c(item.data(), item.size()), item);
  };
  for (const char* item :
       {"1", "[]", "{}", "{\"index\": 0}", "{\"index\": \"0\", \"value\": 1}", "no JSON",
        "{\"index\": 18446744073709551615, \"value\": 1}", "{\"index\": 0, \"value\": 1, \"samples\": 2}"}) {
    INFO(item);
    folder.write("x.partial", line(key.dump()) + line(item));
    CHECK(kept(key) == 0);
    CHECK_THAT(notes.at(0), Contains("x.partial is damaged (byte "));
  }
  EvalJournal journal(file, key, note);  // begins anew
  journal.add(3, {Json(std::numeric_limits<double>::infinity()), ""});
  const EvalJournal again(file, key, note);
  CHECK(again.find(0) == nullptr);
  REQUIRE(again.find(3) != nullptr);
  CHECK(kept_number(again.find(3)->value) == std::numeric_limits<double>::infinity());
}
