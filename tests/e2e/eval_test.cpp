// `hebb eval` as its user runs it.
#include "core/files.h"
#include "core/json.h"
#include "core/safetensors.h"
#include "tests/e2e/command.h"
#include "tests/train/process.h"

namespace {

/// Two checkpoints of a model over bytes.
void write_run(const TempFolder& folder) {
  train_on_bytes(folder, R"("steps": 4, "checkpoint": {"every": 2, "keep": 5})");
}

}  // namespace

FOLDER_TEST("a second eval takes finished results up, and several checkpoints stand side by side") {
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
  for (const bool is_all_finished : {false, true}) {
    // Of a process that was killed behind its result.
    for (const char* name : {"words.partial", "words.lock"}) {
      folder.write(std::string("run/evals/step_00000004/") + name, "");
    }
    const std::string list = is_all_finished ? "e.json 'evaluations=[{\"name\": \"words\", \"kind\": \"cloze\", "
                                               "\"file\": \"q.jsonl\"}]'"
                                             : "e.json";
    CHECK_THAT(run_hebb(folder, "eval " + list + " --checkpoint run").out, Contains("words (cloze): ok, kept"));
    CHECK_FALSE(fs::exists(folder / "run/evals/step_00000004/words.partial"));
    CHECK_FALSE(fs::exists(folder / "run/evals/step_00000004/words.lock"));
  }
  CHECK_THAT(run_hebb(folder, "eval e.json --checkpoint run --again").out, !Contains("kept"));

  const std::string both = "--checkpoint run/checkpoints/step_00000002 --checkpoint run";
  CHECK_THAT(output_of(folder, "eval e.json " + both), Contains("== run:2\n") && Contains("== run:4\n") &&
                                                           Contains("  run:2  ") && Contains("held.nll") &&
                                                           Contains("words.acc"));
  CHECK(fs::exists(folder / "run/evals/step_00000002/held.json"));
  const std::string table = output_of(folder, "eval e.json " + both);
  CHECK_THAT(table, Contains("differences on the same examples") && Contains("minus run:2") && Contains("held.nll") &&
                        Contains("words.acc"));
  folder.write("file", "");
  CHECK_THAT(run_hebb(folder, "eval e.json --checkpoint run --out file/x").err,
             Contains("file/x: results cannot be written here") && Contains("--out names another folder"));
  CHECK(run_hebb(folder, "eval e.json --checkpoint run --out res").code == 0);
  CHECK_THAT(output_of(folder, "report res -o page"), Contains("wrote "));
  CHECK_THAT(read_file(folder / "page/report.md"), Contains("| res |") && Contains("words acc"));
  fs::copy(folder / "run/checkpoints/step_00000002", folder / "bare");
  CHECK(run_hebb(folder, "eval e.json --checkpoint bare --tokenizer bytes").code == 0);
  CHECK(fs::exists(folder / "bare/evals/held.json"));
  CHECK_THAT(output_of(folder, "report bare res -o page"), Contains("wrote "));
  CHECK_THAT(read_file(folder / "page/report.md"),
             Contains("Differences on the same examples") && Contains("| res | bare |"));
  CHECK(run_hebb(folder, "eval e.json --out out " + both).code == 0);
  CHECK(fs::exists(folder / "out/run:2/held.json"));
  CHECK_THAT(run_hebb(folder, "eval e.json --checkpoint run --checkpoint run").err,
             Contains("whose results would replace those of another one"));
}

