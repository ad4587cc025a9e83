#include <algorithm>
#include <memory>
#include <set>

#include "eval/comparison.h"
#include "eval/evaluation.h"
#include "tools/command_line.h"
#include "tools/console.h"
#include "tools/options.h"
#include "tools/verbs.h"
#include "train/model_source.h"

namespace hebb {
namespace {

struct Options {
  std::string eval, out, tokenizer;
  std::vector<std::string> checkpoints, overrides;
  DeviceOptions device;
  bool log_samples = false, again = false;
};

/// What each checkpoint is called, all different.
std::vector<std::string> labels_of(const std::vector<std::string>& checkpoints) {
  std::vector<std::string> labels;
  for (const std::string& checkpoint : checkpoints) {
    const std::string label = checkpoint_label(find_weights(checkpoint).string());
    const bool is_taken = std::find(labels.begin(), labels.end(), label) != labels.end();
    labels.push_back(is_taken ? label + "#" + std::to_string(labels.size()) : label);
  }
  return labels;
}

/// The results of several checkpoints need folders of their own.
void require_own_folders(const std::vector<EvalRequest>& requests) {
  std::set<fs::path> folders;
  for (const EvalRequest& request : requests) {
    if (!folders.insert(fs::absolute(results_folder(request)).lexically_normal()).second) {
      throw ConfigError("--checkpoint", request.checkpoint + ", whose results would replace those of another one",
                        "different checkpoints, or --out");
    }
  }
}

CheckpointResults read_results(const std::string& label, const std::vector<Evaluation>& evaluations,
                               const fs::path& folder) {
  CheckpointResults results{label, {}};
  for (const Evaluation& e : evaluations) {
    results.results.push_back(parse_json_file((folder / (e.name + ".json")).string()));
  }
  return results;
}

int run_eval(const Options& o) {
  Json config = load_config(o.eval);
  for (const std::string& assignment : o.overrides) { apply_override(config, assignment); }
  const std::vector<Evaluation> evaluations = read_evaluations(config, "");
  if (evaluations.empty()) { throw ConfigError(o.eval + ": evaluations", "an empty list", "at least one evaluation"); }
  const std::vector<std::string> labels = labels_of(o.checkpoints);
  const Compute compute = set_up_compute(o.device);
  std::vector<EvalRequest> requests;
  for (size_t i = 0; i < labels.size(); ++i) {
    const fs::path out = o.out.empty() || labels.size() == 1 ? fs::path(o.out) : fs::path(o.out) / labels[i];
    requests.push_back({o.checkpoints[i], out, o.tokenizer, compute, o.again, o.log_samples});
  }
  require_own_folders(requests);
  const std::unique_ptr<Progress> progress = stderr_progress();
  EvalCounts all;
  std::vector<CheckpointResults> results;
  for (size_t i = 0; i < labels.size(); ++i) {
    if (labels.size() > 1) { print_line("== " + labels[i]); }
    EvalCounts counts;
    try {
      counts = evaluate_checkpoint(read_evaluations(config, ""), requests[i], *progress, print_line);
    } catch (const Error& error) {
      if (error.code() != ExitCode::kStopped) { throw; }
      throw Error(ExitCode::kStopped, std::string(error.what()) + "; the same command goes on there");
    }
    all.ok += counts.ok;
    all.failed += counts.failed;
    results.push_back(read_results(labels[i], evaluations, results_folder(requests[i])));
  }
  if (labels.size() > 1) { print_line(comparison_text(results)); }
  if (all.failed > 0) { return static_cast<int>(ExitCode::kOther); }
  if (all.ok == 0) { throw DataError(o.eval, "nothing was evaluated: all evaluations were skipped"); }
  return 0;
}

}  // namespace

void add_eval_verb(Command program) {
  Command verb = program.verb("eval", "Runs a list of evaluations on checkpoints and writes one result file each");
  const auto o = std::make_shared<Options>();
  verb.option("EVAL", o->eval, "The list of evaluations (JSON)").required();
  verb.option("OVERRIDES", o->overrides, "Changes to EVAL as KEY=VALUE, e.g. evaluations.0.max_tokens=100000");
  verb.option("--checkpoint", o->checkpoints,
              "Checkpoint folder, run folder or model.safetensors; several times for several side by side")
      .required()
      .one_each();
  verb.option("--out", o->out, "Folder for the results (default: RUN/evals/STEP)");
  verb.option("--tokenizer", o->tokenizer,
              "SentencePiece .model file, tokenizer.json or \"bytes\" (default: the run's)");
  verb.flag("--log-samples", o->log_samples, "Also a file with one line per example beside each result");
  verb.flag("--again", o->again, "Compute anew what is finished");
  add_device_options(verb, o->device);
  verb.runs([o] { return run_eval(*o); });
}

}  // namespace hebb
