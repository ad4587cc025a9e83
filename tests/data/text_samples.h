#pragma once
// Random text of several kinds for tokenizer tests.
#include <string>
#include <vector>

#include "core/random.h"
#include "core/utf8.h"

namespace hebb {

inline std::string random_pieces(Rng& rng, int count, const std::vector<std::string>& pieces) {
  std::string text;
  for (int i = 0; i < count; ++i) { text += rng.choice(pieces); }
  return text;
}

inline std::string random_words(Rng& rng, int count) {
  static const std::vector<std::string> kWords = {"the",      "memory",   "of",     "a",      "slot",    "Hebbian",
                                                  "learning", "rule",     "and",    "writes", "reads",   "token",
                                                  "größer",   "naïve",    "Ελλάδα", "слово",  "память",  "日本語",
                                                  "記憶",     "语言模型", "it's",   "e.g.",   "foo_bar", "x86_64"};
  static const std::vector<std::string> kGaps = {" ", " ", " ", " ", ", ", ". ", "\n", "  ", "\t", "-"};
  std::string text;
  for (int i = 0; i < count; ++i) { text += rng.choice(kWords) + rng.choice(kGaps); }
  return text;
}

inline std::string random_white_space(Rng& rng, int count) {
  static const std::vector<std::string> kPieces = {
      " ", "  ",           "    ", "\n",          "\r\n", "\t", "\xC2\xA0", "\xE2\x80\x83", "\xE3\x80\x80",
      "a", "\xE2\x96\x81", ".",    "\xE2\x96\x85"};
  return random_pieces(rng, count, kPieces);
}

inline std::string random_code(Rng& rng, int count) {
  static const std::vector<std::string> kPieces = {"for",   "(int", " i",     "=",   "0;",  "++i", ")",    " {",
                                                   "\n  ",  "}\n",  "::",     "std", "<T>", "->",  "0x1F", "3.14e-7",
                                                   "\"s\"", "//",   " token", "_",   "[",   "]"};
  return random_pieces(rng, count, kPieces);
}

inline std::string random_digits(Rng& rng, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) { text += "0123456789 .,-"[rng.below(14)]; }
  return text;
}

/// Any Unicode scalar values; `limit` keeps them in a block.
inline std::string random_unicode(Rng& rng, int count, uint32_t limit) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    uint32_t c = rng.below(limit);
    c = c >= 0xD800 && c < 0xE000 ? c - 0x800 : c;
    utf8_append(text, c);
  }
  return text;
}

/// One text of a kind drawn at random; may be empty.
inline std::string random_text(Rng& rng) {
  const int count = static_cast<int>(rng.below(60));
  switch (rng.below(8)) {
    case 0: return random_words(rng, count);
    case 1: return random_white_space(rng, count);
    case 2: return random_code(rng, count);
    case 3: return random_digits(rng, count);
    case 4: return random_unicode(rng, count, 0x80);
    case 5: return random_unicode(rng, count, 0x250);
    case 6: return random_unicode(rng, count, 0x110000 - 1);
    default:
      return random_words(rng, count / 3) + random_white_space(rng, 3) + random_unicode(rng, 5, 0x3000) +
             random_code(rng, count / 3);
  }
}

/// Text to train small models on.
inline std::string training_text(int lines) {
  Rng rng(5, "training text");
  std::string text;
  for (int i = 0; i < lines; ++i) { text += random_words(rng, 12) + random_code(rng, 6) + "\n"; }
  return text;
}

}  // namespace hebb
