#pragma once
#include <string>
#include <vector>

namespace hebb {

struct CommandResult {
  int code = 0;  // exit code, 128 + signal, or 127 where there is no such program
  std::string out, err;
  /// What it said: its errors, or its output where it wrote none, without the last line break.
  std::string text() const;
};

std::vector<std::string> lines_of(const std::string& text);

/// Runs a program that is on PATH and waits for its end.
CommandResult run_command(const std::vector<std::string>& words);

/// Whether PATH has an executable file of this name.
bool is_on_path(const std::string& program);

/// `word` as one word of a shell.
std::string shell_quoted(const std::string& word);

}  // namespace hebb
