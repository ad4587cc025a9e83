#include "tools/config_arguments.h"

#include <filesystem>

#include "core/error.h"
#include "core/suggest.h"
#include "tools/command_line.h"

namespace hebb {
namespace {

[[noreturn]] void fail_on_option(const Command& verb, const std::string& word) {
  const std::string option = word.substr(0, word.find('=')), nearest = nearest_name(option, verb.option_names());
  throw ConfigError(verb.full_name(), "unknown option " + option +
                                          (nearest.empty() ? "" : "; did you mean " + nearest + "?") +
                                          " (configuration keys are dotted: --train.steps 100)");
}

}  // namespace

std::vector<std::string> run_sections() {
  return {"name", "model", "data", "train", "optimizer", "schedule", "eval", "extends"};
}

bool is_override(const std::string& word) {
  std::error_code error;  // a value may be longer than any file's name
  return word.find('=') != std::string::npos && !std::filesystem::exists(word, error);
}

void add_compute_options(Command verb, ComputeOptions& options) {
  verb.option("--device", options.device, "auto, cpu or cuda (train.device)");
  verb.option("--precision", options.precision, "fp32, bf16 or fp64 (train.precision)");
  verb.option("--threads", options.threads, "CPU threads, 0 = the cores that the process may use (train.threads)")
      .at_least(0)
      .default_text("");
}

ConfigArguments read_config_arguments(const Command& verb, const ComputeOptions& compute) {
  const std::string where = verb.full_name();
  const std::vector<std::string> words = verb.extras();
  ConfigArguments arguments;
  for (const std::string& word : words) {
    if (word.starts_with("--")) {
      fail_on_option(verb, word);
    } else if (is_override(word)) {
      arguments.overrides.push_back(word);
    } else if (arguments.config.empty()) {
      arguments.config = word;
    } else {
      throw ConfigError(where, "unexpected argument " + word + " (the configuration is " + arguments.config + ")");
    }
  }
  if (arguments.config.empty()) { throw ConfigError(where, "no CONFIG given (see " + where + " --help)"); }
  const auto set = [&](const std::string& name, const std::string& value) {
    for (const std::string& other : arguments.overrides) {
      if (other.starts_with("train." + name + "=")) {
        throw ConfigError(where, "give either --" + name + " " + value + " or " + other + ", not both");
      }
    }
    arguments.overrides.push_back("train." + name + "=" + value);
  };
  if (!compute.device.empty()) { set("device", compute.device); }
  if (!compute.precision.empty()) { set("precision", compute.precision); }
  if (compute.threads >= 0) { set("threads", std::to_string(compute.threads)); }
  return arguments;
}

}  // namespace hebb
