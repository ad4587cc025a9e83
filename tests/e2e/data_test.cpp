#include "core/files.h"
#include "core/hash.h"
#include "core/json.h"
#include "tests/e2e/command.h"
#include "tests/train/faults.h"
#include "tests/train/process.h"

using Catch::Matchers::EndsWith;
using Catch::Matchers::StartsWith;

FOLDER_TEST("synthetic corpus to shards, inspected and verified", "[fast]") {
  output_of(folder, "data synth --documents 300 --seed 2 -o docs.jsonl");
  const CommandResult encode = run_hebb(
      folder, "data encode docs.jsonl -t bytes -o set --shard-tokens 1e5 --val-documents 20 --threads 2 --json");
  REQUIRE(encode.code == 0);
  const Json report = parse_json(encode.out, "report");
  CHECK(report.at("train_documents").as_int() == 280);
  CHECK(report.at("validation_documents").as_int() == 20);
  CHECK(report.at("train_shards").as_int() > 2);
  CHECK_THAT(encode.err, StartsWith("encode: 0 B of ") && Contains("300 documents\n"));
  CHECK_THAT(run_hebb(folder, "data inspect set").out, Contains("documents: 280"));
  CHECK_THAT(output_of(folder, "data verify set"), Contains("no problem found"));

  std::string damaged = read_file(folder / "set/train_000001.bin");
  damaged[5000] ^= 4;
  folder.write("set/train_000001.bin", damaged);
  const CommandResult again = run_hebb(folder, "data verify set");
  CHECK(again.code == 3);
  CHECK_THAT(again.out, Contains("train_000001.bin"));
}

FOLDER_TEST("synth writes to standard output as well", "[fast]") {
  const CommandResult one = run_hebb(folder, "data synth --documents 1");
  CHECK(one.code == 0);
  const std::string text = parse_json(one.out, "line").at("text").as_string();
  CHECK(text.size() == 987);  // docs/verbs/data.md, synth
  CHECK_THAT(text,
             StartsWith("No melon ever warned a icy farmer. T") && EndsWith("e number of proud-dancer is 739016.\n"));
  CHECK(one.err.empty());
}

FOLDER_TEST("synth-task writes rows and refuses options that do not fit", "[fast]") {
  const std::string rows = output_of(folder, "data synth-task --task mqar --seed 1 --length 64 --rows 3");
  const Json first = parse_json(rows.substr(0, rows.find('\n')), "row");
  CHECK(first.at("x").items().size() == 64);
  CHECK(first.at("x").items()[0].as_int() == 648);  // docs/tasks.md
  CHECK(first.at("y").items()[8].as_int() == 6866);
  CHECK(std::count(rows.begin(), rows.end(), '\n') == 3);
  CHECK_THAT(rows, EndsWith(output_of(folder, "data synth-task --task mqar --seed 1 --length 64 --first 2")));
  check_error(folder, "data synth-task --task mqar --length 31", 2, StartsWith("error: synth-task.length: found 31"));
  check_error(folder, "data synth-task --task mqar --length 32 --word 3", 2,
              StartsWith("error: --word: found --task mqar, expected a task that reads this option"));
}

FOLDER_TEST("integers out of range are refused", "[fast]") {
  for (const char* command :
       {"data encode x.txt -t bytes -o set --val-documents -3", "data encode x.txt -t bytes -o set --skip-bad -1",
        "data synth --documents -3", "data synth-task --task mqar --length 32 --rows -1",
        "data synth --documents 1 --seed 18446744073709551616",
        "data encode x.txt -t bytes -o set --shard-tokens 99999999999999999999999"}) {
    INFO(command);
    const CommandResult result = run_hebb(folder, command);
    CHECK(result.code == 2);
    CHECK(result.out.empty());
    CHECK_THAT(result.err, Contains("expected an integer"));
  }
}

FOLDER_TEST("an output that is a device is written to", "[fast]") {
  fs::create_symlink("/dev/full", folder / "full");  // a plain file in its place would replace this link alone
  check_error(folder, "data synth --documents 1 -o full", 4, Contains("No space left on device"));
  CHECK(fs::is_symlink(folder / "full"));
}

