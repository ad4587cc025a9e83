#pragma once
// How generated text is compared with reference answers (docs/evaluations/generation.md, Scores). Every score is 0 to
// 1; text without a character that counts scores 0. Texts must be valid UTF-8.
#include <string>
#include <string_view>
#include <vector>

namespace hebb {

/// Name of a way to score, besides "none".
using AnswerScore = double (*)(std::string_view text, const std::vector<std::string>& answers,
                               const std::vector<std::string>& classes);
/// exact, f1, gsm8k, match_all, match_part, contains, rouge_l, classification; null for another name.
AnswerScore find_answer_score(std::string_view name);

/// Equal to an answer after lower case, without ASCII punctuation, the words a, an, the, and surplus white space.
double exact_score(std::string_view text, const std::vector<std::string>& answers);
/// Best F1 of the bags of words that exact_score compares.
double f1_score(std::string_view text, const std::vector<std::string>& answers);
/// The number after "#### " (without commas, "$", a final ".") is that of an answer, with or without "#### ".
double gsm8k_score(std::string_view text, const std::vector<std::string>& answers);
/// Share of the answers that occur in the text, in any case, after control characters have become new lines.
double match_all_score(std::string_view text, const std::vector<std::string>& answers);
/// 1 if one of them does.
double match_part_score(std::string_view text, const std::vector<std::string>& answers);
/// 1 if an answer occurs as it is.
double contains_score(std::string_view text, const std::vector<std::string>& answers);
/// Best F1 of the longest common subsequence of words.
double rouge_l_score(std::string_view text, const std::vector<std::string>& answers);
/// 1 / (number of classes that occur in the text) if an answer is among them; parts of that answer do not count.
double classification_score(std::string_view text, const std::vector<std::string>& answers,
                            const std::vector<std::string>& classes);

/// Of a needle's value, character by character (docs/evaluations/niah.md, Results).
struct NeedleScores {
  std::string prediction;  // the first characters after leading white space
  double exact = 0, digits = 0, candidate = 0;
};
NeedleScores needle_scores(std::string_view text, const std::string& answer, const std::vector<std::string>& values);

}  // namespace hebb
