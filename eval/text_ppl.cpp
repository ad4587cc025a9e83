// Cloze tests, perplexity of whole texts, perplexity of answers (docs/evaluations/likelihood.md).
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "data/text/white_space.h"
#include "eval/likelihood.h"

namespace hebb {
namespace {

/// Text of those ids that the tokenizer has: a model's vocabulary may be larger.
std::string text_of(const Tokenizer& tokenizer, std::vector<int32_t> ids) {
  std::erase_if(ids, [&](int32_t id) { return id >= tokenizer.vocab_size(); });
  return tokenizer.decode(ids);
}

class Cloze final : public EvalTask {
 public:
  void fields(Fields& f) override {
    scoring_.fields(f);
    hebb::fields(f, front_, "context");
  }

  std::vector<std::string> left_out(const EvalPremises& premises) override {
    scoring_.read<ClozeRecord>();  // the errors
    Shots::read<ClozeRecord>(front_, scoring_.file, premises.seed);
    return {};
  }

  EvalResult run(EvalContext& c) override {
    const std::vector<ClozeRecord> records = scoring_.read<ClozeRecord>();
    const Shots shots = Shots::read<ClozeRecord>(front_, scoring_.file, c.seed);
    const Tokenizer& tokenizer = c.text_tokenizer();
    const int64_t length = scoring_.length(c);
    LikelihoodScorer scorer(c, scoring_.freeze_fast_weights);
    c.begin("cloze", records.size());
    const auto compute = [&](size_t i) {
      const ClozeRecord& r = records[i];
      const std::string prompt = shots.before(i) + r.context;
      const ScoredText text = encode_pair(tokenizer, prompt, r.target, length, r.where);
      if (text.is_merged()) { return Json(); }
      const Likelihood likelihood = scorer.score({&text, 1}, r.where)[0];
      const double score = likelihood.is_greedy ? 1.0 : 0.0;
      c.log_sample(r.id, text.ids,
                   Json::object({{"prompt", prompt},
                                 {"prediction", text_of(tokenizer, likelihood.greedy)},
                                 {"references", r.target},
                                 {"score", score},
                                 {"ll", likelihood.ll}}));
      return Json::array({score, likelihood.ll, text.cut > 0});
    };
    std::vector<double> greedy, lls;
    EvalResult result;
    TextLosses losses;
    const std::vector<Json> items = c.items({.count = records.size(), .compute = compute});
    for (size_t i = 0; i < items.size(); ++i) {
      const Json& item = items[i];
      if (item.is_null()) {
        ++losses.merged;
        continue;
      }
      result.examples.push_back(static_cast<int64_t>(i));
      greedy.push_back(item.items()[0].as_double());
      lls.push_back(kept_number(item.items()[1]));
      losses.truncated += item.items()[2].as_bool() ? 1 : 0;
    }
    c.progress.end();
    if (greedy.empty()) { return nothing_to_score(scoring_); }
    losses.note(result, c, scoring_, records.size());
    result.mean("acc", greedy);
    RatioOfSums nll;
    for (const double ll : lls) { nll.add(-ll, 1); }
    result.ratio("", "ppl", nll);  // per target
    return result;
  }

 private:
  TextScoring scoring_;
  InFront front_;
};

class Rolling final : public EvalTask {
 public:
  void fields(Fields& f) override { scoring_.fields(f); }

  std::vector<std::string> left_out(const EvalPremises&) override {
    scoring_.read<RollingRecord>();  // the errors
    return {};
  }