FOLDER_TEST("bad input ends with exit code 3 and leaves nothing behind", "[fast]") {
  folder.write("bad.jsonl", "{\"text\": \"fine\"}\n{\"text\": oops}\n");
  const CommandResult result = run_hebb(folder, "data encode bad.jsonl -t bytes -o set");
  CHECK(result.code == 3);
  CHECK(result.out.empty());
  CHECK_THAT(result.err, EndsWith("error: bad.jsonl:2: byte 26: broken JSON (found \"o\", expected a value)\n"));
  CHECK(fs::is_empty(folder / "set"));

  const CommandResult skipped = run_hebb(folder, "data encode bad.jsonl -t bytes -o set --skip-bad 1");
  CHECK(skipped.code == 0);
  CHECK_THAT(skipped.out, Contains("1 bad line left out"));
  CHECK_THAT(skipped.err, Contains("left out: bad.jsonl:2: byte 26: broken JSON"));
  CHECK(run_hebb(folder, "data encode none.txt -t bytes -o other").code == 3);
  CHECK(run_hebb(folder, "data encode bad.jsonl -t none.model -o other").code == 3);
}

FOLDER_TEST("an output that cannot be written is exit code 4", "[fast]") {
  folder.write("in.txt", "text");
  folder.write("file", "in the way");
  CHECK(run_hebb(folder, "data encode in.txt -t bytes -o file/set").code == 4);
  CHECK(run_hebb(folder, "data synth --documents 1 -o none/out.jsonl").code == 4);
}

FOLDER_TEST("a data set is replaced with --overwrite only", "[fast]") {
  folder.write("in.txt", "one|two");
  CHECK(run_hebb(folder, "data encode in.txt -t bytes -o set").code == 0);
  CHECK(run_hebb(folder, "data encode in.txt -t bytes -o set").code == 2);
  CHECK_THAT(output_of(folder, "data encode in.txt --split '|' -t bytes -o set --overwrite --add-bos --no-add-eos"),
             StartsWith("train: 2 documents, 8 tokens, 1 shard\n"));
}

FOLDER_TEST("--val-tokens is a number of tokens or a share", "[fast]") {
  folder.write("in.txt", std::string(99, 'x'));
  const auto validation = [&](const std::string& value) {
    const CommandResult result =
        run_hebb(folder, "data encode in.txt -t bytes -o set --overwrite --val-tokens " + value);
    INFO(result.err);
    CHECK(result.code == 0);
    return result.out;
  };
  CHECK_THAT(validation("7"), Contains("validation: 1 document, 7 tokens"));
  CHECK_THAT(validation("0.05"), Contains("validation: 1 document, 5 tokens"));
  for (const char* wrong : {"0", "1.5", "-1", "x", "nan", "inf", "''", "5%"}) {
    check_error(folder, std::string("data encode in.txt -t bytes -o other --val-tokens ") + wrong, 2,
                Contains("--val-tokens"));
  }
  const CommandResult far = run_hebb(folder, "data encode in.txt -t bytes -o set --overwrite --split '|'");
  CHECK_THAT(far.err, Contains("warning: the separator is in no text file of the input (1 file)"));
}

FOLDER_TEST("--split understands escapes", "[fast]") {
  folder.write("in.txt", "one\n\ntwo\n\nthree");
  CHECK_THAT(run_hebb(folder, R"(data encode in.txt -t bytes -o a --split '\n\n')").out,
             StartsWith("train: 3 documents, 14 tokens"));
  folder.write("in.txt", "one\\ttwo\tthree");
  CHECK_THAT(run_hebb(folder, R"(data encode in.txt -t bytes -o b --split '\\t')").out,
             StartsWith("train: 2 documents"));
  CHECK_THAT(run_hebb(folder, R"(data encode in.txt -t bytes -o c --split '\t')").out,
             StartsWith("train: 2 documents"));
}

FOLDER_TEST("a dash is standard input, which a tokenizer cannot be trained on where it is a pipe", "[fast]") {
  output_of(folder, "data encode - --format jsonl -t bytes -o set", "{\"text\": \"one\"}\n{\"text\": \"two\"}\n");
  CHECK_THAT(run_hebb(folder, "data inspect set").out, Contains("documents: 2"));
  CHECK(run_hebb(folder, "data encode - -t bytes -o text", "one\ntwo\n").code == 0);
  check_error(folder, "tokenizer train /dev/zero --out t.model", 2,
              Contains("input: found /dev/zero, which is read twice, expected files"));
}

