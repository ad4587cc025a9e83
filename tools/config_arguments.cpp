#include "tools/config_arguments.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "core/suggest.h"
#include "tools/options.h"

namespace hebb {
namespace {

const std::vector<std::string> kSections = {"name",      "model",    "data", "train",
                                            "optimizer", "schedule", "eval", "extends"};

void check_key(const CLI::App& verb, const std::string& key) {
  const bool is_key = key.find('.') != std::string::npos || key.starts_with("/") ||
                      std::find(kSections.begin(), kSections.end(), key) != kSections.end();
  if (is_key) {
    return;
  }
  std::vector<std::string> names;
  for (const CLI::Option* option : verb.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      names.push_back("--" + name);
    }
  }
  const std::string nearest = nearest_name("--" + key, names);
  throw ConfigError("hebb " + verb.get_name(), "unknown option --" + key +
                        (nearest.empty() ? "" : "; did you mean " + nearest + "?") +
                        " (configuration keys are dotted: --train.steps 100)");
}

}  // namespace

void add_compute_options(CLI::App& verb, ComputeOptions& options) {
  verb.add_option("--device", options.device, "auto, cpu or cuda (train.device)")->type_name("TEXT");
  verb.add_option("--precision", options.precision, "fp32, bf16 or fp64 (train.precision)")->type_name("TEXT");
  at_least(verb.add_option("--threads", options.threads, "CPU threads, 0 = the cores that the process may use (train.threads)"), 0)
      ->default_str("");
}

ConfigArguments read_config_arguments(const CLI::App& verb, const ComputeOptions& compute) {
  const std::string where = "hebb " + verb.get_name();
  const std::vector<std::string> words = verb.remaining();
  ConfigArguments arguments;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    const size_t equals = word.find('=');
    if (word.starts_with("--")) {
      check_key(verb, word.substr(2, equals == std::string::npos ? equals : equals - 2));
      if (equals == std::string::npos && i + 1 == words.size()) {
        throw ConfigError(where, "option " + word + " needs a value");
      }
      arguments.overrides.push_back(equals != std::string::npos ? word.substr(2) : word.substr(2) + "=" + words[++i]);
    } else if (equals != std::string::npos && !std::filesystem::exists(word)) {
      arguments.overrides.push_back(word);
    } else if (arguments.config.empty()) {
      arguments.config = word;
    } else {
      throw ConfigError(where, "unexpected argument " + word + " (the configuration is " + arguments.config + ")");
    }
  }
  if (arguments.config.empty()) {
    throw ConfigError(where, "no CONFIG given (see " + where + " --help)");
  }
  if (!compute.device.empty()) {
    arguments.overrides.push_back("train.device=" + compute.device);
  }
  if (!compute.precision.empty()) {
    arguments.overrides.push_back("train.precision=" + compute.precision);
  }
  if (compute.threads >= 0) {
    arguments.overrides.push_back("train.threads=" + std::to_string(compute.threads));
  }
  return arguments;
}

}  // namespace hebb
