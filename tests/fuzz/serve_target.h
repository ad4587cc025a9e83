#pragma once
// What the libFuzzer program for the bodies of `hebb serve` and the fast test of mutated ones run.
#include <algorithm>
#include <string_view>

#include "core/utf8.h"
#include "serve/api_error.h"
#include "serve/job.h"
#include "tests/fuzz/targets.h"

namespace hebb::fuzz {

/// Answers a choice with made-up logits: its text is valid and grows as one, it ends, and its arrays fit.
inline void answer(Choice& choice, const CompletionRequest& request, int64_t vocab) {
  Rng rng(1, "logits");
  std::vector<double> logits(static_cast<size_t>(vocab));
  const auto draw = [&] {
    for (double& logit : logits) { logit = 4 * rng.normal(); }
    return std::span<const double>(logits);
  };
  std::string text, finish_reason;
  size_t entries = 0;
  int64_t drawn = 0;
  const auto receive = [&] {
    while (const std::optional<Delta> delta = choice.take_delta()) {
      expect(finish_reason.empty(), "nothing comes behind the end");
      expect(utf8_first_invalid(delta->text) == std::string_view::npos, "pieces are valid UTF-8");
      text += delta->text;
      entries += delta->tokens.size();
      for (const TokenEntry& entry : delta->tokens) {
        expect(utf8_first_invalid(entry.piece) == std::string_view::npos, "names are valid UTF-8");
        expect(std::ssize(entry.top) <= request.logprobs.value_or(0) + 1, "as many likely ids as asked for");
      }
      drawn = delta->completion_tokens;
      finish_reason = delta->finish_reason;
    }
  };
  const size_t n = choice.prompt().size();
  for (size_t i = choice.first_asked(); i < n; ++i) { choice.take_prompt(i, draw()); }
  if (choice.first_asked() == n) { choice.end_without_drawing(); }
  for (receive(); !choice.is_done(); receive()) { choice.take(draw()); }
  expect(!finish_reason.empty() && drawn <= request.max_tokens, "an answer ends in time");
  for (const std::string& stop : request.stops) {
    expect(request.echo || text.find(stop) == std::string::npos, "no stop string is in the text");
  }
  const int64_t echoed = request.echo ? std::ssize(choice.prompt()) : 0;
  expect(!request.logprobs || std::abs(static_cast<int64_t>(entries) - echoed - drawn) <= 1, "an entry for each token");
}

/// A body behind a byte that names its route; true: it is answered.
inline bool request(std::string_view bytes) {
  static const auto tokenizer = Tokenizer::load({"bytes", "", false, true});
  constexpr int64_t kIds = 262;  // a padded vocabulary
  if (bytes.empty()) { return false; }
  const char route = bytes[0];
  const std::string_view body = bytes.substr(1);
  try {
    if (route == 't') {
      for (const int32_t id : read_tokenize_request(body, *tokenizer)) {
        expect(id >= 0 && id < tokenizer->vocab_size(), "ids of the vocabulary");
      }
      return true;
    }
    if (route == 'd') {
      const std::string text = tokenizer->decode(read_detokenize_request(body, *tokenizer));
      expect(utf8_first_invalid(text) == std::string_view::npos, "text is valid UTF-8");
      return true;
    }
    const PromptRules rules{tokenizer, kIds, 40, route == 'b'};
    const CompletionRequest read = read_completion_request(body, rules);
    const Job job(read, tokenizer);
    for (size_t i = 0; i < std::min<size_t>(job.choices.size(), 3); ++i) { answer(*job.choices[i], read, kIds); }
    return true;
  } catch (const ApiError& error) {
    expect(error.status == 400 && error.what()[0] != '\0', "a bad request is 400 with a message");
    parse_json(error_body(error).dump(), "error");
    return false;
  }
}

}  // namespace hebb::fuzz