TEST_CASE("a signal removes the part of a file that was written", "[fast]") {
  const TempFolder folder, output;
  testing::Process process({"data", "synth", "--documents", "100000000", "--out", "docs.jsonl"}, output / "output",
                           folder.path());
  const auto is_written = [](const fs::directory_entry& entry) {
    return entry.path().filename().string().starts_with("docs.jsonl.tmp-");
  };
  while (std::none_of(fs::directory_iterator(folder.path()), fs::directory_iterator(), is_written)) {
    REQUIRE_FALSE(process.ends_within(1));
  }
  process.kill(SIGTERM);
  CHECK(process.wait() == 128 + SIGTERM);
  CHECK(fs::is_empty(folder.path()));
}

FOLDER_TEST("inspect tells kinds of files apart", "[fast]") {
  folder.write("in.txt", "one|two!");
  output_of(folder, "data encode in.txt --split '|' -t bytes -o set");
  CHECK(run_hebb(folder, "inspect set/train_000000.idx").out ==
        "set/train_000000.idx: hebb document index, 2 documents, 9 tokens, lengths 4 to 5\n");
  CHECK_THAT(run_hebb(folder, "inspect set/train_000000.bin").out, Contains("tokens: 9"));
  const CommandResult set = run_hebb(folder, "inspect set");
  CHECK_THAT(set.out, Contains("documents: 2"));
  CHECK(run_hebb(folder, "inspect set/dataset.json").out == run_hebb(folder, "data inspect set/dataset.json").out);

  // The safetensors vector of docs/formats/safetensors.md.
  const std::string header = R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}  )";
  const std::string file = std::string("\x38\0\0\0\0\0\0\0", 8) + header + std::string("\0\0\x80\x3f\0\0\0\xc0", 8);
  folder.write("w.safetensors", file);
  CHECK(run_hebb(folder, "inspect w.safetensors").out ==
        "w.safetensors: safetensors, 1 tensor, 2 F32, 8 B\n  w     F32   [2]\n");
  CHECK_THAT(run_hebb(folder, "inspect --stats w.safetensors").out, Contains("mean -0.5 std 1.5 min -2 max 1\n"));

  const std::string record = R"({"size": )" + std::to_string(file.size()) + R"(, "crc32": )" +
                             std::to_string(crc32(file.data(), file.size())) + "}";
  folder.write("step/state.json", R"({"format": 1, "step": 7, "tokens": 70, "skipped": 0, "consecutive_skips": 0,
    "spike_window": [], "loader": {}, "seed": 0, "config_hash": "ab", "files": {"model.safetensors": )" +
                                      record + R"(, "optimizer.safetensors": )" + record + "}}");
  folder.write("step/model.safetensors", file);
  folder.write("step/optimizer.safetensors", file);
  const CommandResult checkpoint = run_hebb(folder, "inspect step");
  CHECK_THAT(checkpoint.out, StartsWith("step: checkpoint\n  format: 1\n  step: 7\n  tokens: 70\n") &&
                                 Contains("config_hash: ab\n") && Contains("1 tensor, 2 F32"));
  const fs::path kept = folder / "run/checkpoints/step_00000007";
  fs::create_directories(kept.parent_path());
  fs::copy(folder / "step", kept);
  folder.write("run/checkpoints/latest", "step_00000007\n");
  CHECK(run_hebb(folder, "inspect run").out ==
        "run: run folder, 1 checkpoint, latest step_00000007\n  checkpoints/step_00000007, 70 tokens\n");
  std::string damaged = file;
  damaged.back() ^= 1;
  folder.write("run/checkpoints/step_00000007/model.safetensors", damaged);
  check_error(folder, "inspect run", 4,
              Contains("step_00000007: the checkpoint is damaged: model.safetensors: found CRC-32"));
  folder.write("weights/model.safetensors", file);
  CHECK_THAT(run_hebb(folder, "inspect weights").out, StartsWith("weights: weights, 1 tensor"));

  check_error(folder, "inspect in.txt", 3,
              StartsWith("error: in.txt: nothing that hebb knows (found a file that starts with 6F 6E 65 7C"));
  folder.write("other.json", "{}");
  CHECK_THAT(run_hebb(folder, "inspect other.json").err, Contains("found another JSON file"));
  folder.write("empty", "");
  // A brace after eight bytes that are no length, and a length that no brace follows.
  for (const std::string& bytes : {std::string("abcdefgh{\"x\": 1}"), std::string("\x04\0\0\0\0\0\0\0beef", 12)}) {
    folder.write("no-weights", bytes);
    check_error(folder, "inspect no-weights", 3, Contains("found a file that starts with "));
  }
  CHECK_THAT(run_hebb(folder, "inspect empty").err, Contains("found an empty file"));
  CHECK_THAT(run_hebb(folder, "inspect .").err, Contains("found a folder without dataset.json"));
  CHECK(run_hebb(folder, "inspect missing").code == 3);
}

