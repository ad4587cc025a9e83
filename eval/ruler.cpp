// RULER (docs/evaluations/ruler.md).
#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <set>

#include "data/tasks/answer_scores.h"
#include "data/tasks/ruler.h"
#include "eval/answer_text.h"
#include "eval/prompt.h"

namespace hebb {
namespace {

/// The samples of one task at one length, and what they scored.
struct Cell {
  const RulerTask* task = nullptr;
  int64_t length = 0;
  std::vector<RulerSample> ready_made;
  std::vector<double> scores, tokens;
};

double mean(const std::vector<double>& values) { return mean_metric(values).at("value").as_double(); }

std::vector<std::string> all_tasks() {
  std::vector<std::string> names;
  for (const RulerTask& task : ruler_tasks()) { names.push_back(task.name); }
  return names;
}

class Ruler final : public EvalTask {
 public:
  void fields(Fields& f) override {
    f.field("tasks", tasks_)
        .not_empty()
        .one_of(all_tasks())
        .help("Default: all 13; qa_1 and qa_2 only where their files are given.");
    f.field("lengths", lengths_)
        .not_empty()
        .min(64)
        .unit("tokens")
        .help("Input, opening words and answer together are at most so long.");
    sample_field(f, samples_, INT32_MAX,
                 "Samples per task and length, or a JSONL file of ready-made ones (`input`, `outputs`, "
                 "`answer_prefix`, `task`).");
    hebb::fields(f, files_);
    f.field("freeze_fast_weights", freeze_)
        .help("Never update fast weights. They are those of the checkpoint at the start of each sample.");
    if (f.reading()) { check(f); }
  }

  std::vector<std::string> left_out(const EvalPremises& premises) override {
    prepare(premises);
    std::vector<std::string> reasons;
    for (const Json& part : skipped_.items()) {
      const bool is_of_all = part.find("length") == nullptr;  // otherwise the reason names the task
      reasons.push_back((is_of_all ? "task " + part.at("task").as_string() + ": " : "") +
                        part.at("reason").as_string());
    }
    return reasons;
  }

  EvalResult run(EvalContext& c) override {
    prepare(c.premises());
    EvalResult result;
    result.source = !samples_.file.empty() ? "official" : files_.replaces_any() ? "custom" : "builtin";
    std::vector<Cell> cells = cells_;
    run_cells(c, *maker_, cells);
    std::erase_if(cells, [](const Cell& cell) { return cell.scores.empty(); });
    result.left_out(skipped_, cells.empty());
    if (!cells.empty()) { add_results(cells, result); }
    return result;
  }

 private:
  /// Once: what samples are made of, and the tasks and lengths of which there are some.
  void prepare(const EvalPremises& premises) {
    if (is_prepared_) { return; }
    const int64_t prefix = static_cast<int64_t>(prefix_ids(premises.text_tokenizer(), false).size());
    const auto encoder = std::make_shared<Tokenizer::Encoder>(premises.tokenizer);
    const TokenCounter count_tokens = [encoder, prefix](std::string_view text) {
      std::vector<int32_t> ids;
      encoder->encode(text, ids);
      return prefix + static_cast<int64_t>(ids.size());
    };
    maker_.emplace(samples_.file.empty() ? read_ruler_material(files_) : RulerMaterial(), premises.seed, count_tokens);
    cells_ = samples_.file.empty() ? cells_to_make(*maker_) : cells_of_file(count_tokens);
    is_prepared_ = true;
  }

  void check(Fields& f) const {
    f.require(std::set(lengths_.begin(), lengths_.end()).size() == lengths_.size(), "lengths", "different lengths");
    f.require(std::set(tasks_.begin(), tasks_.end()).size() == tasks_.size(), "tasks", "different tasks");
    const bool makes = samples_.file.empty();
    const RulerFiles::Words& words = files_.words;
    const std::pair<const char*, bool> given[] = {
        {"text", !files_.text.empty()},
        {"essays", !files_.essays.empty()},
        {"squad", !files_.squad.empty()},
        {"hotpotqa", !files_.hotpotqa.empty()},
        {"words", !(words.adjectives.empty() && words.nouns.empty() && words.cwe.empty())}};
    for (const auto& [key, is_given] : given) {
      f.require(makes || !is_given, key, "no such key beside a file of samples");
    }
  }

