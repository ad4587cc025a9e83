#pragma once
#include <string>
#include <vector>

namespace hebb {

class Command;

/// What verbs of the form `hebb VERB CONFIG [key.path=value ...]` are given.
struct ConfigArguments {
  std::string config;
  std::vector<std::string> overrides;  // "key.path=value"
};

/// Keys of a run configuration itself, which Command::takes_overrides() knows without a dot.
std::vector<std::string> run_sections();

/// Whether a word of the command line is "key.path=value": it has an = and names no file.
bool is_override(const std::string& word);

/// Options of every verb that computes, as overrides of train.*.
struct ComputeOptions {
  std::string device, precision;
  int threads = -1;
};
void add_compute_options(Command verb, ComputeOptions& options);

/// Reads the words that the options of `verb` (with allow_extras) left over, and adds `compute`.
/// Errors: ConfigError for a missing CONFIG, a second one, an option that is neither an option of the
/// verb nor a configuration key.
ConfigArguments read_config_arguments(const Command& verb, const ComputeOptions& compute = {});

}  // namespace hebb
