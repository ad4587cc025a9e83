// Exit codes, messages and help of the command line.
#include "core/files.h"
#include "tests/e2e/command.h"
#include "tests/paths.h"

using Catch::Matchers::StartsWith;

namespace {

void check_usage_error(const std::string& arguments, const std::string& message) {
  const TempFolder folder;
  const CommandResult result = run_hebb(folder, arguments);
  INFO(arguments);
  CHECK(result.code == 2);
  CHECK(result.out.empty());
  CHECK(result.err == "error: " + message + "\n");
}

/// The same of a verb, whose help the message names.
void check_refused(const std::string& verb, const std::string& arguments, const std::string& message) {
  check_usage_error(verb + " " + arguments, "hebb " + verb + ": " + message + " (see hebb " + verb + " --help)");
}

}  // namespace

FOLDER_TEST("doctor names no size where /proc shows none", "[fast]") {
  const std::string command = "unshare --mount sh -c 'mount -t tmpfs none /proc && exec \"" + HEBB_BINARY +
                              "\" doctor' > '" + (folder / "out").string() + "' 2> '" + (folder / "err").string() + "'";
  if (std::system(command.c_str()) != 0) { return; }  // no permission to mount, or no unshare
  CHECK_THAT(read_file(folder / "out"), Contains("free memory      unknown\n"));
}

FOLDER_TEST("too few file descriptors are said at the start", "[fast]") {
  const std::string command = "ulimit -n 12; '" + HEBB_BINARY + "' doctor 2> '" + (folder / "err").string() + "'";
  const int status = std::system(command.c_str());
  CHECK(WEXITSTATUS(status) == 2);
  CHECK(read_file(folder / "err") ==
        "error: hebb: too few files may be open (found 12, ulimit -n, expected at least "
        "16); raise the hard limit\n");
}

FOLDER_TEST("each error of a configuration has a line on stderr", "[fast]") {
  const CommandResult result =
      run_hebb(folder, "train " + HEBB_SOURCE + "/configs/quickstart.json train.seed=-1 train.stpes=5");
  CHECK(result.code == 2);
  CHECK(result.out.empty());
  CHECK(result.err ==
        "error: command line: train.seed: found -1, expected an integer >= 0\n"
        "error: command line: train.stpes: found an unknown key, expected one of the known keys (did you mean "
        "\"steps\"?)\n");
  folder.write("run.json",
               R"({"extends": ")" + HEBB_SOURCE +
                   R"(/configs/quickstart.json", "train": {"steps": null, "batch": 3, "sequence_length": null}})");
  const CommandResult more = run_hebb(folder, "train run.json");
  CHECK_THAT(more.err, Contains("train.steps: found nothing, expected an integer >= 1 (required, or train.tokens)\n") &&
                           Contains("train.sequence_length: found nothing") &&
                           Contains("train.batch: found an unknown key"));
}

TEST_CASE("usage errors are one line on stderr and exit code 2", "[fast]") {
  check_usage_error("data encod x",
                    "hebb data: unknown verb \"encod\"; did you mean encode? (known: encode, inspect, verify, "
                    "synth, synth-task)");
  check_usage_error("data", "hebb data: no verb given (known: encode, inspect, verify, synth, synth-task)");
  CHECK(run_hebb(TempFolder(), "help train").out == run_hebb(TempFolder(), "train --help").out);
  CHECK(run_hebb(TempFolder(), "help").out == run_hebb(TempFolder(), "--help").out);
  check_refused("data inspect", "", "PATH is required");
  check_refused("data inspect", "a b", "unexpected argument b");
  check_refused("data encode", "x -t bytes -o o --shard-token 5",
                "unknown option --shard-token; did you mean --shard-tokens?");
  check_refused("data encode", "x --tokenizr bytes -o o", "unknown option --tokenizr; did you mean --tokenizer?");
  check_refused("data encode", "x -t bytes -o o --skip-bad 1.5", "--skip-bad: found \"1.5\", expected an integer");
  check_refused("tokenizer train", "x -o o --train-bytes -5", "--train-bytes: found \"-5\", expected an integer >= 0");
  check_refused("data encode", "x -t bytes -o o --threads -1",
                "--threads: found -1, expected an integer from 0 to 1024");
}

TEST_CASE("numbers and names out of range say what was found and expected", "[fast]") {
  check_refused("generate", "r --temperature nan", "--temperature: found nan, expected a number >= 0");
  check_refused("generate", "r --temperature -1", "--temperature: found -1, expected a number >= 0");
  check_refused("generate", "r --top-p 1.5", "--top-p: found 1.5, expected a number from 0 to 1");
  check_refused("generate", "r --max-new-tokens 1.5", "--max-new-tokens: found 1.5, expected an integer >= 0");
  check_refused("generate", "r --max-new-tokens 1e30", "--max-new-tokens: found 1e30, expected an integer >= 0");
  check_refused("bench", "--rows 0", "--rows: found 0, expected an integer >= 1");
  check_refused("plan", "m.json --memory 0", "--memory: found 0, expected a number > 0");
  check_refused("plan", "m.json --length many", "--length: found many, expected an integer >= 1");
  check_refused("selftest", "--device gpu", "--device: found \"gpu\", expected one of auto, cpu, cuda");
  check_refused("data inspect", "x --format raw16",
                "--format: found \"raw16\", expected one of auto, raw_u16, raw_u32, megatron (did you mean raw_u16?)");
  check_usage_error(
      "plan nothing.json",
      "nothing.json: found nothing, expected a configuration, a checkpoint, a run folder or a safetensors file");
  check_usage_error("bench gdm",
                    "MODEL: found \"gdm\", expected a built-in model (see hebb bench --help) or a configuration file "
                    "(did you mean gdn?)");
}

