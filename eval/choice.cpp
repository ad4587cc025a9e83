// Multiple choice by likelihood (docs/evaluations/likelihood.md).
#include <algorithm>
#include <map>

#include "data/text/characters.h"
#include "eval/likelihood.h"

namespace hebb {
namespace {

/// Index of the largest ll / size; ties to the lowest index.
int64_t best(const std::vector<Likelihood>& lls, const std::vector<double>& sizes) {
  size_t best = 0;
  for (size_t i = 1; i < lls.size(); ++i) {
    if (lls[i].ll / sizes[i] > lls[best].ll / sizes[best]) { best = i; }
  }
  return static_cast<int64_t>(best);
}

/// What a choice's likelihood is divided by before the largest one is taken.
struct Measure {
  const char* metric;
  double (*size)(const std::string& choice, const Likelihood& likelihood);
};
constexpr Measure kMeasures[] = {
    {"acc", [](const std::string&, const Likelihood&) { return 1.0; }},
    {"acc_norm",
     [](const std::string& choice, const Likelihood&) { return static_cast<double>(count_characters(choice)); }},
    {"acc_byte", [](const std::string& choice, const Likelihood&) { return static_cast<double>(choice.size()); }},
    {"acc_token",
     [](const std::string&, const Likelihood& likelihood) { return static_cast<double>(likelihood.tokens); }},
};

/// Scores of 0 or 1, one per example, by metric.
using Scores = std::map<std::string, std::vector<double>>;

void add_groups(EvalResult& result, const std::vector<std::pair<std::string, Scores>>& groups) {
  std::map<std::string, std::vector<Json>> means;
  for (const auto& [name, scores] : groups) {
    Json group = Json::object();
    for (const auto& [metric, values] : scores) {
      group.set(metric, mean_metric(values));
      means[metric].push_back(group.at(metric));
    }
    result.groups.set(name, group);
  }
  for (const auto& [metric, parts] : means) { result.mean_of_parts(metric + "_group_mean", parts, "groups"); }
}

/// Pairs of context and continuation, of which some are right.
struct Example {
  std::vector<std::pair<std::string, std::string>> pairs;
  std::vector<std::string> choices;  // continuations without their delimiters
  std::optional<std::string> group;
};

Example example_of(const ChoiceRecord& r) {
  Example e{{}, r.choices, r.group};
  for (const std::string& choice : r.choices) { e.pairs.emplace_back(r.context, r.delimiter + choice); }
  return e;
}

Example example_of(const PartialRecord& r) {
  Example e{{}, std::vector(r.contexts.size(), r.continuation), std::nullopt};
  for (const std::string& context : r.contexts) { e.pairs.emplace_back(context, r.delimiter + r.continuation); }
  return e;
}

/// Choice and partial: an example is scored, its predictions are compared with gold.
template <class R> class Choice final : public EvalTask {
 public:
  Choice(const char* kind, std::span<const Measure> measures) : kind_(kind), measures_(measures) {}

  void fields(Fields& f) override {
    scoring_.fields(f);
    hebb::fields(f, front_, "context");
  }

  std::vector<std::string> left_out(const EvalPremises& premises) override {
    read(premises.seed);  // the errors
    return {};
  }

  EvalResult run(EvalContext& c) override {
    const std::pair<std::vector<R>, Shots> data = read(c.seed);
    const std::vector<R>& records = data.first;
    const Shots& shots = data.second;
    const Tokenizer& tokenizer = c.text_tokenizer();
    const int64_t length = scoring_.length(c);
    LikelihoodScorer scorer(c, scoring_.freeze_fast_weights);
    c.begin(kind_, records.size());
    const auto compute = [&](size_t i) {
      const std::string before = shots.before(i);
      const Example example = example_of(records[i]);
      std::vector<ScoredText> texts;
      for (const auto& [context, continuation] : example.pairs) {
        texts.push_back(encode_pair(tokenizer, before + context, continuation, length, records[i].where));
      }
      if (std::any_of(texts.begin(), texts.end(), [](const ScoredText& text) { return text.is_merged(); })) {
        return Json();
      }
      const bool is_cut = std::any_of(texts.begin(), texts.end(), [](const ScoredText& text) { return text.cut > 0; });
      const Json predictions = predict(c, records[i], example, before, texts, scorer.score(texts, records[i].where));
      return Json::array({predictions, is_cut});
    };
    const std::vector<Json> items = c.items({.count = records.size(), .compute = compute});
    c.progress.end();
    EvalResult result;
    TextLosses losses;
    for (size_t i = 0; i < records.size(); ++i) {
      if (items[i].is_null()) {
        ++losses.merged;
        continue;
      }
      for (size_t m = 0; m < measures_.size(); ++m) {
        add(records[i], measures_[m].metric, score(records[i], items[i].items()[0].items()[m].as_int()));
      }
      losses.truncated += items[i].items()[1].as_bool() ? 1 : 0;
      result.examples.push_back(static_cast<int64_t>(i));
    }
    if (all_.empty()) { return nothing_to_score(scoring_); }
    losses.note(result, c, scoring_, records.size());
    for (const auto& [metric, values] : all_) { result.mean(metric, values); }
    add_groups(result, groups_);
    return result;
  }

 private:
  std::pair<std::vector<R>, Shots> read(uint64_t seed) const {
    std::vector<R> records = scoring_.read<R>();
    for (const R& record : records) {
      if (example_of(record).choices.size() < 2) {
        throw DataError(record.where, "choices", "one, which is always right", "at least two");
      }
    }
    return {std::move(records), Shots::read<R>(front_, scoring_.file, seed)};
  }

  /// The choice of every measure.
  Json predict(EvalContext& c, const R& record, const Example& example, const std::string& before,
               const std::vector<ScoredText>& texts, const std::vector<Likelihood>& lls) const {
    std::vector<Json> predictions;
    for (const Measure& measure : measures_) {
      std::vector<double> sizes;
      for (size_t j = 0; j < lls.size(); ++j) { sizes.push_back(measure.size(example.choices[j], lls[j])); }
      predictions.emplace_back(best(lls, sizes));
    }
    Json ll = Json::array(), prompts = Json::array();
    std::vector<int32_t> tokens;
    for (size_t j = 0; j < lls.size(); ++j) {
      ll.push(lls[j].ll);
      const std::string& context = example.pairs[j].first;
      if (j == 0 || context != example.pairs[0].first) { prompts.push(before + context); }
      tokens.insert(tokens.end(), texts[j].ids.begin(), texts[j].ids.end());
    }
    c.log_sample(record.id, tokens,
                 Json::object({{"prompt", prompts.items().size() == 1 ? prompts.items()[0] : prompts},
                               {"prediction", predictions[0]},
                               {"references", Json::array({record.gold.begin(), record.gold.end()})},
                               {"score", score(record, predictions[0].as_int())},
                               {"ll", ll}}));
    return Json::array(std::move(predictions));
  }

  static double score(const R& record, int64_t prediction) {
    return std::find(record.gold.begin(), record.gold.end(), prediction) != record.gold.end() ? 1.0 : 0.0;
  }

  void add(const R& record, const char* metric, double score) {
    all_[metric].push_back(score);
    if (const std::optional<std::string> name = example_of(record).group) {
      auto at = std::find_if(groups_.begin(), groups_.end(), [&](const auto& g) { return g.first == *name; });
      if (at == groups_.end()) { at = groups_.insert(at, {*name, {}}); }
      at->second[metric].push_back(score);
    }
  }

  const char* kind_;
  std::span<const Measure> measures_;
  TextScoring scoring_;
  InFront front_;
  Scores all_;
  std::vector<std::pair<std::string, Scores>> groups_;  // in the order of the file
};

}  // namespace

std::unique_ptr<EvalTask> make_choice() { return std::make_unique<Choice<ChoiceRecord>>("choice", kMeasures); }
std::unique_ptr<EvalTask> make_partial() {  // all choices are the same text
  return std::make_unique<Choice<PartialRecord>>("partial", std::span(kMeasures).first(1));
}

}  // namespace hebb
