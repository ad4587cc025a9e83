#include "study/ladder/shrink.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <span>

#include "core/join.h"
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
constexpr int64_t kFewestLogs = 50, kMostValidations = 4;

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

class Shrinker {
 public:
  Shrinker(const Sweep& sweep, const ShrinkOptions& options) : sweep_(sweep), options_(options) {
    for (const std::vector<SweepRun>* runs : {&sweep.runs, &sweep.planned}) {
      for (const SweepRun& run : *runs) { runs_.push_back({&run, cost_of(run.config), run.config, {}}); }
    }
    find_limits();
  }

  Shrinking run() {
    search();
    Shrinking result;
    result.flops = options_.flops;
    result.factor = scale_.width;
    result.lengths = scale_.lengths;
    result.tokens = tokens_;
    result.sweep = sweep_;
    result.sweep.name += "-shrunk-" + flops_name(options_.flops);
    for (size_t i = 0; i < runs_.size(); ++i) {
      finish(runs_[i]);
      SweepRun& to = i < sweep_.runs.size() ? result.sweep.runs[i] : result.sweep.planned[i - sweep_.runs.size()];
      to.config = runs_[i].config;
      to.solved.clear();
    }
    require_enough(result.sweep);
    add_changes(result);
    if (!options_.corpus.empty() && needs_text()) {
      result.notes.push_back("the synthetic corpus, read as bytes, replaces the text, which is not there");
    }
    if (!sweep_.evals.empty()) {
      result.notes.push_back("evaluations of " + sweep_.evals + " are left out: they are made for the full sizes");
      result.sweep.evals.clear();
    }
    result.sweep.shrunk = ShrunkTo{options_.flops, options_.corpus, documents(), joined(), result.text()};
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
      const auto pattern = static_cast<int64_t>(model.at("pattern").items().size());
      scale_.period = std::lcm(scale_.period, pattern);
      int64_t& tail = tails_.insert({size_at(model, "num_layers"), 1}).first->second;
      tail = std::lcm(tail, pattern);
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

  void set_width(double width) {
    scale_.width = width;
    double nearest = std::exp2(std::round(std::log2(width)));
    while (nearest < 1 && nearest < shortest_length_) { nearest *= 2; }
    scale_.lengths = nearest;
    for (Run& run : runs_) { resize(run); }
  }

  void resize(Run& run) const {
    try {
      run.config = run.source->config;
      Json& model = *run.config.find("model");
      ShrinkScale scale = scale_;
      scale.tail = tails_.at(size_at(model, "num_layers"));
      shrink_model(model, scale);
      Json& train = *run.config.find("train");
      shrink_length(train, "sequence_length", scale_);
      if (Json* window = train.find("random_window"); window != nullptr && window->is_object()) {
        shrink_length(*window, "window", scale_);
      }
      shrink_data(run.config, {scale_, options_.corpus});
      run.after = cost_of(run.config);
    } catch (const ConfigError& error) { throw ConfigError(error.what(), "in the shrunken run " + run.source->id); }
  }

  /// Parameters after over before, of all runs that see as many tokens as this one: they still do when shrunk.
  double parameter_ratio(const Run& run) const {
    double before = 0, after = 0;
    for (const Run& other : runs_) {
      if (other.all_tokens() == run.all_tokens()) {
        before += static_cast<double>(other.before.parameters);
        after += static_cast<double>(other.after.parameters);
      }
    }
    return after / before;
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
      (flops() <= options_.flops ? enough : more) = middle;
    }
    set_width(width(enough));
    tokens_ = std::min(options_.flops / flops(), enough == 0 ? 1 : kMostTokens);
  }

