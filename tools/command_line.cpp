#include "tools/command_line.h"

#include <fmt/core.h>
#include <unistd.h>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <sstream>

#include "core/error.h"
#include "core/join.h"
#include "core/suggest.h"
#include "core/terminal.h"

namespace hebb {
namespace {

/// Writes an integer such as 1e6 in digits. Returns what is wrong, or "".
std::string read_integer(std::string& text, bool is_unsigned) {
  if (is_unsigned && text.find('-') != std::string::npos) { return "found \"" + text + "\", expected an integer >= 0"; }
  if (!text.empty() && text.find_first_not_of("-0123456789") == std::string::npos) {
    errno = 0;
    is_unsigned ? static_cast<void>(std::strtoull(text.c_str(), nullptr, 10))
                : static_cast<void>(std::strtoll(text.c_str(), nullptr, 10));
    return errno == ERANGE ? "found " + text + ", expected an integer of 64 bits" : "";
  }
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  constexpr double kExact = 9007199254740992.0;  // 2^53
  if (end == text.c_str() || *end != '\0' || value != std::floor(value) || !(std::abs(value) <= kExact)) {
    return "found \"" + text + "\", expected an integer";
  }
  text = std::to_string(static_cast<int64_t>(value));
  return "";
}

/// "1.5" -> "1.5", "3" -> "3" for messages.
std::string text_of(double value) { return fmt::format("{:g}", value); }

/// Help lines as "--name TYPE = default (required)  description".
class HelpFormatter final : public CLI::Formatter {
 public:
  std::string make_usage(const CLI::App* app, std::string name) const override {
    std::string text = CLI::Formatter::make_usage(app, std::move(name));
    if (app->get_allow_extras()) { text.insert(text.find_last_not_of('\n') + 1, " CONFIG [KEY=VALUE ...]"); }
    return text;
  }
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    std::string name = CLI::Formatter::make_option_name(option, is_positional);
    for (const char* mark : {"{true}", "{false}"}) {  // values that flags stand for
      for (size_t at; (at = name.find(mark)) != std::string::npos;) { name.erase(at, std::string(mark).size()); }
    }
    return name;
  }
  std::string make_option_opts(const CLI::Option* option) const override {
    std::string text;
    if (option->get_type_size() != 0) {
      text = " " + option->get_type_name() + (option->get_expected_max() > 1 ? " ..." : "");
      const std::string value = option->get_default_str();
      text += value.empty() || value == "[]" || value == "{}" || option->get_required() ? "" : " = " + value;
    }
    return text + (option->get_required() ? " (required)" : "");
  }
};

std::string full_name_of(const CLI::App& app) {
  return app.get_parent() ? full_name_of(*app.get_parent()) + " " + app.get_name() : app.get_name();
}

std::vector<std::string> option_names_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) { names.push_back("--" + name); }
  }
  return names;
}

std::string hint(const std::string& nearest) { return nearest.empty() ? "" : "; did you mean " + nearest + "?"; }

/// The innermost verb that the arguments select.
const CLI::App& selected(const CLI::App& app) {
  const std::vector<CLI::App*> inner = app.get_subcommands();
  return inner.empty() ? app : selected(*inner.front());
}

std::vector<std::string> verbs_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(verb->get_name());
  }
  return names;
}

/// Where a verb must come, a word that is none is reported with the nearest name: the parser itself
/// would only say that some subcommand is required.
void check_verbs(CLI::App& app, const std::vector<std::string>& words, size_t at) {
  const std::vector<CLI::App*> verbs = app.get_subcommands([](CLI::App*) { return true; });
  if (verbs.empty() || at >= words.size() || words[at].empty() || words[at][0] == '-') { return; }
  for (CLI::App* verb : verbs) {
    if (verb->get_name() == words[at]) { return check_verbs(*verb, words, at + 1); }
  }
  const std::vector<std::string> names = verbs_of(app);
  throw ConfigError(full_name_of(app), "unknown verb \"" + words[at] + "\"" + hint(nearest_name(words[at], names)) +
                                           " (known: " + join(names, ", ") + ")");
}

/// What is wrong where an option has more values than it takes, or "": the parser counts them without their names.
std::string repetition(const CLI::App& verb) {
  for (const CLI::Option* option : verb.get_options()) {
    if (static_cast<int>(option->count()) > std::max(option->get_items_expected_max(), 1)) {
      return fmt::format("{} given {:d} times, expected once", option->get_name(), option->count());
    }
  }
  return "";
}

