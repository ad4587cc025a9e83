// Needles in a haystack that is read once or several times (docs/evaluations/niah.md).
#include <fmt/core.h>

#include <algorithm>

#include "core/plural.h"
#include "data/tasks/answer_scores.h"
#include "data/tasks/needles.h"
#include "data/text/characters.h"
#include "data/text/white_space.h"
#include "eval/answer_text.h"

namespace hebb {
namespace {

constexpr int64_t kAnswerTokens = 12;
constexpr ScoringModel::Reading kRead{FastUpdate::at_end, false};  // fast weights move once, after the last token
constexpr ScoringModel::Reading kAnswer{FastUpdate::never, false};

/// Scores of the samples of one length and number of passes.
struct Scores {
  std::vector<double> exact, digits, candidate, tokens;

  /// Of a sample: [exact, digits, candidate, tokens].
  void add(const Json& sample) {
    const auto& values = sample.items();
    exact.push_back(values[0].as_double());
    digits.push_back(values[1].as_double());
    candidate.push_back(values[2].as_double());
    tokens.push_back(values[3].as_double());
  }
  void add(const Scores& other) {
    for (const auto member : {&Scores::exact, &Scores::digits, &Scores::candidate, &Scores::tokens}) {
      (this->*member).insert((this->*member).end(), (other.*member).begin(), (other.*member).end());
    }
  }
  Json json() const {
    Json j = Json::object();
    j.set("exact", mean_metric(exact));
    j.set("digits", mean_metric(digits));
    j.set("candidate", mean_metric(candidate));
    return j;
  }
};

/// Samples of one length, one after the other.
class NeedleSource {
 public:
  NeedleSource(const HaystackSource& text, const NeedleOptions& options, int64_t words)
      : text_(text), maker_(options), words_(words) {}
  /// False at the end of the text.
  bool next(NeedleSample& sample) {
    std::vector<std::string> piece;
    if (!text_.piece(words_, piece)) { return false; }
    sample = maker_.next(std::move(piece));
    return true;
  }

 private:
  HaystackWords text_;
  NeedleMaker maker_;
  int64_t words_;
};

class Niah final : public EvalTask {
 public:
  void fields(Fields& f) override {
    sample_field(f, samples_, NeedleMaker::kMostSamples,
                 "Samples per length, or a JSONL file of ready-made ones (`haystack`, `question_key`, `answer`, "
                 "`all_inserted_needles`).");
    f.field("context_words", words_)
        .not_empty()
        .min(20)
        .unit("words")
        .help("Lengths of the haystacks, without the needles.");
    f.object("text", text_).help("What haystacks are made of.");
    hebb::fields(f, needles_);
    f.field("passes", passes_)
        .not_empty()
        .min(1)
        .help("How often the haystack is read before the answer; each number is a run of its own.");
    f.field("update_after", update_after_)
        .one_of({"prompt", "haystack"})
        .help("Where fast weights move in the last pass.");
    f.field("fast_weights", fast_weights_)
        .one_of({"carry", "reset"})
        .help("carry: from sample to sample, with pending pairs; reset: every sample starts from the checkpoint.");
    if (f.reading()) { check(f); }
  }

  std::vector<std::string> left_out(const EvalPremises& premises) override {
    prepare(premises);
    std::vector<std::string> reasons;
    for (const Json& part : skipped_.items()) { reasons.push_back(part.at("reason").as_string()); }
    return reasons;
  }

  EvalResult run(EvalContext& c) override {
    prepare(c.premises());
    EvalResult result;
    result.left_out(skipped_, lengths_.empty());
    if (lengths_.empty()) { return result; }
    const int64_t count = ready_made_.empty() ? samples_.count : static_cast<int64_t>(ready_made_.size());
    const bool has_passes = c.model.has_fast_weights();  // without, more passes change nothing
    const size_t runs = has_passes ? passes_.size() : 1;
    c.begin("niah", static_cast<uint64_t>(count) * lengths_.size() * runs);
    result.source = !ready_made_.empty() ? "official" : is_built_in() ? "builtin" : "custom";
    std::map<int64_t, Scores> by_passes;
    Json series = Json::array();
    const auto weights = c.model.save_fast_weights();
    for (const int64_t words : lengths_) {
      Scores scores;
      for (size_t p = 0; p < passes_.size(); ++p) {
        if (p == 0 || has_passes) {
          c.model.restore_fast_weights(weights);
          scores = one_run(c, words, passes_[p], count, weights);
        }
        series.push(point(words, passes_[p], scores));
        by_passes[passes_[p]].add(scores);
      }
    }
    c.progress.end();
    for (const auto& [passes, scores] : by_passes) { result.groups.set(std::to_string(passes), scores.json()); }
    result.metrics = result.groups.at(std::to_string(passes_.back()));
    result.series.set("by_length", series);
    return result;
  }

