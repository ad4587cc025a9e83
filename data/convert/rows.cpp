#include "data/convert/rows.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>

#include "core/json_line.h"
#include "data/text/text_input.h"
#include "data/text/white_space.h"

namespace hebb {
namespace {

using Use = std::function<void(const Json& row)>;

void use_row(const Json& row, const Use& use) {
  if (!row.is_object()) { throw ConfigError(row.origin().str(), row.found(), "a JSON object"); }
  use(row);
}

void rows_of(const Json& value, const std::string& container, const Use& use) {
  const Json* list = value.is_object() && !container.empty() ? value.find(container) : &value;
  if (list == nullptr || !list->is_array()) {
    use_row(value, use);
    return;
  }
  for (const Json& row : list->items()) { use_row(row, use); }
}

bool is_json(std::string_view text) {
  try {
    parse_json(text, "");
  } catch (const ConfigError&) { return false; }
  return true;
}

void each_line(std::string_view text, const std::function<void(std::string_view line, int number)>& use) {
  int number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    use(text.substr(0, end), ++number);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

}  // namespace

void each_row(const std::string& path, const std::string& container, const Use& use) {
  RawReader reader({.inputs = {path}, .format = TextInputOptions::Format::text});
  for (RawDocument raw; reader.next(raw);) {
    if (!raw.failure.empty()) { throw DataError("", raw.failure); }
    const std::string file = reader.files()[raw.file].string();
    const std::string_view text = raw.bytes;
    as_data([&] {
      const size_t first = std::min(text.find_first_not_of(" \t\r\n"), text.size());
      if (first < text.size() &&
          !is_json(text.substr(first, text.find('\n', first) - first))) {  // the value goes over several lines
        rows_of(parse_json(text, file), container, use);
        return;
      }
      each_line(text, [&](std::string_view line, int number) {
        if (line.find_first_not_of(" \t\r") != std::string_view::npos) {
          rows_of(parse_json_line(line, file, number), container, use);
        }
      });
    });
  }
}

void fail_member(const Json& object, const std::string& key, const std::string& expected) {
  const Json* value = object.is_object() ? object.find(key) : nullptr;
  const Json& at = value == nullptr ? object : *value;
  throw ConfigError(at.origin().str() + ": " + key, value == nullptr ? "nothing" : value->found(), expected);
}

const Json& member(const Json& object, const std::string& key, const char* expected) {
  const Json* value = object.is_object() ? object.find(key) : nullptr;
  if (value == nullptr) { fail_member(object, key, expected); }
  return *value;
}

const std::string& text_of(const Json& object, const std::string& key) {
  const Json& value = member(object, key, "a string");
  if (!value.is_string()) { fail_member(object, key, "a string"); }
  return value.as_string();
}

std::vector<std::string> texts_of(const Json& object, const std::string& key) {
  const Json& list = member(object, key, "a list of strings");
  std::vector<std::string> texts;
  for (const Json& text : list.is_array() ? list.items() : std::vector<Json>()) {
    if (!text.is_string()) { fail_member(object, key, "a list of strings"); }
    texts.push_back(text.as_string());
  }
  if (texts.empty()) { fail_member(object, key, "a list of strings"); }
  return texts;
}

int64_t index_of(const Json& object, const std::string& key, size_t count) {
  const std::string expected = fmt::format("an index from 0 to {:d}", count - 1);
  const Json& value = member(object, key, expected.c_str());
  int64_t index = -1;
  if (value.is_integer()) {
    index = value.as_int();
  } else if (value.is_string()) {
    const std::string& text = value.as_string();
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), index);
    index = error == std::errc() && end == text.data() + text.size() ? index : -1;
  }
  if (index < 0 || index >= static_cast<int64_t>(count)) { fail_member(object, key, expected); }
  return index;
}

int64_t LabelledChoices::find(const Json& row, const std::string& key) const {
  const auto at = std::find(labels.begin(), labels.end(), text_of(row, key));
  if (at == labels.end()) { fail_member(row, key, "a label of the choices"); }
  return at - labels.begin();
}

LabelledChoices labelled_choices(const Json& holder) {
  const Json& json = member(holder, "choices", "options with labels");
  LabelledChoices choices;
  if (json.is_array()) {
    for (const Json& choice : json.items()) {
      choices.texts.push_back(text_of(choice, "text"));
      choices.labels.push_back(text_of(choice, "label"));
    }
  } else {
    choices = {texts_of(json, "text"), texts_of(json, "label")};
  }
  if (choices.texts.empty() || choices.texts.size() != choices.labels.size()) {
    fail_member(holder, "choices", "as many labels as texts, at least one");
  }
  return choices;
}

std::string lettered(const std::string& question, const std::vector<std::string>& options) {
  std::string text(trim(question));
  char letter = 'A';
  for (const std::string& option : options) { text += std::string("\n") + letter++ + ". " + option; }
  return text + "\nAnswer:";
}

}  // namespace hebb
