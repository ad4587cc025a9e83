// RULER's needle tasks and variable tracking (docs/evaluations/ruler.md, Generators).
#include <algorithm>
#include <cmath>

#include "data/tasks/ruler_tasks.h"
#include "data/text/characters.h"

namespace hebb::ruler {
namespace {

constexpr NeedleTask kTasks[] = {
    {"niah_single_1", Haystack::noise, false, false, 1, 1, 1},
    {"niah_single_2", Haystack::essay, false, false, 1, 1, 1},
    {"niah_single_3", Haystack::essay, false, true, 1, 1, 1},
    {"niah_multikey_1", Haystack::essay, false, false, 4, 1, 1},
    {"niah_multikey_2", Haystack::needles, false, false, 1, 1, 1},
    {"niah_multikey_3", Haystack::needles, true, true, 1, 1, 1},
    {"niah_multivalue", Haystack::essay, false, false, 1, 4, 1},
    {"niah_multiquery", Haystack::essay, false, false, 4, 1, 4},
};

std::string draw_number(Rng& rng) { return std::to_string(1'000'000 + rng.below(9'000'000)); }

std::string draw_uuid(Rng& rng) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string h;
  for (int i = 0; i < 4; ++i) {
    const uint32_t word = rng.u32();
    for (int shift = 28; shift >= 0; shift -= 4) { h += kDigits[word >> shift & 15]; }
  }
  h[12] = '4';
  h[16] = "89ab"[kDigits.find(h[16]) & 3];
  return h.substr(0, 8) + "-" + h.substr(8, 4) + "-" + h.substr(12, 4) + "-" + h.substr(16, 4) + "-" + h.substr(20);
}

std::string draw_key(Rng& rng, const RulerMaterial& m, const NeedleTask& task) {
  if (task.keys_are_uuids) { return draw_uuid(rng); }
  const std::string adjective = rng.choice(m.adjectives);
  return adjective + "-" + rng.choice(m.nouns);
}

std::string draw_value(Rng& rng, const NeedleTask& task) {
  return task.values_are_uuids ? draw_uuid(rng) : draw_number(rng);
}

const char* type_name(const NeedleTask& task) { return task.values_are_uuids ? "uuid" : "number"; }

std::string needle(const RulerMaterial& m, const NeedleTask& task, const std::string& key, const std::string& value) {
  return fill_template(m.strings.needle, {{"type", type_name(task)}, {"key", key}, {"value", value}});
}

/// Sentences of a text whose words are joined by single spaces: each ends with . ! or ? and what closes a quotation or
/// bracket.
std::vector<std::string> split_sentences(const std::string& text) {
  std::vector<std::string> sentences;
  size_t begin = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '.' && text[at] != '!' && text[at] != '?') { continue; }
    size_t end = at + 1;
    while (end < text.size() && std::string_view("\"')]").find(text[end]) != std::string_view::npos) { ++end; }
    if (end < text.size() && text[end] == ' ') {
      sentences.push_back(text.substr(begin, end - begin));
      begin = end + 1;
      at = end;
    }
  }
  if (begin < text.size()) { sentences.push_back(text.substr(begin)); }
  return sentences;
}

/// Needle k before the original item places[k]; places ascend.
std::vector<std::string> insert_before(const std::vector<std::string>& items, const std::vector<std::string>& needles,
                                       const std::vector<size_t>& places) {
  std::vector<std::string> all;
  size_t next = 0;
  for (size_t i = 0; i <= items.size(); ++i) {
    for (; next < needles.size() && places[next] == i; ++next) { all.push_back(needles[next]); }
    if (i < items.size()) { all.push_back(items[i]); }
  }
  return all;
}

std::vector<size_t> sorted_sample(Rng& rng, size_t n, size_t k) {
  const std::vector<uint32_t> drawn = rng.sample(static_cast<uint32_t>(n), static_cast<uint32_t>(k));
  std::vector<size_t> places(drawn.begin(), drawn.end());
  std::sort(places.begin(), places.end());
  return places;
}

std::string essay_context(const std::string& essay, const std::vector<std::string>& needles, Rng places) {
  const std::vector<std::string> sentences = split_sentences(essay);
  constexpr uint32_t kDepths = 40;
  std::vector<size_t> at;
  for (const uint32_t i : places.sample(kDepths, static_cast<uint32_t>(needles.size()))) {
    const auto depth =
        static_cast<size_t>(std::nearbyint(100.0 * i / (kDepths - 1)));  // percent; halves go to the even number
    at.push_back(sentences.size() * depth / 100);
  }
  std::sort(at.begin(), at.end());
  return join(insert_before(sentences, needles, at), " ");
}

