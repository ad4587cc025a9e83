#pragma once
#include <string>
#include <utility>

#include "core/error.h"

namespace hebb {

/// A key that no field has. Whoever knows all sections may say where it belongs.
class UnknownKeyError : public ConfigError {
 public:
  UnknownKeyError(std::string where_text, std::string key_name, std::string expected_text)
      : ConfigError(where_text, "an unknown key", expected_text),
        where(std::move(where_text)),
        key(std::move(key_name)),
        expected(std::move(expected_text)) {}
  const std::string where, key, expected;
};

}  // namespace hebb
