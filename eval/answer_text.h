#pragma once
// What the kinds that score generated text share (docs/evaluations/generation.md).
#include "eval/evaluation.h"
#include "eval/generate.h"

namespace hebb {

/// When an answer is over, besides EOS.
struct AnswerEnd {
  int64_t max_new_tokens = 128;
  std::vector<std::string> until = {};                          // the text is cut before the first of them
  std::function<bool(std::string_view text)> is_complete = {};  // asked after every token that gives text
};

/// The model's answer after `logits` [V], those behind all that `state` has read. Stop signals are polled after each
/// token. Errors: NumericError for logits that are no numbers; Stopped.
std::string answer_text(EvalContext& c, std::vector<double> logits, ModelState& state, ScoringModel::Reading reading,
                        const AnswerEnd& end, const Sampling& sampling, Rng& rng);

/// The same, greedily.
std::string greedy_answer(EvalContext& c, std::vector<double> logits, ModelState& state, ScoringModel::Reading reading,
                          const AnswerEnd& end);

/// Ids of a prompt with what stands before it. Throws DataError at `where` when there is none.
std::vector<int32_t> checked_prompt_ids(EvalContext& c, std::string_view prompt, const std::string& where);

/// `samples`: how many examples to make, or a file of ready-made ones.
struct SampleChoice {
  int64_t count = 500;
  std::string file;
};
void sample_field(Fields& f, SampleChoice& samples, int64_t most, std::string_view help);

}  // namespace hebb
