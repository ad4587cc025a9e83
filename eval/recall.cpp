// In-context recall and in-context learning on generated rows (docs/tasks.md; docs/evaluations/synthetic-tasks.md).
#include <fmt/core.h>

#include <bit>
#include <cmath>
#include <map>

#include "data/tasks/synthetic_tasks.h"
#include "eval/evaluation.h"

namespace hebb {
namespace {

constexpr int32_t kIgnored = -100, kFirstArrow = 9872;
constexpr int64_t kLongRow = 8192;  // tokens; longer rows are fewer by default (docs/evaluations/synthetic-tasks.md)

/// Answers that were right, of how many.
struct Score {
  int64_t right = 0, asked = 0;
  void add(bool correct) {
    right += correct ? 1 : 0;
    ++asked;
  }
  double accuracy() const { return static_cast<double>(right) / static_cast<double>(asked); }
};

Json point_of(const Score& score) {
  Json point = Json::object({{"n", score.asked}});
  if (score.asked > 0) { point.set("accuracy", score.accuracy()); }
  return point;
}

/// Rows of one shape: a line of the result.
struct Setting {
  SyntheticTask task;
  std::string name;
  int64_t samples = 0;
};

/// What the three kinds share: rows 0 ... samples - 1 of every setting, teacher forced.
class Recall : public EvalTask {
 public:
  std::vector<std::string> left_out(const EvalPremises& premises) final {
    Json skipped = Json::array();
    possible_settings(premises, skipped);
    return reasons_of(skipped);
  }

  EvalResult run(EvalContext& c) final {
    Json skipped = Json::array();
    const std::vector<Setting> settings = possible_settings(c.premises(), skipped);
    int64_t rows = 0;
    for (const Setting& s : settings) { rows += s.samples; }
    c.begin(kind_name(), static_cast<uint64_t>(rows));
    const auto weights = c.model.save_fast_weights();
    EvalResult result;
    result.left_out(skipped, settings.empty());
    if (settings.empty()) { return result; }
    rows_ = {};
    Json table = Json::array();
    for (const Setting& s : settings) {
      const auto compute = [&](size_t k) {
        c.model.restore_fast_weights(weights);  // rows do not influence each other
        return answers(c, asked_row(s, k));
      };
      Score score;
      size_t k = 0;
      for (const Json& found : c.items({.count = static_cast<size_t>(s.samples), .compute = compute})) {
        add_row(c, k++, s, found, score);
      }
      const int64_t length = s.task.lengths.front();
      Json point = point_of(score);
      point.set("setting", s.name);
      point.set("length", length);
      point.set("rows", s.samples);
      point.set("state_bytes", c.model.model().state_bytes(length));
      table.push(point);
    }
    c.progress.end();
    if (rows_.count() == 0) { return EvalResult::failed("no answer counts: every query is nearer than min_distance"); }
    result.ratio("accuracy", "", rows_);
    result.series.set("by_setting", table);
    add_series(result);
    return result;
  }

 protected:
  virtual std::string kind_name() const = 0;
  virtual std::vector<Setting> make_settings(uint64_t seed) const = 0;
  /// Called for every answer; returns whether it counts.
  virtual bool note(const Setting&, const TaskRow&, size_t, bool) { return true; }
  virtual void begin_row(const TaskRow&) {}
  virtual void add_series(EvalResult&) const {}

  Setting setting(uint64_t seed, SyntheticTask task, int64_t length, const std::string& name) const {
    task.seed = seed;
    task.lengths = {length};
    return {task, name, samples_.value_or(length <= kLongRow ? default_samples_ : default_long_samples_)};
  }

  std::optional<int64_t> samples_;
  int64_t default_samples_ = 200, default_long_samples_ = 50, readings_ = 1;
  std::string update_ = "chunk";

 private:
  RatioOfSums rows_;  // right answers of how many, by row

  /// The settings of which there are rows; `skipped` gets the others. Errors: ConfigError, see check_model().
  std::vector<Setting> possible_settings(const EvalPremises& premises, Json& skipped) const {
    std::vector<Setting> settings;
    for (const Setting& s : make_settings(premises.seed)) {
      try {
        check_task(s.task, s.name);
      } catch (const ConfigError& error) {  // the others can be run
        skipped.push(Json::object({{"setting", s.name}, {"reason", error.what()}}));
        continue;
      }
      check_model(premises.source, s);
      settings.push_back(s);
    }
    return settings;
  }

  /// The model's vocabulary, and that the model was not trained on these rows.
  static void check_model(const ModelSource& source, const Setting& s) {
    const int64_t vocab = source.model.vocab_size, needed = task_vocabulary(s.task);
    if (needed > vocab) {
      throw ConfigError("vocab_size", std::to_string(vocab), fmt::format("at least {:d} for {}", needed, s.name));
    }
    const Json& config = source.config;
    const Json* sources = config.find_path("data.sources");
    if (sources == nullptr || !sources->is_array()) { return; }
    for (const Json& trained : sources->items()) {
      const double train_seed = config.number_at("train.seed", NAN),
                   seed = trained.number_at("seed", config.number_at("data.seed", train_seed));
      if (trained.text_at("task") == s.task.task && seed == static_cast<double>(s.task.seed)) {
        throw ConfigError("seed", std::to_string(s.task.seed), "a seed other than that of the training rows");
      }
    }
  }

