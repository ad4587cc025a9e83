// Multiple-choice data sets (docs/verbs/data.md, convert); wording as the common harness has it.
#include <fmt/core.h>
#include <utf8proc.h>

#include <algorithm>

#include "core/files.h"
#include "core/json_line.h"
#include "core/path_list.h"
#include "core/utf8.h"
#include "data/convert/csv.h"
#include "data/convert/rows.h"
#include "data/text/characters.h"
#include "data/text/white_space.h"

namespace hebb {
namespace {

/// The first letter upper case, the rest lower case.
std::string capitalized(const std::string& text) {
  if (text.empty()) { return text; }
  size_t at = 0;
  std::string result;
  utf8_append(result, static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(utf8_decode(text, at)))));
  return result + lower_case(std::string_view(text).substr(at));
}

/// Marks of the videos' source are taken out.
std::string clean(const std::string& raw) {
  std::string text = replace_all(std::string(trim(raw)), " [title]", ". ");
  for (size_t open = text.find('['); open != std::string::npos; open = text.find('[', open)) {
    const size_t close = text.find_first_of("]\n", open);
    if (close == std::string::npos || text[close] == '\n') {  // a bracket that its line does not close stays
      ++open;
      continue;
    }
    text.erase(open, close + 1 - open);
  }
  return replace_all(std::move(text), "  ", " ");
}

std::string question_and_answer(const std::string& question) { return "Question: " + question + "\nAnswer:"; }

std::vector<std::string> letters(size_t n) {
  std::vector<std::string> letters;
  for (size_t i = 0; i < n; ++i) { letters.emplace_back(1, static_cast<char>('A' + i)); }
  return letters;
}

/// The member that holds what is asked: an object `question` of its own, or the row.
struct Asked {
  std::string question;
  LabelledChoices choices;
};
Asked asked(const Json& row, const char* flat_key) {
  const Json* question = row.find("question");
  if (question != nullptr && question->is_object()) {
    return {text_of(*question, "stem"), labelled_choices(*question)};
  }
  return {text_of(row, flat_key), labelled_choices(row)};
}

/// Rows whose answerKey is the label of an option; `word` puts what is asked into words.
template <class Word>
void convert_asked(const ConvertOptions& o, ConvertSink& sink, const char* flat_key, const Word& word) {
  each_row(o.raw, "", [&](const Json& row) {
    const Asked a = asked(row, flat_key);
    ChoiceRecord r;
    r.choices = a.choices.texts;
    word(a, r);
    r.gold = {a.choices.find(row, "answerKey")};
    sink.add(r, row.origin().str());
  });
}

/// PIQA's own labels: one a line in another file.
std::vector<Json> piqa_labels(const std::string& raw) {
  fs::path file = raw;
  file.replace_extension();
  file += "-labels.lst";
  std::vector<Json> labels;
  std::error_code error;
  if (!fs::exists(file, error)) { return labels; }
  const auto name = std::make_shared<const std::string>(file.string());
  const std::string text = read_file(file);
  for (const std::string_view label : split_words(text)) {
    labels.emplace_back(std::string(label));
    labels.back().set_origin({name, static_cast<int>(labels.size()), 1});
  }
  return labels;
}

}  // namespace

void convert_hellaswag(const ConvertOptions& o, ConvertSink& sink) {
  each_row(o.raw, "", [&](const Json& row) {
    const std::string &activity = text_of(row, "activity_label"), &first = text_of(row, "ctx_a"),
                      &second = text_of(row, "ctx_b");
    ChoiceRecord r;
    r.context = clean(activity + ": " + first + " " + capitalized(second));
    for (const std::string& ending : texts_of(row, "endings")) { r.choices.push_back(clean(ending)); }
    r.gold = {index_of(row, "label", r.choices.size())};
    sink.add(r, row.origin().str());
  });
}

