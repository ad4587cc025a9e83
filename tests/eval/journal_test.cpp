// Evaluations that are interrupted go on where they were.
#include <fstream>

#include "data/shards/shard_writer.h"
#include "tests/eval/text_model.h"

using namespace hebb;
using namespace hebb::testing;
using Catch::Contains;

namespace {

/// A model with fast weights, text in records and in shards.
struct Corpus : TextModel {
  Corpus() : TextModel(byte_model(true)) {
    for (const std::string name : {"one", "two"}) {
      ShardWriterOptions options;
      options.directory = folder / name;
      options.vocab_size = kByteVocab;
      ShardWriter writer(options);
      Rng rng(7, name);
      for (int d = 0; d < 14; ++d) {
        std::vector<int32_t> ids;
        for (int i = 0; i < 25 + 3 * d; ++i) { ids.push_back(static_cast<int32_t>(rng.below(256))); }
        writer.add_document(ids);
      }
      writer.finish();
    }
    std::string choices, contexts, targets, texts, prompts, answers;
    for (int i = 0; i < 6; ++i) {
      const std::string n = std::to_string(i * 37);
      choices += R"({"context": "Line )" + n + R"(", "choices": ["is", "was not"], "gold": 0, "group": "g)" +
                 std::to_string(i % 2) + "\"}\n";
      contexts += R"({"contexts": ["A )" + n + R"(", "The"], "continuation": "end", "gold": 1})" + "\n";
      targets += R"({"context": "Some )" + n + R"(", "target": " word"})" + "\n";
      texts += R"({"text": "A longer text about )" + n + "\"}\n";
      prompts += R"({"prompt": "Q )" + n + R"(", "answers": ["7"]})" + "\n";
      answers += R"({"context": "About )" + n + R"( things", "question": "Which?", "answers": ["this"]})" + "\n";
    }
    for (const auto& [name, text] :
         {std::pair{"choices", choices}, std::pair{"contexts", contexts}, std::pair{"targets", targets},
          std::pair{"texts", texts}, std::pair{"prompts", prompts}, std::pair{"answers", answers}}) {
      folder.write(std::string(name) + ".jsonl", text);
    }
  }

  /// One evaluation of every kind that has items, some in two ways.
  std::string list() const {
    const std::string at = "\"" + folder.path().string() + "/";
    const std::string one = "{\"path\": " + at + "one/*.bin\"}";
    return R"({"seed": 3, "evaluations": [
      {"name": "choice", "kind": "choice", "file": )" +
           at + R"(choices.jsonl"},
      {"name": "partial", "kind": "partial", "file": )" +
           at + R"(contexts.jsonl"},
      {"name": "cloze", "kind": "cloze", "file": )" +
           at + R"(targets.jsonl"},
      {"name": "rolling", "kind": "rolling", "file": )" +
           at + R"(texts.jsonl"},
      {"name": "carried", "kind": "answer_ppl", "file": )" +
           at + R"(answers.jsonl"},
      {"name": "reset", "kind": "answer_ppl", "fast_weights": "reset", "file": )" +
           at + R"(answers.jsonl"},
      {"name": "generate", "kind": "generate", "score": "f1", "max_new_tokens": 3, "file": )" +
           at +
           R"(prompts.jsonl"},
      {"name": "stream", "kind": "stream_ppl", "data": )" +
           one + R"(},
      {"name": "none", "kind": "stream_ppl", "carry": "none", "data": )" +
           one + R"(},
      {"name": "position", "kind": "position_ppl", "length": 30, "baseline_context": 10, "data": )" +
           one + R"(},
      {"name": "needle", "kind": "niah", "context_words": [20], "passes": [1, 2], "samples": 2},
      {"name": "needles", "kind": "niah", "context_words": [20], "passes": [1], "samples": 3, "fast_weights": "reset"},
      {"name": "mqar", "kind": "mqar", "vocab": 40, "samples": 6, "cases": [{"length": 20, "pairs": 4}],
       "min_distance": 3},
      {"name": "adapt", "kind": "adapt", "micro_batch_size": 2, "sequence_length": 20, "domains": [
        {"name": "a", "path": )" +
           at + R"(one/*.bin"}, {"name": "b", "path": )" + at + R"(two/*.bin"}]}]})";
  }

  struct Heard final : Progress {
    void message(std::string_view text) override { messages.emplace_back(text); }
    std::vector<std::string> messages;
  };

  /// Runs the list in `out`, stopped after so many polls; whether it came to its end.
  bool run(const std::string& out, int64_t polls, double weights_interval = 0, bool logs_samples = true) {
    auto evaluations = read_evaluations(parse_json(list(), "e.json"), "");
    ScoringModel s = session();
    EvalContext context{s, tokenizer, 24, 42, heard, [&polls] { return --polls < 0; }};
    context.logs_samples = logs_samples;
    context.weights_interval = weights_interval;
    lines.clear();
    try {
      const EvalCounts counts = run_evaluations(evaluations, context, source, folder / out,
                                                [&](const std::string& line) { lines.push_back(line); });
      CHECK(counts.ok == static_cast<int64_t>(evaluations.size()));
      return true;
    } catch (const Error& error) {
      REQUIRE(error.code() == ExitCode::kStopped);
      stopped = error.what();
      return false;
    }
  }

  /// All files of a folder but for the seconds.
  std::map<std::string, std::string> files(const std::string& out) const {
    std::map<std::string, std::string> texts;
    for (const auto& entry : fs::directory_iterator(folder / out)) {
      std::string text = read_file(entry.path());
      if (entry.path().extension() == ".json") {
        Json json = parse_json(text, "result");
        json.erase("seconds");
        text = json.dump(1);
      }
      texts[entry.path().filename().string()] = text;
    }
    return texts;
  }

  EvalSource source{"c", "00ff", "cpu", "fp64", 7, 70, Json("weights")};
  Heard heard;
  std::vector<std::string> lines;
  std::string stopped;
};

int64_t kept_lines(const std::vector<std::string>& lines) {
  return std::count_if(lines.begin(), lines.end(),
                       [](const std::string& line) { return line.find(": ok, kept") != std::string::npos; });
}

}  // namespace

TEST_CASE("an evaluation that is interrupted anywhere ends with the files of an undisturbed one") {
  Corpus corpus;
  REQUIRE(corpus.run("whole", INT64_MAX));
  const auto expected = corpus.files("whole");
  CHECK(expected.size() == 14 + 13);          // results, and samples of all but adapt: nothing else
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
  REQUIRE(corpus.run("out", INT64_MAX, 60, false));
  CHECK(kept_lines(corpus.lines) == 14);
  CHECK(corpus.heard.messages.empty());

  corpus.folder.write("targets.jsonl", "{\"context\": \"Other\", \"target\": \" word\"}\n");
  corpus.folder.write("out/rolling.json", "{\"status\": ");
  REQUIRE(corpus.run("out", INT64_MAX, 60, false));
  CHECK(kept_lines(corpus.lines) == 12);
  REQUIRE(corpus.heard.messages.size() == 2);
  CHECK_THAT(corpus.heard.messages[0], Contains("cloze.json is of another checkpoint, configuration or input"));
  CHECK_THAT(corpus.heard.messages[1], Contains("rolling.json is damaged and not used"));

  corpus.source.weights = Json("others");
  REQUIRE(corpus.run("out", INT64_MAX, 60, false));
  CHECK(kept_lines(corpus.lines) == 0);
}

TEST_CASE("what an interrupted evaluation has kept is not used when it is stale or damaged", "[fast]") {
  const TempFolder folder;
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
    CHECK_THROWS_WITH(EvalJournal(file, key, note).add(1, {Json(9), ""}),
                      Contains("another process is writing this evaluation"));
  }
  CHECK(kept(key) == 5);
  CHECK(kept(Json::object({{"weights", "b"}, {"config", 1}})) == 0);
  CHECK_THAT(notes.at(0), Contains("x.partial is of another evaluation (weights) and not used"));

  std::string text = read_file(file);
  text[text.size() / 2] ^= 1;
  folder.write("x.partial", text);
  CHECK(kept(key) == 0);
  CHECK_THAT(notes.at(0), Contains("x.partial is damaged (byte "));
  EvalJournal journal(file, key, note);  // begins anew
  journal.add(3, {Json(std::numeric_limits<double>::infinity()), ""});
  const EvalJournal again(file, key, note);
  CHECK(again.find(0) == nullptr);
  REQUIRE(again.find(3) != nullptr);
  CHECK(kept_number(again.find(3)->value) == std::numeric_limits<double>::infinity());
}
