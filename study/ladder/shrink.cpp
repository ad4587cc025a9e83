#include "study/ladder/shrink.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <span>

#include "core/join.h"
#include "core/terminal.h"
#include "data/shards/ingest.h"
#include "data/tasks/synth_corpus.h"
#include "inspect/plan.h"
#include "study/ladder/ladder.h"
#include "study/ladder/shrink_data.h"
#include "study/ladder/shrink_sizes.h"
#include "train/run_config.h"

namespace hebb {
namespace {

constexpr int64_t kStepsPerOctave = 8;                    // of the search
constexpr double kShortestWindow = 4, kShortestRow = 32;  // tokens
constexpr double kMostTokens = 2.5;                       // of what a budget leaves above the sizes that it reaches
constexpr int64_t kRowMultiple = 8;                       // of a batch
constexpr double kRowsPerPass = 4096;                     // tokens of a micro-batch
constexpr int64_t kFewestLogs = 50, kMostValidations = 4, kFewestValidationRows = 16;

/// What the search asks of a run's model.
struct Cost {
  int64_t parameters = 0;  // without embeddings and memories
  double flops_per_token = 0;
};

Cost cost_of(const Json& config) {
  const auto model = Fields::read<ModelConfig>(config.at("model"), "model");
  const Model built(model);
  return {count_parameters(built).non_embedding, built.flops_per_token(size_at(config.at("train"), "sequence_length"))};
}

/// Whether the size of a micro-batch is a part of the model.
bool learns_per_micro_batch(const Json& config) {
  const auto model = Fields::read<ModelConfig>(config.at("model"), "model");
  return std::any_of(model.layers.begin(), model.layers.end(),
                     [](const LayerDefinition& d) { return d.config->learns_per_micro_batch(); });
}

/// Calls visit(source, its path) for what a run trains on, then for what it validates on.
template <class Visit> void each_source(const RunConfig& config, Visit&& visit) {
  const DataConfig& data = config.data;
  for (size_t i = 0; i < data.sources.size(); ++i) { visit(data.sources[i], fmt::format("data.sources.{:d}", i)); }
  for (size_t i = 0; i < data.validation.size(); ++i) {
    visit(data.validation[i].source, fmt::format("data.validation.{:d}", i));
  }
}

/// The first of the runs, and how many there are.
std::string shown(const std::vector<std::string>& runs) {
  constexpr size_t kShown = 4;
  return join(std::span(runs).first(std::min(runs.size(), kShown)), " ") +
         (runs.size() > kShown ? fmt::format(" … ({:d})", runs.size()) : "");
}

/// A text as tables show it: of a path the end, which differs.
std::string end_of(const std::string& text) {
  constexpr size_t kShown = 24;
  size_t from = text.rfind('/');
  if (from == std::string::npos) { return Json(text).found(); }
  if (const size_t folder = text.rfind('/', from - 1); from > 0 && text.size() - folder <= kShown) { from = folder; }
  return from == 0 || from == std::string::npos ? text : "…" + text.substr(from);
}

class Shrinker {
 public:
  Shrinker(const Sweep& sweep, const ShrinkOptions& options) : sweep_(sweep), options_(options) {
    for (const std::vector<SweepRun>* runs : {&sweep.runs, &sweep.planned}) {
      for (const SweepRun& run : *runs) { runs_.push_back({&run, cost_of(run.config), run.config, {}}); }
    }
    if (options.kept) {
      factors_ = *options.kept;
    } else {
      factors_.budget = options.budget;
      find_limits();
    }
  }

  Shrinking run() {
    if (options_.kept) {
      resize_all();
    } else {
      search();
      factors_.validation_rows = validation_rows();
      for (const Run& run : runs_) { factors_.runs.push_back(run.source->id); }
      if (!options_.corpus.empty() && needs_text()) {
        factors_.joined = joined();
        factors_.documents = documents();
      }
    }
    require_corpus();
    for (const Run& run : runs_) { keep_parameters(run); }
    Shrinking result;
    result.factors = factors_;
    result.sweep = sweep_;
    result.sweep.name += factors_.budget.suffix();
    for (size_t i = 0; i < runs_.size(); ++i) {
      finish(runs_[i]);
      SweepRun& to = i < sweep_.runs.size() ? result.sweep.runs[i] : result.sweep.planned[i - sweep_.runs.size()];
      to.config = runs_[i].config;
      to.solved.clear();
    }
    if (!options_.kept) { require_enough(result.sweep); }
    add_changes(result);
    add_notes(result);
    result.sweep.evals.clear();
    result.sweep.shrunk = ShrunkTo{factors_, options_.corpus, result.text()};
    return result;
  }

