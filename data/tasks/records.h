#pragma once
// Evaluation records: one JSON object a line, the text final (docs/formats/records.md). Keys that start with "_" are
// comments; any other unknown key is an error.
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/fields.h"

namespace hebb {

/// What every record has.
struct Record {
  std::string id;     // optional in the file: then the number of the record, from 0
  std::string where;  // "FILE:LINE", for messages
};

/// Which of several continuations fits a context.
struct ChoiceRecord : Record {
  std::string context;
  std::vector<std::string> choices;  // none is empty
  std::vector<int64_t> gold;         // indices of right choices, at least one
  std::string delimiter = " ";       // between context and choice
  std::optional<std::string> group;
};

/// Which of several contexts fits a continuation.
struct PartialRecord : Record {
  std::vector<std::string> contexts;
  std::string continuation;
  std::vector<int64_t> gold;
  std::string delimiter = " ";
};

/// Whether a text goes on as it should.
struct ClozeRecord : Record {
  std::string context, target;  // the target begins with its delimiter
};

/// A text to be scored as a whole.
struct RollingRecord : Record {
  std::string text;
  std::optional<int64_t> words, bytes;  // of the original text; counted in `text` where they are missing
};

/// A prompt to be continued; what is generated is scored against answers.
struct GenerateRecord : Record {
  std::string prompt;
  std::vector<std::string> answers;               // may be empty: whoever scores asks for what it needs
  std::optional<std::vector<std::string>> until;  // strings that end the text; an empty list: none
  std::optional<int64_t> max_new_tokens;
  std::optional<std::string> score;  // one of generate_scores()
  std::vector<std::string> classes;  // of score "classification"
};
/// Names of the scores of generated text (docs/evaluations/generation.md, Scores), "none" among them.
const std::vector<std::string>& generate_scores();

/// An answer to be scored after a long context and a question.
struct AnswerRecord : Record {
  std::string context, question;
  std::vector<std::string> answers;  // the first one is scored
  std::optional<int64_t> length;     // as the data set counts it
};

void fields(Fields& f, ChoiceRecord& r);
void fields(Fields& f, PartialRecord& r);
void fields(Fields& f, ClozeRecord& r);
void fields(Fields& f, RollingRecord& r);
void fields(Fields& f, GenerateRecord& r);
void fields(Fields& f, AnswerRecord& r);

/// Calls `use` with every line of JSONL files (a file or a pattern; gzip and zstd are read); values know their file
/// and line. Errors: MissingFileError; DataError for what is no JSON object, also instead of a ConfigError of `use`.
void each_json_line(const std::string& path, const std::function<void(Json line)>& use);

/// All records of JSONL files of one kind, in order (R is one of the six above).
/// Errors: MissingFileError; DataError with file, line and key for what does not fit, and for files without a record.
template <class R> std::vector<R> read_records(const std::string& path);

}  // namespace hebb
