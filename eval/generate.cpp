#include "eval/generate.h"

#include <algorithm>
#include <chrono>

#include "core/elapsed.h"
#include "eval/prompt.h"

namespace hebb {

std::string Continuation::draw(std::span<const double> logits, Rng& rng) {
  const size_t known = std::min(logits.size(), static_cast<size_t>(tokenizer_->vocab_size()));
  const int32_t id = sample_token(logits.first(known), options_.sampling, rng);
  tokens_.push_back(id);
  ended_ = options_.stop_at_eos && id == tokenizer_->special().eos;
  return ended_ ? "" : decoder_.push(id);
}

Generated continue_text(ScoringModel& model, std::shared_ptr<const Tokenizer> tokenizer, std::vector<double> logits,
                        ModelState& state, ScoringModel::Reading reading, Rng& rng, const GenerateOptions& options,
                        const std::function<bool(std::string_view)>& emit) {
  Continuation text(std::move(tokenizer), options);
  const auto start = std::chrono::steady_clock::now();
  bool go_on = true;
  while (go_on && text.goes_on()) {
    const std::string more = text.draw(logits, rng);
    go_on = more.empty() || emit(more);
    if (go_on && text.goes_on()) { logits = model.read({&text.tokens().back(), 1}, state, reading); }
  }
  const std::string rest = text.finish();
  if (go_on && !rest.empty()) { emit(rest); }
  Generated result;
  result.tokens = text.tokens();
  result.new_tokens = std::ssize(result.tokens);
  result.ended = text.ended();
  result.decode_seconds = seconds_since(start);
  return result;
}

Generated generate(ScoringModel& model, std::shared_ptr<const Tokenizer> tokenizer, std::string_view prompt,
                   uint64_t index, const GenerateOptions& options, const std::function<bool(std::string_view)>& emit) {
  const std::vector<int32_t> ids = prompt_ids(*tokenizer, prompt);
  if (ids.empty()) {
    throw ConfigError("--prompt", "an empty prompt", "some text, since the tokenizer has neither BOS nor EOS");
  }
  const auto saved = model.save_fast_weights();
  const std::unique_ptr<ModelState> state = model.new_state();
  const ScoringModel::Reading reading;
  Rng rng(options.seed, "sample", index);
  const auto start = std::chrono::steady_clock::now();
  std::vector<double> logits = model.read(ids, *state, reading);
  const double prefill_seconds = seconds_since(start);
  GenerateOptions own = options;
  own.begins_text = tokenizer->encode(prompt).empty();
  Generated result = continue_text(model, tokenizer, std::move(logits), *state, reading, rng, own, emit);
  result.prompt_tokens = static_cast<int64_t>(ids.size());
  result.prefill_seconds = prefill_seconds;
  model.restore_fast_weights(saved);
  return result;
}

bool has_tokenizer(const ModelSource& source) { return tokenizer_of(source).has_value(); }

std::shared_ptr<const Tokenizer> find_tokenizer(const ModelSource& source, const std::string& override_file) {
  TokenizerConfig config;
  const std::optional<TokenizerConfig> own = tokenizer_of(source);
  const bool is_known = own && (own->type == "bytes" || !own->file.empty());
  if (!override_file.empty()) {
    config = tokenizer_named(override_file);
    if (is_known && tokenizer_hash(config) != tokenizer_hash(*own)) {
      throw ConfigError("--tokenizer", override_file + ", another tokenizer",
                        "the one that the model was trained with, " + (own->type == "bytes" ? "bytes" : own->file));
    }
    if (own) {
      config.add_bos = own->add_bos;
      config.add_eos = own->add_eos;
    }
  } else if (is_known) {
    config = *own;
  } else if (own) {
    throw MissingFileError(
        source.config.at("data").at("tokenizer").text_at("file"),
        "the tokenizer of the model is not there, nor beside its weights; --tokenizer names it (a run "
        "folder keeps a copy)");
  } else {
    throw ConfigError("--tokenizer", "a checkpoint whose configuration names no tokenizer",
                      "a SentencePiece .model file, a tokenizer.json or \"bytes\"");
  }
  auto tokenizer = Tokenizer::load(config);
  require_ids(*tokenizer, source.model.vocab_size, source.weights.string() + ": model.vocab_size");
  return tokenizer;
}

}  // namespace hebb