TEST_CASE("an option or a flag is given once", "[fast]") {
  check_refused("data encode", "x -t bytes -o o --out p", "--out given 2 times, expected once");
  check_refused("data synth", "-o o --documents 1 --documents 1", "--documents given 2 times, expected once");
  check_refused("data encode", "x -t bytes -o o --add-bos --no-add-bos", "--add-bos given 2 times, expected once");
  check_refused("train", "c.json --resume auto --resume never", "--resume given 2 times, expected once");
  check_usage_error("train c.json train.threads=1 --threads 2",
                    "hebb train: give either --threads 2 or train.threads=1, not both");
  check_usage_error("train c.json train.threads=1 --threads 0",
                    "hebb train: give either --threads 0 or train.threads=1, not both");
  check_refused("plan", "m.json --json --json --json", "--json given 3 times, expected once");
}

FOLDER_TEST("a list without evaluations is refused", "[fast]") {
  folder.write("e.json", R"({"evaluations": []})");
  CHECK(run_hebb(folder, "eval e.json --checkpoint r").err ==
        "error: e.json: evaluations: found an empty list, expected at least one evaluation\n");
}

FOLDER_TEST("output that does not arrive is an error that says why") {
  folder.write("text.txt", "some text\n");
  folder.write("ids.txt", "97 98\n");
  train_on_bytes(folder);
  folder.write("e.json", R"({"evaluations": [
    {"name": "held", "kind": "position_ppl", "length": 64, "data": {"path": "set/val_*.bin"}}]})");
  for (const char* verb :
       {"--version", "--help", "doctor", "bench --help", "plan c.json", "plan c.json --json", "inspect run",
        "inspect set/train_000000.bin", "data inspect set", "tokenizer encode bytes text.txt",
        "tokenizer decode bytes ids.txt", "generate run --prompt And --max-new-tokens 3",
        "generate run --prompt And --max-new-tokens 3 --json", "eval e.json --checkpoint run", "report run -o report",
        "train c.json --print-config"}) {
    INFO(verb);
    const CommandResult result = run_hebb(folder, verb, "", "> /dev/full");
    CHECK(result.code == 4);
    CHECK_THAT(result.err,
               Catch::Matchers::EndsWith("error: standard output: cannot write: No space left on device\n"));
  }
}

FOLDER_TEST("files of a run do not get what is printed where standard files are closed") {
  train_on_bytes(folder);
  for (const std::string closed : {">&-", "<&- >&-", "<&- >&- 2>&-"}) {
    INFO(closed);
    fs::remove_all(folder / "run");
    CHECK(run_hebb(folder, "train c.json --run-dir run", "", closed).code == 0);
    const std::string log = read_file(folder / "run/train.log");
    CHECK_THAT(log, StartsWith("20") && Contains("] rank 0: done: 1 step"));
    CHECK_THAT(log, !Contains("\ndone: "));
    CHECK(run_hebb(folder, "generate run --prompt And --max-new-tokens 3", "", closed).code == 0);
  }
}

FOLDER_TEST("a file that may not grow as far as it has to is an error that names it") {
  train_on_bytes(folder, R"("steps": 2, "checkpoint": {"every": 1})");
  std::string text;
  for (int i = 0; i < 5000; ++i) { text += "one line of a text\n"; }
  folder.write("long.txt", text);
  const std::string saved = read_file(folder / "run/checkpoints/latest");
  const auto limited = [&](const std::string& arguments) {
    return run_hebb(folder, "inspect run > /dev/null; ulimit -f 8; '" + HEBB_BINARY + "' " + arguments);
  };
  for (const std::string arguments :
       {"train c.json --run-dir run --allow-config-change train.steps=4", "data encode long.txt -t bytes -o long",
        "data synth --documents 4000 -o made.jsonl"}) {
    INFO(arguments);
    const CommandResult result = limited(arguments);
    CHECK(result.code == 4);
    CHECK_THAT(result.err, Contains("File too large"));
  }
  CHECK(read_file(folder / "run/checkpoints/latest") == saved);
  CHECK_FALSE(fs::exists(folder / "made.jsonl"));
  output_of(folder, "train c.json --run-dir run --allow-config-change train.steps=4");
}

