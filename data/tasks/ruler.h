#pragma once
// RULER's 13 tasks: long inputs with something to be found in them (docs/evaluations/ruler.md).
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/fields.h"
#include "data/tasks/needles.h"

namespace hebb {

struct RulerTask {
  std::string name;
  int64_t new_tokens;  // that an answer may have
  bool is_any_enough;  // score: any reference is found ("part"), else the share of them that are ("all")
};
const std::vector<RulerTask>& ruler_tasks();
/// Null for another name.
const RulerTask* find_ruler_task(std::string_view name);

/// Every string of an input (docs/evaluations/ruler.md, Strings).
struct RulerStrings {
  std::string noise = "The grass grows. The sky is clear. The sun shines. We walk on. Then we walk back.";
  std::string needle = "The special {type} of {key} is {value}.";
  std::string niah_one =
      "One special {type} is hidden in the text below. Remember it: a question about it follows the text.\n"
      "{context}\nWhich special {type} does the text give for {query}?";
  std::string niah_one_answer = " The special {type} of {query} is";
  std::string niah_many =
      "Several special {type}s are hidden in the text below. Remember them: a question about them follows "
      "the text.\n{context}\nWhich special {type}s does the text give for {query}?";
  std::string niah_many_answer = " The special {type}s of {query} are";
  std::string vt =
      "The text below hides assignments of variables. Follow them.\n\n{context}\n"
      "Question: Which variables hold the value {query} at the end?";
  std::string vt_answer = " Answer: The {count} variables that hold the value {query} are";
  std::string cwe =
      "Here is a numbered list of words. Some of them occur often. Remember the most frequent ones.\n{context}\n"
      "Question: Which 10 words occur most often in the list?";
  std::string cwe_answer = " Answer: The 10 words that occur most often are:";
  std::string fwe =
      "Count how often each coded word occurs in the text below. Ignore the dots. {context}\n"
      "Question: Which three coded words occur most often?";
  std::string fwe_answer = " Answer: The three most frequent coded words are:";
  std::string qa =
      "Use the documents below to answer a question. Reply with the answer alone.\n\n{context}\n\n"
      "Reply with the answer alone.\n\nQuestion: {query}";
  std::string qa_answer = " Answer:";
  std::string document = "Document {i}:\n{text}";
};
void fields(Fields& f, RulerStrings& strings);

/// Files in the place of what is built in.
struct RulerFiles {
  std::string text, essays, squad, hotpotqa;
  struct Words {
    std::string adjectives, nouns, cwe;
  } words;

  bool replaces_any() const;
};
/// Keys `text`, `essays`, `words`, `squad`, `hotpotqa`.
void fields(Fields& f, RulerFiles& files);

/// Questions about documents.
struct QuestionSet {
  struct Question {
    std::string text;
    std::vector<std::string> answers;
    std::vector<size_t> own, related;  // documents that belong to it; others of its article
  };
  std::vector<std::string> documents;  // different ones, sorted
  std::vector<Question> questions;
};
/// SQuAD v2 and HotpotQA (distractor) as their JSON files have them. Errors: MissingFileError, DataError.
QuestionSet read_squad(const std::string& path);
QuestionSet read_hotpotqa(const std::string& path);

/// What inputs are made of.
struct RulerMaterial {
  RulerStrings strings;
  std::vector<std::string> adjectives, nouns, cwe;  // word lists
  std::vector<std::string> essay;                   // words of the essays; empty: the built-in haystack
  std::optional<QuestionSet> squad, hotpotqa;
};
/// Reads the files. Errors: MissingFileError, DataError, ConfigError (unknown strings).
RulerMaterial read_ruler_material(const RulerFiles& files);

struct RulerSample {
  std::string input, answer_prefix;  // the model reads both and continues
  std::vector<std::string> outputs;  // references
  int64_t units = 0;                 // size of the haystack: n
  int64_t length = 0;                // tokens of input and prefix, and those that an answer may have
};

using TokenCounter = std::function<int64_t(std::string_view)>;

/// Makes samples of any task and length.
class RulerMaker {
 public:
  RulerMaker(RulerMaterial material, uint64_t seed, TokenCounter count_tokens)
      : material_(std::move(material)),
        seed_(seed),
        count_tokens_(std::move(count_tokens)),
        built_in_essay_(HaystackSource()) {}

  /// Whether there is material for the task (qa_1, qa_2 need their files).
  bool has(const RulerTask& task) const;
  /// Sample j of a task: its input has as many units of text as fit into `length` tokens (docs/evaluations/ruler.md,
  /// Size). Errors: ConfigError where the smallest one does not fit.
  RulerSample sample(const RulerTask& task, int64_t length, uint64_t j);

 private:
  /// An input with a given number of units, from fresh streams.
  using Build = std::function<RulerSample(int64_t units)>;
  struct Shape {
    int64_t unit = 1;          // units that a size step adds
    int64_t most = INT64_MAX;  // units that there are
    Build build;
  };
  Shape shape(const RulerTask& task, int64_t length, uint64_t j);
  /// The first `count` words of the essays, from the start again where there are no more.
  std::string essay(int64_t count);

  RulerMaterial material_;
  uint64_t seed_;
  TokenCounter count_tokens_;
  HaystackWords built_in_essay_;
  std::vector<std::string> built_in_words_;                       // that were needed so far
  std::map<std::pair<std::string, int64_t>, int64_t> last_size_;  // of a task and length, in steps of units
};

/// Ready-made samples: JSONL with `input`, `outputs`, optional `answer_prefix` or `gen_prefix`, optional `task`; other
/// members are not read. With each the task's name ("" where the line has none). Errors: MissingFileError, DataError
/// with file and line.
std::vector<std::pair<std::string, RulerSample>> read_ruler_samples(const std::string& path);

}  // namespace hebb