/// The parser's own message, with the nearest option for a misspelt one: that is likely to be the
/// cause when a required one is missing, too.
ConfigError usage_error(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& verb = selected(app);
  const std::string name = full_name_of(verb), see = " (see " + name + " --help)";
  const std::vector<std::string> extras = app.remaining(true);
  const bool may_be_misspelt = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr ||
                               dynamic_cast<const CLI::RequiredError*>(&error) != nullptr;
  if (const std::vector<std::string> verbs = verbs_of(verb); !verbs.empty() && extras.empty()) {
    return ConfigError(name, "no verb given (known: " + join(verbs, ", ") + ")");
  }
  const bool may_be_repeated = dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr;
  if (const std::string problem = may_be_repeated ? repetition(verb) : ""; !problem.empty()) {
    return ConfigError(name, problem + see);
  }
  if (!may_be_misspelt || extras.empty()) { return ConfigError(name, error.what() + see); }
  const std::string word = extras.front().substr(0, extras.front().find('='));
  const bool is_option = word.rfind('-', 0) == 0;
  return ConfigError(name, (is_option ? "unknown option " : "unexpected argument ") + word +
                               (is_option ? hint(nearest_name(word, option_names_of(verb))) : "") + see);
}

/// The verb that words select.
const CLI::App& verb_of(const CLI::App& app, const std::vector<std::string>& words, size_t at = 0) {
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (at < words.size() && verb->get_name() == words[at]) { return verb_of(*verb, words, at + 1); }
  }
  return app;
}

/// Words with "--KEY VALUE" and "--KEY=VALUE" as "KEY=VALUE".
std::vector<std::string> with_overrides(const std::string& verb, const std::vector<std::string>& words,
                                        const std::vector<std::string>& plain_keys) {
  std::vector<std::string> result;
  for (size_t i = 0; i < words.size(); ++i) {
    const size_t equals = words[i].find('=');
    const std::string key = words[i].starts_with("--") ? words[i].substr(2, equals - std::min<size_t>(equals, 2)) : "";
    const bool is_key = key.find('.') != std::string::npos || key.starts_with('/') ||
                        std::find(plain_keys.begin(), plain_keys.end(), key) != plain_keys.end();
    if (!is_key) {
      result.push_back(words[i]);
    } else if (equals != std::string::npos) {
      result.push_back(words[i].substr(2));
    } else if (i + 1 == words.size()) {
      throw ConfigError(verb, "option " + words[i] + " needs a value");
    } else {
      result.push_back(key + "=" + words[++i]);
    }
  }
  return result;
}

}  // namespace

struct Command::Shared {
  CLI::App app;
  int exit_code = 0;
  std::map<const CLI::App*, std::vector<std::string>> plain_keys;  // of verbs that take overrides
};

Option::Option(CLI::Option* option)
    : option_(option),
      is_unsigned_(option->get_type_name() == "UINT"),
      is_integer_(is_unsigned_ || option->get_type_name() == "INT") {}

Option Option::required() {
  option_->required();
  return *this;
}
Option Option::type_name(const std::string& name) {
  option_->type_name(name);
  return *this;
}
Option Option::default_text(const std::string& text) {
  option_->default_str(text);
  return *this;
}
Option Option::excludes(const Option& other) {
  option_->excludes(other.option_);
  return *this;
}
Option Option::one_each() {
  option_->allow_extra_args(false);
  return *this;
}

Option Option::read_integers() {
  option_->transform(
      CLI::Validator([is_unsigned = is_unsigned_](std::string& text) { return read_integer(text, is_unsigned); }, ""));
  option_->type_name("INT");
  return *this;
}

Option Option::check_number(const std::string& range, const std::function<bool(double)>& is_in_range) {
  const auto check = [=, is_integer = is_integer_, is_unsigned = is_unsigned_](std::string& text) -> std::string {
    std::string number = text;
    const bool is_read = !is_integer || read_integer(number, is_unsigned).empty();
    char* end = nullptr;
    const double value = std::strtod(number.c_str(), &end);
    if (!is_read || end == number.c_str() || *end != '\0' || !std::isfinite(value) || !is_in_range(value)) {
      return "found " + text + ", expected " + (is_integer ? "an integer " : "a number ") + range;
    }
    text = number;
    return "";
  };
  option_->transform(CLI::Validator(check, ""));
  return *this;
}
Option Option::at_least(double lowest) {
  return check_number(">= " + text_of(lowest), [=](double v) { return v >= lowest; });
}
Option Option::above(double bound) {
  return check_number("> " + text_of(bound), [=](double v) { return v > bound; });
}
Option Option::between(double lowest, double highest) {
  return check_number("from " + text_of(lowest) + " to " + text_of(highest),
                      [=](double v) { return v >= lowest && v <= highest; });
}

Option Option::one_of(const std::vector<std::string>& names) {
  const auto check = [=](std::string& text) -> std::string {
    if (std::find(names.begin(), names.end(), text) != names.end()) { return ""; }
    const std::string nearest = nearest_name(text, names);
    return "found \"" + text + "\", expected one of " + join(names, ", ") +
           (nearest.empty() ? "" : " (did you mean " + nearest + "?)");
  };
  option_->check(CLI::Validator(check, "{" + join(names, ",") + "}"));
  return *this;
}

bool Option::is_given() const { return option_->count() > 0; }

Command Command::verb(const std::string& name, const std::string& description) {
  app_->require_subcommand(1);
  return Command(app_->add_subcommand(name, description), shared_);
}

