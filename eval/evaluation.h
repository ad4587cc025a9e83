#pragma once
// Evaluations of one checkpoint (docs/verbs/eval.md): each kind is one file with a task that reads its keys and
// runs, and an entry in eval_kinds(). This file reads EVAL.json and writes the result files.
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/host_exchange.h"
#include "core/progress.h"
#include "data/tokenizer/tokenizer.h"
#include "eval/item_values.h"
#include "eval/journal.h"
#include "eval/rank_round.h"
#include "eval/scoring_model.h"
#include "eval/thresholds.h"
#include "train/ranks.h"

namespace hebb {

/// sum / count over groups that are taken as independent, documents or records: a mean of what they hold.
struct RatioOfSums {
  std::vector<double> sums, counts;  // by group

  void add(double sum, double count);
  double count() const;
  double value() const;
  /// By linearisation (docs/verbs/eval.md, What all kinds share); nothing for fewer than two groups.
  std::optional<double> standard_error() const;
};

/// What a task measures; becomes the result file (docs/verbs/eval.md, Results).
struct EvalResult {
  std::string status = "ok";  // "ok", "skipped" (with reason)
  std::string reason;
  Json metrics = Json::object();  // name -> {"value", "n", ...}
  Json series = Json::object();   // name -> array of objects
  Json groups = Json::object();
  std::string source;             // of generated tasks: "builtin", "custom" or "official" texts
  std::vector<ItemValues> items;  // what means are of, for paired differences
  std::vector<int64_t> examples;  // to which the values of mean() and ratio() belong; empty: 0, 1, 2, ...

  static EvalResult failed(const std::string& reason);
  void metric(const std::string& name, double value, int64_t n);
  /// A mean over parts (tasks, groups), each of which counts the same; `of`: what they are called.
  void mean_of_parts(const std::string& name, const std::vector<Json>& parts, const std::string& of);
  /// The mean of one number per example, with its standard error.
  void mean(const std::string& name, std::span<const double> values);
  /// A mean of many numbers in independent groups, and its exponential; "" for one that is not reported.
  void ratio(const std::string& name, const std::string& exp_name, const RatioOfSums& mean);
  /// Parts that cannot be evaluated, as the series `skipped`. Without any other part the evaluation is skipped.
  void left_out(const Json& parts, bool is_all);
};

/// {"value", "stderr", "n"} of a mean (docs/verbs/eval.md, What all kinds share); a single example has no standard
/// error. A share (values of 0 and 1) has "low" and "high", too. `values` is not empty.
Json mean_metric(std::span<const double> values);
/// {"value", "stderr", "n", "of"} of the mean over parts, each a mean_metric() of other examples.
Json parts_metric(const std::vector<Json>& parts, const std::string& of);
/// Sets NAME of a point to a mean, NAME_low and NAME_high where it is a share, else NAME_stderr.
void set_mean(Json& point, const std::string& name, std::span<const double> values);

/// The reasons of parts that cannot be evaluated.
std::vector<std::string> reasons_of(const Json& parts);

/// Items of an evaluation: documents, records, rows or samples. Rank i mod W of W computes item i.
struct ItemList {
  size_t count = 0;
  std::function<Json(size_t i)> compute;  // item i, which depends on i alone unless `moves_weights`
  bool moves_weights = false;             // it changes fast weights that the next one reads: rank 0 computes all
  bool is_on_first = false;               // it reads fast weights that rank 0 alone has: so it does here
  std::function<bool(const Json& value)> ends = {};  // whether the list ends behind an item of this value
  std::function<uint64_t(size_t i)> units = {};      // of the progress bar that item i is; one each where absent
};

/// What is known before the model is loaded.
struct EvalPremises {
  const ModelSource& source;
  std::shared_ptr<const Tokenizer> tokenizer;  // null when the checkpoint names none
  uint64_t seed;