 private:
  struct Run {
    const SweepRun* source;
    Cost before;
    Json config;
    Cost after;

    int64_t train(const char* key) const { return size_at(source->config.at("train"), key); }
    double all_tokens() const {
      return static_cast<double>(train("steps")) * static_cast<double>(train("batch_size")) *
             static_cast<double>(train("sequence_length"));
    }
  };

  /// The period of all patterns, how short lengths may become, and how narrow: the narrowest run has the smallest
  /// width, so that runs of different widths stay different.
  void find_limits() {
    for (const Run& run : runs_) {
      const Json& model = run.source->config.at("model");
      factors_.period = std::lcm(factors_.period, pattern_of(model));
      int64_t& tail = tail_of(size_at(model, "num_layers"));
      tail = std::lcm(tail, pattern_of(model));
      double shortest = static_cast<double>(run.train("sequence_length")) * kShortestWindow / kShortestRow;
      for (const auto& [name, layer] : model.at("layers").members()) {
        shortest = std::min(shortest, shortest_window(layer));
      }
      shortest_length_ = std::max(shortest_length_, kShortestWindow / shortest);
      const double widest = static_cast<double>(size_at(model, "hidden_size")) / kSmallestWidth;
      narrowest_ =
          std::min(narrowest_, widest > 1 ? static_cast<int64_t>(std::ceil(std::log2(widest) * kStepsPerOctave)) : 0);
    }
  }

  static int64_t pattern_of(const Json& model) { return static_cast<int64_t>(model.at("pattern").items().size()); }

  int64_t& tail_of(int64_t layers) {
    const auto tail = std::find_if(factors_.tails.begin(), factors_.tails.end(),
                                   [&](const ShrinkFactors::Tail& t) { return t.layers == layers; });
    return (tail != factors_.tails.end() ? *tail : factors_.tails.emplace_back(ShrinkFactors::Tail{layers, 1})).blocks;
  }

  /// Of a run. One that joined others may have a pattern of its own.
  ShrinkScale scale_of(const Json& model) {
    const int64_t pattern = pattern_of(model);
    return {factors_.width, factors_.lengths, std::lcm(factors_.period, pattern),
            std::lcm(tail_of(size_at(model, "num_layers")), pattern)};
  }

  void set_width(double width) {
    factors_.width = width;
    double nearest = std::exp2(std::round(std::log2(width)));
    while (nearest < 1 && nearest < shortest_length_) { nearest *= 2; }
    factors_.lengths = nearest;
    resize_all();
  }

  void resize_all() {
    for (Run& run : runs_) { resize(run); }
  }

  void resize(Run& run) {
    try {
      run.config = run.source->config;
      Json& model = *run.config.find("model");
      const ShrinkScale scale = scale_of(model);
      shrink_model(model, scale);
      Json& train = *run.config.find("train");
      shrink_length(train, "sequence_length", scale);
      if (Json* window = train.find("random_window"); window != nullptr && window->is_object()) {
        shrink_length(*window, "window", scale);
      }
      shrink_data(run.config, {scale, options_.corpus});
      run.after = cost_of(run.config);
    } catch (const ConfigError& error) { throw ConfigError(error.what(), "in the shrunken run " + run.source->id); }
  }

  /// Parameters after over before, of all runs that see as many tokens as this one: they still do when shrunk.
  double parameter_ratio(const Run& run) const {
    if (const auto kept = kept_parameters(run.all_tokens()); kept != factors_.parameters.end()) { return kept->factor; }
    double before = 0, after = 0;
    for (const Run& other : runs_) {
      if (other.all_tokens() == run.all_tokens()) {
        before += static_cast<double>(other.before.parameters);
        after += static_cast<double>(other.after.parameters);
      }
    }
    return after / before;
  }

