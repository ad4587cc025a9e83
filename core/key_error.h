#pragma once
#include <string>
#include <string_view>
#include <utility>

#include "core/error.h"

namespace hebb {

/// A key of a configuration that is wrong by itself, whatever the others say.
class KeyError : public ConfigError {
 public:
  /// How much of the configuration can be judged without the key.
  enum class Rest {
    all,      // the key has no meaning
    values,   // the others' values, but not how they fit together
    nothing,  // the key says which others there are
  };
  KeyError(std::string where_text, std::string_view found, std::string expected_text, std::string key_path, Rest r)
      : ConfigError(where_text, found, expected_text),
        where(std::move(where_text)),
        expected(std::move(expected_text)),
        path(std::move(key_path)),
        rest(r) {}
  const std::string where, expected;
  const std::string path;  // "optimizer.lr"
  const Rest rest;
};

/// Several errors of one configuration; what() has a line for each.
class ConfigErrors : public ConfigError {
 public:
  explicit ConfigErrors(const std::string& lines_text) : ConfigError("", lines_text) {}
};

}  // namespace hebb
