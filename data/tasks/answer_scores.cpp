#include "data/tasks/answer_scores.h"

#include <algorithm>
#include <map>
#include <optional>

#include "core/utf8.h"
#include "data/tasks/needles.h"
#include "data/text/characters.h"
#include "data/text/white_space.h"

namespace hebb {
namespace {

/// Text in lower case without ASCII punctuation.
std::string plain_text(std::string_view text) {
  std::string plain = lower_case(text);
  std::erase_if(plain, [](char c) {
    return std::string_view("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~").find(c) != std::string_view::npos;
  });
  return plain;
}

/// Words without case, ASCII punctuation and articles.
std::vector<std::string> plain_words(std::string_view text) {
  const std::string plain = plain_text(text);
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

/// Whether a letter, a digit or "_" ends before `at`.
bool is_behind_word(std::string_view text, size_t at) {
  if (at == 0) { return false; }
  size_t start = at - 1;
  while (start > 0 && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) { --start; }
  return is_word_character(utf8_decode(text, start));
}

/// Without articles and the space behind them: the regular expression \b(?:The |the |An |A |a |an ).
std::string without_articles(std::string_view text) {
  std::string rest;
  for (size_t at = 0; at < text.size();) {
    size_t length = 0;
    for (const std::string_view article : {"The ", "the ", "An ", "A ", "a ", "an "}) {
      if (text.substr(at).starts_with(article)) { length = article.size(); }
    }
    if (length > 0 && !is_behind_word(text, at)) {
      at += length;
    } else {
      rest += text[at++];
    }
  }
  return rest;
}

/// A number as the regular expressions of gsm8k leave it: without ",", "$", what stands before "#### " and a "." at the
/// end.
std::string clean_number(std::string_view text) {
  std::string number(text);
  std::erase_if(number, [](char c) { return c == ',' || c == '$'; });
  constexpr std::string_view kMark = "#### ";
  if (const size_t at = number.rfind(kMark); at != std::string::npos) { number.erase(0, at + kMark.size()); }
  if (number.ends_with(".\n")) { number.erase(number.size() - 2, 1); }
  if (number.ends_with('.')) { number.pop_back(); }
  return lower_case(number);
}

/// Length of the run of characters of `set` at `at`.
size_t run_length(std::string_view text, size_t at, std::string_view set) {
  if (at >= text.size()) { return 0; }
  return std::min(text.find_first_not_of(set, at), text.size()) - at;
}

/// The first match of #### (\-?[0-9\.\,]+), without the mark.
std::optional<std::string_view> number_after_mark(std::string_view text) {
  constexpr std::string_view kMark = "#### ";
  for (size_t at = text.find(kMark); at != std::string_view::npos; at = text.find(kMark, at + 1)) {
    const size_t begin = at + kMark.size(), sign = text.substr(begin).starts_with('-') ? 1 : 0;
    const size_t length = run_length(text, begin + sign, "0123456789.,");
    if (length > 0) { return text.substr(begin, sign + length); }
  }
  return std::nullopt;
}

/// The last match of (-?[$0-9.,]{2,})|(-?[0-9]+).
std::optional<std::string_view> last_number(std::string_view text) {
  std::optional<std::string_view> last;
  for (size_t at = 0; at < text.size();) {
    const size_t sign = text[at] == '-' ? 1 : 0;
    const size_t run = run_length(text, at + sign, "$0123456789.,");
    const size_t digits = run >= 2 ? run : run_length(text, at + sign, "0123456789");
    if (digits > 0) { last = text.substr(at, sign + digits); }
    at += digits > 0 ? sign + digits : 1;
  }
  return last;
}

double number_score(const std::optional<std::string_view>& found, const std::vector<std::string>& answers) {
  if (!found) { return 0; }
  const std::string number = clean_number(*found);
  return best(answers, [&](const std::string& answer) { return clean_number(answer) == number ? 1.0 : 0.0; });
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
      {"exact", without_classes<exact_score>},
      {"nq_open", without_classes<nq_open_score>},
      {"f1", without_classes<f1_score>},
      {"gsm8k", without_classes<gsm8k_score>},
      {"gsm8k_flexible", without_classes<gsm8k_flexible_score>},
      {"match_all", without_classes<match_all_score>},
      {"match_part", without_classes<match_part_score>},
      {"contains", without_classes<contains_score>},
      {"rouge_l", without_classes<rouge_l_score>},
      {"classification", classification_score},
  };
  const auto found = scores.find(name);
  return found == scores.end() ? nullptr : found->second;
}

double exact_score(std::string_view text, const std::vector<std::string>& answers) {
  const std::string plain = plain_text(trim(text));
  return best(answers, [&](const std::string& answer) { return plain_text(answer) == plain ? 1.0 : 0.0; });
}

double nq_open_score(std::string_view text, const std::vector<std::string>& answers) {
  const std::string plain = plain_text(without_articles(trim(text)));
  return best(answers,
              [&](const std::string& answer) { return plain_text(without_articles(answer)) == plain ? 1.0 : 0.0; });
}

double f1_score(std::string_view text, const std::vector<std::string>& answers) {
  const std::vector<std::string> words = plain_words(text);
  return best(answers, [&](const std::string& answer) {
    const std::vector<std::string> wanted = plain_words(answer);
    return f1(common_words(words, wanted), words.size(), wanted.size());
  });
}

double gsm8k_score(std::string_view text, const std::vector<std::string>& answers) {
  return number_score(number_after_mark(text), answers);
}

double gsm8k_flexible_score(std::string_view text, const std::vector<std::string>& answers) {
  return number_score(last_number(text), answers);
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