FOLDER_TEST("what cannot be evaluated is said before the first evaluation, and leaves out nothing else") {
  write_run(folder);
  folder.write("short.txt", "a b c d e");
  folder.write("e.json", R"({"evaluations": [
    {"name": "held", "kind": "position_ppl", "length": 64, "data": {"path": "set/val_*.bin"}},
    {"name": "long", "kind": "ruler", "samples": 1, "lengths": [1200, 2400], "tasks": ["vt", "niah_single_1"]},
    {"name": "hay", "kind": "niah", "samples": 1, "context_words": [40], "passes": [1], "text": {"path": "short.txt"}},
    {"name": "pairs", "kind": "mqar", "vocab": 64, "samples": 1, "cases": [{"length": 10, "pairs": 4}, {"length": 20, "pairs": 4}]},
    {"name": "lost", "kind": "ruler", "lengths": [1200], "squad": "nowhere.json"},
    {"name": "broken", "kind": "cloze", "file": "broken.jsonl"},
    {"name": "books", "kind": "position_ppl", "length": 100000, "data": {"path": "set/val_*.bin"}}]})");
  folder.write("broken.jsonl", "{\"context\": \"The\", \"target\": \" a\"}\n{\"context\": \"No\"}\n");
  const CommandResult result = run_hebb(folder, "eval e.json --checkpoint run", "", "2>&1");
  CHECK(result.code == 1);  // books fails
  const size_t first = result.out.find("held (position_ppl): ok");
  REQUIRE(first != std::string::npos);
  const std::string start = result.out.substr(0, first), rest = result.out.substr(first);
  CHECK_THAT(start, Contains("broken (cloze) will fail: ") && Contains("broken.jsonl:2:1: target"));
  CHECK_THAT(start,
             Contains("long (ruler) leaves out: task vt at length 1200: found ") && !Contains("at length 2400") &&
                 Contains("hay (niah) leaves out: ") && Contains("/short.txt: haystacks of 40 words (") &&
                 Contains("pairs (mqar) leaves out: length 10, 4 pairs") &&
                 Contains("lost (ruler) will be skipped: ") && Contains("nowhere.json") &&
                 Contains("books (position_ppl) will fail: ") && Contains("no document of at least 100000 tokens"));
  CHECK_THAT(rest, Contains("long (ruler): ok") && Contains("hay (niah): skipped") && Contains("pairs (mqar): ok") &&
                       Contains("lost (ruler): skipped") && !Contains("leaves out"));
  CHECK_THAT(rest.substr(0, rest.find('\n')), Contains("  nll ") && Contains(" ± "));
  const Json ruler = parse_json_file((folder / "run/evals/step_00000004/long.json").string());
  CHECK(ruler.at("metrics").at("niah_single_1").at("n").as_int() == 2);
  CHECK(ruler.at("metrics").at("vt").at("n").as_int() == 1);

  check_error(folder,
              "eval e.json --checkpoint run 'evaluations=[{\"name\": \"hay\", \"kind\": \"niah\", "
              "\"context_words\": [40], \"text\": {\"path\": \"short.txt\"}}]'",
              3, Contains("error: e.json: nothing was evaluated"));
}

FOLDER_TEST("evaluations of a training that are all skipped are no success") {
  write_run(folder);
  check_error(folder,
              "train c.json --run-dir run 'eval={\"evaluations\": [{\"name\": \"gone\", \"kind\": "
              "\"cloze\", \"file\": \"gone.jsonl\"}]}'",
              3, Contains("gone (cloze) will be skipped: ") && Contains("nothing was evaluated"));
}

FOLDER_TEST("changes of a list may be written as options") {
  write_run(folder);
  folder.write("e.json", R"({"evaluations": [
    {"name": "held", "kind": "position_ppl", "length": 64, "data": {"path": "set/val_*.bin"}}]})");
  const auto length = [&](const std::string& words) {
    output_of(folder, "eval " + words + " --checkpoint run --again");
    return parse_json_file((folder / "run/evals/step_00000004/held.json").string()).at("config").at("length").as_int();
  };
  CHECK(length("e.json evaluations.0.length=32") == 32);
  CHECK(length("e.json --evaluations.0.length 33") == 33);
  CHECK(length("--evaluations.0.length=34 e.json") == 34);
  CHECK(length("e.json --/evaluations/0/length 35") == 35);
  CHECK_THAT(run_hebb(folder, "eval e.json --checkpoint run --evaluations.0.length").err,
             Contains("hebb eval: option --evaluations.0.length needs a value"));
  CHECK_THAT(run_hebb(folder, "eval e.json --chekpoint run").err, Contains("did you mean --checkpoint?"));
}

FOLDER_TEST("an eval that evaluates nothing does not end as a success") {
  write_run(folder);
  folder.write("e.json", R"({"evaluations": [{"name": "gone", "kind": "cloze", "file": "gone.jsonl"}]})");
  check_error(folder, "eval e.json --checkpoint run", 3,
              Contains("e.json: nothing was evaluated: all evaluations were skipped"));
  check_error(folder, "eval e.json --checkpoint e.json", 4,
              Contains("e.json: no weights to evaluate (found a configuration or another file, expected a checkpoint"));
}

