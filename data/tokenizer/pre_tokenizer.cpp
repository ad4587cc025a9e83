#include "data/tokenizer/pre_tokenizer.h"

#include "core/utf8.h"
#include "data/tokenizer/character_class.h"
#include "data/tokenizer/letter_kind.h"

namespace hebb {
namespace {

using Class = CharacterClass;

/// The character at a place of the text.
struct Character {
  Character(std::string_view text, size_t at) : end(at) {
    if (at < text.size()) {
      value = utf8_decode(text, end);
      type = character_class(value);
      exists = true;
    }
  }
  bool is(Class wanted) const { return exists && type == wanted; }
  bool is_line_break() const { return value == '\n' || value == '\r'; }

  char32_t value = 0;
  Class type = Class::other;
  bool exists = false;
  size_t end;
};

/// End of the characters of a class that begin at `at`, at most `limit`.
size_t run(std::string_view text, size_t at, Class type, size_t limit = static_cast<size_t>(-1)) {
  for (; limit > 0; --limit) {
    const Character c(text, at);
    if (!c.is(type)) { break; }
    at = c.end;
  }
  return at;
}

/// End of 's, 't, 're, 've, 'm, 'll or 'd at `at`, or `at`. In any case, U+017F is an s, too.
size_t contraction(std::string_view text, size_t at, bool any_case) {
  if (text[at] != '\'' || at + 1 == text.size()) { return at; }
  const std::string_view rest = text.substr(at + 1);
  const auto letter = [&](size_t i) {
    const char c = i < rest.size() ? rest[i] : '\0';
    return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  };
  switch (letter(0)) {
    case 's':
    case 't':
    case 'm':
    case 'd': return at + 2;
    case 'r':
    case 'v': return letter(1) == 'e' ? at + 3 : at;
    case 'l': return letter(1) == 'l' ? at + 3 : at;
    default: return any_case && rest.starts_with("\xC5\xBF") ? at + 3 : at;
  }
}

/// \s+(?!\S)|\s+: the space before a word belongs to the word.
size_t spaces(std::string_view text, size_t at) {
  size_t last = at, end = at;
  for (Character c(text, at); c.is(Class::space); c = Character(text, end)) {
    last = end;
    end = c.end;
  }
  return end == text.size() || last == at ? end : last;
}

size_t gpt2(std::string_view text, size_t at) {
  if (const size_t end = contraction(text, at, false); end > at) { return end; }
  const Character first(text, at);
  const Character word = first.value == ' ' ? Character(text, first.end) : first;
  if (word.exists && word.type != Class::space) { return run(text, word.end, word.type); }
  return spaces(text, at);
}

/// Numbers of the stage Digits, whose Unicode version is later than that of the patterns.
bool is_digit(const Character& c) {
  return c.is(Class::number) || (c.value >= 0x11DE0 && c.value <= 0x11DE9) ||
         (c.value >= 0x16FF4 && c.value <= 0x16FF6);
}

size_t gpt2_digits(std::string_view text, size_t at) {
  if (const size_t end = contraction(text, at, false); end > at) { return end; }
  const Character first(text, at);
  if (is_digit(first)) { return first.end; }
  const Character word = first.value == ' ' ? Character(text, first.end) : first;
  if (word.exists && word.type != Class::space && !is_digit(word)) {
    size_t end = word.end;
    for (Character c(text, end); c.is(word.type) && !is_digit(c); c = Character(text, end)) { end = c.end; }
    return end;
  }
  const size_t end = run(text, at, Class::space);
  return is_digit(Character(text, end)) ? end : spaces(text, at);  // a number ends what the pattern sees
}

/// \s*[\r\n]+: end of the last line break in the white space at `at`, or `at`.
size_t line_breaks(std::string_view text, size_t at) {
  size_t end = at;
  for (Character c(text, at); c.is(Class::space); c = Character(text, c.end)) { end = c.is_line_break() ? c.end : end; }
  return end;
}

size_t cl100k(std::string_view text, size_t at, size_t digits) {
  if (const size_t end = contraction(text, at, true); end > at) { return end; }
  const Character first(text, at);
  if (first.type == Class::letter) { return run(text, first.end, Class::letter); }
  if (first.type == Class::number) { return run(text, at, Class::number, digits); }
  const Character second(text, first.end);
  if (!first.is_line_break() && second.is(Class::letter)) { return run(text, second.end, Class::letter); }
  const Character word = first.value == ' ' ? second : first;
  if (word.is(Class::other)) {
    size_t end = run(text, word.end, Class::other);
    while (end < text.size() && (text[end] == '\n' || text[end] == '\r')) { ++end; }
    return end;
  }
  if (const size_t end = line_breaks(text, at); end > at) { return end; }
  return spaces(text, at);
}

/// The character at a place, and whether it is a letter or a mark.
struct Letter : Character {
  Letter(std::string_view text, size_t at)
      : Character(text, at), kind(exists ? letter_kind(value) : LetterKind::none) {}
  /// [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]
  bool starts_word() const { return kind != LetterKind::none && kind != LetterKind::lower; }
  /// [\p{Ll}\p{Lm}\p{Lo}\p{M}]
  bool ends_word() const { return kind != LetterKind::none && kind != LetterKind::upper; }
  /// [^\r\n\p{L}\p{N}]
  bool is_prefix() const { return exists && type != Class::letter && type != Class::number && !is_line_break(); }