FOLDER_TEST("the byte tokenizer encodes and decodes on the command line", "[fast]") {
  CHECK(run_hebb(folder, "tokenizer encode bytes", "hé\n").out == "104 195 169 10\n");
  CHECK(run_hebb(folder, "tokenizer decode bytes", "104 195,169\n10 257").out == "hé\n");
  check_error(folder, "tokenizer decode bytes", 3,
              Catch::Matchers::Equals("error: -: byte 4: no token id (found \"x\", expected an integer)\n"), "104 x");
  check_error(folder, "tokenizer decode bytes", 3, Contains("(found \"x\", expected"), "104 x 105");
  check_error(folder, "tokenizer encode bytes", 3,
              Catch::Matchers::Equals("error: -: byte 1: invalid UTF-8 (found bytes FF, expected text in UTF-8)\n"),
              "a\xff");
  CHECK(run_hebb(folder, "tokenizer decode bytes", "259").code == 3);
  CHECK(run_hebb(folder, "tokenizer decode bytes", "99999999999").code == 3);
  CHECK_THAT(run_hebb(folder, "tokenizer info bytes").out, Contains("vocabulary: 259\nbos 256, eos 257, pad 258\n"));
}

FOLDER_TEST("a tokenizer.json is described and encodes a data set, which keeps a copy", "[fast]") {
  fs::copy_file(HEBB_TEST_DATA + "/golden/tokenizer-json/llama3.json", folder / "t.json");
  const std::string described = run_hebb(folder, "tokenizer info t.json").out;
  CHECK_THAT(described, StartsWith("tokenizer: huggingface\nmodel type: byte-level bpe") &&
                            Contains("words: cl100k, Llama 3 (up to three digits)\n") &&
                            Contains("bos 700, eos 701, pad 702\n") && Contains("encoder: built-in byte-level BPE\n"));
  CHECK(run_hebb(folder, "inspect t.json").out == (folder / "t.json").filename().string() + "\n" + described);
  const std::string text = "The bell, 42 and größer\n";
  const CommandResult ids = run_hebb(folder, "tokenizer encode t.json", text);
  CHECK(run_hebb(folder, "tokenizer decode t.json", ids.out).out == text);
  folder.write("docs.txt", text + text);
  output_of(folder, "data encode docs.txt -t t.json -o set");
  CHECK(run_hebb(folder, "data verify set").code == 0);
  CHECK(read_file(folder / "set/tokenizer.json") == read_file(folder / "t.json"));
  folder.write("bad.json", "{\"model\": {}}");
  check_error(folder, "tokenizer info bad.json", 3,
              Contains("bad.json:1:11: model (found no key \"vocab\", expected one)"));
}

#if HEBB_HAVE_SENTENCEPIECE
FOLDER_TEST("a tokenizer is trained, described, used and not overwritten", "[fast]") {
  output_of(folder, "data synth --documents 200 -o docs.jsonl");
  CHECK_THAT(output_of(folder, "tokenizer train docs.jsonl -o t.model --vocab-size 600 --train-bytes 1e5 --threads 1"),
             StartsWith("t.model: bpe, 600 tokens\nsample: ") && Contains(" of 200 documents"));
  CHECK(run_hebb(folder, "tokenizer train docs.jsonl -o t.model --vocab-size 600").code == 2);
  output_of(folder, "tokenizer train docs.jsonl -o new/folder/t.model --vocab-size 600 --train-bytes 1e5");
  check_error(folder, "tokenizer train docs.jsonl -o /proc/nowhere/t.model", 2,
              Contains("--out: found /proc/nowhere/t.model: ") &&
                  Contains(", expected a file in a folder that can be written"));
  CHECK_THAT(run_hebb(folder, "tokenizer info t.model").out,
             Contains("model type: bpe\n") && Contains("encoder: built-in BPE\n"));
  CHECK_THAT(run_hebb(folder, "inspect t.model").out, Contains("vocabulary: 600\n"));
  const std::string text = "The bell, 42 and größer\n";
  const CommandResult ids = run_hebb(folder, "tokenizer encode t.model", text);
  CHECK(run_hebb(folder, "tokenizer decode t.model", ids.out).out == text);
  CHECK(run_hebb(folder, "data encode docs.jsonl -t t.model -o set").code == 0);
  CHECK(run_hebb(folder, "data verify set").code == 0);
  check_error(folder, "tokenizer train docs.jsonl -o u.model --vocab-size 100", 2,
              Contains("error: --vocab-size: found 100, expected 260 (one more"));
  CHECK_FALSE(fs::exists(folder / "u.model"));
}
#endif

