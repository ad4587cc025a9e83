// Generated answers to the prompts of a file (docs/evaluations/generation.md).
#include <algorithm>

#include "data/tasks/answer_scores.h"
#include "data/tasks/records.h"
#include "data/text/characters.h"
#include "eval/answer_text.h"
#include "eval/fewshot.h"

namespace hebb {
namespace {

/// What ends an answer where neither record nor configuration says so.
std::vector<std::string> usual_ends(const std::string& score) {
  if (score == "exact" || score == "nq_open") { return {"\n", ".", ","}; }
  if (score == "gsm8k") { return {"Question:", "</s>", "<|im_end|>"}; }
  return {};
}

/// The metrics of a score: those of one generated text.
std::vector<std::string> score_metrics(const std::string& score) {
  if (score == "gsm8k") { return {"gsm8k", "gsm8k_flexible"}; }
  if (score == "none") { return {}; }
  return {score};
}

class Generate final : public EvalTask {
 public:
  void fields(Fields& f) override {
    f.file("file", file_).required().help("Records, one JSON object a line.");
    f.field("score", score_)
        .one_of(generate_scores())
        .help("How answers are scored where a record does not say so; none: texts are only written.");
    if (f.mode() != Fields::Mode::write || has_until_) {  // an empty list is not the default
      has_until_ |= f.field("until", until_)
                        .help("Strings that end an answer, which is cut before them. Default: by score.")
                        .present();
    }
    f.field("max_new_tokens", max_new_tokens_).min(1).unit("tokens").help("Longest answer.");
    f.field("temperature", temperature_)
        .above(0)
        .help("Draw from softmax(logits / temperature). Default: the largest logit.");
    hebb::fields(f, front_, "prompt");
    f.field("max_examples", max_examples_).min(1).help("Only the first so many examples.");
    f.field("freeze_fast_weights", freeze_).help("Never update fast weights.");
    if (f.reading()) {
      f.require(std::find(until_.begin(), until_.end(), "") == until_.end(), "until", "no empty text");
    }
  }

  std::vector<std::string> left_out(const EvalPremises& premises) override {
    read(premises.seed);  // the errors
    return {};
  }

  EvalResult run(EvalContext& c) override {
    c.text_tokenizer();
    const std::pair<std::vector<GenerateRecord>, Shots> data = read(c.seed);
    const std::vector<GenerateRecord>& records = data.first;
    const Shots& shots = data.second;
    const auto weights = c.model.save_fast_weights();
    std::map<std::string, std::vector<double>> scores;
    std::map<std::string, std::vector<int64_t>> examples;
    c.begin("generate", records.size());
    const auto compute = [&](size_t i) {
      c.model.restore_fast_weights(weights);  // examples do not influence each other
      const std::string prompt = shots.before(i) + records[i].prompt;
      const std::vector<int32_t> ids = checked_prompt_ids(c, prompt, records[i].where);
      const std::string text = answer(c, records[i], i, ids);
      note(c, records[i], ids, prompt, text);
      return Json(text);
    };
    const std::vector<Json> texts = c.items({.count = records.size(), .compute = compute});
    c.progress.end();
    for (size_t i = 0; i < records.size(); ++i) {
      for (const std::string& metric : score_metrics(score_of(records[i]))) {
        examples[metric].push_back(static_cast<int64_t>(i));
        scores[metric].push_back(
            find_answer_score(metric)(texts[i].as_string(), records[i].answers, records[i].classes));
      }
    }
    EvalResult result;
    result.metric("examples", static_cast<double>(records.size()), static_cast<int64_t>(records.size()));
    for (const auto& [name, values] : scores) {
      result.examples = examples[name];
      result.mean(name, values);
    }
    return result;
  }

 private:
  std::pair<std::vector<GenerateRecord>, Shots> read(uint64_t seed) const {
    std::vector<GenerateRecord> records = read_records<GenerateRecord>(file_);
    records.resize(std::min(records.size(), static_cast<size_t>(max_examples_.value_or(INT64_MAX))));
    for (const GenerateRecord& record : records) { check(record); }
    return {std::move(records), Shots::read<GenerateRecord>(front_, file_, seed)};
  }

  const std::string& score_of(const GenerateRecord& record) const { return record.score ? *record.score : *score_; }

  /// That a right answer could score.
  void check(const GenerateRecord& record) const {
    if (!record.score && !score_) {
      throw DataError(record.where, "how to score the answer",
                      "neither a member \"score\" nor that key of the evaluation",
                      "one of " + join(generate_scores(), ", "));
    }
    const AnswerScore score = find_answer_score(score_of(record));
    if (score == nullptr) { return; }
    if (record.answers.empty()) {
      throw DataError(record.where, "\"answers\" of a record that is scored", "none", "at least one");
    }
    const bool has_match = std::any_of(record.answers.begin(), record.answers.end(), [&](const std::string& answer) {
      const std::vector<std::string> alone{answer};
      return score(answer, alone, record.classes) > 0 || score("#### " + answer, alone, record.classes) > 0;
    });
    if (!has_match) {
      throw DataError(record.where, "answers that no text can match", Json(record.answers[0]).found(),
                      "one that \"" + score_of(record) + "\" can compare");
    }
  }

  std::string answer(EvalContext& c, const GenerateRecord& record, uint64_t index, std::span<const int32_t> ids) const {
    const ScoringModel::Reading reading{FastUpdate::streaming, freeze_};
    const std::unique_ptr<ModelState> state = c.model.new_state();
    const AnswerEnd end{.max_new_tokens = record.max_new_tokens.value_or(max_new_tokens_),
                        .until = record.until ? *record.until
                                 : has_until_ ? until_
                                              : usual_ends(score_of(record))};
    Rng rng(c.seed, "sample", index);
    return answer_text(c, c.model.read(ids, *state, reading), *state, reading, end,
                       {.temperature = temperature_.value_or(0.0)}, rng);
  }

  void note(EvalContext& c, const GenerateRecord& record, std::span<const int32_t> ids, const std::string& prompt,
            const std::string& text) const {
    Json line = Json::object({{"prompt", prompt},
                              {"prediction", text},
                              {"references", Json::array({record.answers.begin(), record.answers.end()})}});
    const AnswerScore score = find_answer_score(score_of(record));
    if (score != nullptr) { line.set("score", score(text, record.answers, record.classes)); }
    const bool logs_samples = c.logs_samples;
    c.logs_samples = logs_samples || score == nullptr;  // texts are all that such an example gives
    c.log_sample(record.id, ids, line);
    c.logs_samples = logs_samples;
  }

  std::string file_;
  std::optional<std::string> score_;
  std::vector<std::string> until_;
  bool has_until_ = false;
  int64_t max_new_tokens_ = 128;
  std::optional<double> temperature_;
  InFront front_;
  std::optional<int64_t> max_examples_;
  bool freeze_ = false;
};

}  // namespace

std::unique_ptr<EvalTask> make_generate() { return std::make_unique<Generate>(); }

}  // namespace hebb
