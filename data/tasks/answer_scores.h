#pragma once
// How generated text is compared with reference answers (docs/evaluations/generation.md, Scores). Every score is 0 to
// 1. Texts must be valid UTF-8.
#include <string>
#include <string_view>
#include <vector>

namespace hebb {

/// Name of a way to score, besides "none".
using AnswerScore = double (*)(std::string_view text, const std::vector<std::string>& answers,
                               const std::vector<std::string>& classes);
/// exact, nq_open, f1, gsm8k, gsm8k_flexible, match_all, match_part, contains, rouge_l, classification; null for
/// another name.
AnswerScore find_answer_score(std::string_view name);

// exact, nq_open and both of gsm8k equal lm-evaluation-harness 0.4.13: its tasks triviaqa, nq_open and gsm8k.
/// Equal to an answer in lower case without ASCII punctuation and the text's outer white space.
double exact_score(std::string_view text, const std::vector<std::string>& answers);
/// The same without the articles a, an, the, each with the space behind it.
double nq_open_score(std::string_view text, const std::vector<std::string>& answers);
/// Best F1 of the bags of words, without case, ASCII punctuation and articles.
double f1_score(std::string_view text, const std::vector<std::string>& answers);
/// The number right behind the first "#### " is that of an answer, with or without "#### ", but for ",", "$" and a "."
/// at the end.
double gsm8k_score(std::string_view text, const std::vector<std::string>& answers);
/// The last number of the text is.
double gsm8k_flexible_score(std::string_view text, const std::vector<std::string>& answers);
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