FOLDER_TEST("progress is plain lines where there is no terminal", "[fast]") {
  folder.write("in.txt", "text");
  const CommandResult result = run_hebb(folder, "data encode in.txt -t bytes -o set");
  CHECK(result.err.find('\r') == std::string::npos);
  CHECK(result.err.find('\033') == std::string::npos);
  CHECK_THAT(result.err, StartsWith("encode: 0 B of 4 B (0%)\nencode: 4 B of 4 B (100%)"));
}

FOLDER_TEST("errors of data that is opened say where its key was written") {
  output_of(folder, "data synth --documents 40 -o docs.jsonl");
  output_of(folder, "data encode docs.jsonl -t bytes -o set --val-documents 3");
  output_of(folder, "tokenizer train docs.jsonl --out other.model --vocab-size 340");
  output_of(folder, "data encode docs.jsonl -t other.model -o other");
  const auto error_of = [&](const std::string& data, const std::string& words = "") {
    folder.write("c.json", R"({"name": "r", "model": {"vocab_size": 340, "hidden_size": 24, "num_layers": 1,
  "layers": {"a": {"type": "attention", "num_heads": 2, "head_dim": 12}, "m": {"type": "swiglu", "intermediate_size": 40}},
  "pattern": [{"mixer": "a", "ffn": "m"}]}, "optimizer": {"lr": 0.01},
"train": {"steps": 1, "batch_size": 2, "sequence_length": 33, "device": "cpu"}, "data": {)" +
                               data + "}}\n");
    const CommandResult result = run_hebb(folder, "train c.json --run-dir run --resume never " + words);
    CHECK(result.code != 0);
    return result.err;
  };
  CHECK_THAT(error_of("\n \"sources\": [{\"path\": \"set\"},\n  {\"path\": \"gone\"}]"),
             StartsWith("error: c.json:6:12: data.sources.1.path: ") && Contains("/gone: no file matches"));
  CHECK_THAT(error_of("\n \"sources\": [{\"path\": \"set\"}]", "data.sources.0.path=gone"),
             StartsWith("error: command line: data.sources.0.path: "));
  CHECK_THAT(error_of("\n \"sources\": [{\"path\": \"set\"},\n  {\"path\": \"other\"}]"),
             StartsWith("error: c.json:6:12: data.sources.1.path: ") && Contains("tokens of another tokenizer"));
  CHECK_THAT(error_of("\n \"sources\": [{\"path\": \"set\"}]", "train.sequence_length=100000"),
             StartsWith("error: c.json:5:14: data.sources.0 (") && Contains("no complete row"));
  CHECK_THAT(error_of("\n \"sources\": [{\"path\": \"set\", \"split_token\": 7}]"),
             StartsWith("error: c.json:5:45: data.sources.0.split_token: found 7"));
  CHECK_THAT(
      error_of("\n \"sources\": [{\"path\": \"set\"}], \"validation\": [{\"name\": \"v\",\n  \"path\": \"gone\"}]"),
      StartsWith("error: c.json:6:11: data.validation.0.path: ") && Contains("/gone: no file matches"));
  CHECK_THAT(
      error_of("\n \"sources\": [{\"path\": \"set\"}], \"validation\": [{\"name\": \"v\",\n  \"path\": \"other\"}]"),
      StartsWith("error: c.json:6:11: data.validation.0.path: no validation shards in this data set"));
}