  std::vector<ShrinkFactors::Parameters>::const_iterator kept_parameters(double tokens) const {
    return std::find_if(factors_.parameters.begin(), factors_.parameters.end(),
                        [&](const ShrinkFactors::Parameters& p) { return p.tokens == tokens; });
  }

  /// The ratio of what a run sees is found: it stays.
  void keep_parameters(const Run& run) {
    if (kept_parameters(run.all_tokens()) == factors_.parameters.end()) {
      factors_.parameters.push_back({run.all_tokens(), parameter_ratio(run)});
    }
  }

  double flops() const {
    double sum = 0;
    for (size_t i = 0; i < sweep_.runs.size(); ++i) {
      sum += 3 * runs_[i].after.flops_per_token * runs_[i].all_tokens() * parameter_ratio(runs_[i]);
    }
    return sum;
  }

  /// The largest sizes that the FLOPs suffice for; what they leave goes to tokens.
  void search() {
    int64_t enough = narrowest_, more = -1;  // octaves / 8 below the sweep's sizes
    const auto width = [](int64_t k) { return std::exp2(-static_cast<double>(k) / kStepsPerOctave); };
    while (enough - more > 1) {
      const int64_t middle = more + (enough - more) / 2;
      set_width(width(middle));
      (flops() <= budget() ? enough : more) = middle;
    }
    set_width(width(enough));
    factors_.tokens = std::min(budget() / flops(), enough == 0 ? 1 : kMostTokens);
  }

  double budget() const { return factors_.budget.of_all(sweep_.runs.size()); }

  struct Batches {
    int64_t rows = 0, steps = 0;  // of a batch
  };

  Batches batches_of(const Run& run) const {
    const auto length = static_cast<double>(size_at(run.config.at("train"), "sequence_length"));
    const double rows_before = run.all_tokens() / static_cast<double>(run.train("sequence_length"));
    const double rows = run.all_tokens() * parameter_ratio(run) * factors_.tokens / length;
    const int64_t batch = batch_of(run, std::sqrt(rows / rows_before));
    return {batch, std::max<int64_t>(1, static_cast<int64_t>(rows / static_cast<double>(batch) + 1e-6))};
  }

  void finish(Run& run) const {
    try {
      Json& train = *run.config.find("train");
      const auto [batch, steps] = batches_of(run);
      set_size(train, "batch_size", batch);
      set_size(train, "micro_batch_size", micro_batch_of(run, batch, size_at(train, "sequence_length")));
      train.set("steps", Json(steps));
      train.set("tokens", Json());
      set_steps(run, static_cast<double>(steps) / static_cast<double>(run.train("steps")), steps);
      if (factors_.validation_rows > 0) { limit_validation(run); }
      set_rates(run);
      run.config.set("eval", Json());
      const auto config = Fields::read<RunConfig>(run.config, "");
      check_tasks(config);
      run.config = to_json(config);
    } catch (const ConfigError& error) { throw ConfigError(error.what(), "in the shrunken run " + run.source->id); }
  }

  /// Rows and steps shrink alike.
  static int64_t batch_of(const Run& run, double factor) {
    const int64_t batch = run.train("batch_size");
    int64_t multiple = std::gcd(batch, kRowMultiple);
    if (keeps_micro_batch(run)) { multiple = std::lcm(multiple, run.train("micro_batch_size")); }
    return scaled(batch, factor, multiple, multiple);
  }

  static bool keeps_micro_batch(const Run& run) {
    return run.train("micro_batch_size") > 0 &&
           (run.train("fast_batch") > 0 || learns_per_micro_batch(run.source->config));
  }

  static int64_t micro_batch_of(const Run& run, int64_t batch, int64_t length) {
    if (keeps_micro_batch(run) || batch == run.train("batch_size")) { return run.train("micro_batch_size"); }
    for (int64_t rows = batch; rows > 1; --rows) {
      if (batch % rows == 0 && static_cast<double>(rows * length) <= kRowsPerPass) { return rows; }
    }
    return 1;
  }

