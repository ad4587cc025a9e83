#pragma once
// Evaluations of every kind that has items, on a small model, as one rank or several.
#include <map>
#include <string>
#include <vector>

#include "comm/thread_communicator.h"
#include "core/parallel.h"
#include "data/text/characters.h"
#include "tests/eval/text_model.h"

namespace hebb::testing {

/// A model with fast weights, text in records and in shards.
struct Corpus : TextModel {
  Corpus() : TextModel(byte_model(true)) {
    std::vector<int> lengths;
    for (int d = 0; d < 14; ++d) { lengths.push_back(25 + 3 * d); }
    for (const std::string name : {"one", "two"}) {
      write_shards(folder / name, kByteVocab, random_documents(Rng(7, name), lengths, 256));
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
    const std::string list = R"({"seed": 3, "evaluations": [
      {"name": "choice", "kind": "choice", "file": "FOLDER/choices.jsonl"},
      {"name": "partial", "kind": "partial", "file": "FOLDER/contexts.jsonl"},
      {"name": "cloze", "kind": "cloze", "file": "FOLDER/targets.jsonl"},
      {"name": "rolling", "kind": "rolling", "file": "FOLDER/texts.jsonl"},
      {"name": "carried", "kind": "answer_ppl", "file": "FOLDER/answers.jsonl"},
      {"name": "reset", "kind": "answer_ppl", "fast_weights": "reset", "file": "FOLDER/answers.jsonl"},
      {"name": "generate", "kind": "generate", "score": "f1", "max_new_tokens": 3, "file": "FOLDER/prompts.jsonl"},
      {"name": "stream", "kind": "stream_ppl", "data": {"path": "FOLDER/one/*.bin"}},
      {"name": "none", "kind": "stream_ppl", "carry": "none", "data": {"path": "FOLDER/one/*.bin"}},
      {"name": "position", "kind": "position_ppl", "length": 30, "baseline_context": 10,
       "data": {"path": "FOLDER/one/*.bin"}},
      {"name": "needle", "kind": "niah", "context_words": [20], "passes": [1, 2], "samples": 2},
      {"name": "needles", "kind": "niah", "context_words": [20], "passes": [1], "samples": 3, "fast_weights": "reset"},
      {"name": "mqar", "kind": "mqar", "vocab": 40, "samples": 6, "cases": [{"length": 20, "pairs": 4}],
       "min_distance": 3},
      {"name": "adapt", "kind": "adapt", "micro_batch_size": 2, "sequence_length": 20, "domains": [
        {"name": "a", "path": "FOLDER/one/*.bin"}, {"name": "b", "path": "FOLDER/two/*.bin"}]}]})";
    return replace_all(list, "FOLDER", folder.path().string());
  }

  struct Heard final : Progress {
    void message(std::string_view text) override { messages.emplace_back(text); }
    std::vector<std::string> messages;
  };

  /// Runs the list in `out`, each rank stopped after so many polls; whether it came to its end.
  bool run(const std::string& out, int64_t polls, double weights_interval = 0, bool logs_samples = true,
           int ranks = 1) {
    lines.clear();
    if (ranks == 1) { return run_rank(list(), out, polls, weights_interval, logs_samples, nullptr); }
    std::vector<char> ends(static_cast<size_t>(ranks));
    set_threads(1);
    run_ranks(ranks, [&](Communicator& communicator) {
      HostExchange exchange(communicator, DeviceKind::cpu);
      ends[static_cast<size_t>(communicator.rank())] =
          run_rank(list(), out, polls, weights_interval, logs_samples, &exchange) ? 1 : 0;
    });
    CHECK(ends == std::vector<char>(ends.size(), ends[0]));
    return ends[0] != 0;
  }

  /// Runs a list as one rank.
  bool run_rank(const std::string& json, const std::string& out, int64_t polls, double weights_interval,
                bool logs_samples, HostExchange* exchange) {
    auto evaluations = read_evaluations(parse_json(json, "e.json"), "");
    ScoringModel s = load();
    Progress quiet;
    const bool is_first = exchange == nullptr || exchange->communicator().rank() == 0;
    EvalContext context{s, tokenizer, 24, 42, is_first ? heard : quiet, [&polls] { return --polls < 0; }};
    context.logs_samples = logs_samples;
    context.weights_interval = weights_interval;
    context.exchange = exchange;
    try {
      const EvalCounts found = run_evaluations(evaluations, context, source, folder / out,
                                               [&](const std::string& line) { lines.push_back(line); });
      if (is_first) { counts = found; }
      return true;
    } catch (const Error& error) {
      if (error.code() != ExitCode::kStopped) { throw; }
      if (is_first) { stopped = error.what(); }
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
  EvalCounts counts;  // of the last run that came to its end
  std::vector<std::string> lines;
  std::string stopped;
};

}  // namespace hebb::testing
