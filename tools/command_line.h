#pragma once
// What verbs take and do, declared without the header of the parser (CLI11): it costs seconds in every file that
// includes it, so command_line.cpp alone does, and makes the code for each type of value once.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace hebb {

/// An option, a flag or a positional argument of a Command: a handle, whose methods return it so that they chain.
/// --help shows the name and the type, the value that the variable has when it is declared as the default, and the
/// description, which ends with the unit where there is one ("Shard size [tokens]").
class Option {
 public:
  Option required();
  /// What --help shows instead of the type.
  Option type_name(const std::string& name);
  /// What --help shows instead of the variable's value; "" for nothing.
  Option default_text(const std::string& text);
  Option excludes(const Option& other);
  /// For vectors: one value behind each of the names, which may stand several times.
  Option one_each();

  /// Checks of numbers, whose messages say what was found and expected. Not a number never passes.
  Option at_least(double lowest);
  Option above(double bound);
  Option between(double lowest, double highest);
  /// A word out of `names`.
  Option one_of(const std::vector<std::string>& names);

  /// Whether the arguments name it; known when the verb runs.
  bool is_given() const;

 private:
  friend class Command;
  explicit Option(CLI::Option* option);
  Option read_integers();
  Option check_number(const std::string& range, const std::function<bool(double)>& is_in_range);

  CLI::Option* option_;
  bool is_unsigned_, is_integer_;
};

/// The program, a verb, or a verb of a verb: a handle, valid as long as its CommandLine. The variables that options
/// write must live until the verb has run.
class Command {
 public:
  /// Adds a verb; from then on one must be given.
  Command verb(const std::string& name, const std::string& description);

  /// "-o,--out" makes an option, "FILE" a positional argument. A vector takes several values; anything
  /// else, flags too, may be given once: of two values one would be ignored. Integers may be written as 1e8, and what
  /// does not fit is refused (the parser alone takes unsigned ones modulo 2^64).
  Option option(const std::string& names, std::string& value, const std::string& description);
  Option option(const std::string& names, std::filesystem::path& value, const std::string& description);
  Option option(const std::string& names, int& value, const std::string& description);
  Option option(const std::string& names, int64_t& value, const std::string& description);
  Option option(const std::string& names, uint64_t& value, const std::string& description);
  Option option(const std::string& names, double& value, const std::string& description);
  Option option(const std::string& names, std::optional<int64_t>& value, const std::string& description);
  Option option(const std::string& names, std::optional<double>& value, const std::string& description);
  Option option(const std::string& names, std::vector<int64_t>& values, const std::string& description);
  Option option(const std::string& names, std::vector<std::string>& values, const std::string& description);
  /// Hands the value to `read` instead of storing it.
  Option option(const std::string& names, const std::function<void(const std::string&)>& read,
                const std::string& description);
  /// "--echo,!--no-echo": the second name makes it false.
  Option flag(const std::string& names, bool& value, const std::string& description);

  /// Text below the options in --help.
  void footer(const std::string& text);
  /// Words that are neither options nor arguments are no error, but kept in extras().
  void allow_extras();
  std::vector<std::string> extras() const;
  /// The verb takes KEY=VALUE words: "--KEY VALUE" and "--KEY=VALUE" reach it as such words. KEY is dotted, a JSON
  /// pointer or one of `plain_keys`.
  void takes_overrides(const std::vector<std::string>& plain_keys);

  /// What the verb does, after all arguments have been read: a function without arguments that returns the exit code,
  /// or nothing for 0. It throws errors (core/error.h).
  template <class Function> void runs(Function function) {
    if constexpr (std::is_void_v<std::invoke_result_t<Function&>>) {
      on_run([function] { return function(), 0; });
    } else {
      on_run(function);
    }
  }

  /// "hebb data encode".
  std::string full_name() const;
  /// "--name" of every option.
  std::vector<std::string> option_names() const;
  bool is_given(const std::string& option_name) const;

 private:
  friend class CommandLine;
  struct Shared;  // of all verbs of a program
  Command(CLI::App* app, Shared* shared) : app_(app), shared_(shared) {}
  void on_run(const std::function<int()>& function);

  CLI::App* app_;
  Shared* shared_;
};

/// The command line of a program: its verbs are declared on program(), then run() reads the arguments.
class CommandLine {
 public:
  CommandLine(const std::string& name, const std::string& description, const std::function<std::string()>& version);
  ~CommandLine();

  Command program();

  /// Runs the verb that the arguments name, or prints the help or the version that they ask for; without arguments the
  /// help goes to stderr. Returns the exit code. Errors: ConfigError for arguments that no verb takes, with the nearest
  /// name for a misspelt one; the verb's own.
  int run(int argc, const char* const* argv);

 private:
  std::unique_ptr<Command::Shared> state_;
};

}  // namespace hebb