 private:
  /// Once: ready-made samples, or the lengths that there is text for.
  void prepare(const EvalPremises& premises) {
    if (!lengths_.empty() || !skipped_.items().empty()) { return; }
    static_cast<void>(premises.text_tokenizer());  // the error
    needles_.seed = premises.seed;
    if (!samples_.file.empty()) {
      ready_made_ = read_needle_samples(samples_.file, needles_.question);
      lengths_ = {words_[0]};
      return;
    }
    for (const int64_t words : words_) {
      std::vector<std::string> piece;
      if (HaystackWords(text_).piece(words, piece)) {
        lengths_.push_back(words);
      } else {  // the others can be run
        const std::string reason = DataError(text_.path, fmt::format("haystacks of {:d} words", words),
                                             "no document long enough", "a document of at least half as many words")
                                       .what();
        skipped_.push(Json::object({{"context_words", words}, {"reason", reason}}));
      }
    }
  }

  bool is_built_in() const {
    const NeedleOptions usual;
    return text_.path.empty() && needles_.needle == usual.needle && needles_.question == usual.question;
  }

  void check(Fields& f) const {
    f.require(std::set(words_.begin(), words_.end()).size() == words_.size(), "context_words", "different lengths");
    f.require(std::set(passes_.begin(), passes_.end()).size() == passes_.size(), "passes", "different numbers");
    const Niah usual;
    const bool makes = samples_.file.empty();
    constexpr const char* kNoUse = "no such key beside a file of samples";
    f.require(makes || words_ == usual.words_, "context_words", kNoUse);
    f.require(makes || (text_.path.empty() && text_.seed == usual.text_.seed), "text", kNoUse);
    f.require(makes || needles_.needle == usual.needles_.needle, "needle", kNoUse);
    f.require(makes || needles_.depths.empty(), "depths", kNoUse);
  }

  Json point(int64_t words, int64_t passes, const Scores& scores) const {
    Json j = Json::object();
    if (ready_made_.empty()) { j.set("context_words", words); }
    j.set("passes", passes);
    j.set("n", static_cast<int64_t>(scores.exact.size()));
    const Json metrics = scores.json();
    for (const auto& [name, metric] : metrics.members()) { j.set(name, metric.at("value").as_double()); }
    j.set("prompt_tokens", mean_metric(scores.tokens).at("value").as_double());
    return j;
  }

  /// Samples of one length by index, made one after the other.
  class Samples {
   public:
    Samples(const Niah& niah, int64_t words) : niah_(niah), source_(niah.text_, niah.needles_, words) {}
    /// Null behind the end of the text. Indices grow from call to call.
    const NeedleSample* at(size_t i) {
      if (!niah_.ready_made_.empty()) { return &niah_.ready_made_[i]; }
      for (; made_ <= i; ++made_) {
        if (!source_.next(sample_)) { return nullptr; }
      }
      return &sample_;
    }

   private:
    const Niah& niah_;
    NeedleSource source_;
    NeedleSample sample_;
    size_t made_ = 0;
  };

