// The command line: parses the arguments, runs one verb, turns exceptions into one line on stderr
// and an exit code (docs/verbs/train.md).
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <new>
#include <sstream>
#include <string>
#include <vector>

#include "core/key_error.h"
#include "core/machine_limits.h"
#include "core/names.h"
#include "tools/command_line.h"
#include "tools/verbs.h"

namespace hebb {
namespace {

int report(std::string message, ExitCode code) {
  std::replace(message.begin(), message.end(), '\n', ' ');
  std::fprintf(stderr, "error: %s\n", printable(message, true).c_str());
  return static_cast<int>(code);
}

/// Where descriptors 0 to 2 are closed, the next files that are opened get them: what is printed would go there.
void open_standard_files() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0) { static_cast<void>(::open("/dev/null", fd == STDIN_FILENO ? O_RDONLY : O_WRONLY)); }
  }
}

int output_error = 0;  // of the first write to standard output that failed

ssize_t write_output(void*, const char* text, size_t size) {
  size_t done = 0;
  while (done < size) {
    const ssize_t n = ::write(STDOUT_FILENO, text + done, size - done);
    if (n < 0 && errno == EINTR) { continue; }
    if (n < 0) {
      output_error = output_error != 0 ? output_error : errno;
      break;
    }
    done += static_cast<size_t>(n);
  }
  return static_cast<ssize_t>(done);
}

/// Replaces stdout by a stream that keeps why writing failed: only the call that happens to flush would see errno.
void watch_output() {
  std::FILE* const output = ::fopencookie(nullptr, "w", {nullptr, write_output, nullptr, nullptr});
  if (output == nullptr) { return; }
  std::setvbuf(output, nullptr, ::isatty(STDOUT_FILENO) != 0 ? _IOLBF : _IOFBF, BUFSIZ);
  stdout = output;
}

/// What was printed has arrived, or the exit code says that it has not.
int finish(int code) {
  const bool is_written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (is_written || code != 0) { return code; }
  return report(std::string("standard output: cannot write: ") + std::strerror(output_error), ExitCode::kCheckpoint);
}

int run(int argc, char** argv) {
  CommandLine line("hebb", "Trains, evaluates and samples language models with attention, recurrent and memory layers.",
                   version_text);
  Command program = line.program();
  program.footer("hebb VERB --help shows what a verb takes. The first hour: docs/README.md");
  add_tokenizer_verb(program);
  add_data_verb(program);
  add_plan_verb(program);
  add_train_verb(program);
  add_ladder_verb(program);
  add_eval_verb(program);
  add_generate_verb(program);
  add_serve_verb(program);
  add_report_verb(program);
  add_inspect_verb(program);
  add_convert_verb(program);
  add_trace_verb(program);
  add_bench_verb(program);
  add_selftest_verb(program);
  add_doctor_verb(program);
  // "hebb help VERB" is "hebb VERB --help".
  std::vector<char*> words(argv, argv + argc);
  if (argc > 1 && std::strcmp(argv[1], "help") == 0) {
    static char option[] = "--help";
    words.erase(words.begin() + 1);
    words.push_back(option);
  }
  return line.run(static_cast<int>(words.size()), words.data());
}

}  // namespace
}  // namespace hebb

int main(int argc, char** argv) {
  using namespace hebb;
  open_standard_files();
  constexpr int kOpenFiles = 16;  // that a run needs when it saves
  signal(SIGXFSZ, SIG_IGN);       // a write past `ulimit -f` then fails, and the error names the file
  watch_output();
  try {
    require_open_files("hebb", kOpenFiles);
    return finish(run(argc, argv));
  } catch (const ConfigErrors& errors) {
    std::istringstream lines(errors.what());
    for (std::string line; std::getline(lines, line);) { report(line, errors.code()); }
    return static_cast<int>(errors.code());
  } catch (const Error& error) {
    return report(error.what(), error.code());
  } catch (const std::filesystem::filesystem_error& error) {
    if (error.code() == std::errc::filename_too_long) {
      return report(error.path1().string() + ": " + error.code().message(), ExitCode::kUsage);
    }
    return report(error.path1().string() + ": cannot write here: " + error.code().message(), ExitCode::kCheckpoint);
  } catch (const std::bad_alloc&) {
    return report("out of memory", ExitCode::kMemory);
  } catch (const std::exception& error) { return report(error.what(), ExitCode::kOther); }
}