  /// The model's answers to a row that is read `readings_` times, each from an empty state; fast weights stay from
  /// reading to reading. The last one counts: [token, log-likelihood] where something is asked, one after the other.
  Json answers(EvalContext& c, const TaskRow& row) const {
    const std::span<const int32_t> inputs(row.inputs), targets(row.targets);
    const ScoringModel::Reading how{update_ == "end" ? FastUpdate::at_end : FastUpdate::streaming, false};
    for (int64_t reading = 1; reading < readings_; ++reading) {
      const std::unique_ptr<ModelState> state = c.model.new_state();
      c.model.read(inputs, *state, how);
      c.model.flush(*state, how);
    }
    const std::unique_ptr<ModelState> state = c.model.new_state();
    const std::vector<ScoringModel::Answer> found = c.model.answers(inputs, targets, *state, how);
    Json list = Json::array();
    for (size_t i = 0; i < targets.size(); ++i) {
      if (targets[i] == kIgnored) { continue; }
      list.push(found[i].token);
      list.push(found[i].log_likelihood);
    }
    return list;
  }

  /// Row k as far as its last answer: nothing behind it matters.
  static TaskRow asked_row(const Setting& s, size_t k) {
    TaskRow row = generate_task_row(s.task, k);
    while (!row.inputs.empty() && row.targets.back() == kIgnored) {
      row.inputs.pop_back();
      row.targets.pop_back();
    }
    return row;
  }

  /// Scores the answers that were found to row k.
  void add_row(EvalContext& c, size_t k, const Setting& s, const Json& found, Score& score) {
    const TaskRow row = asked_row(s, k);
    begin_row(row);
    Score own;
    Json predictions = Json::array(), references = Json::array();
    double log_likelihood = 0;
    auto answer = found.items().begin();
    for (size_t i = 0; i < row.inputs.size(); ++i) {
      if (row.targets[i] == kIgnored) { continue; }
      const Json &token = *answer++, &likelihood = *answer++;
      const bool is_right = token.as_int() == row.targets[i];
      if (!note(s, row, i, is_right)) { continue; }
      score.add(is_right);
      own.add(is_right);
      predictions.push(token);
      references.push(row.targets[i]);
      log_likelihood += kept_number(likelihood);
    }
    if (own.asked > 0) {
      rows_.add(static_cast<double>(own.right), static_cast<double>(own.asked));
      c.log_sample(fmt::format("{}, row {:d}", s.name, k), row.inputs,
                   Json::object({{"prediction", predictions},
                                 {"references", references},
                                 {"score", own.accuracy()},
                                 {"ll", log_likelihood}}));
    }
  }
};

class Icr final : public Recall {
 public:
  void fields(Fields& f) override {
    f.field("task", task_.task)
        .required()
        .one_of({"icr_basic", "icr_positional"})
        .help("One value per key, or several in order.");
    f.field("lengths", lengths_).not_empty().min(1).unit("tokens").help("Row lengths.");
    f.field("samples", samples_)
        .min(1)
        .unit("rows")
        .help("Rows per length. Default: 200 up to 8,192 tokens, 50 beyond.");
    f.field("vocab", task_.vocab).min(11).help("Token ids of the task are below this.");
    f.field("word", task_.word).min(1).unit("tokens").help("Tokens of a key and of a value.");
    f.field("queries", task_.queries)
        .min(1)
        .help("Pairs that are asked.")
        .only_with(task_.task == "icr_basic", "task \"icr_basic\"");
    f.field("copies", task_.copies)
        .min(1)
        .help("Values of a key.")
        .only_with(task_.task == "icr_positional", "task \"icr_positional\"");
  }

 private:
  std::string kind_name() const override { return "icr"; }
  std::vector<Setting> make_settings(uint64_t seed) const override {
    std::vector<Setting> settings;
    for (const int64_t length : lengths_) {
      settings.push_back(setting(seed, task_, length, fmt::format("length {:d}", length)));
    }
    return settings;
  }

  SyntheticTask task_;
  std::vector<int64_t> lengths_{512, 1024, 2048, 4096};
};

class Icl final : public Recall {
 public:
  Icl() { task_.task = "icl"; }
  void fields(Fields& f) override {
    f.field("functions", functions_).not_empty().min(1).help("Numbers of different functions in a row.");
    f.field("length", length_)
        .min(1)
        .unit("tokens")
        .help("Row length. Default: 520 times the functions, in whole 2,048s.");
    f.field("samples", samples_)
        .min(1)
        .unit("rows")
        .help("Rows per number of functions. Default: 200 up to 8,192 tokens, 50 beyond.");
    f.field("dim", task_.dim).min(1).help("Numbers of an input and of an output.");
    f.field("x_max", task_.x_max).min(1).help("Largest input number.");
    f.field("coef_max", task_.coef_max).min(1).help("Largest coefficient.");
  }

