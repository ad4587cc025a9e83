#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/random.h"

namespace hebb {

// Built-in words and text (docs/evaluations/niah.md, Built-in text; docs/evaluations/ruler.md, Generators).
const std::vector<std::string>& adjectives();  // 64
const std::vector<std::string>& nouns();       // 128
const std::vector<std::string>& verbs();       // 32

/// The words that a sentence draws from.
struct WordLists {
  std::vector<std::string> adjectives, nouns, verbs;
};

/// One sentence: template by below(4), then its placeholders from left to right, each by choice().
std::string sentence(Rng& rng, const WordLists& words);

/// Sentence j of the built-in haystack, from stream (seed, "haystack", j) over the full lists.
std::string haystack_sentence(uint64_t seed, uint64_t j);

/// Pseudo-word i, 0 <= i < 10,000: two syllables of a consonant and a vowel.
std::string pseudo_word(int64_t i);

}  // namespace hebb