namespace {

/// What a shell script with the program as $HEBB prints, run in the folder. It ends by itself.
void run_script(const TempFolder& folder, const std::string& script) {
  const fs::path file = folder.write("script.sh", "HEBB='" + std::string(HEBB_BINARY) + "'\n" + script);
  REQUIRE(std::system(("cd '" + folder.path().string() + "' && bash '" + file.string() + "'").c_str()) == 0);
}

bool has_leftovers(const fs::path& path) {
  for (const auto& entry : fs::directory_iterator(path)) {
    const std::string name = entry.path().filename().string();
    if (name == "lock" || name.ends_with(".lock") || name.find(".tmp") != std::string::npos) { return true; }
  }
  return false;
}

}  // namespace

FOLDER_TEST("of encodes that start at once into one folder one works, and the others say why not") {
  folder.write("in.jsonl", "{\"text\": \"one\"}\n{\"text\": \"two\"}\n");
  run_script(folder, R"(
    for group in $(seq 60); do
      for p in 1 2 3; do
        { "$HEBB" data encode in.jsonl -t bytes -o set$group --val-tokens 4 > /dev/null 2> err.$group.$p; echo $? > rc.$group.$p; } &
      done
      wait
    done)");
  for (int group = 1; group <= 60; ++group) {
    const std::string g = std::to_string(group);
    int done = 0;
    for (const char* p : {".1", ".2", ".3"}) {
      const std::string code = read_file(folder / ("rc." + g + p)), error = read_file(folder / ("err." + g + p));
      INFO(code << error);
      done += code == "0\n" ? 1 : 0;
      CHECK((code == "0\n" || (code == "4\n" && error.find("the data set folder is in use by ") != error.npos) ||
             (code == "2\n" && error.find("a folder that holds ") != error.npos)));
    }
    CHECK(done == 1);
    CHECK_THAT(output_of(folder, "data verify set" + g), Contains("2 files, 2 documents, 8 tokens: no problem found"));
    CHECK_FALSE(has_leftovers(folder / ("set" + g)));
  }
}

FOLDER_TEST("of processes that write one file at once one works, and the others say who does") {
  folder.write("in.txt", std::string(3000, 'a') + " few words of text, and few words more\n");
  run_script(folder, R"(
    for group in $(seq 10); do
      for p in 1 2 3; do
        { "$HEBB" data synth --documents 2000 -o docs$group.jsonl 2> err.docs$group.$p; echo $? > rc.docs$group.$p; } &
        { "$HEBB" tokenizer train in.txt --vocab-size 280 --fit-vocab --overwrite -o t$group.model > /dev/null 2> err.t$group.$p
          echo $? > rc.t$group.$p; } &
      done
      wait
    done)");
  const std::string docs = output_of(folder, "data synth --documents 2000");
  for (int group = 1; group <= 10; ++group) {
    for (const std::string& name : {"docs" + std::to_string(group), "t" + std::to_string(group)}) {
      int done = 0;
      for (const char* p : {".1", ".2", ".3"}) {
        const std::string code = read_file(folder / ("rc." + name + p)),
                          error = read_file(folder / ("err." + name + p));
        INFO(code << error);
        done += code == "0\n" ? 1 : 0;
        CHECK((code == "0\n" || (code == "4\n" && error.find(" is in use by ") != error.npos)));
      }
      CHECK(done >= 1);
    }
    CHECK(read_file(folder / ("docs" + std::to_string(group) + ".jsonl")) == docs);
    CHECK(output_of(folder, "tokenizer info t" + std::to_string(group) + ".model").starts_with("tokenizer: sentence"));
  }
  CHECK_FALSE(has_leftovers(folder.path()));
}

