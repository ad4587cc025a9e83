#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace hebb {

/// Calls `use(fields, line)` with every record of a CSV file (RFC 4180: fields in double quotes may hold commas, line
/// ends and doubled quotes); `line` is that of its first character, from 1. Blank lines are passed over. Errors:
/// MissingFileError; DataError with file and line for invalid UTF-8 and for quotes that do not fit.
void each_csv_record(const std::string& path,
                     const std::function<void(std::vector<std::string> fields, int64_t line)>& use);

}  // namespace hebb
