#include "eval/answer_text.h"

#include "eval/prompt.h"
#include "eval/stop_text.h"

namespace hebb {

std::string answer_text(EvalContext& c, std::vector<double> logits, ModelState& state, ScoringModel::Reading reading,
                        const AnswerEnd& end, const Sampling& sampling, Rng& rng) {
  StopText text(end.until);
  const GenerateOptions options{.max_new_tokens = end.max_new_tokens, .sampling = sampling};
  continue_text(c.model, c.tokenizer, std::move(logits), state, reading, rng, options, [&](std::string_view more) {
    c.poll();
    return text.push(more) && !(end.is_complete && end.is_complete(text.text()));
  });
  return text.text();
}

std::string greedy_answer(EvalContext& c, std::vector<double> logits, ModelState& state, ScoringModel::Reading reading,
                          const AnswerEnd& end) {
  Rng unused(c.seed, "sample");
  return answer_text(c, std::move(logits), state, reading, end, {.temperature = 0}, unused);
}

std::vector<int32_t> checked_prompt_ids(EvalContext& c, std::string_view prompt, const std::string& where) {
  std::vector<int32_t> ids = prompt_ids(c.text_tokenizer(), prompt);
  if (ids.empty()) {
    throw DataError(where, "an empty prompt", "no text", "some text, since the tokenizer has neither BOS nor EOS");
  }
  return ids;
}

void sample_field(Fields& f, SampleChoice& s, int64_t most, std::string_view help) {
  const Json* written = f.reading() ? f.json().find("samples") : nullptr;
  if ((written != nullptr && written->is_string()) || !s.file.empty()) {
    f.file("samples", s.file).help(help);
    if (f.reading()) { f.require(!s.file.empty(), "samples", "a number of samples, or a file"); }
  } else {
    f.field("samples", s.count).min(1).max(static_cast<double>(most)).help(help);
  }
}

}  // namespace hebb
