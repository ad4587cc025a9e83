#include "eval/prompt.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/error.h"
#include "data/text/white_space.h"

namespace hebb {

std::vector<int32_t> prefix_ids(const Tokenizer& tokenizer, bool text_is_empty) {
  const Tokenizer::Special& special = tokenizer.special();
  if (special.add_bos) { return {special.bos}; }
  const int32_t start = special.eos >= 0 ? special.eos : special.bos;  // what documents follow in training
  return text_is_empty && start >= 0 ? std::vector<int32_t>{start} : std::vector<int32_t>();
}

std::vector<int32_t> prompt_ids(const Tokenizer& tokenizer, std::string_view prompt) {
  const std::vector<int32_t> text = tokenizer.encode(prompt);
  std::vector<int32_t> ids = prefix_ids(tokenizer, text.empty());
  ids.insert(ids.end(), text.begin(), text.end());
  return ids;
}

ScoredText encode_pair(const Tokenizer& tokenizer, std::string_view context, std::string_view continuation,
                       int64_t max_length, std::string_view where) {
  const std::vector<int32_t> whole = tokenizer.encode(std::string(context) + std::string(continuation));
  const std::vector<int32_t> read = tokenizer.encode(trim_back(context));
  ScoredText result;
  result.ids = prefix_ids(tokenizer, read.empty());
  result.ids.insert(result.ids.end(), read.begin(), read.end());
  if (whole.size() <= read.size()) { return result; }
  const bool has_start = !result.ids.empty();
  result.ids.insert(result.ids.end(), whole.begin() + static_cast<ptrdiff_t>(read.size()), whole.end());
  result.scored = static_cast<int64_t>(whole.size() - read.size()) - (has_start ? 0 : 1);
  if (result.scored < 1) {
    throw DataError(where, "nothing to score", "a continuation of one token and no context",
                    "a longer one, or a tokenizer with BOS or EOS");
  }
  if (result.scored > max_length) {
    throw DataError(where, "the continuation is too long", fmt::format("{:d} tokens", result.scored),
                    fmt::format("at most max_length ({:d})", max_length));
  }
  result.cut = std::max<int64_t>(static_cast<int64_t>(result.ids.size()) - (max_length + 1), 0);
  result.ids.erase(result.ids.begin(), result.ids.begin() + result.cut);
  return result;
}

}  // namespace hebb