FOLDER_TEST("keys of a configuration may be written as options", "[fast]") {
  const std::string plan = "plan " + HEBB_SOURCE + "/configs/quickstart.json --no-data --json";
  const std::string plain = output_of(folder, plan + " train.batch_size=64 model.num_layers=2");
  CHECK(output_of(folder, plan + " --train.batch_size 64 --model.num_layers=2") == plain);
  CHECK(output_of(folder, plan) != plain);
  check_usage_error("plan c.json --train.steps", "hebb plan: option --train.steps needs a value");
}

FOLDER_TEST("plan --diff prints in what configurations differ", "[fast]") {
  train_on_bytes(folder);
  folder.write("d.json", R"({"extends": "c.json", "name": "other", "model": {"hidden_size": 48},
    "train": {"steps": 3, "log_every": 10}, "optimizer": {"clip_norm": 1.0}})");
  CHECK(output_of(folder, "plan c.json d.json --diff") ==
        "key                c.json  d.json\n"
        "model.hidden_size      24      48\n"
        "train.steps             1       3\n");  // 10 and 1.0 are defaults
  CHECK(output_of(folder, "plan c.json run --diff") == "no difference\n");
  CHECK(output_of(folder, "plan c.json d.json model.hidden_size=24 train.steps=1 --diff") == "no difference\n");
  folder.write("m.json", R"({"vocab_size": 259, "hidden_size": 24, "num_layers": 2,
      "layers": {"a": {"type": "attention", "num_heads": 2, "head_dim": 12}, "m": {"type": "swiglu", "intermediate_size": 40}},
      "pattern": [{"mixer": "a", "ffn": "m"}]})");
  CHECK(output_of(folder, "plan run m.json --diff") ==
        "key               run  m.json\n"
        "model.num_layers    1       2\n");
  check_error(folder, "plan c.json d.json --diff --ranks 2", 2, Contains("--diff excludes --ranks"));
  folder.write("sweep.json", R"({"base": "c.json", "grid": {"train.seed": [1, 2]}})");
  check_error(folder, "plan c.json sweep.json --diff", 2,
              Contains("left out, a sweep: sweep.json") &&
                  Contains("error: hebb plan: found --diff with one configuration, expected two or more"));
}

FOLDER_TEST("an unknown verb names the nearest one", "[fast]") {
  CHECK_THAT(run_hebb(folder, "dta").err, StartsWith("error: hebb: unknown verb \"dta\"; did you mean data? (known: "));
  CHECK_THAT(run_hebb(folder, "something").err, StartsWith("error: hebb: unknown verb \"something\" (known: "));
  CHECK(run_hebb(folder, "something").code == 2);
}

FOLDER_TEST("a verb with verbs of its own names them where none is given", "[fast]") {
  check_error(folder, "tokenizer", 2,
              StartsWith("error: hebb tokenizer: no verb given (known: train, encode, decode, info)"));
}

FOLDER_TEST("without arguments the help goes to stderr with exit code 2", "[fast]") {
  const CommandResult result = run_hebb(folder, "");
  CHECK(result.code == 2);
  CHECK(result.out.empty());
  CHECK_THAT(result.err, Contains("Subcommands:"));
}

FOLDER_TEST("--version prints version, build and libraries", "[fast]") {
  CHECK_THAT(output_of(folder, "--version"),
             StartsWith("hebb " HEBB_VERSION ", commit ") && Contains("\nbuild: ") && Contains("\nlibraries: CLI11 "));
}

FOLDER_TEST("help of train names its configuration, and verbs show examples and their page", "[fast]") {
  CHECK_THAT(run_hebb(folder, "train --help").out, Contains("Usage: hebb train [OPTIONS] CONFIG [KEY=VALUE ...]\n"));
  for (const char* verb : {"train", "plan", "ladder", "eval", "generate", "report", "data encode"}) {
    INFO(verb);
    const std::string name = std::string(verb).substr(0, std::string(verb).find(' '));
    CHECK_THAT(run_hebb(folder, std::string(verb) + " --help").out,
               Contains(std::string("\nhebb ") + verb) && Contains("Page: docs/verbs/" + name + ".md"));
    CHECK(std::filesystem::exists(std::filesystem::path(HEBB_SOURCE) / "docs/verbs" / (name + ".md")));
  }
  CHECK_THAT(run_hebb(folder, "help").out, Contains("docs/README.md"));
}

FOLDER_TEST("help lists options with type, default and unit", "[fast]") {
  CHECK_THAT(output_of(folder, "data encode --help"),
             Contains("--shard-tokens INT = 100000000") && Contains("[tokens]") &&
                 Contains("-t,--tokenizer NAME (required)") && Contains("--invalid-utf8 NAME:{error,replace} = error"));
  for (const char* verb : {"data", "data inspect", "data verify", "data synth", "data synth-task", "tokenizer",
                           "tokenizer train", "tokenizer encode", "tokenizer decode", "tokenizer info", "inspect"}) {
    CHECK_THAT(output_of(folder, std::string(verb) + " --help"), Contains(std::string("Usage: hebb ") + verb));
  }
}
