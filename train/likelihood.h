#pragma once
// What the kinds that score given texts share (spec 81, sections 2 and 6.2).
#include <algorithm>

#include "data/records.h"
#include "train/eval.h"
#include "train/prompt.h"

namespace hebb {

/// Keys of every kind that scores a file of records.
struct TextScoring {
  std::string file;
  std::optional<int64_t> max_length, max_examples;
  bool freeze_fast_weights = false;

  void fields(Fields& f);
  /// max_length, or the sequence length of training. Throws ConfigError when there is neither.
  int64_t length(const EvalContext& c) const;
  /// The file's records, at most max_examples.
  template <class R> std::vector<R> read() const {
    std::vector<R> records = read_records<R>(file);
    records.resize(std::min(records.size(), static_cast<size_t>(max_examples.value_or(INT64_MAX))));
    return records;
  }
};

/// Solved examples in front of a context.
struct FewShot {
  std::string file, order = "first";
  int64_t k = 0;
};
void fields(Fields& f, FewShot& s);

/// A record as a solved example: context, delimiter and the right continuation.
std::string shot_text(const ChoiceRecord& r);
std::string shot_text(const PartialRecord& r);
std::string shot_text(const ClozeRecord& r);

/// The solved examples of a task, drawn anew for each of its examples where they are sampled.
class Shots {
 public:
  /// `own_file`: that of the task; an example of it is never its own shot. Errors: those of read_records; ConfigError
  /// for more shots than the file has.
  template <class R> static Shots read(const std::optional<FewShot>& options, const std::string& own_file, uint64_t seed) {
    Shots shots;
    if (options) {
      shots.options_ = *options;
      shots.seed_ = seed;
      for (const R& record : read_records<R>(options->file)) {
        shots.texts_.push_back(shot_text(record));
      }
      shots.check(own_file);
    }
    return shots;
  }
  /// What stands in front of example `index`, with the blank line that ends it; empty without shots.
  std::string before(size_t index) const;

 private:
  void check(const std::string& own_file);

  FewShot options_;
  uint64_t seed_ = 0;
  bool is_own_file_ = false;
  std::vector<std::string> texts_;
};

/// How likely a continuation is.
struct Likelihood {
  double ll = 0;          // sum over the scored tokens [nats]
  int64_t tokens = 0;     // that were scored
  bool is_greedy = true;  // every scored token has the largest logit
};

/// Scores texts, each from an empty state and the fast weights that the session has now.
class LikelihoodScorer {
 public:
  LikelihoodScorer(EvalContext& c, bool freeze_fast_weights)
      : c_(c), reading_{FastMode::chunk, freeze_fast_weights}, weights_(c.session.save_fast_weights()) {}

  /// Texts that differ in their last token alone share one pass. Throws NumericError at `where` for a result that is no number.
  std::vector<Likelihood> score(std::span<const ScoredText> texts, const std::string& where);

 private:
  std::vector<Likelihood> score_last(std::span<const ScoredText> texts);
  Likelihood score_one(const ScoredText& text);

  EvalContext& c_;
  Session::Reading reading_;
  std::vector<std::vector<char>> weights_;
};

}  // namespace hebb
