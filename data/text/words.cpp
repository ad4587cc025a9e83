#include "data/text/words.h"

#include <array>
#include <string_view>

#include "core/error.h"

namespace hebb {
namespace {

std::string syllable(int64_t s) {
  constexpr std::string_view kConsonants = "bcdfghjklmnprstvwxyz";
  constexpr std::string_view kVowels = "aeiou";
  return {kConsonants[static_cast<size_t>(s / 5)], kVowels[static_cast<size_t>(s % 5)]};
}

}  // namespace

const std::vector<std::string>& adjectives() {
  static const std::vector<std::string> words = {
      "amber",   "ancient", "brave",  "bright",  "bronze", "calm",   "clever", "cold",   "copper", "coral",  "crimson",
      "curious", "dark",    "deep",   "distant", "dusty",  "eager",  "early",  "empty",  "fair",   "famous", "fierce",
      "frozen",  "gentle",  "golden", "grand",   "green",  "hidden", "hollow", "humble", "icy",    "idle",   "ivory",
      "jolly",   "keen",    "lively", "lonely",  "lucky",  "marble", "mellow", "misty",  "modest", "narrow", "noble",
      "pale",    "patient", "plain",  "polite",  "proud",  "quick",  "quiet",  "rapid",  "rare",   "rough",  "round",
      "royal",   "rusty",   "salty",  "silent",  "silver", "simple", "sleepy", "slow",   "small"};
  return words;
}

const std::vector<std::string>& nouns() {
  static const std::vector<std::string> words = {
      "acorn",    "anchor", "anvil",   "apple",   "arrow",    "autumn",  "badge",   "baker",   "barrel",  "basket",
      "beacon",   "beetle", "bell",    "bishop",  "blanket",  "boat",    "bottle",  "branch",  "bridge",  "brook",
      "brush",    "bucket", "butter",  "button",  "cabin",    "camel",   "candle",  "canyon",  "captain", "carpet",
      "castle",   "cellar", "chapel",  "cherry",  "chimney",  "circle",  "cloud",   "clover",  "coast",   "coin",
      "comet",    "corner", "cottage", "crane",   "creek",    "cricket", "crown",   "dancer",  "desert",  "diamond",
      "doctor",   "dragon", "drummer", "eagle",   "engine",   "falcon",  "farmer",  "feather", "fiddle",  "finger",
      "fisher",   "flame",  "flute",   "forest",  "fountain", "fox",     "garden",  "garnet",  "gate",    "ginger",
      "glacier",  "glove",  "goblet",  "grove",   "hammer",   "harbor",  "harvest", "hazel",   "heron",   "hill",
      "hunter",   "island", "jacket",  "jewel",   "kettle",   "kitchen", "ladder",  "lantern", "lemon",   "letter",
      "library",  "lizard", "magnet",  "maple",   "market",   "meadow",  "melon",   "miller",  "mirror",  "monkey",
      "mountain", "needle", "oak",     "ocean",   "olive",    "orchard", "otter",   "owl",     "paddle",  "painter",
      "palace",   "parrot", "pebble",  "pepper",  "piano",    "pigeon",  "pillow",  "pirate",  "planet",  "plum",
      "pocket",   "poet",   "pond",    "pumpkin", "quarry",   "rabbit",  "raven",   "ribbon"};
  return words;
}

const std::vector<std::string>& verbs() {
  static const std::vector<std::string> words = {
      "admired", "answered", "avoided", "blamed",   "borrowed", "carried", "chased",  "counted",
      "crossed", "doubted",  "entered", "feared",   "followed", "found",   "greeted", "guarded",
      "helped",  "joined",   "lifted",  "measured", "missed",   "noticed", "painted", "praised",
      "pulled",  "reached",  "refused", "trusted",  "visited",  "wanted",  "warned",  "watched"};
  return words;
}

std::string sentence(Rng& rng, const WordLists& words) {
  // a, n, v stand for an adjective, a noun, a verb.
  static constexpr std::array<std::string_view, 4> kTemplates = {
      "The {a} {n} {v} the {n}.",
      "A {n} {v} every {a} {n} near the {n}.",
      "When the {n} {v} the {n}, the {a} {n} {v} it.",
      "No {n} ever {v} a {a} {n}.",
  };
  const std::string_view form = kTemplates[rng.below(kTemplates.size())];
  std::string text;
  for (size_t i = 0; i < form.size(); ++i) {
    if (form[i] != '{') {
      text += form[i];
      continue;
    }
    const char kind = form[i + 1];
    text += rng.choice(kind == 'a' ? words.adjectives : kind == 'n' ? words.nouns : words.verbs);
    i += 2;
  }
  return text;
}

std::string haystack_sentence(uint64_t seed, uint64_t j) {
  static const WordLists all{adjectives(), nouns(), verbs()};
  Rng rng(seed, "haystack", j);
  return sentence(rng, all);
}

std::string pseudo_word(int64_t i) {
  HEBB_ASSERT(i >= 0 && i < 10'000);
  return syllable(i / 100) + syllable(i % 100);
}

}  // namespace hebb