  size_t size(const Cell& cell) const {
    return cell.ready_made.empty() ? static_cast<size_t>(samples_.count) : cell.ready_made.size();
  }

  void skip(const std::string& task, int64_t length, const std::string& reason) {
    Json entry = Json::object({{"task", task}});
    if (length > 0) { entry.set("length", length); }
    entry.set("reason", reason);
    skipped_.push(entry);
  }

  /// Every task at every length, tried with its first sample, so that text that does not fit is found before hours of
  /// work.
  std::vector<Cell> cells_to_make(RulerMaker& maker) {
    std::vector<Cell> cells;
    for (const std::string& name : tasks_) {
      const RulerTask* task = find_ruler_task(name);
      if (!maker.has(*task)) {
        skip(name, 0, name == "qa_1" ? "no key \"squad\"" : "no key \"hotpotqa\"");
        continue;
      }
      for (const int64_t length : lengths_) {
        try {
          maker.sample(*task, length, 0);
          cells.push_back({task, length, {}, {}, {}});
        } catch (const ConfigError& error) {  // the others can be run
          skip(name, length, error.what());
        }
      }
    }
    return cells;
  }

  /// Scores all samples. A cell of which one cannot be made is left without scores.
  void run_cells(EvalContext& c, RulerMaker& maker, std::vector<Cell>& cells) {
    size_t total = 0;
    for (const Cell& cell : cells) { total += size(cell); }
    c.begin("ruler", total);
    const auto weights = c.model.save_fast_weights();
    for (Cell& cell : cells) {
      const auto compute = [&](size_t j) {
        c.model.restore_fast_weights(weights);  // samples do not influence each other
        return scored(c, maker, cell, j);
      };
      const auto is_missing = [](const Json& item) { return item.is_string(); };
      const std::vector<Json> items = c.items({.count = size(cell), .compute = compute, .ends = is_missing});
      if (!items.empty() && is_missing(items.back())) {
        const std::string& reason = items.back().as_string();
        c.progress.message("left out: " + reason);
        skip(cell.task->name, cell.length, fmt::format("sample {:d}: {}", items.size() - 1, reason));
        continue;
      }
      for (const Json& item : items) {
        cell.scores.push_back(item.items()[0].as_double());
        cell.tokens.push_back(item.items()[1].as_double());
      }
    }
    c.progress.end();
  }

  /// [score, tokens] of sample j, or the reason why there is none.
  Json scored(EvalContext& c, RulerMaker& maker, const Cell& cell, size_t j) const {
    if (!cell.ready_made.empty()) { return score(c, cell, cell.ready_made[j], j); }
    try {
      return score(c, cell, maker.sample(*cell.task, cell.length, j), j);
    } catch (const ConfigError& error) { return error.what(); }
  }

  /// The file's samples by task, and by the smallest length that holds them.
  std::vector<Cell> cells_of_file(const TokenCounter& count_tokens) const {
    std::vector<Cell> cells;
    std::vector<int64_t> lengths = lengths_;
    std::sort(lengths.begin(), lengths.end());
    for (auto& [name, sample] : read_ruler_samples(samples_.file)) {
      if (name.empty() && tasks_.size() != 1) {
        throw ConfigError("tasks", fmt::format("{:d} tasks", tasks_.size()),
                          "the one of " + samples_.file + ", whose samples name none");
      }
      const RulerTask* task = find_ruler_task(name.empty() ? tasks_[0] : name);
      if (task == nullptr) {
        throw DataError(samples_.file, "task of a sample", "\"" + name + "\"", "one of RULER's 13");
      }
      if (std::find(tasks_.begin(), tasks_.end(), task->name) == tasks_.end()) { continue; }
      sample.length = count_tokens(sample.input + sample.answer_prefix) + task->new_tokens;
      const auto length = std::lower_bound(lengths.begin(), lengths.end(), sample.length);
      if (length == lengths.end()) {
        throw ConfigError("lengths", fmt::format("{:d} at most", lengths.back()),
                          fmt::format("at least {:d}, which a sample of {} takes", sample.length, samples_.file));
      }
      auto cell = std::find_if(cells.begin(), cells.end(),
                               [&](const Cell& x) { return x.task == task && x.length == *length; });
      if (cell == cells.end()) { cell = cells.insert(cells.end(), {task, *length, {}, {}, {}}); }
      cell->ready_made.push_back(std::move(sample));
    }
    if (cells.empty()) { throw DataError(samples_.file, "no sample of the tasks that \"tasks\" names"); }
    return cells;
  }

