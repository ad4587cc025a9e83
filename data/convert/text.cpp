// Data sets of texts to continue: cloze, whole pages, questions, long contexts (docs/verbs/data.md, convert).
#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "core/files.h"
#include "data/convert/rows.h"
#include "data/text/characters.h"
#include "data/text/text_input.h"
#include "data/text/white_space.h"

namespace hebb {
// Found by their argument types, so they cannot live in the unnamed namespace.
struct AnswerWording {
  std::string context, question;
  std::string all() const { return context + question; }
};
struct PromptWording {
  std::string prompt;
  std::string all() const { return prompt; }
};

static void fields(Fields& f, AnswerWording& w) {
  f.field("context", w.context).required();
  f.field("question", w.question).required();
}

static void fields(Fields& f, PromptWording& w) { f.field("prompt", w.prompt).required(); }

namespace {

using Pair = std::array<std::string_view, 2>;

std::string replace_pairs(std::string text, std::initializer_list<Pair> pairs) {
  for (const Pair& pair : pairs) { text = replace_all(std::move(text), pair[0], pair[1]); }
  return text;
}

/// White space inside pairs of marks goes: "( a )" -> "(a)".
std::string trim_between(const std::string& text, char open, char close) {
  std::string out;
  size_t from = 0;
  while (true) {
    const size_t begin = text.find(open, from), end = begin == std::string::npos ? begin : text.find(close, begin + 1);
    if (end == std::string::npos) { return out + text.substr(from); }
    out += text.substr(from, begin + 1 - from);
    out += trim(std::string_view(text).substr(begin + 1, end - begin - 1));
    out += close;
    from = end + 1;
  }
}

/// Undoes the word splitting of WikiText, in the order of the common harness.
std::string join_wikitext(const std::string& page) {
  std::string text = replace_pairs(page, {{"s '", "s'"},
                                          {" @-@ ", "-"},
                                          {" @,@ ", ","},
                                          {" @.@ ", "."},
                                          {" : ", ": "},
                                          {" ; ", "; "},
                                          {" . ", ". "},
                                          {" ! ", "! "},
                                          {" ? ", "? "},
                                          {" , ", ", "}});
  for (const char* marks : {"()", "[]", "{}", "\"\"", "''"}) { text = trim_between(text, marks[0], marks[1]); }
  return replace_pairs(std::move(text), {{"= = = =", "===="},
                                         {"= = =", "==="},
                                         {"= =", "=="},
                                         {" \u00B0 ", "\u00B0"},
                                         {" \n", "\n"},
                                         {"\n ", "\n"},
                                         {" N ", " 1 "},
                                         {" 's", "'s"}});
}

void add_page(const std::string& page, const std::string& where, ConvertSink& sink) {
  RollingRecord r;
  r.text = join_wikitext(page);
  r.words = static_cast<int64_t>(count_split_pieces(page));
  r.bytes = static_cast<int64_t>(page.size());
  sink.add(r, where);
}

/// " = Title = ", but no heading of a section (" = = Title = = ").
bool is_title(std::string_view line) {
  line = trim(line);
  return line.size() > 4 && line.starts_with("= ") && line.ends_with(" =") && line[2] != '=' &&
         line[line.size() - 3] != '=';
}

/// The data set's own text: pages begin with their titles, between blank lines.
void wikitext_pages(const std::string& text, ConvertSink& sink) {
  std::string page;
  bool after_blank = true;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size() - 1) + 1,
                 next = std::min(text.find('\n', end), text.size());
    const std::string_view line(text.data() + at, end - at), following(text.data() + end, next - end);
    if (after_blank && is_title(line) && trim(following).empty()) {
      if (!trim(page).empty()) { add_page(page, "", sink); }
      page.clear();
    }
    page += line;
    after_blank = trim(line).empty();
    at = end;
  }
  if (!trim(page).empty()) { add_page(page, "", sink); }
}

bool is_jsonl(const fs::path& file) {
  const std::string name = file.string();
  return name.find(".json") != std::string::npos || name.find(".ndjson") != std::string::npos;
}

std::string worded(std::string_view wording, const std::string& context, const std::string& question) {
  return fill_template(wording, {{"context", context}, {"question", question}});
}

/// Wording out of a file, or `built_in`. Both placeholders must stand in it.
template <class Wording> Wording wording_of(const ConvertOptions& o, Wording built_in) {
  if (o.template_file.empty()) { return built_in; }
  const auto wording = Fields::read<Wording>(parse_json_file(o.template_file), "");
  for (const char* placeholder : {"{context}", "{question}"}) {
    if (wording.all().find(placeholder) == std::string::npos) {
      throw ConfigError(o.template_file, fmt::format("no text contains the placeholder {}", placeholder));
    }
  }
  return wording;
}

