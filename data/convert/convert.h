#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/progress.h"

namespace hebb {

/// Which data set becomes evaluation records (docs/verbs/data.md, convert).
struct ConvertOptions {
  std::string name = {};           // one of converters()
  std::string raw = {};            // the data set's own file; mmlu: the folder with dev/ and test/
  std::string template_file = {};  // longbench: wording in place of the built-in one; empty: none
  int64_t shots = 5;               // mmlu: solved examples in front
};

struct ConvertSink;
struct Converter {
  std::string name, kind, reads;  // kind of the records; what files it takes, for help texts
  void (*run)(const ConvertOptions& options, ConvertSink& sink);
};
const std::vector<Converter>& converters();

/// Hands every record of a data set to `line`, as a line of JSON. Returns their number.
/// Errors: ConfigError for an unknown name or a template that does not fit; MissingFileError; DataError with file, line
/// and key for what is not as the data set's files are.
int64_t convert_records(const ConvertOptions& options, Progress& progress,
                        const std::function<void(std::string_view)>& line);

}  // namespace hebb
