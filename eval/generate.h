#pragma once
#include <functional>
#include <string>
#include <string_view>

#include "data/tokenizer/tokenizer.h"
#include "eval/sampling.h"
#include "eval/scoring_model.h"

namespace hebb {

struct GenerateOptions {
  int64_t max_new_tokens = 128;
  Sampling sampling;
  uint64_t seed = 0;
  bool stop_at_eos = true;
  bool begins_text = false;  // a space in front of the new text is one that encoding makes, and dropped
};

/// A text that grows by drawn tokens.
class Continuation {
 public:
  Continuation(std::shared_ptr<const Tokenizer> tokenizer, const GenerateOptions& options)
      : tokenizer_(tokenizer), options_(options), decoder_(std::move(tokenizer)) {
    if (!options.begins_text) { decoder_.follow_text(); }
  }

  /// Draws the token behind `logits` [V], never an id that the tokenizer does not have (a padded vocabulary). Returns
  /// the text that became certain with it.
  std::string draw(std::span<const double> logits, Rng& rng);
  /// What the decoder holds back, as U+FFFD; the end.
  std::string finish() { return decoder_.finish(); }
  const std::vector<int32_t>& tokens() const { return tokens_; }  // that were drawn, EOS included
  bool ended() const { return ended_; }                           // at EOS
  bool goes_on() const { return !ended_ && std::ssize(tokens_) < options_.max_new_tokens; }

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  GenerateOptions options_;
  Tokenizer::Decoder decoder_;
  std::vector<int32_t> tokens_;
  bool ended_ = false;
};

struct Generated {
  int64_t prompt_tokens = 0, new_tokens = 0;
  std::vector<int32_t> tokens;  // the new ones, EOS included
  bool ended = false;           // at EOS
  double prefill_seconds = 0, decode_seconds = 0;
};

/// Continues `prompt` (the `index`-th) with the layers' decoding state, and hands text to `emit` as
/// soon as its characters are complete; return false from `emit` to stop. An empty prompt starts from
/// BOS where the tokenizer adds it, else from EOS (docs/verbs/generate.md). Fast weights are put back.
Generated generate(ScoringModel& model, std::shared_ptr<const Tokenizer> tokenizer, std::string_view prompt,
                   uint64_t index, const GenerateOptions& options, const std::function<bool(std::string_view)>& emit);

/// Draws tokens after `logits` [V], those behind all that `state` has read, and reads them: what generate() does with a
/// prompt. Ids that the tokenizer does not have (a padded vocabulary) are never drawn. Fast weights move as `reading`
/// says.
Generated continue_text(ScoringModel& model, std::shared_ptr<const Tokenizer> tokenizer, std::vector<double> logits,
                        ModelState& state, ScoringModel::Reading reading, Rng& rng, const GenerateOptions& options,
                        const std::function<bool(std::string_view)>& emit);

/// Whether the model's configuration names a tokenizer, or one lies beside the weights.
bool has_tokenizer(const ModelSource& source);

/// The tokenizer of a model: `override_file` ("bytes" or a file) if not empty, else its own (find_tokenizer_file).
/// Errors: ConfigError when there is none or `override_file` is another one than the model's, DataError when its file
/// is gone or its vocabulary is larger than the model's.
std::shared_ptr<const Tokenizer> find_tokenizer(const ModelSource& source, const std::string& override_file);

}  // namespace hebb
