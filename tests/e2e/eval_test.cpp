// `hebb eval` as its user runs it.
#include "core/files.h"
#include "core/json.h"
#include "tests/e2e/command.h"

using namespace hebb;
using Catch::Contains;

namespace {

/// Two checkpoints of a model over bytes.
void write_run(const TempFolder& folder) {
  REQUIRE(run_hebb(folder, "data synth --documents 40 -o docs.jsonl").code == 0);
  REQUIRE(run_hebb(folder, "data encode docs.jsonl -t bytes -o set --val-documents 3").code == 0);
  folder.write("c.json", R"({"name": "r", "model": {"vocab_size": 259, "hidden_size": 24, "num_layers": 1,
      "layers": {"a": {"type": "attention", "num_heads": 2, "head_dim": 12}, "m": {"type": "swiglu", "intermediate_size": 40}},
      "pattern": [{"mixer": "a", "ffn": "m"}]},
    "data": {"sources": [{"path": "set"}]}, "optimizer": {"lr": 0.01},
    "train": {"steps": 4, "batch_size": 2, "sequence_length": 33, "device": "cpu", "checkpoint": {"every": 2, "keep": 5}}})");
  REQUIRE(run_hebb(folder, "train c.json --run-dir run").code == 0);
}

}  // namespace

TEST_CASE("a second eval takes finished results up, and several checkpoints stand side by side") {
  const TempFolder folder;
  write_run(folder);
  folder.write("q.jsonl", "{\"context\": \"The\", \"target\": \" a\"}\n{\"context\": \"No\", \"target\": \" b\"}\n");
  folder.write("e.json", R"({"evaluations": [
    {"name": "gone", "kind": "cloze", "file": "gone.jsonl"},
    {"name": "words", "kind": "cloze", "file": "q.jsonl"},
    {"name": "held", "kind": "position_ppl", "length": 64, "data": {"path": "set/val_*.bin"}}]})");
  const CommandResult first = run_hebb(folder, "eval e.json --checkpoint run");
  CHECK(first.code == 0);
  CHECK_THAT(first.err, Contains("gone (cloze) will be skipped: "));
  CHECK_THAT(first.out, Contains("words (cloze): ok  acc ") && Contains(" ± ") &&
                            Contains("held (position_ppl): ok  nll ") && Contains("by_position\n") &&
                            Contains("gone (cloze): skipped"));
  CHECK_THAT(run_hebb(folder, "eval e.json --checkpoint run").out,
             Contains("words (cloze): ok, kept") && Contains("held (position_ppl): ok, kept"));
  CHECK_THAT(run_hebb(folder, "eval e.json --checkpoint run --again").out, !Contains("kept"));

  const std::string both = "--checkpoint run/checkpoints/step_00000002 --checkpoint run";
  const CommandResult compared = run_hebb(folder, "eval e.json " + both);
  CHECK(compared.code == 0);
  CHECK_THAT(compared.out, Contains("== run:2\n") && Contains("== run:4\n") && Contains("  run:2  ") &&
                               Contains("held.nll") && Contains("words.acc"));
  CHECK(fs::exists(folder / "run/evals/step_00000002/held.json"));
  CHECK(run_hebb(folder, "eval e.json --out out " + both).code == 0);
  CHECK(fs::exists(folder / "out/run:2/held.json"));
  CHECK_THAT(run_hebb(folder, "eval e.json --checkpoint run --checkpoint run").err,
             Contains("whose results would replace those of another one"));
}

TEST_CASE("an eval that evaluates nothing does not end as a success") {
  const TempFolder folder;
  write_run(folder);
  folder.write("e.json", R"({"evaluations": [{"name": "gone", "kind": "cloze", "file": "gone.jsonl"}]})");
  const CommandResult result = run_hebb(folder, "eval e.json --checkpoint run");
  CHECK(result.code == 3);
  CHECK_THAT(result.err, Contains("e.json: nothing was evaluated: all evaluations were skipped"));
}

TEST_CASE("hebb eval --ranks writes the files of one process") {
  if (!fs::exists(fs::path(HEBB_BINARY).parent_path() / "libhebb_mpi.so")) {
    WARN("this build is without MPI: ranks on CPUs are not tested");
    return;
  }
  const TempFolder folder;
  write_run(folder);
  std::string records;
  for (int i = 0; i < 11; ++i) {
    records += R"({"context": "The )" + std::to_string(i) +
               R"(", "target": " a"})"
               "\n";
  }
  folder.write("q.jsonl", records);
  folder.write("e.json", R"({"evaluations": [
    {"name": "gone", "kind": "cloze", "file": "gone.jsonl"},
    {"name": "words", "kind": "cloze", "file": "q.jsonl"},
    {"name": "held", "kind": "position_ppl", "length": 64, "data": {"path": "set/val_*.bin"}}]})");
  const std::string command = "eval e.json --checkpoint run --device cpu --log-samples --out ";
  REQUIRE(run_hebb(folder, command + "one").code == 0);
  const CommandResult ranks = run_hebb(folder, command + "two --ranks 2");
  INFO(ranks.err);
  CHECK(ranks.code == 0);
  CHECK_THAT(ranks.out, Contains("rank  host:process  device") && Contains("words (cloze): ok  acc "));
  CHECK(ranks.out.find("words (cloze): ok") == ranks.out.rfind("words (cloze): ok"));  // of rank 0 alone
  for (const char* name : {"gone.json", "words.json", "held.json", "words.samples.jsonl", "held.samples.jsonl"}) {
    const auto text = [&](const char* out) {
      const std::string file = read_file(folder / out / name);
      if (!std::string_view(name).ends_with(".json")) { return file; }
      Json json = parse_json(file, name);
      json.erase("seconds");
      return json.dump();
    };
    CHECK(text("two") == text("one"));
  }
  CHECK_THAT(run_hebb(folder, command + "two --ranks 2").out, Contains("words (cloze): ok, kept"));

  const std::string evaluations =
      " --run-dir both 'eval={\"evaluations\": [{\"name\": \"words\", \"kind\": \"cloze\", \"file\": \"" +
      (folder / "q.jsonl").string() + "\"}]}'";
  const CommandResult trained = run_hebb(folder, "train c.json --ranks 2" + evaluations);
  INFO(trained.out << trained.err);
  CHECK(trained.code == 0);
  REQUIRE(run_hebb(folder, "eval e.json --checkpoint both --device cpu --out after").code == 0);
  const auto metrics = [&](const std::string& out) {
    return parse_json_file((folder / out / "words.json").string()).at("metrics").dump();
  };
  CHECK(metrics("both/evals/step_00000004") == metrics("after"));
  const CommandResult none = run_hebb(folder, "eval e.json --checkpoint nowhere --ranks 2 --device cpu");
  CHECK(none.code == run_hebb(folder, "eval e.json --checkpoint nowhere --device cpu").code);
}