void convert_piqa(const ConvertOptions& o, ConvertSink& sink) {
  const std::vector<Json> labels = piqa_labels(o.raw);
  size_t i = 0;
  each_row(o.raw, "", [&](Json row) {
    if (i < labels.size() && row.find("label") == nullptr) { row.set("label", labels[i]); }
    ++i;
    ChoiceRecord r;
    r.context = question_and_answer(text_of(row, "goal"));
    r.choices = {text_of(row, "sol1"), text_of(row, "sol2")};
    r.gold = {index_of(row, "label", 2)};
    sink.add(r, row.origin().str());
  });
  if (!labels.empty() && labels.size() != i) {
    throw DataError(*labels[0].origin().file, "these are the labels of another file",
                    fmt::format("{:d} labels", labels.size()), fmt::format("{:d}, one for each line of {}", i, o.raw));
  }
}

void convert_arc(const ConvertOptions& o, ConvertSink& sink) {
  convert_asked(o, sink, "question",
                [](const Asked& a, ChoiceRecord& r) { r.context = question_and_answer(a.question); });
}

void convert_openbookqa(const ConvertOptions& o, ConvertSink& sink) {
  convert_asked(o, sink, "question_stem", [](const Asked& a, ChoiceRecord& r) { r.context = a.question; });
}

void convert_commonsenseqa(const ConvertOptions& o, ConvertSink& sink) {
  convert_asked(o, sink, "question", [](const Asked& a, ChoiceRecord& r) {
    r.context = "Question: " + lettered(a.question, a.choices.texts);
    r.choices = letters(a.choices.texts.size());
  });
}

void convert_winogrande(const ConvertOptions& o, ConvertSink& sink) {
  each_row(o.raw, "", [&](const Json& row) {
    const std::string& sentence = text_of(row, "sentence");
    const size_t gap = sentence.find('_');
    if (gap == std::string::npos) { fail_member(row, "sentence", "a sentence with a gap (_)"); }
    PartialRecord r;
    r.contexts = {sentence.substr(0, gap) + text_of(row, "option1"), sentence.substr(0, gap) + text_of(row, "option2")};
    r.continuation = trim(std::string_view(sentence).substr(gap + 1));
    const std::string& answer = text_of(row, "answer");
    if (answer != "1" && answer != "2") { fail_member(row, "answer", "\"1\" or \"2\""); }
    r.gold = {answer == "1" ? 0 : 1};
    sink.add(r, row.origin().str());
  });
}

void convert_boolq(const ConvertOptions& o, ConvertSink& sink) {
  each_row(o.raw, "", [&](const Json& row) {
    ChoiceRecord r;
    r.context = text_of(row, "passage") + "\nQuestion: " + text_of(row, "question") + "?\nAnswer:";
    r.choices = {"no", "yes"};
    if (const Json* answer = row.find("answer"); answer != nullptr && answer->is_bool()) {
      r.gold = {answer->as_bool() ? 1 : 0};
    } else if (answer != nullptr) {
      fail_member(row, "answer", "true or false");
    } else {
      r.gold = {index_of(row, "label", 2)};
    }
    sink.add(r, row.origin().str());
  });
}

namespace {

/// A passage of RACE with all its questions.
struct Passage {
  std::string article, where;
  std::vector<std::string> questions;
  std::vector<std::vector<std::string>> options;
  std::vector<size_t> answers;

  void add(const Json& row, const std::string& question, const Json& choices, const std::string& answer) {
    questions.push_back(question);
    options.push_back(texts_of(Json::object({{"options", choices}}), "options"));
    answers.push_back(answer.size() == 1 ? static_cast<size_t>(answer[0] - 'A') : options.back().size());
    if (answers.back() >= options.back().size()) {
      fail_member(row, row.find("answers") != nullptr ? "answers" : "answer",
                  "a letter of the options for each question");
    }
  }

