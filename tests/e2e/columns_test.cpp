// What the program prints on a terminal of 80 columns.
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/terminal.h"
#include "tests/study/ladder_fixture.h"

namespace {

constexpr int kColumns = 80;

/// What a command prints on a terminal, escapes and redrawn bars left out.
std::vector<std::string> on_terminal(const fs::path& folder, std::vector<std::string> words) {
  words.insert(words.begin(), binary_path());
  std::vector<char*> arguments;
  for (std::string& word : words) { arguments.push_back(word.data()); }
  arguments.push_back(nullptr);
  const winsize size{.ws_row = 24, .ws_col = kColumns, .ws_xpixel = 0, .ws_ypixel = 0};
  int terminal = -1;
  const pid_t child = ::forkpty(&terminal, nullptr, nullptr, &size);
  REQUIRE(child >= 0);
  if (child == 0) {
    if (::chdir(folder.c_str()) == 0) { ::execv(arguments[0], arguments.data()); }
    ::_exit(127);
  }
  std::string text;
  char buffer[4096];
  for (ssize_t n = 0; (n = ::read(terminal, buffer, sizeof buffer)) > 0;) {  // fails when the child has gone
    text.append(buffer, static_cast<size_t>(n));
  }
  ::close(terminal);
  int status = 0;
  ::waitpid(child, &status, 0);
  INFO(text);
  CHECK(WEXITSTATUS(status) == 0);
  std::vector<std::string> lines;
  std::istringstream all(text);
  for (std::string line; std::getline(all, line);) {
    while (line.ends_with('\r')) { line.pop_back(); }
    line.erase(0, line.rfind('\r') + 1);
    for (size_t at; (at = line.find('\x1b')) != std::string::npos;) {
      const size_t end = line.find_first_of("ABCDEFGHJKSTfhlmnsu", at + 2);
      line.erase(at, end == std::string::npos ? end : end - at + 1);
    }
    lines.push_back(line);
  }
  return lines;
}

}  // namespace

TEST_CASE("tables, lists and help fit a terminal of 80 columns") {
  const SweepFolder folder(
      R"("axes": {"architecture": {"full-attention": {}, "gated-delta-net": {"set": {"model.pattern.0.mixer": "gdn"}}}},
         "grid": {"train.seed": [1, 2]})");
  write_evaluations(folder);
  REQUIRE(ladder(folder).code == 0);
  const std::string runs = "runs/small/", a = runs + "full-attention_seed=1", b = runs + "gated-delta-net_seed=1",
                    c = runs + "gated-delta-net_seed=2";
  const SweepFolder bytes(R"("runs": [{"id": "a"}])");  // its text is not there: the corpus of bytes replaces it
  std::string base = read_file(bytes / "base.json");
  for (size_t at; (at = base.find("tokens.bin")) != std::string::npos;) { base.replace(at, 10, "absent.bin"); }
  bytes.write("base.json", base);
  REQUIRE(ladder(bytes, {"--shrink", "5e6", "--dir", "runs/small"}).code == 0);
  const fs::path needles = folder.write(
      "needles.json", R"({"evaluations": [{"name": "needles", "kind": "niah", "context_words": [20], "samples": 2}]})");
  const std::vector<std::vector<std::string>> commands = {
      {"eval", needles.string(), "--checkpoint", (bytes / "runs/small/a").string()},
      {"ladder", "sweep.json", "--dry-run"},
      {"ladder", "sweep.json", "--shrink", "5e6", "--dry-run"},
      {"ladder", "sweep.json", "--status"},
      {"ladder", "sweep.json"},
      {"eval", "eval.json", "--checkpoint", a, "--checkpoint", b, "--checkpoint", c},
      {"plan", "sweep.json"},
      {"inspect", checkpoint_in(folder / a, 12).string(), "--stats"},
      {"doctor"},
      {"--help"},
      {"ladder", "--help"},
      {"eval", "--help"},
      {"convert", "--help"}};
  for (const std::vector<std::string>& command : commands) {
    for (const std::string& line : on_terminal(folder.path(), command)) {
      INFO(command[0] << " " << command.back() << ": " << line);
      const bool is_one_word = line.find(' ', line.find_first_not_of(' ')) == std::string::npos;  // a path
      const bool has_reason = line.find("without a usable GPU (") != std::string::npos;  // a driver's, of any length
      CHECK((text_columns(line) <= kColumns || is_one_word || has_reason));
    }
  }
}