 private:
  std::string kind_name() const override { return "icl"; }
  std::vector<Setting> make_settings(uint64_t seed) const override {
    std::vector<Setting> settings;
    for (const int64_t functions : functions_) {
      SyntheticTask task = task_;
      task.functions = functions;
      constexpr int64_t kExample = 26, kExamples = 20, kUnit = 2048;  // docs/evaluations/synthetic-tasks.md
      const int64_t length = length_.value_or((kExample * kExamples * functions + kUnit - 1) / kUnit * kUnit);
      settings.push_back(setting(seed, task, length, fmt::format("{:d} functions", functions)));
    }
    return settings;
  }
  void begin_row(const TaskRow&) override {
    seen_.clear();
    arrow_ = 0;
  }
  bool note(const Setting& s, const TaskRow& row, size_t i, bool right) override {
    if (row.inputs[i] >= kFirstArrow) {  // the arrow predicts the first number of an example
      arrow_ = row.inputs[i];
      ++seen_[arrow_];
    }
    by_example_[{s.task.functions, seen_[arrow_] - 1}].add(right);
    return true;
  }
  void add_series(EvalResult& r) const override {
    Json series = Json::array();
    for (const auto& [key, score] : by_example_) {
      Json point = point_of(score);
      point.set("functions", key.first);
      point.set("example", key.second);
      series.push(point);
    }
    r.series.set("by_example", series);
  }

  SyntheticTask task_;
  std::vector<int64_t> functions_{16};
  std::optional<int64_t> length_;
  std::map<int32_t, int64_t> seen_;  // examples of a function so far, by its arrow
  int32_t arrow_ = 0;
  std::map<std::pair<int64_t, int64_t>, Score> by_example_;  // by functions, n-th example
};

struct MqarCase {
  int64_t length = 0, pairs = 0;
};

void fields(Fields& f, MqarCase& c) {
  f.field("length", c.length).required().min(1).unit("tokens").help("Row length.");
  f.field("pairs", c.pairs).required().min(1).help("Pairs of a row, each asked once.");
}

class Mqar final : public Recall {
 public:
  Mqar() {
    task_.task = "mqar";
    task_.vocab = 8192;
    default_samples_ = default_long_samples_ = 1000;
  }
  void fields(Fields& f) override {
    f.list("cases", cases_).not_empty().help("Shapes of rows.");
    f.field("samples", samples_).min(1).unit("rows").help("Rows per case. Default: 1,000.");
    f.field("vocab", task_.vocab).min(4).help("Token ids of the task are below this.");
    f.field("filler", task_.filler).help("Random tokens between the queries; otherwise zeros.");
    f.field("min_distance", min_distance_)
        .min(0)
        .unit("tokens")
        .help("Count only queries at least so many tokens after the value that they ask for.");
    f.field("readings", readings_)
        .min(1)
        .help(
            "Times that a row is read; answers of the last reading count. Fast weights stay from one to the next, "
            "attention and recurrent states do not.");
    f.field("update", update_)
        .one_of({"chunk", "end"})
        .help(
            "When fast weights move: after each of their chunks, or once, after each reading. With \"end\" no reading "
            "knows of itself.");
  }

 private:
  std::string kind_name() const override { return "mqar"; }
  std::vector<Setting> make_settings(uint64_t seed) const override {
    std::vector<Setting> settings;
    for (const MqarCase& one : cases_) {
      SyntheticTask task = task_;
      task.pairs = one.pairs;
      settings.push_back(
          setting(seed, task, one.length, fmt::format("length {:d}, {:d} pairs", one.length, one.pairs)));
    }
    return settings;
  }
  bool note(const Setting& s, const TaskRow& row, size_t i, bool right) override {
    int64_t value = -1;  // position of the value
    for (int64_t p = 0; p < s.task.pairs; ++p) {
      if (row.inputs[static_cast<size_t>(2 * p)] == row.inputs[i]) { value = 2 * p + 1; }
    }
    const int64_t distance = static_cast<int64_t>(i) - value;
    if (distance < min_distance_) { return false; }
    by_distance_[std::bit_width(static_cast<uint64_t>(distance)) - 1].add(right);
    return true;
  }
  void add_series(EvalResult& r) const override {
    Json series = Json::array();
    for (const auto& [octave, score] : by_distance_) {
      Json point = point_of(score);
      point.set("from", int64_t{1} << octave);
      point.set("to", int64_t{2} << octave);
      series.push(point);
    }
    r.series.set("by_distance", series);
  }

  SyntheticTask task_;
  std::vector<MqarCase> cases_{{64, 4}, {64, 8}, {64, 16}, {128, 32}, {256, 64}, {512, 128}, {1024, 256}};
  int64_t min_distance_ = 0;
  std::map<int, Score> by_distance_;  // by the distance's power of two
};

}  // namespace

std::unique_ptr<EvalTask> make_icr() { return std::make_unique<Icr>(); }
std::unique_ptr<EvalTask> make_icl() { return std::make_unique<Icl>(); }
std::unique_ptr<EvalTask> make_mqar() { return std::make_unique<Mqar>(); }

}  // namespace hebb
