#include "data/tasks/ruler.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/utf8.h"
#include "data/tasks/records.h"
#include "data/tasks/ruler_tasks.h"
#include "data/text/characters.h"
#include "data/text/white_space.h"
#include "data/text/words.h"

namespace hebb {
namespace {

/// Lines of a file of valid UTF-8 without white space around them; empty ones are left out.
std::vector<std::string> read_words(const std::string& path, size_t least) {
  const std::string text = without_byte_order_mark(read_file(path));
  if (const size_t bad = utf8_first_invalid(text); bad != std::string::npos) {
    throw DataError(fmt::format("{}: byte {:d}", path, bad), "not a word list",
                    hex_bytes(std::string_view(text).substr(bad)), "UTF-8");
  }
  std::vector<std::string> words;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view word = trim(std::string_view(text).substr(begin, end - begin));
    if (!word.empty()) { words.emplace_back(word); }
    begin = end + 1;
  }
  std::vector<std::string> sorted = words;
  std::sort(sorted.begin(), sorted.end());
  if (const auto again = std::adjacent_find(sorted.begin(), sorted.end()); again != sorted.end()) {
    throw DataError(path, "not a word list", "\"" + *again + "\" twice", "every word once");
  }
  if (words.size() < least) {
    throw DataError(path, "not a word list", fmt::format("{:d} words", words.size()),
                    fmt::format("at least {:d}", least));
  }
  return words;
}

std::vector<std::string> read_essay(const std::string& path) {
  std::string text = without_byte_order_mark(read_file(path));
  if (path.ends_with(".json")) {
    const Json file = parse_json(text, path);
    const Json* member = file.is_object() ? file.find("text") : nullptr;
    if (member == nullptr || !member->is_string()) {
      throw DataError(path, "not an essay file", file.found(), "an object with a string \"text\", or plain text");
    }
    text = member->as_string();
  }
  if (const size_t bad = utf8_first_invalid(text); bad != std::string::npos) {
    throw DataError(fmt::format("{}: byte {:d}", path, bad), "not an essay file",
                    hex_bytes(std::string_view(text).substr(bad)), "UTF-8");
  }
  const std::vector<std::string_view> words = split_words(text);
  if (words.empty()) { throw DataError(path, "not an essay file", "no word", "some text"); }
  return {words.begin(), words.end()};
}

RulerSample read_sample(const Json& line, std::string& task) {
  const auto text = [&](const char* key, bool is_required) -> std::string {
    const Json* value = line.find(key);
    if (value == nullptr && !is_required) { return ""; }
    if (value == nullptr || !value->is_string()) {
      throw DataError((value == nullptr ? line : *value).origin().str(),
                      std::string("not a RULER sample: its \"") + key + "\" does not fit",
                      value == nullptr ? "nothing" : value->found(), "a string");
    }
    return value->as_string();
  };
  if (!line.is_object()) { throw DataError(line.origin().str(), "not a RULER sample", line.found(), "an object"); }
  RulerSample sample;
  sample.input = text("input", true);
  sample.answer_prefix = text(line.find("answer_prefix") != nullptr ? "answer_prefix" : "gen_prefix", false);
  task = text("task", false);
  const Json* outputs = line.find("outputs");
  if (outputs == nullptr || !outputs->is_array() || outputs->items().empty()) {
    throw DataError((outputs == nullptr ? line : *outputs).origin().str(),
                    "not a RULER sample: its \"outputs\" does not fit",
                    outputs == nullptr ? "nothing" : outputs->found(), "a list of strings");
  }
  for (const Json& output : outputs->items()) {
    if (!output.is_string() || trim(output.as_string()).empty()) {
      throw DataError(output.origin().str(), "not a reference of a RULER sample", output.found(), "a string with text");
    }
    sample.outputs.push_back(output.as_string());
  }
  return sample;
}

/// The largest size in 1 ... most that fits: from `guess` in growing steps, then by bisection. Longer text takes more
/// tokens, so that there is one border and the guess does not matter. 0 where none fits.
int64_t largest(int64_t guess, int64_t most, const std::function<bool(int64_t)>& fits) {
  int64_t good = 0, bad = most + 1, step = 1;
  for (int64_t size = std::clamp<int64_t>(guess, 1, most); bad - good > 1; step *= 2) {
    (fits(size) ? good : bad) = size;
    if (bad <= most && good > 0) {
      size = good + (bad - good) / 2;
    } else {
      size = good > 0 ? std::min(good + step, most) : std::max<int64_t>(bad - step, 1);
    }
  }
  return good;
}

}  // namespace

