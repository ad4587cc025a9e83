// Evaluations by several ranks, as threads: the files of one rank (docs/verbs/eval.md, Several ranks).
#include "tests/eval/corpus.h"

namespace {

/// The files of a list that `ranks` ranks run; `changed` is the list of the last rank.
std::map<std::string, std::string> files_of(Corpus& corpus, const std::string& list, const std::string& out, int ranks,
                                            const std::string& changed = "") {
  set_threads(1);
  run_ranks(ranks, [&](Communicator& communicator) {
    HostExchange exchange(communicator, DeviceKind::cpu);
    const bool is_changed = !changed.empty() && communicator.rank() == ranks - 1;
    CHECK(corpus.run_rank(is_changed ? changed : list, out, INT64_MAX, 60, true, ranks > 1 ? &exchange : nullptr));
  });
  return corpus.files(out);
}

std::string status_of(const std::map<std::string, std::string>& files, const std::string& name) {
  return parse_json(files.at(name + ".json"), name).at("status").as_string();
}

}  // namespace

TEST_CASE("every kind gives the files of one rank on two and three") {
  Corpus corpus;
  REQUIRE(corpus.run("1", INT64_MAX));
  for (const int ranks : {2, 3}) {
    INFO(ranks << " ranks");
    const std::string out = std::to_string(ranks);
    REQUIRE(corpus.run(out, INT64_MAX, 0, true, ranks));
    CHECK(corpus.counts.ok == 14);
    CHECK(corpus.files(out) == corpus.files("1"));
  }
}

TEST_CASE("tables of texts, rows and layers are those of one rank on three") {
  Corpus corpus;
  const std::string list = R"({"evaluations": [
    {"name": "ruler", "kind": "ruler", "tasks": ["niah_single_1"], "lengths": [900], "samples": 4},
    {"name": "icr", "kind": "icr", "task": "icr_basic", "vocab": 60, "word": 2, "queries": 2, "lengths": [28, 40],
     "samples": 4},
    {"name": "statistics", "kind": "memory_stats", "length": 20, "data": {"path": ")" +
                           (corpus.folder / "one/*.bin").string() + R"("}},
    {"name": "gone", "kind": "cloze", "file": "/nowhere/gone.jsonl"}]})";
  const auto expected = files_of(corpus, list, "1", 1);
  for (const char* name : {"ruler", "icr", "statistics"}) {
    INFO(expected.at(std::string(name) + ".json"));
    CHECK(status_of(expected, name) == "ok");
  }
  CHECK(status_of(expected, "gone") == "skipped");
  CHECK(files_of(corpus, list, "three", 3) == expected);
}

TEST_CASE("an evaluation that three ranks began goes on with any number of ranks") {
  Corpus corpus;
  REQUIRE(corpus.run("whole", INT64_MAX));
  const auto expected = corpus.files("whole");
  int64_t attempts = 1;
  bool wrote_rank_files = false;
  for (; !corpus.run("out", 3 + 2 * attempts, 0, true, static_cast<int>(3 - attempts % 3)); ++attempts) {
    REQUIRE(attempts < 100);
    CHECK_THAT(corpus.stopped, Contains(": stopped by a signal"));
    for (const auto& entry : fs::directory_iterator(corpus.folder / "out")) {
      const std::string name = entry.path().filename().string();
      wrote_rank_files = wrote_rank_files || name.find(".partial.rank_0000") != std::string::npos;
      if (attempts % 2 == 0 && name.find(".partial") != std::string::npos && !name.ends_with("weights")) {
        fs::resize_file(entry.path(), fs::file_size(entry.path()) - 3);  // a kill in the middle of a line
      }
    }
  }
  CHECK(attempts > 4);
  CHECK(wrote_rank_files);
  CHECK(corpus.files("out") == expected);
}

TEST_CASE("ranks that find different latest checkpoints of a run meet in one folder", "[fast]") {
  const auto folder = [](const char* weights) { return meeting_folder("", weights); };
  const fs::path first = folder("/r/checkpoints/step_00000004/model.safetensors");
  CHECK(first == "/r/evals");
  CHECK(folder("/r/checkpoints/step_00000008/model.safetensors") == first);
  CHECK(folder("/r/weights/model.safetensors") == "/r/weights/evals");
  CHECK(meeting_folder("out", "/r/checkpoints/step_00000004/model.safetensors") == "out");
}

TEST_CASE("an example that fails on one rank fails the evaluation on all, and the next one goes on") {
  Corpus corpus;
  std::string answers;
  for (int i = 0; i < 8; ++i) {
    const std::string question = i == 4 || i == 6 ? "" : "Which?";  // no token: fails when its turn comes
    answers += R"({"context": "About )" + std::to_string(i) + R"(", "question": ")" + question +
               "\", \"answers\": [\"this\"]}\n";
  }
  corpus.folder.write("bad.jsonl", answers);
  const auto list = [&](const std::string& file) {
    return R"({"evaluations": [{"name": "bad", "kind": "answer_ppl", "fast_weights": "reset", "file": ")" +
           (corpus.folder / file).string() + R"("}, {"name": "good", "kind": "cloze", "file": ")" +
           (corpus.folder / "targets.jsonl").string() + "\"}]}";
  };
  const auto expected = files_of(corpus, list("bad.jsonl"), "1", 1);
  CHECK(status_of(expected, "bad") == "failed");
  CHECK_THAT(expected.at("bad.json"), Contains("bad.jsonl:5"));
  CHECK(status_of(expected, "good") == "ok");
  for (const int ranks : {2, 3}) {
    auto found = files_of(corpus, list("bad.jsonl"), std::to_string(ranks), ranks);
    std::erase_if(found, [](const auto& file) { return file.first.find(".partial") != std::string::npos; });
    auto wanted = expected;
    wanted.erase("bad.partial");
    CHECK(found == wanted);
    CHECK(corpus.counts.failed == 1);
    CHECK(corpus.counts.ok == 1);
  }
  // A file that one rank alone lacks.
  const auto found = files_of(corpus, list("answers.jsonl"), "lacks", 3, list("gone.jsonl"));
  CHECK(status_of(found, "bad") == "skipped");
  CHECK(status_of(found, "good") == "ok");
}
