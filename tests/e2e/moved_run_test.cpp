// A run folder holds what it needs to be used elsewhere.
#include "core/files.h"
#include "data/tokenizer/tokenizer.h"
#include "tests/e2e/command.h"

using namespace hebb;
using Catch::Contains;

#if HEBB_HAVE_SENTENCEPIECE
TEST_CASE("a run that has been moved generates and is evaluated without the files that it was trained from") {
  const TempFolder folder;
  REQUIRE(run_hebb(folder, "data synth --documents 100 -o docs.jsonl").code == 0);
  REQUIRE(run_hebb(folder, "tokenizer train docs.jsonl -o t.model --vocab-size 600 --threads 1").code == 0);
  REQUIRE(run_hebb(folder, "data encode docs.jsonl -t t.model -o set --val-documents 3").code == 0);
  folder.write("c.json", R"({"name": "r", "model": {"vocab_size": 600, "hidden_size": 24, "num_layers": 1,
      "layers": {"a": {"type": "attention", "num_heads": 2, "head_dim": 12}, "m": {"type": "swiglu", "intermediate_size": 40}},
      "pattern": [{"mixer": "a", "ffn": "m"}]},
    "data": {"sources": [{"path": "set"}]}, "optimizer": {"lr": 0.01},
    "train": {"steps": 1, "batch_size": 2, "sequence_length": 33, "device": "cpu"}})");
  REQUIRE(run_hebb(folder, "train c.json --run-dir first").code == 0);
  const std::string text = run_hebb(folder, "generate first --prompt The --max-new-tokens 5").out;
  CHECK_THAT(text, Contains("The"));
  fs::rename(folder / "first", folder / "second");
  fs::remove_all(folder / "t.model");
  fs::rename(folder / "set", folder / "tokens");
  CHECK(run_hebb(folder, "generate second --prompt The --max-new-tokens 5").out == text);
  const std::string weights = "second/checkpoints/step_00000001/model.safetensors";
  CHECK(run_hebb(folder, "generate " + weights + " --prompt The --max-new-tokens 5").out == text);
  folder.write("e.json",
               R"({"evaluations": [{"name": "v", "kind": "stream_ppl", "data": {"path": "tokens/val_*.bin"}}]})");
  CHECK_THAT(run_hebb(folder, "eval e.json --checkpoint second").out,
             Contains("v (stream_ppl): ok") && Contains("bits_per_byte"));

  const CommandResult invalid = run_hebb(folder, "generate second --prompt 'a'$(printf '\\377')");
  CHECK(invalid.code == 3);
  CHECK_THAT(invalid.err, Contains("--prompt: byte 1: invalid UTF-8"));
}
#endif

TEST_CASE("a run with a tokenizer.json keeps a copy, which generates and is evaluated after a move") {
  const TempFolder folder;
  fs::copy_file(HEBB_TEST_DATA + "/golden/tokenizer-json/qwen2.json", folder / "t.json");
  REQUIRE(run_hebb(folder, "data synth --documents 100 -o docs.jsonl").code == 0);
  REQUIRE(run_hebb(folder, "data encode docs.jsonl -t t.json -o set --val-documents 3").code == 0);
  folder.write("c.json", R"({"name": "r", "model": {"vocab_size": 720, "hidden_size": 24, "num_layers": 1,
      "layers": {"a": {"type": "attention", "num_heads": 2, "head_dim": 12}, "m": {"type": "swiglu", "intermediate_size": 40}},
      "pattern": [{"mixer": "a", "ffn": "m"}]},
    "data": {"sources": [{"path": "set"}]}, "optimizer": {"lr": 0.01},
    "train": {"steps": 1, "batch_size": 2, "sequence_length": 33, "device": "cpu"}})");
  REQUIRE(run_hebb(folder, "train c.json --run-dir first").code == 0);
  CHECK(read_file(folder / "first/tokenizer.json") == read_file(folder / "t.json"));
  const std::string text = run_hebb(folder, "generate first --prompt 'größer' --max-new-tokens 5").out;
  CHECK_THAT(text, Contains("größer"));
  fs::rename(folder / "first", folder / "second");
  fs::rename(folder / "set", folder / "tokens");
  CHECK(run_hebb(folder, "generate second --prompt 'größer' --max-new-tokens 5").out == text);
  CHECK(run_hebb(folder, "generate second --tokenizer t.json --prompt 'größer' --max-new-tokens 5").out == text);
  folder.write("e.json",
               R"({"evaluations": [{"name": "v", "kind": "stream_ppl", "data": {"path": "tokens/val_*.bin"}}]})");
  CHECK_THAT(run_hebb(folder, "eval e.json --checkpoint second").out,
             Contains("v (stream_ppl): ok") && Contains("bits_per_byte"));
}

TEST_CASE("weights without a configuration beside them are refused", "[fast]") {
  const TempFolder folder;
  folder.write("w/model.safetensors", "x");
  const CommandResult result = run_hebb(folder, "generate w/model.safetensors --prompt a");
  CHECK(result.code == 4);
  CHECK_THAT(result.err, Contains("config.json: no configuration beside the weights"));
}
