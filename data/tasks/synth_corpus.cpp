#include "data/tasks/synth_corpus.h"

#include <fmt/core.h>

#include <array>
#include <vector>

#include "core/join.h"
#include "core/random.h"
#include "data/text/words.h"

namespace hebb {
namespace {

std::vector<std::string> sample_words(Rng& rng, const std::vector<std::string>& words, uint32_t count) {
  std::vector<std::string> chosen;
  for (const uint32_t i : rng.sample(static_cast<uint32_t>(words.size()), count)) { chosen.push_back(words[i]); }
  return chosen;
}

std::string fact(Rng& rng) {
  const std::string adjective = rng.choice(adjectives());
  const std::string noun = rng.choice(nouns());
  return fmt::format("The number of {}-{} is {:d}.", adjective, noun, 100'000 + rng.below(900'000));
}

}  // namespace

std::string synth_document(uint64_t seed, uint64_t d) {
  Rng rng(seed, "synth", d);
  const uint32_t count = 8 + rng.below(25);
  WordLists topic;
  topic.nouns = sample_words(rng, nouns(), 6);
  topic.adjectives = sample_words(rng, adjectives(), 3);
  topic.verbs = sample_words(rng, verbs(), 4);
  std::array<std::string, 2> facts;
  for (std::string& text : facts) { text = fact(rng); }
  std::vector<std::string> sentences;
  for (uint32_t i = 0; i < count; ++i) { sentences.push_back(sentence(rng, topic)); }
  for (const std::string& text : facts) {
    const uint32_t place = rng.below(static_cast<uint32_t>(sentences.size()) + 1);
    sentences.insert(sentences.begin() + place, text);
  }
  const bool in_order = rng.below(2) == 0;
  sentences.push_back(facts[in_order ? 0 : 1]);
  sentences.push_back(facts[in_order ? 1 : 0]);

  return join(sentences, " ") + "\n";
}

}  // namespace hebb