const std::vector<RulerTask>& ruler_tasks() {
  static const std::vector<RulerTask> tasks = {
      {"niah_single_1", 128, false},
      {"niah_single_2", 128, false},
      {"niah_single_3", 128, false},
      {"niah_multikey_1", 128, false},
      {"niah_multikey_2", 128, false},
      {"niah_multikey_3", 128, false},
      {"niah_multivalue", 128, false},
      {"niah_multiquery", 128, false},
      {"vt", 30, false},
      {"cwe", 120, false},
      {"fwe", 50, false},
      {"qa_1", 32, true},
      {"qa_2", 32, true},
  };
  return tasks;
}

const RulerTask* find_ruler_task(std::string_view name) {
  const auto& tasks = ruler_tasks();
  const auto found = std::find_if(tasks.begin(), tasks.end(), [&](const RulerTask& t) { return t.name == name; });
  return found == tasks.end() ? nullptr : &*found;
}

void fields(Fields& f, RulerStrings& s) {
  const auto text = [&](const char* name, std::string& value, std::initializer_list<const char*> needed,
                        const char* help) {
    std::string expected = "a text with";
    bool has_all = !value.empty();
    f.field(name, value).help(help);
    for (const char* placeholder : needed) {
      expected += std::string(" ") + placeholder;
      has_all = has_all && value.find(placeholder) != std::string::npos;
    }
    if (f.reading()) { f.require(has_all && !value.empty(), name, needed.size() > 0 ? expected : "a text"); }
  };
  text("noise", s.noise, {}, "What a haystack repeats.");
  text("needle", s.needle, {"{key}", "{value}"}, "One needle; {type} is number or uuid.");
  text("niah_one", s.niah_one, {"{context}", "{query}"}, "Input with one asked value.");
  text("niah_one_answer", s.niah_one_answer, {}, "Start of its answer.");
  text("niah_many", s.niah_many, {"{context}", "{query}"}, "Input with several asked values.");
  text("niah_many_answer", s.niah_many_answer, {}, "Start of its answer.");
  text("vt", s.vt, {"{context}", "{query}"}, "Input of variable tracking.");
  text("vt_answer", s.vt_answer, {}, "Start of its answer; {count} variables.");
  text("cwe", s.cwe, {"{context}"}, "Input of common words.");
  text("cwe_answer", s.cwe_answer, {}, "Start of its answer.");
  text("fwe", s.fwe, {"{context}"}, "Input of frequent coded words.");
  text("fwe_answer", s.fwe_answer, {}, "Start of its answer.");
  text("qa", s.qa, {"{context}", "{query}"}, "Input of questions.");
  text("qa_answer", s.qa_answer, {}, "Start of their answers.");
  text("document", s.document, {"{text}"}, "One document, number {i}.");
}

bool RulerFiles::replaces_any() const {
  return !(text.empty() && essays.empty() && words.adjectives.empty() && words.nouns.empty() && words.cwe.empty());
}

void fields(Fields& f, RulerFiles::Words& w) {
  f.file("adjectives", w.adjectives).help("First halves of keys, one a line.");
  f.file("nouns", w.nouns).help("Second halves of keys, one a line.");
  f.file("cwe", w.cwe).help("Words of task cwe, one a line.");
}

void fields(Fields& f, RulerFiles& files) {
  f.file("text", files.text).help("JSON object with other strings. Default: built in.");
  f.file("essays", files.essays)
      .help("Haystack of the essay tasks: plain text, or JSON with `text`. Default: the built-in haystack.");
  f.object("words", files.words).help("Word lists. Default: built in.");
  f.file("squad", files.squad).help("SQuAD v2 JSON file, for qa_1.");
  f.file("hotpotqa", files.hotpotqa).help("HotpotQA distractor JSON file, for qa_2.");
}

