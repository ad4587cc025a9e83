#pragma once
// What converters of data sets share: rows of raw files and their members.
#include <functional>
#include <string>
#include <vector>

#include "data/convert/convert.h"
#include "data/tasks/records.h"

namespace hebb {

/// Where records go, and how far the input is.
struct ConvertSink {
  std::function<void(std::string_view)> line;
  Progress& progress;
  int64_t records = 0;

  /// `where` names the row that became this record. Throws ConfigError for what is no record.
  template <class R> void add(const R& record, const std::string& where) {
    check_record(record, where);
    line(record_line(record));
    progress.update(static_cast<uint64_t>(++records));
  }
};

/// Rows of JSON files (a file, a folder, a pattern): lines, a whole file that is an array, or the array that an object
/// holds under `container`. ConfigErrors of `use` become DataErrors.
void each_row(const std::string& path, const std::string& container, const std::function<void(const Json& row)>& use);

// Members of a row; ConfigError with file, line and key where they are not as expected.
const Json& member(const Json& object, const std::string& key, const char* expected);
const std::string& text_of(const Json& object, const std::string& key);
std::vector<std::string> texts_of(const Json& object, const std::string& key);
[[noreturn]] void fail_member(const Json& object, const std::string& key, const std::string& expected);

/// A number, or a string that is one, below `count`.
int64_t index_of(const Json& object, const std::string& key, size_t count);

/// Options with labels, as ARC, OpenBookQA and CommonsenseQA write them: [{"text", "label"}], or {"text": [...],
/// "label": [...]}.
struct LabelledChoices {
  std::vector<std::string> texts, labels;
  /// Position of the label that stands under `key` of `row`.
  int64_t find(const Json& row, const std::string& key) const;
};
LabelledChoices labelled_choices(const Json& holder);

/// "Question: ...\nAnswer:" and the like with "A. ..." lines between.
std::string lettered(const std::string& question, const std::vector<std::string>& options);

// Converters, by file.
void convert_hellaswag(const ConvertOptions& o, ConvertSink& sink);
void convert_piqa(const ConvertOptions& o, ConvertSink& sink);
void convert_arc(const ConvertOptions& o, ConvertSink& sink);
void convert_winogrande(const ConvertOptions& o, ConvertSink& sink);
void convert_openbookqa(const ConvertOptions& o, ConvertSink& sink);
void convert_boolq(const ConvertOptions& o, ConvertSink& sink);
void convert_race(const ConvertOptions& o, ConvertSink& sink);
void convert_commonsenseqa(const ConvertOptions& o, ConvertSink& sink);
void convert_mmlu(const ConvertOptions& o, ConvertSink& sink);
void convert_lambada(const ConvertOptions& o, ConvertSink& sink);
void convert_wikitext(const ConvertOptions& o, ConvertSink& sink);
void convert_triviaqa(const ConvertOptions& o, ConvertSink& sink);
void convert_naturalquestions(const ConvertOptions& o, ConvertSink& sink);
void convert_gsm8k(const ConvertOptions& o, ConvertSink& sink);
void convert_longbench(const ConvertOptions& o, ConvertSink& sink);
void convert_longbench_fewshot(const ConvertOptions& o, ConvertSink& sink);

}  // namespace hebb
