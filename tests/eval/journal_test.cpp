// Evaluations that are interrupted go on where they were.
#include <fmt/core.h>

#include <chrono>
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

TEST_CASE("an evaluation that is interrupted behind another one goes on where it was", "[fast]") {
  Corpus corpus;
  const std::string list = replace_all(R"({"evaluations": [
      {"name": "cloze", "kind": "cloze", "file": "FOLDER/targets.jsonl"},
      {"name": "position", "kind": "position_ppl", "length": 30, "data": {"path": "FOLDER/one/*.bin"}}]})",
                                       "FOLDER", corpus.folder.path().string());
  const auto run = [&](const std::string& out, int64_t polls) {
    return corpus.run_rank(list, out, polls, 0, true, nullptr);
  };
  REQUIRE(run("whole", INT64_MAX));
  const auto expected = corpus.files("whole");
  int64_t polls = 1;
  for (; !run("out" + std::to_string(polls), polls); ++polls) {
    REQUIRE(run("out" + std::to_string(polls), INT64_MAX));
    CHECK(corpus.files("out" + std::to_string(polls)) == expected);
  }
  CHECK(polls > 6 + 12);  // records and documents
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
  const fs::path choices = corpus.folder / "choices.jsonl";  // perhaps another text of the same size
  fs::last_write_time(choices, fs::last_write_time(choices) + std::chrono::hours(1));
  REQUIRE(corpus.run("out", INT64_MAX, 60, false));
  CHECK(kept_lines(corpus.lines) == 13);
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

FOLDER_TEST("items follow the last whole line where a kill has cut one", "[fast]") {
  const fs::path file = folder / "x.partial";
  const Json key = Json::object({{"config", 1}});
  std::vector<std::string> notes;
  const auto note = [&](const std::string& text) { notes.push_back(text); };
  {
    EvalJournal journal(file, key, note);
    for (int i = 0; i < 3; ++i) { journal.add(i, {Json(i), ""}); }
  }
  fs::resize_file(file, fs::file_size(file) - 3);
  {
    EvalJournal journal(file, key, note);
    CHECK(journal.kept() == std::vector<int64_t>{0, 1});
    journal.add(2, {Json(7), ""});
  }
  const EvalJournal again(file, key, note);
  CHECK(again.kept() == std::vector<int64_t>{0, 1, 2});
  CHECK(again.find(2)->value == Json(7));
  for (const std::string& text : notes) { CHECK_THAT(text, Contains("going on after")); }
}

FOLDER_TEST("fast weights are gone on from where they and all items before them were kept", "[fast]") {
  const fs::path file = folder / "x.partial", weights = folder / "x.partial-weights";
  const Json key = Json::object({{"config", 1}});
  const auto note = [](const std::string&) {};
  const auto kept = [&] { return EvalJournal(file, key, note).kept(); };
  size_t two = 0;  // bytes of the file with two items
  {
    EvalJournal journal(file, key, note);
    journal.add(0, {Json(0), "", true});
    journal.add(1, {Json(1), "", true});
    two = fs::file_size(file);
    journal.add(2, {Json(2), ""});
    journal.keep_weights({{'a', 'b'}, {'c'}});
    journal.add(3, {Json(3), ""});
    journal.add(4, {Json(4), "", true});  // the weights behind it are lost
    journal.add(5, {Json(5), ""});
  }
  CHECK(kept() == std::vector<int64_t>{0, 1, 2, 3});
  CHECK(EvalJournal(file, key, note).weights() == EvalJournal::Weights{{'a', 'b'}, {'c'}});

  const std::string good = read_file(weights);
  std::string damaged = good;
  damaged[damaged.size() - 9] ^= 1;  // before the checksum of 8 digits
  folder.write(weights.filename().string(), damaged);
  CHECK(kept().empty());
  CHECK_FALSE(EvalJournal(file, key, note).weights());

  folder.write(weights.filename().string(), good);
  fs::resize_file(file, two);  // weights of items that are not there
  CHECK(kept().empty());
  CHECK_FALSE(EvalJournal(file, key, note).weights());
}