FOLDER_TEST("hebb eval --ranks writes the files of one process") {
  if (!has_mpi()) { return; }
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
  const std::string ranks = output_of(folder, command + "two --ranks 2");
  CHECK_THAT(ranks, Contains("rank  host:process  device") && Contains("words (cloze): ok  acc "));
  CHECK(ranks.find("words (cloze): ok") == ranks.rfind("words (cloze): ok"));  // of rank 0 alone
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
  output_of(folder, "train c.json --ranks 2" + evaluations);
  output_of(folder, "eval e.json --checkpoint both --device cpu --out after");
  const auto metrics = [&](const std::string& out) {
    return parse_json_file((folder / out / "words.json").string()).at("metrics").dump();
  };
  CHECK(metrics("both/evals/step_00000004") == metrics("after"));
  const CommandResult none = run_hebb(folder, "eval e.json --checkpoint nowhere --ranks 2 --device cpu");
  CHECK(none.code == run_hebb(folder, "eval e.json --checkpoint nowhere --device cpu").code);
}

FOLDER_TEST("ranks that find different latest checkpoints evaluate that of rank 0, or say that it is gone") {
  if (!has_mpi()) { return; }
  write_run(folder);
  folder.write("q.jsonl", "{\"context\": \"The\", \"target\": \" a\"}\n{\"context\": \"A\", \"target\": \" b\"}\n");
  folder.write("e.json", R"({"evaluations": [{"name": "words", "kind": "cloze", "file": "q.jsonl"}]})");
  output_of(folder, "eval e.json --checkpoint run/checkpoints/step_00000002 --device cpu --out alone");
  const std::string eval = "'" + HEBB_BINARY + "' eval e.json --checkpoint run --device cpu --threads 1";
  // Rank 1 looks for the checkpoint once rank 0 has and waits for it, and once the run has gone on.
  const auto code_where = [&](const std::string& run_goes_on) {
    folder.write("run/checkpoints/latest", "step_00000002\n");
    folder.write("second.sh", "until [ -n \"$(find run/evals -name 'rendezvous.*.json')\" ]; do sleep 0.01; done\n" +
                                  run_goes_on + "exec " + eval + "\n");
    const std::string root = ::geteuid() == 0 ? "--allow-run-as-root " : "";
    const int status = std::system(("cd '" + folder.path().string() + "' && mpirun --oversubscribe " + root + "-n 1 " +
                                    eval + " : -n 1 sh second.sh < /dev/null > said 2>&1")
                                       .c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  };
  fs::create_directories(folder / "run/evals");
  const std::string goes_on = "echo step_00000004 > run/checkpoints/latest\n";
  const int code = code_where(goes_on);
  INFO(read_file(folder / "said"));
  REQUIRE(code == 0);
  const auto metrics = [&](const std::string& out) {
    return parse_json_file((folder / out / "words.json").string()).at("metrics").dump();
  };
  CHECK(metrics("run/evals/step_00000002") == metrics("alone"));
  CHECK_FALSE(fs::exists(folder / "run/evals/step_00000004"));
  CHECK(code_where(goes_on + "rm -r run/checkpoints/step_00000002\n") == 4);
  CHECK_THAT(read_file(folder / "said"),
             Contains("step_00000002/model.safetensors: was deleted before all ranks had read it; the same command "
                      "takes the latest checkpoint"));
}

FOLDER_TEST("weights in several files are those of their own folder, whatever characters its name has") {
  write_run(folder);
  folder.write("q.jsonl", "{\"context\": \"The\", \"target\": \" a\"}\n");
  folder.write("e.json", R"({"evaluations": [{"name": "words", "kind": "cloze", "file": "q.jsonl"}]})");
  // Two checkpoints of other weights as folders of Hugging Face: an index names the file of each tensor.
  for (const auto& [name, step] : {std::pair("shards[1]", "2"), std::pair("shards1", "4")}) {
    const fs::path from = folder / ("run/checkpoints/step_0000000" + std::string(step));
    fs::create_directory(folder / name);
    fs::copy_file(from / "config.json", folder / name / "config.json");
    fs::copy_file(from / "model.safetensors", folder / name / "model-1.safetensors");
    Json map = Json::object();
    const SafetensorsFile weights(from / "model.safetensors");
    for (const auto& [tensor, entry] : weights.entries()) { map.set(tensor, "model-1.safetensors"); }
    folder.write(std::string(name) + "/model.safetensors.index.json", Json::object({{"weight_map", map}}).dump());
  }
  CHECK_THAT(output_of(folder, "eval e.json --checkpoint shards1 --out out"), !Contains("kept"));
  CHECK_THAT(output_of(folder, "eval e.json --checkpoint 'shards[1]' --out out"), !Contains("kept"));
  CHECK_THAT(output_of(folder, "eval e.json --checkpoint 'shards[1]' --out out"), Contains("words (cloze): ok, kept"));
}
