#pragma once
#include "core/error.h"
#include "core/json.h"

namespace hebb {

/// Calls `read`, whose ConfigErrors become DataErrors with the same text: where JSON is data.
template <class F> void as_data(const F& read) {
  try {
    read();
  } catch (const ConfigError& error) { throw DataError("", error.what()); }
}

/// parse_json of text that begins with line `line` of its file: for files with a value on every line.
Json parse_json_line(std::string_view text, const std::string& file_name, int line);

}  // namespace hebb