FOLDER_TEST("an encode that reads a pipe keeps its folder, and what a killed one leaves goes with the next", "[fast]") {
  folder.write("b.jsonl", "{\"text\": \"b\"}\n");
  // Waits for a file that the program writes for certain: no deadline.
  const std::string begin = R"(
    mkfifo pipe
    "$HEBB" data encode - --format jsonl -t bytes -o set < pipe > out 2> err &
    exec 3> pipe
    echo '{"text": "a1"}' >&3
    until [ -s set/lock ]; do sleep 0.01; done
    )";
  SECTION("the second one ends") {
    run_script(folder, begin + R"(
      "$HEBB" data encode b.jsonl -t bytes -o set > out.b 2> err.b; echo $? > rc.b
      "$HEBB" data encode b.jsonl -t bytes -o set --overwrite > out.b 2> err.c; echo $? > rc.c
      echo '{"text": "a2"}' >&3; exec 3>&-
      wait $!; echo $? > rc)");
    for (const char* name : {"b", "c"}) {
      CHECK(read_file(folder / ("rc." + std::string(name))) == "4\n");
      CHECK_THAT(read_file(folder / ("err." + std::string(name))),
                 Contains("set: the data set folder is in use by process "));
    }
    CHECK(read_file(folder / "rc") == "0\n");
    CHECK_THAT(output_of(folder, "data verify set"), Contains("1 files, 2 documents, 6 tokens: no problem found"));
    CHECK_FALSE(has_leftovers(folder / "set"));
  }
  SECTION("a signal removes what the process has made") {
    // Bit 14 of the signals that are caught: SIGTERM.
    run_script(folder,
               begin + R"(until (( 0x$(awk '/SigCgt/ {print $2}' /proc/$!/status) & 0x4000 )); do sleep 0.01; done
      kill -TERM $!; wait $!; exec 3>&-; true)");
    CHECK_FALSE(fs::exists(folder / "set"));
  }
  SECTION("the next one removes what a killed one has left") {
    run_script(folder, begin + "kill -KILL $!; wait $!; exec 3>&-; true");
    folder.write("set/train_000000.bin.tmp-1", "x");
    folder.write("set/dataset.json.tmp-77.tmp-77", "x");
    folder.write("set/notes.tmp", "not of hebb");
    CHECK(fs::exists(folder / "set/lock"));
    output_of(folder, "data encode b.jsonl -t bytes -o set");
    CHECK_FALSE(fs::exists(folder / "set/train_000000.bin.tmp-1"));
    CHECK_FALSE(fs::exists(folder / "set/dataset.json.tmp-77.tmp-77"));
    CHECK_FALSE(fs::exists(folder / "set/lock"));
    CHECK(fs::exists(folder / "set/notes.tmp"));
  }
}

FOLDER_TEST("a weight in rows beside a number is noted", "[fast]") {
  folder.write("in.txt", std::string(500, 'x'));
  output_of(folder, "data encode in.txt -t bytes -o set");
  folder.write("c.json", R"({"name": "r", "model": {"vocab_size": 259, "hidden_size": 24, "num_layers": 1,
      "layers": {"a": {"type": "attention", "num_heads": 2, "head_dim": 12}, "m": {"type": "swiglu", "intermediate_size": 40}},
      "pattern": [{"mixer": "a", "ffn": "m"}]},
    "data": {"sources": [{"path": "set", "weight": "rows"}, {"path": "set", "weight": 1}]},
    "optimizer": {"lr": 0.01}, "train": {"steps": 1, "batch_size": 2, "sequence_length": 33, "device": "cpu"}})");
  const std::string note = "note: the weight \"rows\" is a number of rows";
  const CommandResult mixed = run_hebb(folder, "train c.json --run-dir a");
  CHECK_THAT(mixed.out + mixed.err, Contains(note));
  const CommandResult rows = run_hebb(folder, "train c.json --run-dir b 'data.sources.1.weight=\"rows\"'");
  CHECK(rows.code == 0);
  CHECK_THAT(rows.out + rows.err, !Contains(note));
}

FOLDER_TEST("what a killed process has left of a file goes with the next one that writes it", "[fast]") {
  folder.write("docs.jsonl.tmp-99", "x");
  folder.write("docs.jsonl.tmp-note", "not of hebb");
  output_of(folder, "data synth --documents 1 -o docs.jsonl");
  CHECK_FALSE(fs::exists(folder / "docs.jsonl.tmp-99"));
  CHECK(fs::exists(folder / "docs.jsonl.tmp-note"));
  CHECK_FALSE(fs::exists(folder / ".docs.jsonl.lock"));
}

FOLDER_TEST("an error of the disk names a file or folder, also where the output has a name without folders", "[fast]") {
  int errors = 0;
  for (int call = 1; call <= 20; ++call) {
    const testing::Fault fault = testing::Fault::error_at(folder.path(), call, EIO);
    const CommandResult result = run_hebb(folder, "data synth --documents 3 -o out.jsonl");
    INFO(call << ": " << result.err);
    REQUIRE((result.code == 0 || result.code == 4));
    if (result.code == 0) { continue; }
    ++errors;
    CHECK_THAT(result.err, Contains("out.jsonl") || Contains(folder.path().string()));
  }
  CHECK(errors > 3);
}
