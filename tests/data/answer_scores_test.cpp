#include "data/tasks/answer_scores.h"

#include "data/text/characters.h"
#include "tests/test.h"

namespace {
using Texts = std::vector<std::string>;
}

TEST_CASE("characters are code points, and letters of every script have a lower case", "[fast]") {
  CHECK(count_characters("aé水😀") == 4);
  CHECK(first_characters("é水😀x", 2) == "é水");
  CHECK(first_characters("ab", 6) == "ab");
  CHECK(lower_case("ÀÉ ΣΩ ЖЯ ĀŽ Ⅷ Ａ ẞ 𐐀 ǅ İ 水 ñ1") == "àé σω жя āž ⅷ ａ ß 𐐨 ǆ i 水 ñ1");
}

TEST_CASE("a template's names are replaced once, other braces stay", "[fast]") {
  CHECK(fill_template("{key} is {value}.", {{"key", "{value}"}, {"value", "7"}}) == "{value} is 7.");
  CHECK(fill_template("{} {other} {key", {{"key", "k"}}) == "{} {other} {key");
}

TEST_CASE("exact scores ignore case, punctuation and outer white space, and keep articles", "[fast]") {
  CHECK(exact_score(" Eiffel-Tower!\n", Texts{"x", "eiffeltower"}) == 1);
  CHECK(exact_score("The Eiffel", Texts{"eiffel"}) == 0);
  CHECK(exact_score("an  apple", Texts{"an apple"}) == 0);
  CHECK(nq_open_score("An apple a day", Texts{"apple day"}) == 1);
  CHECK(nq_open_score("eta day", Texts{"et day"}) == 0);
  CHECK(exact_score("ÉCOLE", Texts{"école"}) == 1);
  CHECK(exact_score("theory", Texts{"ory"}) == 0);
  CHECK(exact_score("A", Texts{"A"}) == 1);
  CHECK(exact_score(" ?", Texts{"!"}) == 1);
  CHECK(exact_score(" \n", Texts{"A"}) == 0);
}

TEST_CASE("F1 counts common words with their number", "[fast]") {
  CHECK(f1_score("the red red fox", Texts{"red fox fox"}) == Approx(2.0 * 2 / (3 + 3)));
  CHECK(f1_score("red", Texts{"blue", "a red fox"}) == Approx(2.0 / 3));
  CHECK(f1_score("the", Texts{"a"}) == 0);
}

TEST_CASE("the number right behind the mark counts, or the last one of the text", "[fast]") {
  CHECK(gsm8k_score("so it is\n#### 1,234.", Texts{"text #### 1234"}) == 1);
  CHECK(gsm8k_score("#### $18", Texts{"18"}) == 0);
  CHECK(gsm8k_score("#### -5 apples", Texts{"-5"}) == 1);
  CHECK(gsm8k_score("#### 2.50", Texts{"2.5"}) == 0);
  CHECK(gsm8k_score("1234", Texts{"1234"}) == 0);
  CHECK(gsm8k_score("#### none", Texts{"none"}) == 0);
  CHECK(gsm8k_flexible_score("3 of 7: $1,234.", Texts{"text #### 1234"}) == 1);
  CHECK(gsm8k_flexible_score("it is -5", Texts{"-5"}) == 1);
  CHECK(gsm8k_flexible_score("none", Texts{"none"}) == 0);
}

TEST_CASE("references are found in any case, also across control characters", "[fast]") {
  CHECK(match_all_score(" ABC\tdef", Texts{"abc", "DEF", "ghi", "c\nd"}) == 0.75);
  CHECK(match_part_score("abc", Texts{"x", "B"}) == 1);
  CHECK(match_part_score("abc", Texts{"x"}) == 0);
  CHECK(contains_score("abc", Texts{"x", "bc"}) == 1);
  CHECK(contains_score("abc", Texts{"BC"}) == 0);
}

TEST_CASE("the longest common subsequence need not be in one piece", "[fast]") {
  CHECK(rouge_l_score("the cat sat on a mat", Texts{"the cat is on the mat"}) == Approx(2.0 * 4 / 12));
  CHECK(rouge_l_score("b a", Texts{"a b", "c"}) == Approx(0.5));
}

TEST_CASE("classes in the text share the score, parts of the right one do not count", "[fast]") {
  const Texts classes{"City", "Other city", "State", "her"};
  CHECK(classification_score("State or City", {"State"}, classes) == 0.5);
  CHECK(classification_score("Type: Other city", {"Other city"}, {"city", "Other city", "State"}) == 1);
  CHECK(classification_score("City", {"State"}, classes) == 0);
  CHECK(classification_score("Planet", {"Planet"}, classes) == 0);
}

TEST_CASE("every score gives 1 for the answer itself and 0 for nothing", "[fast]") {
  for (const char* name : {"exact", "nq_open", "f1", "gsm8k", "gsm8k_flexible", "match_all", "match_part", "contains",
                           "rouge_l", "classification"}) {
    INFO(name);
    const AnswerScore score = find_answer_score(name);
    REQUIRE(score != nullptr);
    CHECK(score("It is #### 42", {"It is #### 42"}, {"It is #### 42", "#### 4"}) == 1);
    for (const char* empty : {"", " \n\t"}) { CHECK(score(empty, {"It is #### 42"}, {"It is #### 42"}) == 0); }
  }
  CHECK(find_answer_score("none") == nullptr);
}

TEST_CASE("a needle's value is compared from its first character on", "[fast]") {
  const Texts values{"123456", "654321"};
  const NeedleScores right = needle_scores(" \n123456789", "123456", values);
  CHECK(right.prediction == "123456");
  CHECK(right.exact + right.digits + right.candidate == 3);
  const NeedleScores other = needle_scores("654321", "123456", values);
  CHECK((other.exact == 0 && other.digits == 0 && other.candidate == 1));
  const NeedleScores part = needle_scores("12水45", "123456", values);
  CHECK((part.prediction == "12水45" && part.exact == 0 && part.digits == Approx(4.0 / 6) && part.candidate == 0));
  CHECK(needle_scores("", "123456", values).digits == 0);
}