  EvalResult run(EvalContext& c) override {
    const std::vector<RollingRecord> records = scoring_.read<RollingRecord>();
    const Tokenizer& tokenizer = c.text_tokenizer();
    const int64_t length = scoring_.length(c);
    const auto weights = c.model.save_fast_weights();
    c.begin("rolling", records.size());
    const auto compute = [&](size_t i) {
      c.model.restore_fast_weights(weights);
      std::vector<int32_t> ids = prefix_ids(tokenizer, true);
      const std::vector<int32_t> text = tokenizer.encode(records[i].text);
      ids.insert(ids.end(), text.begin(), text.end());
      const double nll = score(c, ids, length);
      const int64_t scored = std::max<int64_t>(0, static_cast<int64_t>(ids.size()) - 1);
      c.log_sample(records[i].id, ids, Json::object({{"tokens", scored}, {"ll", -nll}}));
      return Json::array({nll, scored});
    };
    const std::vector<Json> items = c.items({.count = records.size(), .compute = compute});
    c.progress.end();
    RatioOfSums per_token, per_word, per_byte;
    for (size_t i = 0; i < records.size(); ++i) {
      const RollingRecord& r = records[i];
      const double sum = kept_number(items[i].items()[0]);
      per_token.add(sum, static_cast<double>(items[i].items()[1].as_int()));
      per_word.add(sum, static_cast<double>(r.words.value_or(static_cast<int64_t>(count_split_pieces(r.text)))));
      per_byte.add(sum / std::log(2.0), static_cast<double>(r.bytes.value_or(static_cast<int64_t>(r.text.size()))));
    }
    return result(per_token, per_word, per_byte);
  }

 private:
  /// Sum of the losses of all ids but the first, in windows of `length` inputs, each from a new state. The last window
  /// begins as much earlier as it takes to fill it. Fast weights go on; they do not learn those ids twice.
  double score(EvalContext& c, std::span<const int32_t> ids, int64_t length) const {
    const ScoringModel::Reading reading{FastUpdate::streaming, scoring_.freeze_fast_weights};
    double sum = 0;
    for (size_t s = 0; s + 1 < ids.size(); s += static_cast<size_t>(length)) {
      c.poll();
      const size_t n = std::min(static_cast<size_t>(length), ids.size() - 1 - s);
      const size_t again = std::min(s, static_cast<size_t>(length) - n);  // ids that an earlier window has read
      const std::unique_ptr<ModelState> state = c.model.new_state();
      if (again > 0) { c.model.advance(ids.subspan(s - again, again), *state, {FastUpdate::never, false}); }
      const std::vector<double> losses = c.model.score(ids.subspan(s, n), ids.subspan(s + 1, n), *state, reading);
      c.model.flush(*state, reading);
      sum = std::accumulate(losses.begin(), losses.end(), sum);
    }
    return sum;
  }

  EvalResult result(const RatioOfSums& per_token, const RatioOfSums& per_word, const RatioOfSums& per_byte) const {
    if (per_token.count() == 0) { return EvalResult::failed(scoring_.file + ": no text with a token to predict"); }
    EvalResult r;
    r.ratio("", "token_ppl", per_token);
    r.ratio("", "word_ppl", per_word);
    r.ratio("bits_per_byte", "", per_byte);
    return r;
  }

  TextScoring scoring_;
};

class AnswerPpl final : public EvalTask {
 public:
  void fields(Fields& f) override {
    f.file("file", file_).required().help("Records, one JSON object a line.");
    f.field("fast_weights", fast_weights_)
        .one_of({"carry", "reset"})
        .help("carry: fast weights go on from example to example; reset: each starts from the checkpoint's.");
    f.field("max_tokens", max_tokens_).min(1).unit("tokens").help("Longer examples are left out.");
    f.field("max_record_length", max_record_length_).min(0).help("Records whose `length` is larger are left out.");
    f.field("max_examples", max_examples_).min(1).help("Only the first so many records.");
  }

  std::vector<std::string> left_out(const EvalPremises&) override {
    read_records<AnswerRecord>(file_);  // the errors
    return {};
  }

