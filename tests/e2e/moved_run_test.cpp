// A run folder holds what it needs to be used elsewhere.
#include "core/files.h"
#include "data/tokenizer/tokenizer.h"
#include "tests/e2e/command.h"

namespace {

/// Trains a model on tokens of the file `tokenizer`, and generates and evaluates with it after the run and its data
/// have moved. Returns the command of the generation and its output.
std::pair<std::string, std::string> check_moved_run(const TempFolder& folder, const std::string& tokenizer,
                                                    int vocab_size, const std::string& prompt) {
  output_of(folder, "data encode docs.jsonl -t " + tokenizer + " -o set --val-documents 3");
  train_small(folder, "first", vocab_size);
  const std::string command = " --prompt " + prompt + " --max-new-tokens 5";
  const std::string text = run_hebb(folder, "generate first" + command).out;
  CHECK_THAT(text, Contains(prompt));
  fs::rename(folder / "first", folder / "second");
  fs::rename(folder / tokenizer, folder / ("moved-" + tokenizer));
  fs::rename(folder / "set", folder / "tokens");
  CHECK(run_hebb(folder, "generate second" + command).out == text);
  folder.write("e.json",
               R"({"evaluations": [{"name": "v", "kind": "stream_ppl", "data": {"path": "tokens/val_*.bin"}}]})");
  CHECK_THAT(run_hebb(folder, "eval e.json --checkpoint second").out,
             Contains("v (stream_ppl): ok") && Contains("bits_per_byte"));
  return {command, text};
}

}  // namespace

FOLDER_TEST("a checkpoint that has been copied elsewhere generates and is evaluated alone, with its own tokenizer") {
  fs::copy_file(HEBB_TEST_DATA + "/golden/tokenizer-json/qwen2.json", folder / "t.json");
  output_of(folder, "data synth --documents 100 -o docs.jsonl");
  const auto [command, text] = check_moved_run(folder, "t.json", 720, "größer");
  fs::create_directories(folder / "archive/x");
  fs::copy(folder / "second/checkpoints/step_00000001", folder / "archive/x/best", fs::copy_options::recursive);
  fs::remove_all(folder / "second");
  folder.write("archive/tokenizer.json", "{}");  // another model's, where a run would have its own
  CHECK(run_hebb(folder, "generate archive/x/best" + command).out == text);
  CHECK_THAT(run_hebb(folder, "eval e.json --checkpoint archive/x/best --out out").out, Contains("bits_per_byte"));
  CHECK(run_hebb(folder, "generate archive/x/best --tokenizer moved-t.json" + command).out == text);
  check_error(folder, "generate archive/x/best --tokenizer bytes" + command, 2, Contains("another tokenizer"));

  std::string bytes = read_file(folder / "archive/x/best/tokenizer.json");
  bytes[bytes.size() / 2] ^= 1;
  folder.write("archive/x/best/tokenizer.json", bytes);
  check_error(folder, "generate archive/x/best" + command, 4, Contains("tokenizer.json: found CRC-32"));
}

#if HEBB_HAVE_SENTENCEPIECE
FOLDER_TEST("a run that has been moved generates and is evaluated without the files that it was trained from") {
  output_of(folder, "data synth --documents 100 -o docs.jsonl");
  output_of(folder, "tokenizer train docs.jsonl -o t.model --vocab-size 600 --threads 1");
  const auto [command, text] = check_moved_run(folder, "t.model", 600, "The");
  const std::string weights = "second/checkpoints/step_00000001/model.safetensors";
  CHECK(run_hebb(folder, "generate " + weights + command).out == text);

  check_error(folder, "generate second --prompt 'a'$(printf '\\377')", 3, Contains("--prompt: byte 1: invalid UTF-8"));
}
#endif

FOLDER_TEST("a run with a tokenizer.json keeps a copy, which generates and is evaluated after a move") {
  fs::copy_file(HEBB_TEST_DATA + "/golden/tokenizer-json/qwen2.json", folder / "t.json");
  output_of(folder, "data synth --documents 100 -o docs.jsonl");
  const auto [command, text] = check_moved_run(folder, "t.json", 720, "größer");
  CHECK(read_file(folder / "second/tokenizer.json") == read_file(folder / "moved-t.json"));
  CHECK(run_hebb(folder, "generate second --tokenizer moved-t.json" + command).out == text);
}

FOLDER_TEST("weights without a configuration beside them are refused", "[fast]") {
  folder.write("w/model.safetensors", "x");
  check_error(folder, "generate w/model.safetensors --prompt a", 4,
              Contains("config.json: no configuration beside the weights"));
}
