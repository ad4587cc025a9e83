#include "data/tasks/answer_scores.h"

#include <algorithm>
#include <map>

#include "core/utf8.h"
#include "data/tasks/needles.h"
#include "data/text/characters.h"
#include "data/text/white_space.h"

namespace hebb {
namespace {

/// Words without case, ASCII punctuation and articles.
std::vector<std::string> plain_words(std::string_view text) {
  std::string plain = lower_case(text);
  std::erase_if(plain, [](char c) {
    return std::string_view("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~").find(c) != std::string_view::npos;
  });
  std::vector<std::string> words;
  for (const std::string_view word : split_words(plain)) {
    if (word != "a" && word != "an" && word != "the") { words.emplace_back(word); }
  }
  return words;
}

bool is_empty(std::string_view text) { return trim(text).empty(); }

template <class F> double best(const std::vector<std::string>& answers, const F& score) {
  double highest = 0;
  for (const std::string& answer : answers) { highest = std::max(highest, score(answer)); }
  return highest;
}

/// Harmonic mean of the shares that `common` is of both.
double f1(size_t common, size_t text, size_t answer) {
  return common == 0 ? 0.0 : 2.0 * static_cast<double>(common) / static_cast<double>(text + answer);
}

size_t common_words(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  std::map<std::string_view, size_t> left;
  for (const std::string& word : a) { ++left[word]; }
  size_t common = 0;
  for (const std::string& word : b) {
    const auto found = left.find(word);
    if (found != left.end() && found->second > 0) {
      --found->second;
      ++common;
    }
  }
  return common;
}

size_t longest_common_subsequence(const std::vector<std::string_view>& a, const std::vector<std::string_view>& b) {
  std::vector<size_t> row(b.size() + 1);  // of the words of a so far and the first j of b
  for (const std::string_view word : a) {
    size_t diagonal = 0;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = word == b[j - 1] ? diagonal + 1 : std::max(above, row[j - 1]);
      diagonal = above;
    }
  }
  return row.back();
}

/// Digits, points and a sign; empty where there is no digit.
std::string clean_number(std::string_view text) {
  std::string number;
  for (const char c : text.substr(0, text.find_first_not_of("0123456789+-.,$"))) {
    if (c != ',' && c != '$') { number += c; }
  }
  if (number.ends_with('.')) { number.pop_back(); }
  return number.find_first_of("0123456789") == std::string::npos ? "" : number;
}

std::string number_after_mark(std::string_view text) {
  constexpr std::string_view kMark = "#### ";
  const size_t at = text.find(kMark);
  return at == std::string_view::npos ? "" : clean_number(text.substr(at + kMark.size()));
}

/// What RULER's references are looked for in.
std::string match_text(std::string_view text) {
  std::string clean(trim(text));
  std::replace_if(
      clean.begin(), clean.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; }, '\n');
  return lower_case(trim(clean));
}

template <double (*score)(std::string_view, const std::vector<std::string>&)>
double without_classes(std::string_view text, const std::vector<std::string>& answers,
                       const std::vector<std::string>&) {
  return score(text, answers);
}

}  // namespace

AnswerScore find_answer_score(std::string_view name) {
  static const std::map<std::string_view, AnswerScore> scores = {
      {"exact", without_classes<exact_score>},           {"f1", without_classes<f1_score>},
      {"gsm8k", without_classes<gsm8k_score>},           {"match_all", without_classes<match_all_score>},
      {"match_part", without_classes<match_part_score>}, {"contains", without_classes<contains_score>},
      {"rouge_l", without_classes<rouge_l_score>},       {"classification", classification_score},
  };
  const auto found = scores.find(name);
  return found == scores.end() ? nullptr : found->second;
}

double exact_score(std::string_view text, const std::vector<std::string>& answers) {
  if (is_empty(text)) { return 0; }
  const std::vector<std::string> words = plain_words(text);
  return best(answers, [&](const std::string& answer) { return plain_words(answer) == words ? 1.0 : 0.0; });
}

double f1_score(std::string_view text, const std::vector<std::string>& answers) {
  const std::vector<std::string> words = plain_words(text);
  return best(answers, [&](const std::string& answer) {
    const std::vector<std::string> wanted = plain_words(answer);
    return f1(common_words(words, wanted), words.size(), wanted.size());
  });
}

double gsm8k_score(std::string_view text, const std::vector<std::string>& answers) {
  const std::string number = number_after_mark(text);
  return number.empty() ? 0.0 : best(answers, [&](const std::string& answer) {
    const bool is_marked = answer.find("#### ") != std::string::npos;
    return (is_marked ? number_after_mark(answer) : clean_number(trim(answer))) == number ? 1.0 : 0.0;
  });
}

double match_all_score(std::string_view text, const std::vector<std::string>& answers) {
  const std::string searched = match_text(text);
  const auto found = std::count_if(answers.begin(), answers.end(), [&](const std::string& answer) {
    return searched.find(lower_case(answer)) != std::string::npos;
  });
  return searched.empty() || answers.empty() ? 0.0 : static_cast<double>(found) / static_cast<double>(answers.size());
}

double match_part_score(std::string_view text, const std::vector<std::string>& answers) {
  return match_all_score(text, answers) > 0 ? 1.0 : 0.0;
}

double contains_score(std::string_view text, const std::vector<std::string>& answers) {
  return is_empty(text) ? 0.0 : best(answers, [&](const std::string& answer) {
    return text.find(answer) != std::string_view::npos ? 1.0 : 0.0;
  });
}

double rouge_l_score(std::string_view text, const std::vector<std::string>& answers) {
  const std::vector<std::string_view> words = split_words(text);
  return best(answers, [&](const std::string& answer) {
    const std::vector<std::string_view> wanted = split_words(answer);
    return f1(longest_common_subsequence(words, wanted), words.size(), wanted.size());
  });
}

double classification_score(std::string_view text, const std::vector<std::string>& answers,
                            const std::vector<std::string>& classes) {
  return best(answers, [&](const std::string& gold) {
    const auto occurs = [&](const std::string& name) { return text.find(name) != std::string_view::npos; };
    const auto found = std::count_if(classes.begin(), classes.end(), [&](const std::string& name) {
      const bool is_part = name != gold && gold.find(name) != std::string::npos;
      return occurs(name) && !is_part;
    });
    const bool is_class = std::find(classes.begin(), classes.end(), gold) != classes.end();
    return is_class && occurs(gold) ? 1.0 / static_cast<double>(found) : 0.0;
  });
}

NeedleScores needle_scores(std::string_view text, const std::string& answer, const std::vector<std::string>& values) {
  NeedleScores scores;
  scores.prediction = first_characters(trim_front(text), kValueLength);
  const std::string& prediction = scores.prediction;
  scores.exact = prediction == answer ? 1.0 : 0.0;
  scores.candidate = std::find(values.begin(), values.end(), prediction) != values.end() ? 1.0 : 0.0;
  size_t equal = 0, length = 0, at = 0, there = 0;
  for (; at < answer.size(); ++length) {
    const char32_t wanted = utf8_decode(answer, at);
    equal += there < prediction.size() && utf8_decode(prediction, there) == wanted ? 1 : 0;
  }
  scores.digits = static_cast<double>(equal) / static_cast<double>(length);
  return scores;
}

}  // namespace hebb