  LetterKind kind;
};

size_t letters_and_marks(std::string_view text, size_t at) {
  for (Letter c(text, at); c.kind != LetterKind::none; c = Letter(text, at)) { at = c.end; }
  return at;
}

size_t qwen35(std::string_view text, size_t at) {
  if (const size_t end = contraction(text, at, true); end > at) { return end; }
  const Letter first(text, at);
  if (first.type == Class::number) { return first.end; }
  if (first.is_prefix()) {
    if (const size_t end = letters_and_marks(text, first.end); end > first.end) { return end; }
  }
  if (first.kind != LetterKind::none) { return letters_and_marks(text, first.end); }
  const auto is_other = [](const Letter& c) { return c.is(Class::other) && c.kind == LetterKind::none; };
  const Letter word = first.value == ' ' ? Letter(text, first.end) : first;
  if (is_other(word)) {
    size_t end = word.end;
    for (Letter c(text, end); is_other(c); c = Letter(text, end)) { end = c.end; }
    while (end < text.size() && (text[end] == '\n' || text[end] == '\r')) { ++end; }
    return end;
  }
  if (const size_t end = line_breaks(text, at); end > at) { return end; }
  return spaces(text, at);
}

/// End of a word that begins at `at` behind its prefix, or `at`: capitals, then small letters; what is neither, and
/// marks, belongs to both. Capitals alone count only with `any`.
size_t cased_word(std::string_view text, size_t at, bool any) {
  size_t end = at, last = at;  // of the capitals, and of the last among them that ends a word
  Letter c(text, end);
  for (; c.starts_word(); c = Letter(text, end)) {
    end = c.end;
    if (c.ends_word()) { last = end; }
  }
  if (!c.ends_word()) { return last > at || !any ? last : end; }
  for (; c.ends_word(); c = Letter(text, end)) { end = c.end; }
  return end;
}

size_t o200k(std::string_view text, size_t at, size_t digits, bool contracts) {
  const Letter first(text, at);
  for (const bool any : {false, true}) {
    size_t end = first.is_prefix() ? cased_word(text, first.end, any) : first.end;
    if (end == first.end) { end = cased_word(text, at, any); }
    if (end > at) { return contracts && end < text.size() ? contraction(text, end, true) : end; }
  }
  if (first.type == Class::number) { return run(text, at, Class::number, digits); }
  const Letter word = first.value == ' ' ? Letter(text, first.end) : first;
  if (word.is(Class::other)) {
    size_t end = run(text, word.end, Class::other);
    while (end < text.size() && (text[end] == '\n' || text[end] == '\r' || text[end] == '/')) { ++end; }
    return end;
  }
  if (const size_t end = line_breaks(text, at); end > at) { return end; }
  return spaces(text, at);
}

constexpr std::string_view kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kGpt2Short = R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kCl100k =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kO200k =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

}  // namespace

std::optional<PreTokenizer::Pattern> PreTokenizer::find(std::string_view regex) {
  if (regex == kGpt2 || regex == kGpt2Short) { return Pattern::gpt2; }
  if (regex == kLlama3 || regex == kCl100k) { return Pattern::digits; }
  if (regex == kQwen2) { return Pattern::one_digit; }
  if (regex == kQwen35) { return Pattern::marks; }
  if (regex == kO200k) { return Pattern::o200k; }
  if (regex == kTekken) { return Pattern::tekken; }
  return std::nullopt;
}

size_t PreTokenizer::next(std::string_view text, size_t at) const {
  switch (pattern_) {
    case Pattern::gpt2: return gpt2(text, at);
    case Pattern::gpt2_digits: return gpt2_digits(text, at);
    case Pattern::one_digit: return cl100k(text, at, 1);
    case Pattern::digits: return cl100k(text, at, 3);
    case Pattern::marks: return qwen35(text, at);
    case Pattern::o200k: return o200k(text, at, 3, true);
    case Pattern::tekken: return o200k(text, at, 1, false);
    case Pattern::whole: break;
  }
  return text.size();
}

}  // namespace hebb
