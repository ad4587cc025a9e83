// RULER's tasks of frequent words (docs/evaluations/ruler.md, Generators).
#include <fmt/core.h>

#include <cmath>
#include <numbers>
#include <set>

#include "data/tasks/ruler_tasks.h"
#include "data/text/characters.h"

namespace hebb::ruler {
namespace {

/// "1. a 2. b 3. c"
std::string numbered(const std::vector<std::string>& words) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) { text += fmt::format("{}{:d}. {}", i == 0 ? "" : " ", i + 1, words[i]); }
  return text;
}

/// A list with ten words that occur `common` times, the others `rare` times.
RulerSample list_input(const RulerMaterial& m, Rng rng, int64_t count, int64_t common, int64_t rare) {
  constexpr size_t kCommon = 10;
  std::vector<std::string> words, list;
  for (const uint32_t i : rng.sample(static_cast<uint32_t>(m.cwe.size()), static_cast<uint32_t>(count))) {
    words.push_back(m.cwe[i]);
  }
  for (size_t i = 0; i < words.size(); ++i) {
    list.insert(list.end(), static_cast<size_t>(i < kCommon ? common : rare), words[i]);
  }
  rng.shuffle(list);
  words.resize(kCommon);
  return {fill_template(m.strings.cwe, {{"context", numbered(list)}}), m.strings.cwe_answer, std::move(words)};
}

}  // namespace

RulerSample common_words_input(const RulerMaterial& m, const Streams& streams, int64_t units, int64_t length) {
  const bool is_short = length < 4096;
  const RulerSample example =
      is_short ? list_input(m, streams.example().main(), 20, 3, 1) : list_input(m, streams.example().main(), 40, 10, 3);
  RulerSample sample =
      is_short ? list_input(m, streams.main(), units, 6, 1) : list_input(m, streams.main(), units, 30, 3);
  sample.input = example.input + example.answer_prefix + " " + numbered(example.outputs) + "\n" + sample.input;
  return sample;
}

RulerSample frequent_words_input(const RulerMaterial& m, const Streams& streams, int64_t units, int64_t length) {
  constexpr size_t kLetters = 6;
  constexpr double kExponent = 2.0, kZeta = std::numbers::pi * std::numbers::pi / 6;  // zeta(2)
  Rng rng = streams.main();
  std::vector<std::string> words;
  std::set<std::string> used;
  while (static_cast<int64_t>(words.size()) < length / 50) {
    std::string word;
    for (size_t i = 0; i < kLetters; ++i) { word += static_cast<char>('a' + rng.below(26)); }
    if (used.insert(word).second) { words.push_back(word); }
  }
  RulerSample sample;
  sample.outputs.assign(words.begin() + 1, words.begin() + 4);
  words[0] = "...";
  std::vector<std::string> list;
  for (size_t k = 0; k < words.size(); ++k) {
    const double times =
        std::floor(static_cast<double>(units) * std::pow(static_cast<double>(k + 1), -kExponent) / kZeta);
    list.insert(list.end(), static_cast<size_t>(times), words[k]);
  }
  streams.places().shuffle(list);
  sample.input = fill_template(m.strings.fwe, {{"context", join(list, " ")}});
  sample.answer_prefix = m.strings.fwe_answer;
  return sample;
}

}  // namespace hebb::ruler
