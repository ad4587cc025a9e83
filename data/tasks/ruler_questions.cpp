// RULER's tasks of questions about documents (docs/evaluations/ruler.md, Generators).
#include <algorithm>
#include <set>

#include "data/tasks/ruler_tasks.h"
#include "data/text/characters.h"

namespace hebb {
namespace {

const Json& member(const Json& object, const char* key, bool (Json::*is)() const, const char* expected) {
  if (!object.is_object()) {
    throw DataError(object.origin().str(), "not a question set", object.found(),
                    std::string("an object with \"") + key + "\"");
  }
  const Json* value = object.find(key);
  if (value == nullptr || !(value->*is)()) {
    throw DataError((value == nullptr ? object : *value).origin().str(),
                    std::string("not a question set: its \"") + key + "\" does not fit",
                    value == nullptr ? "nothing" : value->found(), expected);
  }
  return *value;
}
const std::vector<Json>& list_member(const Json& object, const char* key) {
  return member(object, key, &Json::is_array, "a list").items();
}
const std::string& question_text(const Json& object, const char* key) {
  return member(object, key, &Json::is_string, "a string").as_string();
}
const std::string& text_of(const Json& value) {
  if (!value.is_string()) { throw DataError(value.origin().str(), "not a question set", value.found(), "a string"); }
  return value.as_string();
}

/// Documents by text until all are known and have their place in the sorted list.
struct Draft {
  std::string text;
  std::vector<std::string> answers, own, related;
};

QuestionSet finish(const std::string& path, const std::set<std::string>& documents, std::vector<Draft> drafts) {
  if (drafts.empty()) { throw DataError(path, "no question that has an answer"); }
  QuestionSet set;
  set.documents.assign(documents.begin(), documents.end());
  const auto place = [&](const std::vector<std::string>& texts) {
    std::vector<size_t> places;
    for (const std::string& text : texts) {
      const auto at = static_cast<size_t>(std::lower_bound(set.documents.begin(), set.documents.end(), text) -
                                          set.documents.begin());
      if (std::find(places.begin(), places.end(), at) == places.end()) { places.push_back(at); }
    }
    return places;
  };
  for (Draft& d : drafts) {
    set.questions.push_back({std::move(d.text), std::move(d.answers), place(d.own), place(d.related)});
  }
  return set;
}

/// The questions of one paragraph; `article`: all paragraphs beside it.
void add_questions(const Json& paragraph, const std::vector<std::string>& article, std::vector<Draft>& drafts) {
  const std::string& own = question_text(paragraph, "context");
  std::vector<std::string> related;
  for (const std::string& other : article) {
    if (other != own) { related.push_back(other); }
  }
  for (const Json& question : list_member(paragraph, "qas")) {
    const std::string& text = question_text(question, "question");
    const Json* impossible = question.find("is_impossible");
    if (impossible != nullptr && *impossible == Json(true)) { continue; }
    Draft draft{text, {}, {own}, related};
    for (const Json& answer : list_member(question, "answers")) {
      draft.answers.push_back(question_text(answer, "text"));
    }
    if (draft.answers.empty()) {
      throw DataError(question.origin().str(), "the question has no answer", "an empty list",
                      "answers, or \"is_impossible\": true");
    }
    drafts.push_back(std::move(draft));
  }
}

}  // namespace

QuestionSet read_squad(const std::string& path) {
  const Json file = parse_json(read_file(path), path);
  std::set<std::string> documents;
  std::vector<Draft> drafts;
  for (const Json& article : list_member(file, "data")) {
    std::vector<std::string> texts;
    for (const Json& paragraph : list_member(article, "paragraphs")) {
      texts.push_back(question_text(paragraph, "context"));
    }
    documents.insert(texts.begin(), texts.end());
    for (const Json& paragraph : list_member(article, "paragraphs")) { add_questions(paragraph, texts, drafts); }
  }
  return finish(path, documents, std::move(drafts));
}

QuestionSet read_hotpotqa(const std::string& path) {
  const Json file = parse_json(read_file(path), path);
  if (!file.is_array()) {
    throw DataError(file.origin().str(), "not a question set", file.found(), "a list of questions");
  }
  std::set<std::string> documents;
  std::vector<Draft> drafts;
  for (const Json& question : file.items()) {
    Draft draft{question_text(question, "question"), {question_text(question, "answer")}, {}, {}};
    for (const Json& part : list_member(question, "context")) {
      if (!part.is_array() || part.items().size() != 2 || !part.items()[1].is_array()) {
        throw DataError(part.origin().str(), "not a paragraph of a question set", part.found(), "[title, [sentences]]");
      }
      std::string text = text_of(part.items()[0]) + "\n";
      for (const Json& sentence : part.items()[1].items()) { text += text_of(sentence); }
      documents.insert(text);
      draft.own.push_back(std::move(text));
    }
    drafts.push_back(std::move(draft));
  }
  return finish(path, documents, std::move(drafts));
}

namespace ruler {

RulerSample question_input(const RulerMaterial& m, const QuestionSet& set, const Streams& streams, int64_t units) {
  const QuestionSet::Question& question = set.questions[streams.index % set.questions.size()];
  const auto wanted = std::min(static_cast<size_t>(units), set.documents.size());
  Rng rng = streams.main();
  std::vector<size_t> chosen = question.own;
  std::vector<bool> is_used(set.documents.size());
  for (const size_t d : chosen) { is_used[d] = true; }
  const auto add_from = [&](const std::vector<size_t>& others) {
    if (chosen.size() >= wanted) { return; }
    const size_t count = std::min(wanted - chosen.size(), others.size());
    for (const uint32_t i : rng.sample(static_cast<uint32_t>(others.size()), static_cast<uint32_t>(count))) {
      chosen.push_back(others[i]);
      is_used[others[i]] = true;
    }
  };
  add_from(question.related);
  std::vector<size_t> rest;
  for (size_t d = 0; d < set.documents.size(); ++d) {
    if (!is_used[d]) { rest.push_back(d); }
  }
  add_from(rest);
  streams.places().shuffle(chosen);
  std::vector<std::string> texts;
  for (size_t i = 0; i < chosen.size(); ++i) {
    texts.push_back(
        fill_template(m.strings.document, {{"i", std::to_string(i + 1)}, {"text", set.documents[chosen[i]]}}));
  }
  return {fill_template(m.strings.qa, {{"context", join(texts, "\n\n")}, {"query", question.text}}),
          fill_template(m.strings.qa_answer, {{"query", question.text}}), question.answers};
}

}  // namespace ruler
}  // namespace hebb