  EvalResult run(EvalContext& c) override {
    std::vector<AnswerRecord> records = read_records<AnswerRecord>(file_);
    records.resize(std::min(records.size(), static_cast<size_t>(max_examples_.value_or(INT64_MAX))));
    const Tokenizer& tokenizer = c.text_tokenizer();
    const auto weights = c.model.save_fast_weights();
    c.begin("answer_ppl", records.size());
    const auto compute = [&](size_t i) {
      const Parts parts = encode(tokenizer, records[i]);
      if (parts.size() > max_tokens_ || records[i].length.value_or(0) > max_record_length_) { return Json(); }
      if (fast_weights_ == "reset") { c.model.restore_fast_weights(weights); }
      const double nll = score(c, parts);
      const auto scored = static_cast<int64_t>(parts.answer.size());
      c.log_sample(records[i].id, parts.all(),
                   Json::object({{"prompt", records[i].context + records[i].question},
                                 {"references", records[i].answers[0]},
                                 {"tokens", scored},
                                 {"ll", -nll}}));
      return Json::array({nll, scored});
    };
    RatioOfSums nll;
    const bool carries = fast_weights_ == "carry" && c.model.has_fast_weights();
    std::vector<int64_t> examples;
    const std::vector<Json> items = c.items({.count = records.size(), .compute = compute, .moves_weights = carries});
    for (size_t i = 0; i < items.size(); ++i) {
      if (items[i].is_null()) { continue; }
      nll.add(kept_number(items[i].items()[0]), static_cast<double>(items[i].items()[1].as_int()));
      examples.push_back(static_cast<int64_t>(i));
    }
    c.progress.end();
    return result(nll, static_cast<int64_t>(records.size()), examples);
  }

 private:
  /// Three separate encodings, without special tokens.
  struct Parts {
    std::vector<int32_t> context, question, answer;
    int64_t size() const { return static_cast<int64_t>(context.size() + question.size() + answer.size()); }
    std::vector<int32_t> all() const {
      std::vector<int32_t> ids = context;
      ids.insert(ids.end(), question.begin(), question.end());
      ids.insert(ids.end(), answer.begin(), answer.end());
      return ids;
    }
  };

  static Parts encode(const Tokenizer& tokenizer, const AnswerRecord& r) {
    Parts parts{tokenizer.encode(r.context), tokenizer.encode(r.question), tokenizer.encode(r.answers[0])};
    for (const auto& [ids, name] : {std::pair{&parts.question, "question"}, std::pair{&parts.answer, "answer"}}) {
      if (ids->empty()) { throw DataError(r.where, std::string("the ") + name + " has no token"); }
    }
    return parts;
  }

  /// Sum of the answer's losses. Fast weights move once, after the context.
  static double score(EvalContext& c, const Parts& parts) {
    const std::unique_ptr<ModelState> state = c.model.new_state();
    if (!parts.context.empty()) { c.model.read(parts.context, *state, {FastUpdate::at_end, false}); }
    std::vector<int32_t> inputs = parts.question;
    inputs.insert(inputs.end(), parts.answer.begin(), parts.answer.end() - 1);
    std::vector<int32_t> targets(parts.question.size() - 1, -100);
    targets.insert(targets.end(), parts.answer.begin(), parts.answer.end());
    const std::vector<double> losses = c.model.score(inputs, targets, *state, {FastUpdate::never, false});
    return std::accumulate(losses.begin(), losses.end(), 0.0);
  }

  EvalResult result(const RatioOfSums& nll, int64_t records, const std::vector<int64_t>& scored) const {
    const auto examples = static_cast<int64_t>(scored.size());
    if (examples == 0) {
      return EvalResult::failed(
          fmt::format("{}: no example of at most max_tokens ({:d}) tokens and a length of at most {:d}", file_,
                      max_tokens_, max_record_length_));
    }
    EvalResult r;
    r.examples = scored;
    r.ratio("nll", "ppl", nll);
    r.metric("examples", static_cast<double>(examples), examples);
    r.metric("left_out", static_cast<double>(records - examples), records);
    return r;
  }

  std::string file_, fast_weights_ = "carry";
  int64_t max_tokens_ = 131'072, max_record_length_ = 65'536;
  std::optional<int64_t> max_examples_;
};

}  // namespace

std::unique_ptr<EvalTask> make_cloze() { return std::make_unique<Cloze>(); }
std::unique_ptr<EvalTask> make_rolling() { return std::make_unique<Rolling>(); }
std::unique_ptr<EvalTask> make_answer_ppl() { return std::make_unique<AnswerPpl>(); }

}  // namespace hebb
