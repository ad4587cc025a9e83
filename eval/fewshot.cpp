#include "eval/fewshot.h"

#include <fmt/core.h>

#include <numeric>

#include "core/files.h"
#include "core/random.h"

namespace hebb {
namespace {

bool is_same_file(const std::string& a, const std::string& b) {
  std::error_code error;  // patterns are no files
  return a == b || fs::equivalent(a, b, error);
}

}  // namespace

void fields(Fields& f, FewShot& s) {
  f.file("file", s.file).required().help("Records of solved examples.");
  f.field("k", s.k).required().min(1).help("Number of solved examples in front of each context.");
  f.field("order", s.order)
      .one_of({"first", "sample"})
      .help("first: the file's first ones; sample: drawn for each example.");
  f.field("separator", s.separator).help("Behind each solved example.");
}

void fields(Fields& f, InFront& front, const std::string& what) {
  f.field("description", front.description).help("Text in front of everything else.");
  f.object("fewshot", front.fewshot).help("Solved examples in front of each " + what + ".");
}

std::string shot_text(const ChoiceRecord& r) {
  return r.context + r.delimiter + r.choices[static_cast<size_t>(r.gold[0])];
}
std::string shot_text(const PartialRecord& r) {
  return r.contexts[static_cast<size_t>(r.gold[0])] + r.delimiter + r.continuation;
}
std::string shot_text(const ClozeRecord& r) { return r.context + r.target; }
std::string shot_text(const GenerateRecord& r) {
  if (r.answers.empty()) { throw DataError(r.where, "\"answers\" of a solved example", "none", "at least one"); }
  return r.prompt + " " + r.answers[0];
}

void Shots::check(const std::string& own_file) {
  is_own_file_ = is_same_file(options_.file, own_file);
  const int64_t most = static_cast<int64_t>(texts_.size()) - (is_own_file_ ? 1 : 0);
  if (options_.k > most) {
    throw ConfigError(
        "fewshot.k", std::to_string(options_.k),
        fmt::format("at most {:d}, the {}examples of {}", most, is_own_file_ ? "other " : "", options_.file));
  }
}

std::string Shots::before(size_t index) const {
  if (texts_.empty()) { return description_; }
  const size_t left_out = is_own_file_ ? index : texts_.size();
  const auto k = static_cast<uint32_t>(options_.k);
  std::vector<uint32_t> drawn(k);
  std::iota(drawn.begin(), drawn.end(), 0U);
  if (options_.order == "sample") {
    drawn = Rng(seed_, "fewshot", index).sample(static_cast<uint32_t>(texts_.size() - (is_own_file_ ? 1 : 0)), k);
  }
  std::string text = description_;
  for (const uint32_t i : drawn) { text += texts_[i + (i >= left_out ? 1 : 0)] + options_.separator; }
  return text;
}

}  // namespace hebb