  /// Score and tokens of a sample.
  Json score(EvalContext& c, const Cell& cell, const RulerSample& sample, size_t j) const {
    const std::string id = fmt::format("{}, length {:d}, sample {:d}", cell.task->name, cell.length, j);
    const std::vector<int32_t> ids = checked_prompt_ids(c, sample.input + sample.answer_prefix, id);
    const ScoringModel::Reading reading{FastUpdate::streaming, freeze_};
    const std::unique_ptr<ModelState> state = c.model.new_state();
    const std::string text = greedy_answer(c, c.model.read(ids, *state, reading), *state, reading,
                                           {.max_new_tokens = cell.task->new_tokens});
    const double score =
        cell.task->is_any_enough ? match_part_score(text, sample.outputs) : match_all_score(text, sample.outputs);
    c.log_sample(id, ids,
                 Json::object({{"prompt", sample.input + sample.answer_prefix},
                               {"prediction", text},
                               {"references", Json::array({sample.outputs.begin(), sample.outputs.end()})},
                               {"score", score}}));
    return Json::array({score, sample.length});
  }

  /// Metrics of tasks (`scores` of all lengths together) and their averages. `result`: gets what they are of.
  static Json table(const std::vector<const Cell*>& cells, EvalResult* result = nullptr) {
    Json metrics = Json::object();
    std::vector<Json> means, of_six;
    std::set<std::string> six = {"niah_single_1",   "niah_single_2",   "niah_single_3",
                                 "niah_multikey_2", "niah_multiquery", "vt"};
    for (const Cell* cell : cells) {
      const std::string& name = cell->task->name;
      if (metrics.find(name) != nullptr) { continue; }
      std::vector<double> scores;
      for (const Cell* other : cells) {
        if (other->task == cell->task) { scores.insert(scores.end(), other->scores.begin(), other->scores.end()); }
      }
      metrics.set(name, mean_metric(scores));
      if (result != nullptr) { result->mean(name, scores); }
      means.push_back(metrics.at(name));
      if (six.erase(name) > 0) { of_six.push_back(metrics.at(name)); }
    }
    metrics.set("average", parts_metric(means, "tasks"));
    if (six.empty()) { metrics.set("average_6", parts_metric(of_six, "tasks")); }
    return metrics;
  }

  static void add_results(const std::vector<Cell>& cells, EvalResult& result) {
    Json series = Json::array();
    std::map<int64_t, std::vector<const Cell*>> by_length;
    std::vector<const Cell*> all;
    for (const Cell& cell : cells) {
      Json point = Json::object({{"task", cell.task->name}, {"length", cell.length}});
      set_mean(point, "score", cell.scores);
      point.set("n", static_cast<int64_t>(cell.scores.size()));
      point.set("tokens", mean(cell.tokens));
      series.push(point);
      by_length[cell.length].push_back(&cell);
      all.push_back(&cell);
    }
    result.series.set("by_task", series);
    for (const auto& [length, part] : by_length) { result.groups.set(std::to_string(length), table(part)); }
    result.metrics = table(all, &result);
  }

  std::vector<std::string> tasks_ = all_tasks();
  std::vector<int64_t> lengths_{4096};
  SampleChoice samples_;
  RulerFiles files_;
  bool freeze_ = false;
  bool is_prepared_ = false;
  std::optional<RulerMaker> maker_;
  std::vector<Cell> cells_;
  Json skipped_ = Json::array();  // tasks that cannot be made, with the reason
};

}  // namespace

std::unique_ptr<EvalTask> make_ruler() { return std::make_unique<Ruler>(); }

}  // namespace hebb
