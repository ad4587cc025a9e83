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

}  // namespace hebb
