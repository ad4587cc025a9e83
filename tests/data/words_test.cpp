#include "data/text/words.h"

#include <set>

#include "data/tasks/synth_corpus.h"
#include "tests/test.h"

TEST_CASE("word lists have 64, 128 and 32 different words in the order of the spec", "[fast]") {
  CHECK(adjectives().size() == 64);
  CHECK(nouns().size() == 128);
  CHECK(verbs().size() == 32);
  CHECK(std::set<std::string>(nouns().begin(), nouns().end()).size() == 128);
  CHECK(adjectives().front() == "amber");
  CHECK(adjectives().back() == "small");
  CHECK(nouns()[26] == "candle");
  CHECK(nouns().back() == "ribbon");
  CHECK(verbs().back() == "watched");
}

TEST_CASE("pseudo-words are 10,000 different words of two syllables", "[fast]") {
  CHECK(pseudo_word(0) == "baba");
  CHECK(pseudo_word(9'999) == "zuzu");
  CHECK(pseudo_word(123) == "bego");
  std::set<std::string> words;
  for (int64_t i = 0; i < 10'000; ++i) { words.insert(pseudo_word(i)); }
  CHECK(words.size() == 10'000);
}

TEST_CASE("document 0 of the built-in corpus has the published length, start and end", "[fast]") {
  const std::string document = synth_document(0, 0);
  CHECK(document.size() == 987);
  CHECK(document.substr(0, 36) == "No melon ever warned a icy farmer. T");
  CHECK(document.substr(document.size() - 36) == "e number of proud-dancer is 739016.\n");
}

TEST_CASE("every fact of a built-in document occurs once before the end and once at the end", "[fast]") {
  for (const uint64_t d : {uint64_t{1}, uint64_t{17}, uint64_t{1'000'003}}) {
    const std::string document = synth_document(5, d);
    size_t facts = 0;
    for (size_t at = document.find("The number of "); at != std::string::npos;
         at = document.find("The number of ", at + 1)) {
      const std::string fact = document.substr(at, document.find('.', at) + 1 - at);
      const size_t first = document.find(fact);
      CHECK(document.find(fact, first + 1) != std::string::npos);
      ++facts;
    }
    CHECK(facts == 4);
    CHECK(document.back() == '\n');
  }
}