RulerMaterial read_ruler_material(const RulerFiles& files) {
  RulerMaterial m;
  if (!files.text.empty()) { Fields::read(parse_json(read_file(files.text), files.text), "", m.strings); }
  if (!files.essays.empty()) { m.essay = read_essay(files.essays); }
  m.adjectives = files.words.adjectives.empty() ? adjectives() : read_words(files.words.adjectives, 2);
  m.nouns = files.words.nouns.empty() ? nouns() : read_words(files.words.nouns, 2);
  if (files.words.cwe.empty()) {
    for (int64_t i = 0; i < 10'000; ++i) { m.cwe.push_back(pseudo_word(i)); }
  } else {
    m.cwe = read_words(files.words.cwe, 40);  // those of the solved example
  }
  if (!files.squad.empty()) { m.squad = read_squad(files.squad); }
  if (!files.hotpotqa.empty()) { m.hotpotqa = read_hotpotqa(files.hotpotqa); }
  return m;
}

bool RulerMaker::has(const RulerTask& task) const {
  return task.name == "qa_1"   ? material_.squad.has_value()
         : task.name == "qa_2" ? material_.hotpotqa.has_value()
                               : true;
}

std::string RulerMaker::essay(int64_t count) {
  const auto wanted = static_cast<size_t>(count);
  if (material_.essay.empty() && wanted > built_in_words_.size()) {
    std::vector<std::string> more;
    built_in_essay_.piece(static_cast<int64_t>(wanted - built_in_words_.size()), more);
    built_in_words_.insert(built_in_words_.end(), more.begin(), more.end());
  }
  const std::vector<std::string>& words = material_.essay.empty() ? built_in_words_ : material_.essay;
  std::string text;
  for (size_t i = 0; i < wanted; ++i) { text.append(i > 0 ? " " : "").append(words[i % words.size()]); }
  return text;
}

RulerMaker::Shape RulerMaker::shape(const RulerTask& task, int64_t length, uint64_t j) {
  const ruler::Streams streams{seed_, j, fmt::format("ruler/{}/{:d}", task.name, length)};
  if (const ruler::NeedleTask* needles = ruler::find_needle_task(task.name)) {
    const bool is_essay = needles->haystack == ruler::Haystack::essay;
    return {is_essay        ? 500
            : length < 4096 ? 5
                            : 25,
            INT64_MAX, [this, needles, streams, is_essay](int64_t units) {
              return ruler::needle_input(material_, *needles, streams, units, is_essay ? essay(units) : "");
            }};
  }
  if (task.name == "vt") {
    return {10, INT64_MAX, [this, streams](int64_t units) { return ruler::variable_input(material_, streams, units); }};
  }
  if (task.name == "cwe") {
    return {10, static_cast<int64_t>(material_.cwe.size()), [this, streams, length](int64_t units) {
              return ruler::common_words_input(material_, streams, units, length);
            }};
  }
  if (task.name == "fwe") {
    return {std::max<int64_t>(1, length / 32), INT64_MAX, [this, streams, length](int64_t units) {
              return ruler::frequent_words_input(material_, streams, units, length);
            }};
  }
  const QuestionSet& set = task.name == "qa_1" ? *material_.squad : *material_.hotpotqa;
  return {10, static_cast<int64_t>(set.documents.size()),
          [this, streams, &set](int64_t units) { return ruler::question_input(material_, set, streams, units); }};
}

RulerSample RulerMaker::sample(const RulerTask& task, int64_t length, uint64_t j) {
  HEBB_ASSERT(has(task));
  const auto refuse = [&](const std::string& found, const std::string& expected) {
    throw ConfigError(fmt::format("task {} at length {:d}", task.name, length), found, expected);
  };
  constexpr int64_t kLeastForFwe = 200;  // four words (the dots and three that are asked)
  if (task.name == "fwe" && length < kLeastForFwe) { refuse("too few words", "a length of at least 200 tokens"); }
  const Shape form = shape(task, length, j);
  const auto build = [&](int64_t size) {
    const int64_t units = std::min(form.unit * size, form.most);
    RulerSample sample = form.build(units);
    sample.units = units;
    sample.length = count_tokens_(sample.input + sample.answer_prefix) + task.new_tokens;
    return sample;
  };
  const int64_t most =
      form.most == INT64_MAX ? length : (form.most + form.unit - 1) / form.unit;  // a step takes a token at least
  int64_t& size = last_size_[{task.name, length}];
  size = largest(size, most, [&](int64_t n) { return build(n).length <= length; });
  if (size == 0) {
    refuse(
        fmt::format("{:d} tokens with the least text ({:d} of them for the answer)", build(1).length, task.new_tokens),
        fmt::format("at most {:d}: a larger length, or \"tasks\" without this one", length));
  }
  RulerSample sample = build(size);
  const bool has_all = std::all_of(sample.outputs.begin(), sample.outputs.end(), [&](const std::string& word) {
    return sample.input.find(word) != std::string::npos;
  });
  if (task.name == "fwe" && !has_all) { refuse("text too short for the third word to occur", "a larger length"); }
  return sample;
}

std::vector<std::pair<std::string, RulerSample>> read_ruler_samples(const std::string& path) {
  std::vector<std::pair<std::string, RulerSample>> samples;
  each_json_line(path, [&](const Json& line) {
    std::string task;
    RulerSample sample = read_sample(line, task);
    samples.emplace_back(std::move(task), std::move(sample));
  });
  if (samples.empty()) { throw DataError(path, "no RULER samples in the file"); }
  return samples;
}

}  // namespace hebb