GenerateRecord question_record(const std::string& prompt, std::vector<std::string> answers, const char* score) {
  GenerateRecord r;
  r.prompt = prompt;
  r.answers = std::move(answers);
  r.score = score;
  r.until = {{"\n", ".", ","}};
  return r;
}

}  // namespace

void convert_lambada(const ConvertOptions& o, ConvertSink& sink) {
  each_row(o.raw, "", [&](const Json& row) {
    const std::string& text = text_of(row, "text");
    const size_t space = text.rfind(' ');
    if (space == std::string::npos || space + 1 == text.size()) {
      fail_member(row, "text", "a text that ends with a space and a word");
    }
    ClozeRecord r;
    r.context = text.substr(0, space);
    r.target = text.substr(space);
    sink.add(r, row.origin().str());
  });
}

void convert_wikitext(const ConvertOptions& o, ConvertSink& sink) {
  TextInputOptions options{.format = TextInputOptions::Format::text};
  for (const fs::path& file : expand_paths(o.raw)) {
    if (is_jsonl(file)) {
      each_row(file.string(), "", [&](const Json& row) { add_page(text_of(row, "page"), row.origin().str(), sink); });
    } else {
      options.inputs.push_back(file.string());
    }
  }
  TextReader reader(options);
  for (std::string text; reader.next(text);) { wikitext_pages(text, sink); }
}

void convert_triviaqa(const ConvertOptions& o, ConvertSink& sink) {
  each_row(o.raw, "Data", [&](const Json& row) {
    const bool is_official = row.find("Question") != nullptr;
    const Json& answer = member(row, is_official ? "Answer" : "answer", "an object");
    sink.add(question_record("Question: " + text_of(row, is_official ? "Question" : "question") + "?\nAnswer:",
                             texts_of(answer, is_official ? "Aliases" : "aliases"), "exact"),
             row.origin().str());
  });
}

void convert_naturalquestions(const ConvertOptions& o, ConvertSink& sink) {
  each_row(o.raw, "", [&](const Json& row) {
    sink.add(question_record("Q: " + text_of(row, "question") + "?\nA:", texts_of(row, "answer"), "nq_open"),
             row.origin().str());
  });
}

void convert_gsm8k(const ConvertOptions& o, ConvertSink& sink) {
  each_row(o.raw, "", [&](const Json& row) {
    const std::string& answer = text_of(row, "answer");
    if (answer.find("#### ") == std::string::npos) {
      fail_member(row, "answer", "a solution with \"#### \" before its number");
    }
    GenerateRecord r;
    r.prompt = "Question: " + text_of(row, "question") + "\nAnswer:";
    r.answers = {answer};
    r.score = "gsm8k";
    r.until = {{"Question:", "</s>", "<|im_end|>"}};
    sink.add(r, row.origin().str());
  });
}

void convert_longbench(const ConvertOptions& o, ConvertSink& sink) {
  const std::string instruction = "Read the text and answer the question about it in a few words.";
  const auto wording = wording_of<AnswerWording>(
      o, {instruction + "\n\n{context}\n\n", instruction + "\n\nQuestion:\n{question}\nAnswer:\n"});
  each_row(o.raw, "", [&](const Json& row) {
    AnswerRecord r;
    r.context = worded(wording.context, text_of(row, "context"), text_of(row, "input"));
    r.question = worded(wording.question, text_of(row, "context"), text_of(row, "input"));
    r.answers = texts_of(row, "answers");
    if (const Json* length = row.find("length"); length != nullptr) {
      if (!length->is_integer()) { fail_member(row, "length", "an integer"); }
      r.length = length->as_int();
    }
    sink.add(r, row.origin().str());
  });
}

void convert_longbench_fewshot(const ConvertOptions& o, ConvertSink& sink) {
  struct Task {
    const char *name, *score;
    int64_t new_tokens;
  };
  const std::vector<Task> tasks = {{"trec", "classification", 64}, {"triviaqa", "f1", 32}, {"samsum", "rouge_l", 128}};
  const auto wording = wording_of<PromptWording>(o, {"Solved examples:\n\n{context}\n{question}"});
  each_row(o.raw, "", [&](const Json& row) {
    const std::string& name = text_of(row, "dataset");
    const auto task = std::find_if(tasks.begin(), tasks.end(), [&](const Task& t) { return t.name == name; });
    if (task == tasks.end()) { fail_member(row, "dataset", "trec, triviaqa or samsum"); }
    GenerateRecord r;
    r.prompt = worded(wording.prompt, text_of(row, "context"), text_of(row, "input"));
    r.answers = texts_of(row, "answers");
    r.score = task->score;
    r.max_new_tokens = task->new_tokens;
    r.until = {{"\n"}};
    if (r.score == "classification") { r.classes = texts_of(row, "all_classes"); }
    sink.add(r, row.origin().str());
  });
}

}  // namespace hebb
