#include "data/tasks/needles.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "data/tasks/records.h"
#include "data/text/characters.h"
#include "data/text/white_space.h"
#include "data/text/words.h"

namespace hebb {
namespace {

std::string draw_key(Rng& rng) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string key = "ID-";
  for (int i = 0; i < 4; ++i) { key += kDigits[rng.below(16)]; }
  return key;
}

std::string draw_value(Rng& rng) {
  std::string value;
  for (int64_t i = 0; i < kValueLength; ++i) { value += static_cast<char>('0' + rng.below(10)); }
  return value;
}

/// Words with every needle before its word; of needles at one word the lower number stands behind.
std::string with_needles(const std::vector<std::string>& words, const std::vector<std::string>& needles,
                         const std::vector<int64_t>& at) {
  std::vector<size_t> order(needles.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return at[a] != at[b] ? at[a] < at[b] : a > b; });
  std::string text;
  const auto add = [&](const std::string& part) { text.append(text.empty() ? "" : " ").append(part); };
  size_t next = 0;
  for (size_t i = 0; i <= words.size(); ++i) {
    for (; next < order.size() && at[order[next]] == static_cast<int64_t>(i); ++next) { add(needles[order[next]]); }
    if (i < words.size()) { add(words[i]); }
  }
  return text;
}

const std::string& text_member(const Json& object, const char* key) {
  const Json* member = object.find(key);
  if (member == nullptr || !member->is_string()) {
    const Json& at = member == nullptr ? object : *member;
    throw DataError(at.origin().str(), std::string("member \"") + key + "\" of a needle sample",
                    member == nullptr ? "nothing" : member->found(), "a string");
  }
  return member->as_string();
}

NeedleSample read_sample(const Json& line, const std::string& question) {
  if (!line.is_object()) { throw DataError(line.origin().str(), "a needle sample", line.found(), "an object"); }
  NeedleSample sample;
  sample.haystack = text_member(line, "haystack");
  sample.question = fill_template(question, {{"key", text_member(line, "question_key")}});
  sample.answer = text_member(line, "answer");
  const Json* needles = line.find("all_inserted_needles");
  if (needles == nullptr || !needles->is_array()) {
    throw DataError((needles == nullptr ? line : *needles).origin().str(),
                    "member \"all_inserted_needles\" of a needle sample",
                    needles == nullptr ? "nothing" : needles->found(), "a list of objects");
  }
  for (const Json& needle : needles->items()) {
    if (!needle.is_object()) {
      throw DataError(needle.origin().str(), "an inserted needle", needle.found(), "an object");
    }
    sample.values.push_back(text_member(needle, "value"));
  }
  if (trim(sample.answer).empty()) {
    throw DataError(line.origin().str(), "member \"answer\" of a needle sample", "no text", "a value");
  }
  return sample;
}

}  // namespace

void fields(Fields& f, HaystackSource& s) {
  f.file("path", s.path).help("Text or JSONL: a file, a folder or a pattern. Default: the built-in haystack.");
  f.field("field", s.field).help("JSONL member with the text. Default: `text`, else `content`.");
  f.field("seed", s.seed).help("Of the built-in haystack's sentences.");
  if (f.reading()) {
    if (!s.path.empty() && s.seed != 0) {
      f.fail("seed", "is that of the built-in haystack; leave it out beside \"path\"");
    }
    if (s.path.empty() && !s.field.empty()) { f.fail("field", "needs \"path\""); }
  }
}

void fields(Fields& f, NeedleOptions& o) {
  f.field("needle", o.needle).help("Text of a needle, with {key} and {value}.");
  f.field("question", o.question).help("Text after the haystack, with {key}; the value is what comes next.");
  f.field("depths", o.depths).min(0).max(1).help("Where the five needles stand, 0 (start) to 1 (end). Default: drawn.");
  if (f.reading()) {
    const auto has = [](const std::string& text, const char* name) { return text.find(name) != std::string::npos; };
    f.require(has(o.needle, "{key}") && has(o.needle, "{value}"), "needle", "a text with {key} and {value}");
    f.require(has(o.question, "{key}"), "question", "a text with {key}");
    f.require(o.depths.empty() || o.depths.size() == kNeedles, "depths", "5 depths, one for each needle");
  }
}

HaystackWords::HaystackWords(HaystackSource source) : source_(std::move(source)) {
  if (!source_.path.empty()) {
    files_ = std::make_unique<TextReader>(TextInputOptions{.inputs = {source_.path}, .field = source_.field});
  }
}

bool HaystackWords::refill() {
  if (files_ != nullptr) { return false; }
  set_text(haystack_sentence(source_.seed, sentence_++));
  return true;
}

void HaystackWords::set_text(std::string text) {
  text_ = std::move(text);
  words_ = split_words(text_);
  used_ = 0;
}

bool HaystackWords::piece(int64_t words, std::vector<std::string>& out) {
  HEBB_ASSERT(words > 0);
  for (bool has_more = true; has_more;) {
    out.clear();
    while (static_cast<int64_t>(out.size()) < words && (used_ < words_.size() || refill())) {
      out.emplace_back(words_[used_++]);
    }
    if (static_cast<int64_t>(out.size()) == words) { return true; }
    std::string text;  // the document is used up; its rest counts where it is long enough
    has_more = files_->next(text);
    set_text(std::move(text));
    if (2 * static_cast<int64_t>(out.size()) >= words) { return true; }
  }
  return false;
}

NeedleSample NeedleMaker::next(std::vector<std::string> words) {
  HEBB_ASSERT(index_ < kMostSamples);
  Rng rng(options_.seed, "niah", index_++);
  NeedleSample sample;
  std::vector<std::string> needles;
  for (int64_t j = 0; j < kNeedles; ++j) {
    std::string key = draw_key(rng);
    while (!used_.insert(key).second) { key = draw_key(rng); }
    sample.values.push_back(draw_value(rng));
    needles.push_back(fill_template(options_.needle, {{"key", key}, {"value", sample.values.back()}}));
    sample.keys.push_back(std::move(key));
  }
  for (size_t j = 0; j < kNeedles; ++j) {
    const double depth = options_.depths.empty() ? rng.uniform() : options_.depths[j];
    sample.words.push_back(static_cast<int64_t>(std::floor(static_cast<double>(words.size()) * depth)));
    sample.depths.push_back(depth);
  }
  sample.asked = rng.below(kNeedles);
  sample.haystack = with_needles(words, needles, sample.words);
  sample.question = fill_template(options_.question, {{"key", sample.keys[static_cast<size_t>(sample.asked)]}});
  sample.answer = sample.values[static_cast<size_t>(sample.asked)];
  return sample;
}

std::vector<NeedleSample> read_needle_samples(const std::string& path, const std::string& question) {
  std::vector<NeedleSample> samples;
  each_json_line(path, [&](const Json& line) { samples.push_back(read_sample(line, question)); });
  if (samples.empty()) { throw DataError(path, "no needle samples in the file"); }
  return samples;
}

}  // namespace hebb
