// Needles in a haystack that is read once or several times (docs/evaluations/niah.md).
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

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

/// What samples scored: [exact, digits, candidate, tokens of the prompt, depth] of each.
using Scores = std::vector<Json>;

constexpr std::pair<const char*, size_t> kMetrics[] = {{"exact", 0}, {"digits", 1}, {"candidate", 2}};

std::vector<double> numbers(const Scores& scores, size_t number) {
  std::vector<double> values;
  for (const Json& sample : scores) { values.push_back(sample.items()[number].as_double()); }
  return values;
}

Json metrics_of(const Scores& scores) {
  Json metrics = Json::object();
  for (const auto& [name, number] : kMetrics) { metrics.set(name, mean_metric(numbers(scores, number))); }
  return metrics;
}

/// Depth as points have it: that of `depths`, or the middle of the tenth of the haystack.
double depth_bin(double depth, bool is_given) {
  constexpr double kBins = 10;
  return is_given ? depth : (std::min(std::floor(kBins * depth), kBins - 1) + 0.5) / kBins;
}

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
    return reasons_of(skipped_);
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
    Json series = Json::array(), by_depth = Json::array();
    const auto weights = c.model.save_fast_weights();
    for (const int64_t words : lengths_) {
      Scores scores;
      for (size_t p = 0; p < passes_.size(); ++p) {
        if (p == 0 || has_passes) {
          c.model.restore_fast_weights(weights);
          scores = one_run(c, words, passes_[p], count, weights);
        }
        series.push(point(words, passes_[p], scores));
        add_depths(by_depth, words, passes_[p], scores);
        Scores& all = by_passes[passes_[p]];
        all.insert(all.end(), scores.begin(), scores.end());
      }
    }
    c.progress.end();
    for (const auto& [passes, scores] : by_passes) { result.groups.set(std::to_string(passes), metrics_of(scores)); }
    for (const auto& [name, number] : kMetrics) { result.mean(name, numbers(by_passes[passes_.back()], number)); }
    result.series.set("by_length", series);
    if (!by_depth.items().empty()) { result.series.set("by_depth", by_depth); }
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

  /// Points of one length and number of passes, from the start of the haystack to its end. None for ready-made samples.
  void add_depths(Json& series, int64_t words, int64_t passes, const Scores& scores) const {
    std::map<double, Scores> bins;
    for (const Json& sample : scores) {
      const Json& depth = sample.items()[4];
      if (depth.is_number()) { bins[depth_bin(depth.as_double(), !needles_.depths.empty())].push_back(sample); }
    }
    for (const auto& [depth, found] : bins) {
      Json j = Json::object({{"context_words", words}, {"depth", depth}});
      const Json rest = point(words, passes, found);
      for (const auto& [key, value] : rest.members()) { j.set(key, value); }
      series.push(j);
    }
  }

  Json point(int64_t words, int64_t passes, const Scores& scores) const {
    Json j = Json::object();
    if (ready_made_.empty()) { j.set("context_words", words); }
    j.set("passes", passes);
    j.set("n", static_cast<int64_t>(scores.size()));
    for (const auto& [name, number] : kMetrics) {
      if (number == 0) {
        set_mean(j, name, numbers(scores, number));
      } else {
        j.set(name, mean_metric(numbers(scores, number)).at("value"));
      }
    }
    j.set("prompt_tokens", mean_metric(numbers(scores, 3)).at("value"));
    return j;
  }

  /// Samples of one length by index, made one after the other.
  class Samples {
   public:
    Samples(const Niah& niah, int64_t words)
        : ready_made_(niah.ready_made_), text_(niah.text_), maker_(niah.needles_), words_(words) {}
    /// Null behind the end of the text. Indices grow from call to call.
    const NeedleSample* at(size_t i) {
      if (!ready_made_.empty()) { return &ready_made_[i]; }
      for (; made_ <= i; ++made_) {
        std::vector<std::string> piece;
        if (!text_.piece(words_, piece)) { return nullptr; }
        sample_ = maker_.next(std::move(piece));
      }
      return &sample_;
    }

   private:
    const std::vector<NeedleSample>& ready_made_;
    HaystackWords text_;
    NeedleMaker maker_;
    int64_t words_;
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
    Scores scores;
    if (carries) {
      const auto units = [&](size_t) { return static_cast<uint64_t>(count); };
      scores = c.items({.count = 1, .compute = all, .units = units})[0].items();
    } else {
      scores = c.items({.count = static_cast<size_t>(count), .compute = compute, .ends = is_none});
      if (!scores.empty() && is_none(scores.back())) { scores.pop_back(); }
    }
    if (static_cast<int64_t>(scores.size()) < count) {
      c.progress.message(fmt::format("{}: text for {:d} of {:d} samples", text_.path, scores.size(), count));
    }
    return scores;
  }

  /// [exact, digits, candidate, tokens, depth].
  Json score(EvalContext& c, const NeedleSample& sample, int64_t passes, const std::string& id,
             std::unique_ptr<ModelState>& last) {
    const std::vector<int32_t> haystack = checked_prompt_ids(c, sample.haystack, id),
                               prompt = checked_prompt_ids(c, sample.prompt(), id);
    for (int64_t pass = 1; pass < passes && c.model.has_fast_weights(); ++pass) {
      last = c.model.new_state(last.get());
      c.model.read(haystack, *last, kRead);
    }
    last = c.model.new_state(last.get());
    const AnswerEnd end{.max_new_tokens = kAnswerTokens, .is_complete = [](std::string_view text) {
                          return count_characters(trim_front(text)) >= kValueLength;
                        }};
    const std::string text = greedy_answer(c, read_prompt(c, haystack, prompt, *last), *last, kAnswer, end);
    const NeedleScores s = needle_scores(text, sample.answer, sample.values);
    Json line = Json::object({{"prompt", sample.prompt()},
                              {"prediction", s.prediction},
                              {"references", Json::array({sample.answer})},
                              {"score", s.exact},
                              {"digits", s.digits},
                              {"candidate", s.candidate}});
    const Json depth = sample.depths.empty() ? Json() : Json(sample.asked_depth());
    if (!depth.is_null()) { line.set("depth", depth); }
    c.log_sample(id, prompt, line);
    return Json::array({s.exact, s.digits, s.candidate, static_cast<int64_t>(prompt.size()), depth});
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
