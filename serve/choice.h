#pragma once
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "eval/generate.h"
#include "eval/stop_text.h"
#include "serve/completion_request.h"

namespace hebb {

/// A token as the arrays of `logprobs` show it.
struct TokenEntry {
  std::string piece;
  std::optional<double> logprob;                    // nothing for the first of a sequence [nats]
  std::vector<std::pair<std::string, double>> top;  // the most likely ids and the token itself
  int64_t offset = 0;                               // characters of the text before it
};

/// What a choice has come forward by.
struct Delta {
  size_t index = 0;  // of the choice
  std::string text;
  std::vector<TokenEntry> tokens;
  std::string finish_reason;      // "stop" or "length" with the last one
  int64_t completion_tokens = 0;  // so far
};

/// How an id is named in answers: its piece; bytes that are no characters as "<0xE2>"; an id that the tokenizer does
/// not have as "<id 300>".
std::string token_name(const Tokenizer& tokenizer, int32_t id);

/// One continuation of a prompt, which grows by the logits that the model gives.
class Choice {
 public:
  Choice(const CompletionRequest& request, size_t index, std::shared_ptr<const Tokenizer> tokenizer);

  const std::vector<int32_t>& prompt() const { return prompt_.ids; }
  /// The first token of the prompt behind which logits are asked for; the prompt's length: none is.
  size_t first_asked() const;
  /// Whether tokens behind the first drawn one may be wanted: a state is.
  bool needs_state() const { return max_tokens_ > 1; }
  /// Takes the logits [V] behind token i of the prompt; of those asked for, in order. What it has taken before it
  /// leaves. The last one draws a token.
  void take_prompt(size_t i, std::span<const double> logits);
  /// Takes the logits [V] behind the last drawn token, and draws the next.
  void take(std::span<const double> logits);
  /// The prompt has been read, and nothing is to be drawn.
  void end_without_drawing();
  int32_t last_token() const { return text_.tokens().back(); }
  int64_t drawn() const { return std::ssize(text_.tokens()); }
  bool is_done() const { return !finish_reason_.empty(); }

  /// What has become certain since the last call; nothing: no character, no token.
  std::optional<Delta> take_delta();

 private:
  void draw(std::span<const double> logits);
  TokenEntry entry(int32_t id, std::span<const double> logits) const;
  void add_text(const std::string& more);
  void finish(const char* reason);

  std::shared_ptr<const Tokenizer> tokenizer_;
  const CompletionRequest::Prompt prompt_;
  const size_t index_;
  const int64_t max_tokens_;
  const std::optional<int64_t> logprobs_;
  const bool echo_;
  Rng rng_;
  Continuation text_;
  StopText stop_;
  std::string echoed_;                              // text of the prompt that is not sent yet
  std::vector<int64_t> prompt_offsets_;             // with echo and logprobs
  int64_t prompt_characters_ = 0, characters_ = 0;  // of the prompt that is echoed; of what has been drawn
  std::vector<TokenEntry> entries_;                 // not sent yet
  size_t taken_ = 0;                                // positions of the prompt
  size_t sent_ = 0;                                 // bytes of the drawn text
  std::string finish_reason_;
  bool has_sent_end_ = false;
};

}  // namespace hebb