Option Command::option(const std::string& names, std::string& value, const std::string& description) {
  return Option(app_->add_option(names, value, description));
}
Option Command::option(const std::string& names, std::filesystem::path& value, const std::string& description) {
  return Option(app_->add_option(names, value, description));
}
Option Command::option(const std::string& names, int& value, const std::string& description) {
  return Option(app_->add_option(names, value, description)).read_integers();
}
Option Command::option(const std::string& names, int64_t& value, const std::string& description) {
  return Option(app_->add_option(names, value, description)).read_integers();
}
Option Command::option(const std::string& names, uint64_t& value, const std::string& description) {
  return Option(app_->add_option(names, value, description)).read_integers();
}
Option Command::option(const std::string& names, double& value, const std::string& description) {
  return Option(app_->add_option(names, value, description));
}
Option Command::option(const std::string& names, std::optional<int64_t>& value, const std::string& description) {
  return Option(app_->add_option(names, value, description)).read_integers();
}
Option Command::option(const std::string& names, std::optional<double>& value, const std::string& description) {
  return Option(app_->add_option(names, value, description));
}
Option Command::option(const std::string& names, std::vector<int64_t>& values, const std::string& description) {
  return Option(app_->add_option(names, values, description)).read_integers();
}
Option Command::option(const std::string& names, std::vector<std::string>& values, const std::string& description) {
  return Option(app_->add_option(names, values, description));
}
Option Command::option(const std::string& names, const std::function<void(const std::string&)>& read,
                       const std::string& description) {
  return Option(app_->add_option_function<std::string>(names, read, description));
}
Option Command::flag(const std::string& names, bool& value, const std::string& description) {
  return Option(app_->add_flag(names, value, description)->multi_option_policy(CLI::MultiOptionPolicy::Throw));
}

void Command::footer(const std::string& text) { app_->footer(text); }
void Command::allow_extras() { app_->allow_extras(); }
std::vector<std::string> Command::extras() const { return app_->remaining(); }

void Command::takes_overrides(const std::vector<std::string>& plain_keys) { shared_->plain_keys[app_] = plain_keys; }

void Command::on_run(const std::function<int()>& function) {
  app_->callback([function, shared = shared_] { shared->exit_code = function(); });
}

std::string Command::full_name() const { return full_name_of(*app_); }
std::vector<std::string> Command::option_names() const { return option_names_of(*app_); }
bool Command::is_given(const std::string& option_name) const { return app_->count(option_name) > 0; }

namespace {

constexpr int kDescriptionColumn = 36;  // of --help

/// Text of --help for the terminal behind a file descriptor: descriptions that are too long go on below where they
/// begin.
std::string folded_help(const std::string& text, int descriptor) {
  const int columns = terminal_columns(descriptor, 0);
  std::istringstream lines(text);
  std::string folded;
  for (std::string line; std::getline(lines, line);) {
    const size_t indent = std::min(line.find_first_not_of(' '), line.size());
    const bool is_row = indent > 0 && indent <= kDescriptionColumn && line.size() > kDescriptionColumn &&
                        line[kDescriptionColumn - 1] == ' ';
    folded += fold(line, columns, is_row ? kDescriptionColumn - indent : 2) + "\n";
  }
  return folded;
}

}  // namespace

CommandLine::CommandLine(const std::string& name, const std::string& description,
                         const std::function<std::string()>& version)
    : state_(std::make_unique<Command::Shared>()) {
  CLI::App& app = state_->app;
  app.name(name)->description(description);
  app.set_version_flag("--version", version, "Print version, build options and library versions");
  app.option_defaults()->always_capture_default();
  const auto formatter = std::make_shared<HelpFormatter>();
  formatter->column_width(kDescriptionColumn);
  app.formatter(formatter);
}

CommandLine::~CommandLine() = default;

Command CommandLine::program() { return Command(&state_->app, state_.get()); }

int CommandLine::run(int argc, const char* const* argv) {
  CLI::App& app = state_->app;
  if (argc == 1) {
    std::fputs(folded_help(app.help(), STDERR_FILENO).c_str(), stderr);
    return static_cast<int>(ExitCode::kUsage);
  }
  std::vector<std::string> words(argv + 1, argv + argc);
  check_verbs(app, words, 0);
  const CLI::App& verb = verb_of(app, words);
  if (const auto keys = state_->plain_keys.find(&verb); keys != state_->plain_keys.end()) {
    words = with_overrides(full_name_of(verb), words, keys->second);
  }
  std::reverse(words.begin(), words.end());  // as the parser wants them
  try {
    app.parse(words);
  } catch (const CLI::Success& request) {  // --help, --version
    std::ostringstream text;
    const int code = app.exit(request, text, text);
    std::fputs(folded_help(text.str(), STDOUT_FILENO).c_str(), stdout);
    return code;
  } catch (const CLI::ParseError& error) { throw usage_error(app, error); }
  return state_->exit_code;
}

}  // namespace hebb
