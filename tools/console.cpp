#include "tools/console.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace hebb {

void print_line(std::string_view line) {
  std::fwrite(line.data(), 1, line.size(), stdout);
  std::fputc('\n', stdout);
  std::fflush(stdout);
}

bool wants_bar() {
  const char* no_color = std::getenv("NO_COLOR");
  return isatty(STDOUT_FILENO) && isatty(STDERR_FILENO) && (no_color == nullptr || *no_color == '\0');
}

Console console_with(Progress* bar) {
  if (bar != nullptr && wants_bar()) {
    return {[bar](std::string_view line) { bar->message(line); }, bar};
  }
  return {print_line, bar};
}

}  // namespace hebb