/// A key that is none of `keys`.
std::string draw_other_key(Rng& rng, const RulerMaterial& m, const NeedleTask& task,
                           const std::vector<std::string>& keys) {
  for (;;) {
    std::string key = draw_key(rng, m, task);
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) { return key; }
  }
}

std::string list_context(const RulerMaterial& m, const NeedleTask& task, const std::vector<std::string>& keys,
                         const std::vector<std::string>& needles, const Streams& streams, int64_t units) {
  std::vector<std::string> items(static_cast<size_t>(units), m.strings.noise);
  if (task.haystack == Haystack::needles) {
    Rng filler = streams.filler();
    for (std::string& item : items) {
      const std::string key = draw_other_key(filler, m, task, keys);
      item = needle(m, task, key, draw_value(filler, task));
    }
  }
  Rng places = streams.places();
  return join(insert_before(items, needles, sorted_sample(places, items.size(), needles.size())), "\n");
}

/// "a", "a, and b", "a, b, and c".
std::string enumerate(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    text += (i == 0 ? "" : i + 1 < names.size() ? ", " : ", and ") + names[i];
  }
  return text;
}

/// One chain of variables: the text, the question and the names that hold its value.
RulerSample chain_input(const RulerMaterial& m, const Streams& streams, int64_t noise, int letters) {
  constexpr size_t kVariables = 5;
  Rng rng = streams.main();
  std::vector<std::string> names;
  while (names.size() < kVariables) {
    std::string name;
    for (int i = 0; i < letters; ++i) { name += static_cast<char>('A' + rng.below(26)); }
    if (std::find(names.begin(), names.end(), name) == names.end()) { names.push_back(name); }
  }
  const std::string value = std::to_string(10'000 + rng.below(89'999));
  std::vector<std::string> lines;
  for (size_t k = 0; k < kVariables; ++k) {
    lines.push_back("VAR " + names[k] + " = " + (k == 0 ? value : "VAR " + names[k - 1]));
  }
  const std::vector<std::string> items(static_cast<size_t>(noise), m.strings.noise);
  Rng places = streams.places();
  RulerSample sample;
  const std::string context =
      join(insert_before(items, lines, sorted_sample(places, items.size(), lines.size())), "\n");
  const std::string count = std::to_string(kVariables);
  sample.input = fill_template(m.strings.vt, {{"context", context}, {"query", value}, {"count", count}});
  sample.answer_prefix = fill_template(m.strings.vt_answer, {{"query", value}, {"count", count}});
  sample.outputs = std::move(names);
  return sample;
}

}  // namespace

const NeedleTask* find_needle_task(std::string_view name) {
  const auto found =
      std::find_if(std::begin(kTasks), std::end(kTasks), [&](const NeedleTask& t) { return name == t.name; });
  return found == std::end(kTasks) ? nullptr : found;
}

RulerSample needle_input(const RulerMaterial& m, const NeedleTask& task, const Streams& streams, int64_t units,
                         const std::string& essay) {
  Rng rng = streams.main();
  std::vector<std::string> keys, needles;
  std::vector<std::vector<std::string>> values;
  for (int64_t k = 0; k < task.keys; ++k) {
    std::string key = draw_other_key(rng, m, task, keys);
    values.emplace_back();
    for (int64_t v = 0; v < task.values; ++v) {
      values.back().push_back(draw_value(rng, task));
      needles.push_back(needle(m, task, key, values.back().back()));
    }
    keys.push_back(std::move(key));
  }
  rng.shuffle(needles);
  RulerSample sample;
  std::vector<std::string> asked;
  for (const uint32_t k : rng.sample(static_cast<uint32_t>(task.keys), static_cast<uint32_t>(task.queries))) {
    asked.push_back(keys[k]);
    sample.outputs.insert(sample.outputs.end(), values[k].begin(), values[k].end());
  }
  const std::string context = task.haystack == Haystack::essay ? essay_context(essay, needles, streams.places())
                                                               : list_context(m, task, keys, needles, streams, units);
  const std::string query = enumerate(asked);
  const bool is_one = task.queries == 1 && task.values == 1;
  sample.input = fill_template(is_one ? m.strings.niah_one : m.strings.niah_many,
                               {{"type", type_name(task)}, {"context", context}, {"query", query}});
  sample.answer_prefix = fill_template(is_one ? m.strings.niah_one_answer : m.strings.niah_many_answer,
                                       {{"type", type_name(task)}, {"query", query}});
  return sample;
}

RulerSample variable_input(const RulerMaterial& m, const Streams& streams, int64_t units) {
  const RulerSample example = chain_input(m, streams.example(), 10, 3);
  RulerSample sample = chain_input(m, streams, units, 5);
  sample.input = example.input + example.answer_prefix + " " + join(example.outputs, " ") + "\n\n" + sample.input;
  return sample;
}

}  // namespace hebb::ruler
