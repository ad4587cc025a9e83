#pragma once
// What the kinds that score given texts share (docs/evaluations/likelihood.md).
#include <algorithm>

#include "data/tasks/records.h"
#include "eval/evaluation.h"
#include "eval/fewshot.h"
#include "eval/prompt.h"

namespace hebb {

/// Keys of every kind that scores a file of records.
struct TextScoring {
  std::string file;
  std::optional<int64_t> max_length, max_examples;
  bool freeze_fast_weights = false;

  void fields(Fields& f);
  /// max_length, or the sequence length of training, or max_position_embeddings of a converted folder. Throws
  /// ConfigError when there is none.
  int64_t length(const EvalContext& c) const;
  /// The file's records, at most max_examples.
  template <class R> std::vector<R> read() const {
    std::vector<R> records = read_records<R>(file);
    records.resize(std::min(records.size(), static_cast<size_t>(max_examples.value_or(INT64_MAX))));
    return records;
  }
};

/// How many records of a file are not scored as they stand.
struct TextLosses {
  int64_t truncated = 0;  // a context lost its start to max_length
  int64_t merged = 0;     // left out: a continuation is a part of its context's last token

  /// Adds metrics of those that occur, and says so on the terminal.
  void note(EvalResult& result, EvalContext& c, const TextScoring& scoring, size_t records) const;
};

/// Of a file of which all records are merged.
EvalResult nothing_to_score(const TextScoring& scoring);

/// How likely a continuation is.
struct Likelihood {
  double ll = 0;                     // sum over the scored tokens [nats]
  int64_t tokens = 0;                // that were scored
  bool is_greedy = true;             // every scored token has the largest logit
  std::vector<int32_t> greedy = {};  // the tokens with the largest logit in their places
};

/// Scores texts, each from an empty state and the fast weights that the model has now.
class LikelihoodScorer {
 public:
  LikelihoodScorer(EvalContext& c, bool freeze_fast_weights)
      : c_(c), reading_{FastUpdate::streaming, freeze_fast_weights}, weights_(c.model.save_fast_weights()) {}

  /// Texts that differ in their last token alone share one pass. Throws NumericError at `where` for a result that is no
  /// number.
  std::vector<Likelihood> score(std::span<const ScoredText> texts, const std::string& where);

 private:
  std::vector<Likelihood> score_last(std::span<const ScoredText> texts);
  Likelihood score_one(const ScoredText& text);

  EvalContext& c_;
  ScoringModel::Reading reading_;
  std::vector<std::vector<char>> weights_;
};

}  // namespace hebb
