#include "data/convert/convert.h"

#include "core/error.h"
#include "data/convert/rows.h"

namespace hebb {

const std::vector<Converter>& converters() {
  static const std::vector<Converter> all = {
      {"hellaswag", "choice", "JSONL", convert_hellaswag},
      {"piqa", "choice", "JSONL, with FILE-labels.lst beside it or a member label", convert_piqa},
      {"arc", "choice", "JSONL", convert_arc},
      {"winogrande", "partial", "JSONL", convert_winogrande},
      {"openbookqa", "choice", "JSONL", convert_openbookqa},
      {"boolq", "choice", "JSONL", convert_boolq},
      {"race", "choice", "folder of passages, or JSONL", convert_race},
      {"commonsenseqa", "choice", "JSONL", convert_commonsenseqa},
      {"mmlu", "choice", "folder with dev/ and test/ of CSV files", convert_mmlu},
      {"lambada", "cloze", "JSONL", convert_lambada},
      {"wikitext", "rolling", "JSONL with a page a line, or the data set's text", convert_wikitext},
      {"triviaqa", "generate", "JSON or JSONL", convert_triviaqa},
      {"naturalquestions", "generate", "JSONL of the open set", convert_naturalquestions},
      {"gsm8k", "generate", "JSONL", convert_gsm8k},
      {"longbench", "answer", "JSONL", convert_longbench},
      {"longbench-fewshot", "generate", "JSONL of trec, triviaqa, samsum", convert_longbench_fewshot},
  };
  return all;
}

int64_t convert_records(const ConvertOptions& options, Progress& progress,
                        const std::function<void(std::string_view)>& line) {
  std::string names;
  for (const Converter& converter : converters()) {
    names += (names.empty() ? "" : ", ") + converter.name;
    if (converter.name == options.name) {
      ConvertSink sink{line, progress};
      progress.begin("convert", 0);
      converter.run(options, sink);
      progress.end();
      if (sink.records == 0) { throw DataError(options.raw, "no record", "nothing to convert", converter.reads); }
      return sink.records;
    }
  }
  throw ConfigError("NAME", Json(options.name).found(), "one of " + names);
}

}  // namespace hebb
