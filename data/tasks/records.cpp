#include "data/tasks/records.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/json_line.h"
#include "core/utf8.h"
#include "data/text/characters.h"
#include "data/text/text_input.h"
#include "data/text/white_space.h"

namespace hebb {
namespace {

void id_field(Fields& f, Record& r) { f.field("id", r.id).help("Name of the example in files of samples."); }

void refuse_empty(Fields& f, const char* name, const std::vector<std::string>& texts) {
  if (f.reading() && std::find(texts.begin(), texts.end(), "") != texts.end()) {
    f.fail(name, "an empty text", "texts of at least one character");
  }
}

void texts_field(Fields& f, const char* name, std::vector<std::string>& texts, bool may_be_empty) {
  f.field(name, texts).required();
  f.require(!texts.empty(), name, "a list of at least one text");
  if (!may_be_empty) { refuse_empty(f, name, texts); }
}

void text_field(Fields& f, const char* name, std::string& text) {
  f.field(name, text).required();
  f.require(!text.empty(), name, "a text of at least one character");
}

/// An index or a list of indices below `count`.
void gold_field(Fields& f, std::vector<int64_t>& gold, size_t count) {
  const std::string expected = fmt::format("an index below {:d}, or a list of such indices", count);
  Json json = Json::array();
  for (const int64_t i : gold) { json.push(i); }
  if (gold.size() == 1) { json = Json(gold[0]); }
  f.field("gold", json);
  if (!f.reading()) { return; }
  if (!f.written("gold")) { f.fail("gold", "nothing", expected + " (required)"); }
  gold.clear();
  for (const Json& index : json.is_array() ? json.items() : std::vector<Json>{json}) {
    if (!index.is_integer() || index.as_double() < 0 || index.as_double() >= static_cast<double>(count)) {
      f.fail("gold", index.found(), expected);
    }
    gold.push_back(index.as_int());
  }
  f.require(!gold.empty(), "gold", expected);
}

/// Optional lists: absent differs from empty.
void optional_texts(Fields& f, const char* name, std::optional<std::vector<std::string>>& texts) {
  std::vector<std::string> list = texts.value_or(std::vector<std::string>());
  if (f.field(name, list).present()) { texts = list; }
}

bool is_json(std::string_view text, const std::string& file) {
  try {
    parse_json_line(text, file, 1);
    return true;
  } catch (const ConfigError&) { return false; }
}

Json without_comments(Json line) {
  auto& members = line.members();
  std::erase_if(members, [](const Json::Member& m) { return m.first.starts_with("_"); });
  return line;
}

}  // namespace

void fields(Fields& f, ChoiceRecord& r) {
  f.field("context", r.context).required();
  texts_field(f, "choices", r.choices, false);
  gold_field(f, r.gold, r.choices.size());
  f.field("delimiter", r.delimiter);
  f.field("group", r.group);
  id_field(f, r);
}

void fields(Fields& f, PartialRecord& r) {
  texts_field(f, "contexts", r.contexts, true);
  text_field(f, "continuation", r.continuation);
  gold_field(f, r.gold, r.contexts.size());
  f.field("delimiter", r.delimiter);
  id_field(f, r);
}

void fields(Fields& f, ClozeRecord& r) {
  f.field("context", r.context).required();
  text_field(f, "target", r.target);
  id_field(f, r);
}

void fields(Fields& f, RollingRecord& r) {
  text_field(f, "text", r.text);
  f.field("words", r.words).min(1);
  f.field("bytes", r.bytes).min(1);
  id_field(f, r);
}

const std::vector<std::string>& generate_scores() {
  static const std::vector<std::string> names = {"exact",      "nq_open",  "f1",      "gsm8k",          "match_all",
                                                 "match_part", "contains", "rouge_l", "classification", "none"};
  return names;
}

void fields(Fields& f, GenerateRecord& r) {
  f.field("prompt", r.prompt).required();
  f.field("answers", r.answers).required();
  optional_texts(f, "until", r.until);
  refuse_empty(f, "until", r.until.value_or(std::vector<std::string>()));
  f.field("max_new_tokens", r.max_new_tokens).min(1);
  std::string score = r.score.value_or("none");
  if (f.field("score", score).one_of(generate_scores()).present()) { r.score = score; }
  f.field("classes", r.classes);
  if (f.reading() && r.score == "classification" && r.classes.empty()) {
    f.fail("classes", "nothing", "a list of the classes that the score asks for");
  }
  id_field(f, r);
}

void fields(Fields& f, AnswerRecord& r) {
  f.field("context", r.context).required();
  f.field("question", r.question).required();
  texts_field(f, "answers", r.answers, false);
  f.field("length", r.length).min(0);
  id_field(f, r);
}

void each_json_line(const std::string& path, const std::function<void(Json line)>& use) {
  RawReader reader({.inputs = {path}, .format = TextInputOptions::Format::jsonl});
  for (RawDocument raw; reader.next(raw);) {
    if (!raw.failure.empty()) { throw DataError("", raw.failure); }
    const std::string file = reader.files()[raw.file].string();
    as_data([&] {
      const bool is_text = raw.line == 1 && utf8_first_invalid(raw.bytes) == std::string_view::npos;
      const std::string_view text = is_text ? trim(raw.bytes) : std::string_view();
      if (is_text && !text.starts_with('{') && !text.starts_with('[') && !is_json(raw.bytes, file)) {
        throw DataError(file + ":1", "records", "text (" + Json(std::string(first_characters(text, 20))).dump() + ")",
                        "a JSON object on every line (docs/formats/records.md)");
      }
      Json line = parse_json_line(raw.bytes, file, static_cast<int>(raw.line));
      if (!line.is_object()) { throw ConfigError(line.origin().str(), line.found(), "a JSON object"); }
      use(std::move(line));
    });
  }
}

template <class R> std::vector<R> read_records(const std::string& path) {
  std::vector<R> records;
  each_json_line(path, [&](const Json& line) {
    R record;
    record.id = std::to_string(records.size());
    record.where = fmt::format("{}:{:d}", *line.origin().file, line.origin().line);
    Fields::read(without_comments(line), "", record);
    records.push_back(std::move(record));
  });
  if (records.empty()) { throw DataError(path, "no record", "nothing but blank lines", "one JSON object a line"); }
  return records;
}

template std::vector<ChoiceRecord> read_records<ChoiceRecord>(const std::string&);
template std::vector<PartialRecord> read_records<PartialRecord>(const std::string&);
template std::vector<ClozeRecord> read_records<ClozeRecord>(const std::string&);
template std::vector<RollingRecord> read_records<RollingRecord>(const std::string&);
template std::vector<GenerateRecord> read_records<GenerateRecord>(const std::string&);
template std::vector<AnswerRecord> read_records<AnswerRecord>(const std::string&);

}  // namespace hebb
