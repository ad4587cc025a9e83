#include "eval/likelihood.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace hebb {
namespace {

constexpr int32_t kIgnored = -100;

bool differ_in_last_token(std::span<const ScoredText> texts) {
  return std::all_of(texts.begin(), texts.end(), [&](const ScoredText& t) {
    const std::vector<int32_t>& first = texts[0].ids;
    return t.scored == 1 && std::equal(t.ids.begin(), t.ids.end() - 1, first.begin(), first.end() - 1);
  });
}

}  // namespace

void TextScoring::fields(Fields& f) {
  f.file("file", file).required().help("Records, one JSON object a line.");
  f.field("max_length", max_length)
      .min(1)
      .unit("tokens")
      .help(
          "Longer inputs lose their start (default: the sequence length of training, max_position_embeddings of a "
          "converted folder).");
  f.field("max_examples", max_examples).min(1).help("Only the first so many examples.");
  f.field("freeze_fast_weights", freeze_fast_weights).help("Never update fast weights.");
}

int64_t TextScoring::length(const EvalContext& c) const {
  const int64_t positions = c.sequence_length > 0 ? 0 : max_positions(c.model.source());
  return c.length_of(max_length || positions == 0 ? max_length : positions, "max_length", "a length");
}

void TextLosses::note(EvalResult& result, EvalContext& c, const TextScoring& scoring, size_t records) const {
  const auto n = static_cast<int64_t>(records);
  if (merged > 0) {
    c.progress.message(
        fmt::format("{}: {:d} of {:d} records are left out: a continuation is a part of the last token "
                    "of its context",
                    scoring.file, merged, n));
    result.metric("merged", static_cast<double>(merged), n);
  }
  if (truncated > 0) {
    c.progress.message(
        fmt::format("{}: contexts of {:d} of {:d} records lost their start: they are longer than "
                    "max_length ({:d} tokens)",
                    scoring.file, truncated, n, scoring.length(c)));
    result.metric("truncated", static_cast<double>(truncated), n);
  }
}

EvalResult nothing_to_score(const TextScoring& scoring) {
  return EvalResult::failed(scoring.file +
                            ": in every record a continuation is a part of the last token of its context");
}

std::vector<Likelihood> LikelihoodScorer::score(std::span<const ScoredText> texts, const std::string& where) {
  std::vector<Likelihood> results;
  if (differ_in_last_token(texts)) {
    results = score_last(texts);
  } else {
    for (const ScoredText& text : texts) { results.push_back(score_one(text)); }
  }
  return results;
}

std::vector<Likelihood> LikelihoodScorer::score_last(std::span<const ScoredText> texts) {
  c_.model.restore_fast_weights(weights_);
  const std::unique_ptr<ModelState> state = c_.model.new_state();
  const std::vector<double> logits =
      c_.model.read(std::span(texts[0].ids).first(texts[0].ids.size() - 1), *state, reading_);
  std::vector<Likelihood> results;
  for (const ScoredText& text : texts) {
    const ScoringModel::Answer answer = answer_of(logits, text.ids.back());
    results.push_back({answer.log_likelihood, 1, answer.token == text.ids.back(), {answer.token}});
  }
  return results;
}

Likelihood LikelihoodScorer::score_one(const ScoredText& text) {
  c_.model.restore_fast_weights(weights_);
  const std::span<const int32_t> inputs(text.ids.data(), text.ids.size() - 1);
  std::vector<int32_t> targets(text.ids.begin() + 1, text.ids.end());
  std::fill(targets.begin(), targets.end() - text.scored, kIgnored);
  const std::unique_ptr<ModelState> state = c_.model.new_state();
  const std::vector<ScoringModel::Answer> answers = c_.model.answers(inputs, targets, *state, reading_);
  Likelihood result{0, text.scored};
  for (size_t i = 0; i < targets.size(); ++i) {
    if (targets[i] != kIgnored) {
      result.ll += answers[i].log_likelihood;
      result.is_greedy = result.is_greedy && answers[i].token == targets[i];
      result.greedy.push_back(answers[i].token);
    }
  }
  return result;
}

}  // namespace hebb
