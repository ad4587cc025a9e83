// Exit codes, messages and help of the command line.
#include "tests/e2e/command.h"

using namespace hebb;
using Catch::Matchers::Contains;
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

}  // namespace

TEST_CASE("usage errors are one line on stderr and exit code 2", "[fast]") {
  check_usage_error("data encod x",
                    "hebb data: unknown verb \"encod\"; did you mean encode? (known: encode, inspect, verify, "
                    "synth, synth-task)");
  check_usage_error("data", "hebb data: A subcommand is required (see hebb data --help)");
  check_usage_error("data inspect", "hebb data inspect: PATH is required (see hebb data inspect --help)");
  check_usage_error("data inspect a b", "hebb data inspect: unexpected argument b (see hebb data inspect --help)");
  check_usage_error(
      "data encode x -t bytes -o o --shard-token 5",
      "hebb data encode: unknown option --shard-token; did you mean --shard-tokens? (see hebb data encode --help)");
  check_usage_error(
      "data encode x --tokenizr bytes -o o",
      "hebb data encode: unknown option --tokenizr; did you mean --tokenizer? (see hebb data encode --help)");
  check_usage_error("data encode x -t bytes -o o --skip-bad 1.5",
                    "hebb data encode: --skip-bad: found \"1.5\", expected an integer (see hebb data encode --help)");
  check_usage_error("data encode x -t bytes -o o --threads -1",
                    "hebb data encode: --threads: Value -1 not in range 0 to 1024 (see hebb data encode --help)");
}

TEST_CASE("an unknown verb names the nearest one", "[fast]") {
  const TempFolder folder;
  CHECK_THAT(run_hebb(folder, "dta").err, StartsWith("error: hebb: unknown verb \"dta\"; did you mean data? (known: "));
  CHECK_THAT(run_hebb(folder, "something").err, StartsWith("error: hebb: unknown verb \"something\" (known: "));
  CHECK(run_hebb(folder, "something").code == 2);
}

TEST_CASE("without arguments the help goes to stderr with exit code 2", "[fast]") {
  const TempFolder folder;
  const CommandResult result = run_hebb(folder, "");
  CHECK(result.code == 2);
  CHECK(result.out.empty());
  CHECK_THAT(result.err, Contains("Subcommands:"));
}

TEST_CASE("--version prints version, build and libraries", "[fast]") {
  const TempFolder folder;
  const CommandResult result = run_hebb(folder, "--version");
  CHECK(result.code == 0);
  CHECK_THAT(result.out, StartsWith("hebb " HEBB_VERSION "\nbuild: ") && Contains("\nlibraries: CLI11 "));
}

TEST_CASE("help lists options with type, default and unit", "[fast]") {
  const TempFolder folder;
  const CommandResult result = run_hebb(folder, "data encode --help");
  CHECK(result.code == 0);
  CHECK_THAT(result.out, Contains("--shard-tokens INT = 100000000") && Contains("[tokens]") &&
                             Contains("-t,--tokenizer NAME (required)") &&
                             Contains("--invalid-utf8 NAME:{error,replace} = error"));
  for (const char* verb : {"data", "data inspect", "data verify", "data synth", "data synth-task", "tokenizer",
                           "tokenizer train", "tokenizer encode", "tokenizer decode", "tokenizer info", "inspect"}) {
    const CommandResult help = run_hebb(folder, std::string(verb) + " --help");
    INFO(verb);
    CHECK(help.code == 0);
    CHECK_THAT(help.out, Contains(std::string("Usage: hebb ") + verb));
  }
}