  /// For kinds that read text. Throws ConfigError when the checkpoint names no tokenizer.
  const Tokenizer& text_tokenizer() const;
};

/// What tasks share.
struct EvalContext {
  ScoringModel& model;
  std::shared_ptr<const Tokenizer> tokenizer;  // null when the checkpoint names none
  int64_t sequence_length;                     // of training; 0 when the configuration has none
  uint64_t seed;
  Progress& progress;
  std::function<bool()> stop_requested;  // true: give up; asked by poll()
  bool logs_samples = false;             // tasks write a line per example
  std::string samples = {};              // those lines, JSON
  EvalJournal* journal = nullptr;        // of the evaluation that runs; null: nothing is kept
  double weights_interval = 60;          // at least, between two times that fast weights are kept [s]
  double weights_kept = 0;               // when they were, on a clock that never goes back [s]
  HostExchange* exchange = nullptr;      // between ranks; null: there is one
  FlightLog* flight = nullptr;           // hears that this rank comes forward; may be null
  int64_t items_before = 0;              // of this evaluation, in earlier lists
  uint64_t done = 0;                     // units of the progress bar

  /// The bar of an evaluation of so many units.
  void begin(std::string_view title, uint64_t units);
  /// The values of a list, in order: what `compute` gives, or what an interrupted run has kept, with the samples that
  /// an item logged. Runs of an evaluation have the same lists in the same order, and so have ranks, which all get all
  /// values; samples are rank 0's. Moves the bar, which stands behind the units of the list at the end. Errors: Stopped
  /// after a signal, and those of `compute`; of several ranks the first in order of items, as AgreedError.
  std::vector<Json> items(const ItemList& list);
  /// `own`, or else the sequence length of training. Throws ConfigError at `key`, with `what` as expected, when there
  /// is neither.
  int64_t length_of(const std::optional<int64_t>& own, std::string_view key, const std::string& what) const;
  /// So many units of an item are done. Errors: Stopped after a signal.
  void step(uint64_t units);
  /// Throws Stopped after a signal.
  void poll() const;
  EvalPremises premises() const { return {model.source(), tokenizer, seed}; }
  /// That of premises().
  const Tokenizer& text_tokenizer() const;
  /// Notes an example: `id`, hash of its tokens, and what the task adds.
  void log_sample(const std::string& id, std::span<const int32_t> tokens, Json rest);
  bool is_first() const { return exchange == nullptr || exchange->communicator().rank() == 0; }

 private:
  struct Item {
    size_t i;
    Json value;
    std::string samples;
  };
  bool is_own(const ItemList& list, size_t i) const;
  Item item(const ItemList& list, size_t i);
  void own_items(const ItemList& list, std::vector<Item>& found, size_t& at);
  std::vector<Item> gather(const ItemList& list, std::vector<Item> found, std::optional<RankFailure>& failure);
};

/// What an evaluation of a kind does.
class EvalTask {
 public:
  virtual ~EvalTask() = default;
  /// The kind's own keys ("name", "kind", "seed", "segment", "rope_scaling", "thresholds" are handled by the caller).
  virtual void fields(Fields& f) = 0;
  /// Whether its work is lists of items. Otherwise rank 0 alone runs it.
  virtual bool has_items() const { return true; }
  /// Parts of it that cannot be evaluated, each with its reason: asked before the first evaluation of a list runs, so
  /// that nobody waits hours for them. run() leaves them out. Errors: those that it fails with as a whole.
  virtual std::vector<std::string> left_out(const EvalPremises&) { return {}; }
  virtual EvalResult run(EvalContext& context) = 0;
};

struct EvalKind {
  std::string name;
  std::unique_ptr<EvalTask> (*make)();
};
const std::vector<EvalKind>& eval_kinds();

/// One entry of "evaluations", read and checked.
struct Evaluation {
  std::string name, kind;
  uint64_t seed = 42;
  Json config;  // as written, defaults merged in
  std::unique_ptr<EvalTask> task;
  ThresholdOverrides thresholds;  // while this one runs
  ReadSettings reading;           // the same
  Json resolved = {};             // every key, with absolute paths
};
/// Its own keys, then those of its task.
void fields(Fields& f, Evaluation& e);

/// Reads {"seed", "evaluations": [...], defaults...}; keys beside `evaluations` are defaults of all.
/// Throws ConfigError (unknown kind or key, duplicate or missing name).
std::vector<Evaluation> read_evaluations(const Json& json, const std::string& path);
/// The same list with every default filled in and absolute paths, as a resolved configuration of a run keeps it
/// (EvaluationReader, train/run_config.h). Throws ConfigError.
Json resolve_evaluations(const Json& json, const std::string& path);

/// Where results come from, for the result files.
struct EvalSource {
  std::string checkpoint, model_hash, device, precision;  // model_hash: config_hash() of the `model` object
  int64_t step = 0, tokens = 0;
  Json weights = {};          // what tells one file of weights from another
  int64_t max_positions = 0;  // max_positions() of the source
};

/// What became of a list of evaluations.
struct EvalCounts {
  int64_t ok = 0, skipped = 0, failed = 0;
  std::vector<Json> results = {};  // in the order of the list; of rank 0