  /// Everything that is counted in steps.
  static void set_steps(Run& run, double factor, int64_t steps) {
    const auto set = [&](Json* object, const char* key, int64_t least) {
      if (object != nullptr && object->is_object()) {
        set_size(*object, key, scaled(size_at(*object, key), factor, 1, least));
      }
    };
    Json& train = *run.config.find("train");
    const int64_t quarter = (steps + kMostValidations - 1) / kMostValidations;
    set(&train, "val_every", quarter);
    set(train.find("checkpoint"), "every", quarter);
    set(train.find("checkpoint"), "keep_every", quarter);
    if (factor < 1) {
      set_size(train, "log_every", std::clamp<int64_t>(steps / kFewestLogs, 1, size_at(train, "log_every")));
    }
    for (const char* key : {"warmup_steps", "decay_steps"}) { set(run.config.find("schedule"), key, 0); }
    for (auto& [name, layer] : run.config.find("model")->find("layers")->members()) { scale_steps(layer, factor); }
  }

  /// Of each validation set, the same in all runs: their losses are on the same rows. The passes of the run that reads
  /// most read a tenth of the rows that it trains on.
  int64_t validation_rows() const {
    if (factors_.width >= 1 && factors_.tokens >= 1) { return 0; }
    int64_t most = kFewestValidationRows;
    for (const Run& run : std::span(runs_).first(sweep_.runs.size())) {  // those that are trained
      const auto [batch, steps] = batches_of(run);
      const auto sets = static_cast<int64_t>(run.config.at("data").at("validation").items().size());
      most = std::max(most, batch * steps / (10 * kMostValidations * std::max<int64_t>(1, sets)));
    }
    return most;
  }

  void limit_validation(Run& run) const {
    for (Json& v : run.config.find("data")->find("validation")->items()) {
      const int64_t old = size_at(v, "max_rows");
      v.set("max_rows", Json(old > 0 ? std::min(old, factors_.validation_rows) : factors_.validation_rows));
    }
  }

  /// Initial values and learning rates go with the inverse root of the width.
  static void set_rates(Run& run) {
    const double width = static_cast<double>(size_at(run.config.at("model"), "hidden_size")) /
                         static_cast<double>(size_at(run.source->config.at("model"), "hidden_size"));
    const auto raise = [&](Json& object, const char* key) {
      if (const Json* v = object.find(key); v != nullptr && v->is_number() && width < 1) {
        object.set(key, Json(three_digits(v->as_double() / std::sqrt(width))));
      }
    };
    raise(*run.config.find("model"), "init_std");
    raise(*run.config.find("optimizer"), "lr");
    for (Json& group : run.config.find("optimizer")->find("groups")->items()) { raise(group, "lr"); }
    raise(*run.config.find("schedule"), "min_lr");
  }

  static double three_digits(double value) { return std::stod(fmt::format("{:.3g}", value)); }

  static void check_tasks(const RunConfig& config) {
    each_source(config, [&](const SourceConfig& source, const std::string& where) {
      if (source.type == "synthetic") {
        resolve_task(source.synthetic, where, 0, config.train.sequence_length, config.train.batch_size);
      }
    });
  }

  void require_enough(const Sweep& shrunken) const {
    const double sum = flops_of(shrunken);
    if (sum > 1.5 * budget()) {
      ShrinkBudget least = factors_.budget;
      least.flops *= sum / budget();
      throw ConfigError("hebb ladder", factors_.budget.option(),
                        "at least " + least.option() + ": the smallest sizes of this sweep, a step for each run");
    }
  }

  static double flops_of(const Sweep& sweep) {
    double sum = 0;
    for (const SweepRun& run : sweep.runs) { sum += planned_result(run).at("flops.total").as_double(); }
    return sum;
  }

  void require_corpus() const {
    if (factors_.documents == 0) { return; }
    if (const int64_t needed = joined(); needed > factors_.joined) {
      throw ConfigError("hebb ladder", fmt::format("rows that need {:d} synthetic documents joined to one", needed),
                        fmt::format("at most {:d}, as the corpus of the runs that have begun has them: a new folder",
                                    factors_.joined));
    }
  }

