#pragma once
#include <cstddef>
#include <optional>
#include <string_view>

namespace hebb {

/// Cuts text into the words that BPE encodes one by one: the regular expressions of published tokenizers as scanners.
class PreTokenizer {
 public:
  enum class Pattern {
    whole,        // no pattern: the text is one word
    gpt2,         // case-sensitive contractions, a space in front of runs of letters, numbers and others
    gpt2_digits,  // StarCoder, SmolLM: each number by itself, then as gpt2 between them
    one_digit,    // Qwen 2 to 3: contractions in any case, single digits, line breaks with what is before them
    digits,       // cl100k, Llama 3, OLMo 2: as one_digit, with up to three digits
    marks,        // Qwen 3.5: as one_digit, marks (\p{M}) are letters
    o200k,        // GPT-OSS, Llama 4: words end where capitals follow small letters, contractions behind them
    tekken        // Mistral NeMo: as o200k, with single digits, without contractions
  };

  /// The pattern of a regular expression, by its exact text; nothing for one that is not known.
  static std::optional<Pattern> find(std::string_view regex);

  explicit PreTokenizer(Pattern pattern = Pattern::whole) : pattern_(pattern) {}

  /// End of the word that begins at `at` < text.size(). `text` must be valid UTF-8; words have no gaps between them.
  size_t next(std::string_view text, size_t at) const;

 private:
  Pattern pattern_;
};

}  // namespace hebb
