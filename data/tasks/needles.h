#pragma once
// Needles in a haystack: samples of the FwPKM protocol (docs/evaluations/niah.md).
#include <cmath>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/fields.h"
#include "core/random.h"
#include "data/text/text_input.h"

namespace hebb {

/// Where a haystack's words come from: documents of files, or the built-in haystack (one document without end).
struct HaystackSource {
  std::string path = {}, field = {};  // empty path: built in
  uint64_t seed = 0;                  // of the built-in sentences
};
void fields(Fields& f, HaystackSource& source);

/// Words of a haystack's documents in order, in pieces of one document each.
class HaystackWords {
 public:
  explicit HaystackWords(HaystackSource source);
  /// The next `words` words of a document; the rest of one where it is at least half as long, else it is dropped.
  /// False at the end of the text. Errors: DataError of unreadable files.
  bool piece(int64_t words, std::vector<std::string>& out);

 private:
  void set_text(std::string text);
  bool refill();  // the built-in document goes on; others end

  HaystackSource source_;
  std::unique_ptr<TextReader> files_;
  std::string text_;                     // of the document, or the part of it that was last made
  std::vector<std::string_view> words_;  // of text_
  size_t used_ = 0;                      // so many of them
  uint64_t sentence_ = 0;
};

/// Wording and places of needles.
struct NeedleOptions {
  uint64_t seed = 42;
  std::string needle = "The code of {key} is {value}.", question = "The code of {key} is ";
  std::vector<double> depths = {};  // of the needles, 0 to 1; empty: drawn
};
/// Keys `needle`, `question`, `depths`.
void fields(Fields& f, NeedleOptions& options);

constexpr int64_t kNeedles = 5;      // of a sample
constexpr int64_t kValueLength = 6;  // characters of a value

struct NeedleSample {
  std::string haystack, question, answer;
  std::vector<std::string> keys, values;  // of the needles; of ready-made samples the values alone
  std::vector<int64_t> words;             // word of the haystack before which a needle was put
  std::vector<double> depths;             // of the needles, 0 (start) to 1 (end); empty: not known
  int64_t asked = 0;

  /// Where the needle stands that is asked for; NaN where that is not known.
  double asked_depth() const { return depths.empty() ? NAN : depths[static_cast<size_t>(asked)]; }
  std::string prompt() const { return haystack + " " + question; }
};

/// Makes samples 0, 1, 2, ... from pieces of text: no key occurs twice.
class NeedleMaker {
 public:
  explicit NeedleMaker(NeedleOptions options) : options_(std::move(options)) {}
  /// Source: stream (seed, "niah", index of the sample).
  NeedleSample next(std::vector<std::string> words);

  static constexpr int64_t kMostSamples = 10'000;  // 65,536 keys: redraws stay rare

 private:
  NeedleOptions options_;
  std::set<std::string> used_;
  uint64_t index_ = 0;
};

/// Ready-made samples: JSONL with `haystack`, `question_key`, `answer` and `all_inserted_needles`, a list of objects
/// with `value`; other members are not read. The question is `question` with the key. Errors: DataError with file and
/// line.
std::vector<NeedleSample> read_needle_samples(const std::string& path, const std::string& question);

}  // namespace hebb