  void finish(Run& run) const {
    try {
      Json& train = *run.config.find("train");
      const int64_t length = size_at(train, "sequence_length");
      const double rows_before = run.all_tokens() / static_cast<double>(run.train("sequence_length"));
      const double rows = run.all_tokens() * parameter_ratio(run) * tokens_ / static_cast<double>(length);
      const int64_t batch = batch_of(run, std::sqrt(rows / rows_before));
      const int64_t steps = std::max<int64_t>(1, static_cast<int64_t>(rows / static_cast<double>(batch) + 1e-6));
      set_size(train, "batch_size", batch);
      set_size(train, "micro_batch_size", micro_batch_of(run, batch, length));
      train.set("steps", Json(steps));
      train.set("tokens", Json());
      set_steps(run, static_cast<double>(steps) / static_cast<double>(run.train("steps")), steps);
      if (scale_.width < 1 || tokens_ < 1) { limit_validation(run, steps * batch); }
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

  /// Passes over validation data read at most a tenth as many rows as training.
  static void limit_validation(Run& run, int64_t rows) {
    Json& list = *run.config.find("data")->find("validation");
    const auto sets = static_cast<int64_t>(list.items().size());
    for (Json& v : list.items()) {
      const int64_t limit = std::max<int64_t>(1, rows / (10 * kMostValidations * sets)), old = size_at(v, "max_rows");
      v.set("max_rows", Json(old > 0 ? std::min(old, limit) : limit));
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
    double sum = 0;
    for (const SweepRun& run : shrunken.runs) { sum += planned_result(run).at("flops.total").as_double(); }
    if (sum > 1.5 * options_.flops) {
      throw ConfigError("--shrink", flops_name(options_.flops),
                        "at least " + flops_name(sum) + ": the smallest sizes of this sweep, a step for each run");
    }
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
        if (!is_unused(d.path)) { result.changes.push_back({run.source->id, d.path, d.stored, d.current}); }
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
      most = std::max(most, runs_[i].all_tokens() * parameter_ratio(runs_[i]) * tokens_);
    }
    constexpr double kBytes = 900, kFewest = 128, kMost = 40'000;
    return static_cast<int64_t>(std::clamp(most / kBytes, kFewest, kMost)) / joined() + 1;
  }

  const Sweep& sweep_;
  const ShrinkOptions& options_;
  std::vector<Run> runs_;  // trained ones, then planned ones
  ShrinkScale scale_;
  std::map<int64_t, int64_t> tails_;  // ShrinkScale::tail by depth
  double shortest_length_ = 0, tokens_ = 1;
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

std::string flops_name(double flops) {
  const std::string text = fmt::format("{:.6g}", flops);
  const size_t e = text.find('e');
  if (e == std::string::npos) { return text; }
  return fmt::format("{}{:d}", text.substr(0, e + 1), std::stoi(text.substr(e + 1)));
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
    key_width = std::max(key_width, c.key.size());
    from_width = std::max(from_width, c.from.size());
    to_width = std::max(to_width, c.to.size());
  }
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  const auto pad = [](const std::string& text, size_t width) {
    return text + std::string(width - std::min(width, text.size()) + 2, ' ');
  };
  const size_t all = sweep.runs.size() + sweep.planned.size();
  std::string text = fmt::format("{} FLOPs: widths x {:.4g}, lengths x {:.4g}, tokens per parameter x {:.4g}\n\n",
                                 flops_name(flops), factor, lengths, tokens) +
                     pad("key", key_width) + pad("from", from_width) + pad("to", to_width) + "runs\n";
  for (const auto& group : order) {
    const std::vector<std::string>& runs = ids[group];
    constexpr size_t kShown = 4;
    std::string names = join(std::span(runs).first(std::min(runs.size(), kShown)), " ");
    if (runs.size() > kShown) { names += fmt::format(" … ({:d})", runs.size()); }
    const ShrinkChange& c = *first.at(group);
    text += pad(c.key, key_width) + pad(c.from, from_width) + pad(c.to, to_width) +
            (runs.size() == all ? "all" : names) + "\n";
  }
  for (const std::string& note : notes) { text += "\n" + note; }
  return text + (notes.empty() ? "" : "\n");
}

double shrink_of_folder(const fs::path& folder, double asked) {
  if (!is_ladder(folder)) { return asked; }
  const double there = read_ladder(folder).shrink;
  if (asked > 0 && asked != there) {
    throw ConfigError("--shrink", flops_name(asked),
                      there > 0 ? flops_name(there) + ", as the runs in " + folder.string() + " have it"
                                : "no such option, as the runs in " + folder.string() + " have their full sizes");
  }
  return there;
}

void write_corpus(const ShrunkTo& shrunk, Progress& progress) {
  const fs::path folder = shrunk.corpus, text = folder.string() + ".jsonl";
  if (fs::exists(folder / "dataset.json")) { return; }
  const int64_t held_out = 8 + shrunk.documents / 20;
  std::string lines;
  uint64_t number = 0;
  for (int64_t d = 0; d < shrunk.documents + held_out; ++d) {
    std::string document;
    for (int64_t part = 0; part < shrunk.joined; ++part) { document += synth_document(0, number++); }
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
