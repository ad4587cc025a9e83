// The command line: parses the arguments, runs one verb, turns exceptions into one line on stderr
// and an exit code (spec 84, sections 1 and 3).
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/suggest.h"
#include "tools/verbs.h"

namespace hebb {
namespace {

int report(std::string message, ExitCode code) {
  std::replace(message.begin(), message.end(), '\n', ' ');
  std::fprintf(stderr, "error: %s\n", message.c_str());
  return static_cast<int>(code);
}

/// What was printed has arrived, or the exit code says that it has not.
int finish(int code) {
  errno = 0;
  const bool is_written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (is_written || code != 0) {
    return code;
  }
  return report(std::string("standard output: cannot write") + (errno != 0 ? std::string(": ") + std::strerror(errno) : ""),
                ExitCode::kCheckpoint);
}

/// Help lines as "--name TYPE = default (required)  description".
class HelpFormatter final : public CLI::Formatter {
 public:
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    std::string name = CLI::Formatter::make_option_name(option, is_positional);
    for (const char* mark : {"{true}", "{false}"}) {  // values that flags stand for
      for (size_t at; (at = name.find(mark)) != std::string::npos;) {
        name.erase(at, std::string(mark).size());
      }
    }
    return name;
  }
  std::string make_option_opts(const CLI::Option* option) const override {
    std::string text;
    if (option->get_type_size() != 0) {
      text = " " + option->get_type_name() + (option->get_expected_max() > 1 ? " ..." : "");
      const std::string value = option->get_default_str();
      text += value.empty() || value == "[]" || option->get_required() ? "" : " = " + value;
    }
    return text + (option->get_required() ? " (required)" : "");
  }
};

std::string command_of(const CLI::App& app) {
  return app.get_parent() ? command_of(*app.get_parent()) + " " + app.get_name() : "hebb";
}

std::string hint(const std::string& nearest) { return nearest.empty() ? "" : "; did you mean " + nearest + "?"; }

/// The innermost subcommand that the arguments select.
const CLI::App& selected(const CLI::App& app) {
  const std::vector<CLI::App*> inner = app.get_subcommands();
  return inner.empty() ? app : selected(*inner.front());
}

/// Where a subcommand must come, a word that is none is reported with the nearest name: the parser
/// itself would only say that some subcommand is required.
void check_verbs(CLI::App& app, const std::vector<std::string>& words, size_t at) {
  const std::vector<CLI::App*> verbs = app.get_subcommands([](CLI::App*) { return true; });
  if (verbs.empty() || at >= words.size() || words[at].empty() || words[at][0] == '-') {
    return;
  }
  std::vector<std::string> names;
  for (CLI::App* verb : verbs) {
    if (verb->get_name() == words[at]) {
      return check_verbs(*verb, words, at + 1);
    }
    names.push_back(verb->get_name());
  }
  std::string known;
  for (const std::string& name : names) {
    known += (known.empty() ? "" : ", ") + name;
  }
  throw ConfigError(command_of(app), "unknown verb \"" + words[at] + "\"" + hint(nearest_name(words[at], names)) +
                                         " (known: " + known + ")");
}

/// The parser's own message, with the nearest option for a misspelt one: that is likely to be the
/// cause when a required one is missing, too.
std::string parse_message(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& verb = selected(app);
  std::string message = command_of(verb) + ": ";
  const std::vector<std::string> extras = app.remaining(true);
  const bool may_be_misspelt = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr ||
                               dynamic_cast<const CLI::RequiredError*>(&error) != nullptr;
  if (may_be_misspelt && !extras.empty()) {
    const std::string word = extras.front().substr(0, extras.front().find('='));
    std::vector<std::string> names;
    for (const CLI::Option* option : verb.get_options()) {
      for (const std::string& name : option->get_lnames()) {
        names.push_back("--" + name);
      }
    }
    const bool is_option = word.rfind('-', 0) == 0;
    return message + (is_option ? "unknown option " : "unexpected argument ") + word +
           (is_option ? hint(nearest_name(word, names)) : "") + " (see " + command_of(verb) + " --help)";
  }
  return message + error.what() + " (see " + command_of(verb) + " --help)";
}

int run(int argc, char** argv) {
  CLI::App app{"Trains, evaluates and samples language models with attention, recurrent and memory layers."};
  app.name("hebb");
  app.set_version_flag("--version", version_text, "Print version, build options and library versions");
  app.option_defaults()->always_capture_default();
  const auto formatter = std::make_shared<HelpFormatter>();
  formatter->column_width(36);
  app.formatter(formatter);
  app.require_subcommand(1);

  int exit_code = 0;
  add_data_verb(app, exit_code);
  add_tokenizer_verb(app, exit_code);
  add_inspect_verb(app, exit_code);
  add_eval_verb(app, exit_code);
  add_generate_verb(app, exit_code);
  add_plan_verb(app, exit_code);
  add_bench_verb(app, exit_code);
  add_selftest_verb(app, exit_code);
  add_ladder_verb(app, exit_code);
  add_report_verb(app, exit_code);
  add_doctor_verb(app, exit_code);
  add_trace_verb(app, exit_code);
  add_train_verb(app, exit_code);

  if (argc == 1) {
    std::fputs(app.help().c_str(), stderr);
    return static_cast<int>(ExitCode::kUsage);
  }
  try {
    check_verbs(app, std::vector<std::string>(argv + 1, argv + argc), 0);
    app.parse(argc, argv);
  } catch (const CLI::Success& request) {  // --help, --version
    return app.exit(request);
  } catch (const CLI::ParseError& error) {
    return report(parse_message(app, error), ExitCode::kUsage);
  }
  return exit_code;
}

}  // namespace
}  // namespace hebb

int main(int argc, char** argv) {
  using namespace hebb;
  try {
    return finish(run(argc, argv));
  } catch (const Error& error) {
    return report(error.what(), error.code());
  } catch (const std::filesystem::filesystem_error& error) {
    return report(error.path1().string() + ": cannot write here: " + error.code().message(), ExitCode::kCheckpoint);
  } catch (const std::bad_alloc&) {
    return report("out of memory", ExitCode::kMemory);
  } catch (const std::exception& error) {
    return report(error.what(), ExitCode::kOther);
  }
}
