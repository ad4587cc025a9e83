#include "tools/console.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "core/terminal.h"

namespace hebb {

void print_line(std::string_view line) {
  std::fwrite(line.data(), 1, line.size(), stdout);
  std::fputc('\n', stdout);
  std::fflush(stdout);
}

int stdout_columns() { return terminal_columns(STDOUT_FILENO, 0); }

void print_text(std::string_view text) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    print_line(fold(line, stdout_columns()));
  }
}

bool wants_bar() {
  const char* no_color = std::getenv("NO_COLOR");
  return isatty(STDOUT_FILENO) && isatty(STDERR_FILENO) && (no_color == nullptr || *no_color == '\0');
}

Console console_with(Progress* bar) {
  const auto folded = [](std::string_view line) { return fold(line, stdout_columns()); };
  if (bar != nullptr && wants_bar()) {
    return {[bar, folded](std::string_view line) { bar->message(folded(line)); }, bar};
  }
  return {[folded](std::string_view line) { print_line(folded(line)); }, bar};
}

}  // namespace hebb
