#pragma once
// Runs the hebb program as a user would.
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/temp_folder.h"
#include "tests/test.h"

namespace hebb {

struct CommandResult {
  int code = -1;
  std::string out, err;
};

/// Runs `hebb ARGUMENTS` (shell syntax) in `folder` with `input` on standard input. `redirections` stand behind those
/// that gather the output.
inline CommandResult run_hebb(const TempFolder& folder, const std::string& arguments, const std::string& input = "",
                              const std::string& redirections = "") {
  const TempFolder io;
  const auto read = [&](const char* name) {
    std::ifstream file(io / name, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const std::string in = io.write("in", input).string();
  const std::string command = "cd '" + folder.path().string() + "' && '" + HEBB_BINARY + "' " + arguments + " < '" +
                              in + "' > '" + (io / "out").string() + "' 2> '" + (io / "err").string() + "' " +
                              redirections;
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read("out"), read("err")};
}

/// What `hebb ARGUMENTS` prints, which must succeed.
inline std::string output_of(const TempFolder& folder, const std::string& arguments, const std::string& input = "") {
  const CommandResult result = run_hebb(folder, arguments, input);
  INFO(arguments << ": " << result.err);
  REQUIRE(result.code == 0);
  return result.out;
}

/// `hebb ARGUMENTS` ends with this code and an error that `matcher` accepts.
template <class Matcher>
void check_error(const TempFolder& folder, const std::string& arguments, int code, const Matcher& matcher,
                 const std::string& input = "") {
  INFO(arguments);
  const CommandResult result = run_hebb(folder, arguments, input);
  CHECK(result.code == code);
  CHECK_THAT(result.err, matcher);
}

/// Trains a small model on the shards in set/ into the run folder `run`. `train` stands among the keys of its training.
inline void train_small(const TempFolder& folder, const std::string& run, int vocab_size,
                        const std::string& train = R"("steps": 1)") {
  folder.write("c.json", R"({"name": "r", "model": {"vocab_size": )" + std::to_string(vocab_size) +
                             R"(, "hidden_size": 24, "num_layers": 1,
      "layers": {"a": {"type": "attention", "num_heads": 2, "head_dim": 12}, "m": {"type": "swiglu", "intermediate_size": 40}},
      "pattern": [{"mixer": "a", "ffn": "m"}]},
    "data": {"sources": [{"path": "set"}]}, "optimizer": {"lr": 0.01},
    "train": {"batch_size": 2, "sequence_length": 33, "device": "cpu", )" +
                             train + "}}");
  output_of(folder, "train c.json --run-dir " + run);
}

/// Shards of bytes in set/ and a model over them in run/.
inline void train_on_bytes(const TempFolder& folder, const std::string& train = R"("steps": 1)") {
  output_of(folder, "data synth --documents 40 -o docs.jsonl");
  output_of(folder, "data encode docs.jsonl -t bytes -o set --val-documents 3");
  train_small(folder, "run", 259, train);
}

}  // namespace hebb