  ChoiceRecord record() const {
    ChoiceRecord r;
    r.context = "Article: " + article + "\n\n";
    for (size_t q = 0; q + 1 < questions.size(); ++q) {
      const std::string& answer = options[q][answers[q]];
      if (questions[q].ends_with("  _  .")) {  // the answer stands in the gap
        r.context += questions[q].substr(0, questions[q].size() - 5) + answer + "\n";
      } else {
        r.context += "Question: " + questions[q] + "\nAnswer: " + answer + "\n";
      }
    }
    r.context += questions.back();
    r.choices = options.back();
    r.gold = {static_cast<int64_t>(answers.back())};
    return r;
  }
};

void add_questions(const Json& row, Passage& passage) {
  const std::vector<std::string> questions = texts_of(row, "questions"), answers = texts_of(row, "answers");
  const Json& options = member(row, "options", "a list of options for each question");
  if (answers.size() != questions.size() || !options.is_array() || options.items().size() != questions.size()) {
    fail_member(row, "questions", "as many questions as answers and lists of options");
  }
  for (size_t q = 0; q < questions.size(); ++q) { passage.add(row, questions[q], options.items()[q], answers[q]); }
}

}  // namespace

void convert_race(const ConvertOptions& o, ConvertSink& sink) {
  Passage passage;
  const auto finish = [&] {
    if (!passage.questions.empty()) { sink.add(passage.record(), passage.where); }
    passage = Passage();
  };
  each_row(o.raw, "", [&](const Json& row) {
    const bool is_whole = row.find("questions") != nullptr;
    const std::string& article = text_of(row, "article");
    if (is_whole || article != passage.article) {  // rows of one question stand together
      finish();
      passage.article = article;
      passage.where = row.origin().str();
    }
    if (is_whole) {
      add_questions(row, passage);
      finish();
    } else {
      const std::string& question = text_of(row, "question");
      passage.add(row, question, member(row, "options", "a list of strings"), text_of(row, "answer"));
    }
  });
  as_data(finish);
}

namespace {

/// A CSV file of MMLU: question, four options, the right letter.
std::vector<ChoiceRecord> mmlu_questions(const fs::path& file) {
  std::vector<ChoiceRecord> questions;
  each_csv_record(file.string(), [&](const std::vector<std::string>& fields, int64_t line) {
    const bool is_good = fields.size() == 6 && fields[5].size() == 1 && fields[5][0] >= 'A' && fields[5][0] <= 'D';
    if (!is_good) {
      throw DataError(fmt::format("{}:{:d}", file.string(), line), "no question of this data set",
                      fmt::format("{:d} fields, the last one \"{}\"", fields.size(), fields.back()),
                      "a question, four options and a letter from A to D");
    }
    ChoiceRecord r;
    r.context = lettered(fields[0], {fields.begin() + 1, fields.begin() + 5});
    r.choices = letters(4);
    r.gold = {fields[5][0] - 'A'};
    r.where = fmt::format("{}:{:d}", file.string(), line);
    questions.push_back(r);
  });
  return questions;
}

}  // namespace

void convert_mmlu(const ConvertOptions& o, ConvertSink& sink) {
  const std::string ending = "_test.csv";
  for (const fs::path& file : files_matching(fs::path(o.raw) / "test", "*" + ending)) {
    const std::string name = file.filename().string(), subject = name.substr(0, name.size() - ending.size());
    std::string before =
        "The following are multiple choice questions (with answers) about " + replace_all(subject, "_", " ") + ".\n\n";
    if (o.shots > 0) {
      const fs::path dev = fs::path(o.raw) / "dev" / (subject + "_dev.csv");
      const std::vector<ChoiceRecord> solved = mmlu_questions(dev);
      if (static_cast<int64_t>(solved.size()) < o.shots) {
        throw DataError(dev.string(), "too few solved examples", std::to_string(solved.size()),
                        fmt::format("at least {:d}", o.shots));
      }
      for (int64_t i = 0; i < o.shots; ++i) {
        const ChoiceRecord& shot = solved[static_cast<size_t>(i)];
        before += shot.context + " " + shot.choices[static_cast<size_t>(shot.gold[0])] + "\n\n";
      }
    }
    for (ChoiceRecord& r : mmlu_questions(file)) {
      r.context = before + r.context;
      r.group = subject;
      as_data([&] { sink.add(r, r.where); });
    }
  }
}

}  // namespace hebb