  void add_notes(Shrinking& result) const {
    std::vector<std::string> joined;
    for (const Run& run : runs_) {
      if (std::find(factors_.runs.begin(), factors_.runs.end(), run.source->id) == factors_.runs.end()) {
        joined.push_back(run.source->id);
      }
    }
    if (!joined.empty()) {
      const double sum = flops_of(result.sweep);
      result.notes.push_back(fmt::format(
          "joined the runs of the first start, with their factors: {}; all runs take {} FLOPs, {} each in the mean",
          shown(joined), flops_name(three_digits(sum)),
          flops_name(three_digits(sum / static_cast<double>(result.sweep.runs.size())))));
    }
    if (factors_.validation_rows > 0) { result.notes.push_back(validation_note()); }
    if (factors_.documents > 0) {
      result.notes.push_back("the synthetic corpus, read as bytes, replaces the text, which is not there");
    }
    if (!sweep_.evals.empty()) {
      result.notes.push_back("evaluations of " + sweep_.evals + " are left out: they are made for the full sizes");
    }
  }

  std::string validation_note() const {
    const auto reads = [](const Run& run) {
      Json read = run.config.at("data").at("validation");
      for (Json& v : read.items()) { v.set("max_rows", Json()); }
      return read.dump(-1, true) + run.config.at("train").at("sequence_length").dump();
    };
    const bool is_one =
        std::all_of(runs_.begin(), runs_.end(), [&](const Run& run) { return reads(run) == reads(runs_[0]); });
    return fmt::format(
        "each validation pass reads at most {:d} rows a set, {}", factors_.validation_rows,
        is_one ? "the same in all runs" : "the same in all runs that have the same data and length of rows");
  }

  void add_changes(Shrinking& result) const {
    for (const Run& run : runs_) {
      const auto model = Fields::read<ModelConfig>(run.config.at("model"), "model");
      const std::vector<std::string> unused = model.unused();
      const auto is_unused = [&](const std::string& key) {
        return std::any_of(unused.begin(), unused.end(),
                           [&](const std::string& name) { return key.starts_with("model.layers." + name + "."); });
      };
      for (const ConfigDifference& d : all_differences(run.source->config, run.config)) {
        if (is_unused(d.path)) { continue; }
        const auto text_of = [&](const Json& config, const std::string& otherwise) {
          const Json* value = config.find_path(d.path);
          return value != nullptr && value->is_string() ? end_of(value->as_string()) : otherwise;
        };
        result.changes.push_back(
            {run.source->id, d.path, text_of(run.source->config, d.stored), text_of(run.config, d.current)});
      }
    }
    for (const auto& [config, ids] : same_runs()) {
      if (ids.size() > 1) { result.notes.push_back("the same when shrunk: " + join(ids, ", ")); }
    }
  }

  std::map<std::string, std::vector<std::string>> same_runs() const {
    std::map<std::string, std::vector<std::string>> ids;
    for (const Run& run : runs_) {
      Json config = run.config;
      config.erase("name");
      ids[config.dump(-1, true)].push_back(run.source->id);
    }
    return ids;
  }

  bool needs_text() const {
    return std::any_of(runs_.begin(), runs_.end(), [&](const Run& run) { return uses_files(run.config.at("data")); });
  }

  /// Synthetic documents that are joined to one of the corpus, about 900 bytes each.
  int64_t joined() const {
    int64_t needed = 0;
    for (const Run& run : runs_) {
      needed = std::max(
          needed, needed_document_tokens(run.config.at("data"), size_at(run.config.at("train"), "sequence_length")));
    }
    return 1 + needed / 400;
  }

  /// Enough for the longest run to read nothing twice, within limits.
  int64_t documents() const {
    double most = 0;
    for (size_t i = 0; i < sweep_.runs.size(); ++i) {
      most = std::max(most, runs_[i].all_tokens() * parameter_ratio(runs_[i]) * factors_.tokens);
    }
    constexpr double kBytes = 900, kFewest = 128, kMost = 40'000;
    return static_cast<int64_t>(std::clamp(most / kBytes, kFewest, kMost)) / joined() + 1;
  }