  void add(const std::string& status);
};

/// Runs all and writes OUT/NAME.json each, atomically; a missing input file gives status "skipped", a
/// failing evaluation "failed", and the next one goes on. With context.logs_samples also OUT/NAME.samples.jsonl.
/// A good result of the same checkpoint, configuration and input files stays, unless `again`; an interrupted evaluation
/// goes on where it was (OUT/NAME.partial). A good result of another one is not replaced (ResultFiles). Of several
/// ranks each reads the data, and rank 0 alone writes results and reports; all return the same. Errors: Stopped after a
/// signal.
EvalCounts run_evaluations(std::vector<Evaluation>& evaluations, EvalContext context, const EvalSource& source,
                           const fs::path& out, const std::function<void(const std::string& line)>& report,
                           bool again = false);

/// What a result depends on: checkpoint, configuration, sizes and times of the input files, device, precision, version.
Json evaluation_key(const Evaluation& evaluation, const EvalSource& source, const Tokenizer* tokenizer,
                    int64_t sequence_length, bool logs_samples);
/// Removes what a process left that was killed behind the result, where no other one works there.
void remove_leftovers(const Evaluation& evaluation, const fs::path& out, Progress& progress);

/// A result for people: its line of metrics with their standard errors, and its tables by position, length and so on.
std::string result_text(const Json& result, bool is_kept = false);

/// Which checkpoint to evaluate, and how.
struct EvalRequest {
  std::string checkpoint;  // run folder, checkpoint folder or model.safetensors
  fs::path weights;        // what it named first (find_weights): a run that goes on moves its latest checkpoint
  fs::path out;            // empty: RUN/evals/STEP
  std::string tokenizer;   // a .model or tokenizer.json file or "bytes"; empty: the run's
  Compute compute;
  bool again = false;         // compute anew what is finished
  bool logs_samples = false;  // leave a file with a line per example beside each result
};

/// Loads a checkpoint and runs evaluations on it until a signal comes: `hebb eval`, and the end of `hebb train`. One
/// that is deleted before it is read makes way for the latest.
/// As one of several ranks, other ones than rank 0 leave `report` alone. Errors: ConfigError, CheckpointError,
/// DataError (tokenizer), Stopped after a signal.
EvalCounts evaluate_checkpoint(std::vector<Evaluation> evaluations, EvalRequest request, Progress& progress,
                               const std::function<void(const std::string& line)>& report,
                               const Ranks& ranks = Ranks());
/// Where its results lie.
fs::path results_folder(const EvalRequest& request);
/// Where ranks meet that evaluate these weights: one folder for all checkpoints of a run, since ranks that look while
/// the run goes on find different latest ones. out: of all results; empty: none was given.
fs::path meeting_folder(const fs::path& out, const fs::path& weights);

}  // namespace hebb