  /// All samples of a length, from the checkpoint's fast weights.
  Scores one_run(EvalContext& c, int64_t words, int64_t passes, int64_t count,
                 const std::vector<std::vector<char>>& weights) {
    const std::string label =
        (ready_made_.empty() ? plural(words, "word") + ", " : "") + plural(passes, "pass", "passes") + ", sample ";
    Samples made(*this, words);
    std::unique_ptr<ModelState> last;  // its pending pairs go on
    const auto compute = [&](size_t i) {
      const NeedleSample* sample = made.at(i);
      if (sample == nullptr) { return Json(); }
      if (fast_weights_ == "reset") {
        c.model.restore_fast_weights(weights);
        last.reset();
      }
      return score(c, *sample, passes, fmt::format("{}{:d}", label, i), last);
    };
    const auto is_none = [](const Json& sample) { return sample.is_null(); };
    // Where samples depend on those before, pending pairs included, the run can only be kept as a whole.
    const bool carries = fast_weights_ == "carry" && c.model.has_fast_weights();
    const auto all = [&](size_t) {
      Json samples = Json::array();
      for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
        const Json sample = compute(i);
        if (is_none(sample)) { break; }
        samples.push(sample);
        c.step(1);
      }
      return samples;
    };
    std::vector<Json> samples;
    if (carries) {
      const auto units = [&](size_t) { return static_cast<uint64_t>(count); };
      samples = c.items({.count = 1, .compute = all, .units = units})[0].items();
    } else {
      samples = c.items({.count = static_cast<size_t>(count), .compute = compute, .ends = is_none});
      if (!samples.empty() && is_none(samples.back())) { samples.pop_back(); }
    }
    Scores scores;
    for (const Json& sample : samples) { scores.add(sample); }
    if (static_cast<int64_t>(scores.exact.size()) < count) {
      c.progress.message(fmt::format("{}: text for {:d} of {:d} samples", text_.path, scores.exact.size(), count));
    }
    return scores;
  }

  /// [exact, digits, candidate, tokens].
  Json score(EvalContext& c, const NeedleSample& sample, int64_t passes, const std::string& id,
             std::unique_ptr<ModelState>& last) {
    const std::vector<int32_t> haystack = checked_prompt_ids(c, sample.haystack, id),
                               prompt = checked_prompt_ids(c, sample.prompt(), id);
    for (int64_t pass = 1; pass < passes && c.model.has_fast_weights(); ++pass) {
      last = c.model.new_state(last.get());
      c.model.read(haystack, *last, kRead);
    }
    last = c.model.new_state(last.get());
    AnswerEnd end;
    end.max_new_tokens = kAnswerTokens;
    end.is_complete = [](std::string_view text) { return count_characters(trim_front(text)) >= kValueLength; };
    const std::string text = greedy_answer(c, read_prompt(c, haystack, prompt, *last), *last, kAnswer, end);
    const NeedleScores s = needle_scores(text, sample.answer, sample.values);
    Json line = Json::object();
    line.set("prompt", sample.prompt());
    line.set("prediction", s.prediction);
    line.set("references", Json::array({Json(sample.answer)}));
    line.set("score", s.exact);
    line.set("digits", s.digits);
    line.set("candidate", s.candidate);
    c.log_sample(id, prompt, line);
    return Json::array({s.exact, s.digits, s.candidate, static_cast<int64_t>(prompt.size())});
  }

  /// The last pass; logits behind the prompt.
  std::vector<double> read_prompt(EvalContext& c, std::span<const int32_t> haystack, std::span<const int32_t> prompt,
                                  ModelState& state) const {
    if (update_after_ == "prompt") { return c.model.read(prompt, state, kRead); }
    const auto common = static_cast<size_t>(
        std::mismatch(haystack.begin(), haystack.end(), prompt.begin(), prompt.end() - 1).second - prompt.begin());
    if (common > 0) { c.model.read(prompt.subspan(0, common), state, kRead); }
    return c.model.read(prompt.subspan(common), state, kAnswer);
  }

  SampleChoice samples_;
  HaystackSource text_;
  NeedleOptions needles_;
  std::vector<int64_t> words_{4000}, passes_{1, 2, 3, 4};
  std::string update_after_ = "prompt", fast_weights_ = "carry";
  std::vector<NeedleSample> ready_made_;
  std::vector<int64_t> lengths_;  // of prepare(): those of words_ that there is text for
  Json skipped_ = Json::array();  // the others
};

}  // namespace

std::unique_ptr<EvalTask> make_niah() { return std::make_unique<Niah>(); }

}  // namespace hebb