  const Sweep& sweep_;
  const ShrinkOptions& options_;
  std::vector<Run> runs_;  // trained ones, then planned ones
  ShrinkFactors factors_;
  double shortest_length_ = 0;
  int64_t narrowest_ = std::numeric_limits<int64_t>::max();  // in steps of the search
};

}  // namespace

Shrinking shrink_sweep(const Sweep& sweep, const ShrinkOptions& options) { return Shrinker(sweep, options).run(); }

bool has_text(const Sweep& sweep) {
  try {
    for (const SweepRun& run : sweep.runs) {
      each_source(Fields::read<RunConfig>(run.config, ""), [](const SourceConfig& source, const std::string&) {
        if (source.type != "synthetic") { expand_paths(source.path); }  // throws where nothing matches
      });
    }
    return true;
  } catch (const DataError&) { return false; }
}

std::string Shrinking::text() const {
  std::map<std::pair<std::string, std::string>, std::vector<std::string>> ids;  // by key, then "from to"
  std::vector<std::pair<std::string, std::string>> order;
  size_t key_width = 3, from_width = 4, to_width = 2;
  std::map<std::pair<std::string, std::string>, const ShrinkChange*> first;
  for (const ShrinkChange& c : changes) {
    const std::pair<std::string, std::string> group{c.key, c.from + " " + c.to};
    if (first.insert({group, &c}).second) { order.push_back(group); }
    ids[group].push_back(c.run);
    key_width = std::max(key_width, text_columns(c.key));
    from_width = std::max(from_width, text_columns(c.from));
    to_width = std::max(to_width, text_columns(c.to));
  }
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  const auto pad = [](const std::string& text, size_t width) {
    return text + std::string(width - std::min(width, text_columns(text)) + 2, ' ');
  };
  const size_t all = sweep.runs.size() + sweep.planned.size();
  std::string text = fmt::format("{}: widths x {:.4g}, lengths x {:.4g}, tokens per parameter x {:.4g}\n\n",
                                 factors.budget.text(), factors.width, factors.lengths, factors.tokens) +
                     pad("key", key_width) + pad("from", from_width) + pad("to", to_width) + "runs\n";
  for (const auto& group : order) {
    const std::vector<std::string>& runs = ids[group];
    const ShrinkChange& c = *first.at(group);
    text += pad(c.key, key_width) + pad(c.from, from_width) + pad(c.to, to_width) +
            (runs.size() == all ? "all" : shown(runs)) + "\n";
  }
  for (const std::string& note : notes) { text += "\n" + note; }
  return text + (notes.empty() ? "" : "\n");
}

std::optional<ShrinkOptions> shrink_options(const Sweep& sweep, const fs::path& folder, const ShrinkBudget& asked) {
  const std::string corpus = fs::absolute(folder / "corpus").lexically_normal();
  ShrinkOptions options{asked, has_text(sweep) ? "" : corpus};
  if (is_ladder(folder)) {
    const LadderFolder there = read_ladder(folder);
    const ShrinkBudget budget = there.shrink ? there.shrink->budget : ShrinkBudget{};
    if (asked.flops > 0 && !(asked == budget)) {
      throw ConfigError("hebb ladder", asked.option(),
                        (budget.flops > 0 ? budget.option() : "full sizes") + ", as the runs in " + folder.string() +
                            " have " + (budget.flops > 0 ? "it" : "them") + "; another --dir for others");
    }
    options.budget = budget;
    const bool has_begun = std::any_of(there.runs.begin(), there.runs.end(), [&](const LadderRun& run) {
      return !read_status(folder / run.id).config_hash.empty();
    });
    if (there.shrink && has_begun) {
      options.kept = there.shrink;
      options.corpus = there.shrink->documents > 0 ? corpus : "";
    }
  }
  return options.budget.flops > 0 ? std::optional(options) : std::nullopt;
}

void write_corpus(const ShrunkTo& shrunk, Progress& progress) {
  if (shrunk.factors.documents == 0) { return; }
  const fs::path folder = shrunk.corpus, text = folder.string() + ".jsonl";
  if (fs::exists(folder / "dataset.json")) { return; }
  const int64_t held_out = 8 + shrunk.factors.documents / 20;
  std::string lines;
  uint64_t number = 0;
  for (int64_t d = 0; d < shrunk.factors.documents + held_out; ++d) {
    std::string document;
    for (int64_t part = 0; part < shrunk.factors.joined; ++part) { document += synth_document(0, number++); }
    lines += Json::object({{"text", Json(document)}}).dump() + "\n";
  }
  write_file_atomic(text, lines);
  EncodeOptions options;
  options.input.inputs = {text.string()};
  options.tokenizer.type = "bytes";
  options.out = folder;
  options.val_documents = static_cast<uint64_t>(held_out);
  options.overwrite = true;
  encode_corpus(options, progress);
  fs::remove(text);
}

}  // namespace hebb
