#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <set>

#include "core/parallel.h"
#include "eval/comparison.h"
#include "eval/evaluation.h"
#include "tools/command_line.h"
#include "tools/config_arguments.h"
#include "tools/console.h"
#include "tools/options.h"
#include "tools/train_ranks.h"
#include "tools/verbs.h"
#include "train/model_source.h"

namespace hebb {
namespace {

struct Options {
  std::vector<std::string> words;  // EVAL and changes to it
  std::string eval, out, tokenizer;
  std::vector<std::string> checkpoints, overrides;
  DeviceOptions device;
  std::string ranks;  // empty: not given
  bool log_samples = false, again = false;
};

void sort_words(Options& o) {
  for (const std::string& word : o.words) {
    if (is_override(word)) {
      o.overrides.push_back(word);
    } else if (o.eval.empty()) {
      o.eval = word;
    } else {
      throw ConfigError("hebb eval", "unexpected argument " + word + " (the list is " + o.eval + ")");
    }
  }
  if (o.eval.empty()) { throw ConfigError("hebb eval", "no EVAL given (see hebb eval --help)"); }
}

/// What each checkpoint is called, all different.
std::vector<std::string> labels_of(const std::vector<fs::path>& weights) {
  std::vector<std::string> labels;
  for (const fs::path& file : weights) {
    const std::string label = checkpoint_label(file.string());
    const bool is_taken = std::find(labels.begin(), labels.end(), label) != labels.end();
    labels.push_back(is_taken ? fmt::format("{}#{:d}", label, labels.size()) : label);
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

/// What the command line asks for, checked.
struct Job {
  Json config;  // the list
  std::vector<Evaluation> evaluations;
  std::vector<std::string> labels;
  std::vector<EvalRequest> requests;  // one a label
};

Job read_job(const Options& o, const Compute& compute) {
  Json config = load_config(o.eval);
  for (const std::string& assignment : o.overrides) { apply_override(config, assignment); }
  std::vector<fs::path> weights;
  for (const std::string& checkpoint : o.checkpoints) {
    if (fs::exists(checkpoint) && !names_weights(checkpoint)) {
      throw CheckpointError(checkpoint, "no weights to evaluate", "a configuration or another file",
                            "a checkpoint or run folder, or a safetensors file");
    }
    weights.push_back(find_weights(checkpoint));
  }
  Job job{config, read_evaluations(config, ""), labels_of(weights), {}};
  if (job.evaluations.empty()) {
    throw ConfigError(o.eval + ": evaluations", "an empty list", "at least one evaluation");
  }
  for (size_t i = 0; i < job.labels.size(); ++i) {
    const fs::path out = o.out.empty() || job.labels.size() == 1 ? fs::path(o.out) : fs::path(o.out) / job.labels[i];
    job.requests.push_back({o.checkpoints[i], weights[i], out, o.tokenizer, compute, o.again, o.log_samples});
  }
  require_own_folders(job.requests);
  return job;
}

int run_job(const Options& o, const Job& job, const Ranks& ranks) {
  const std::unique_ptr<Progress> progress = ranks.is_first() ? stderr_progress() : std::make_unique<Progress>();
  if (ranks.is_first()) { print_fallback(o.device, job.requests[0].compute); }
  const bool is_table = job.labels.size() > 1 && ranks.is_first();
  EvalCounts all;
  std::vector<CheckpointResults> results;
  for (size_t i = 0; i < job.labels.size(); ++i) {
    if (is_table) { print_line("== " + job.labels[i]); }
    EvalCounts counts;
    try {
      counts = evaluate_checkpoint(read_evaluations(job.config, ""), job.requests[i], *progress, print_text, ranks);
    } catch (const Error& error) {
      if (error.code() != ExitCode::kStopped) { throw; }
      throw Error(ExitCode::kStopped, std::string(error.what()) + "; the same command goes on there");
    }
    all.ok += counts.ok;
    all.failed += counts.failed;
    if (is_table) { results.push_back({job.labels[i], counts.results, results_folder(job.requests[i])}); }
  }
  if (is_table) {
    print_text(comparison_text(results, stdout_columns()));
    const std::string differences = differences_text(results, stdout_columns());
    if (!differences.empty()) {
      print_text("\ndifferences on the same examples ± standard error; p: paired t test, corrected by Holm\n" +
                 differences);
    }
  }
  if (all.failed > 0) { return static_cast<int>(ExitCode::kOther); }
  if (all.ok == 0) { throw DataError(o.eval, "nothing was evaluated: all evaluations were skipped"); }
  return 0;
}

/// What ranks must agree on.
Json agreement(const Options& o, const Job& job, const Compute& compute) {
  return Json::object({{"list", job.config},
                       {"checkpoints", Json::array({o.checkpoints.begin(), o.checkpoints.end()})},
                       {"precision", precision_name(compute.dtype)},
                       {"log_samples", o.log_samples},
                       {"again", o.again}});
}

int run_rank(const Options& o, const Job& job, const Compute& compute, const LaunchedRank& launched) {
  follow_launcher();
  CommConfig comm;
  comm.stall_seconds = 3600;  // what an evaluation does between two signs of life may take long
  const fs::path folder = meeting_folder(o.out, job.requests[0].weights);
  RankGroup group(launched, rank_options(comm, compute.device == DeviceKind::cuda, folder, agreement(o, job, compute)));
  const int threads = o.device.threads > 0 ? o.device.threads : threads_of_rank(group);
  set_threads(threads);
  const Ranks ranks(group.communicator(), group.log(), threads, group.names());
  if (ranks.is_first()) {
    for (const std::string& line : group.table()) { print_line(line); }
  }
  std::optional<Error> stopped;  // all ranks have stopped, rank 0 says so
  const int code = run_as_rank(group, [&] {
    try {
      return run_job(o, job, ranks);
    } catch (const Error& error) {
      if (error.code() != ExitCode::kStopped) { throw; }
      if (ranks.is_first()) { stopped = error; }
      return static_cast<int>(ExitCode::kStopped);
    }
  });
  if (stopped) { throw *stopped; }
  return code;
}

int run_eval(const Options& o) {
  const LaunchedRank launched = launched_rank();
  const bool is_parent = is_parent_of_ranks(o.ranks, launched);
  Compute compute = set_up_compute(o.device);
  const bool uses_gpu = compute.device == DeviceKind::cuda;
  const int size = is_parent ? count_ranks(o.ranks, uses_gpu) : launched.size;
  if (is_parent && size == 1) {  // it starts no others and takes a GPU itself
    set_own_gpu(0);
    compute = set_up_compute(o.device);
  }
  const Job job = read_job(o, compute);
  if (is_parent && size > 1) { return start_ranks(size, uses_gpu); }
  return size > 1 ? run_rank(o, job, compute, launched) : run_job(o, job, Ranks());
}

}  // namespace

void add_eval_verb(Command program) {
  Command verb = program.verb("eval", "Runs a list of evaluations on checkpoints and writes one result file each");
  const auto o = std::make_shared<Options>();
  verb.takes_overrides({"seed", "evaluations"});
  verb.option("EVAL", o->words,
              "The list of evaluations (JSON), and changes to it as KEY=VALUE, e.g. evaluations.0.max_tokens=100000")
      .required();
  verb.option("--checkpoint", o->checkpoints,
              "Checkpoint folder, run folder or model.safetensors; several times for several side by side")
      .required()
      .one_each();
  verb.option("--out", o->out, "Folder for the results (default: RUN/evals/STEP)");
  verb.option("--tokenizer", o->tokenizer,
              "SentencePiece .model file, tokenizer.json or \"bytes\" (default: the run's)");
  verb.flag("--log-samples", o->log_samples, "Also a file with one line per example beside each result");
  verb.flag("--again", o->again, "Compute anew what is finished");
  verb.option(
          "--ranks", o->ranks,
          "Evaluate by N ranks on this machine, each on a GPU or a part of the cores; all: one for each visible GPU")
      .type_name("N|all");
  add_device_options(verb, o->device);
  add_graphs_option(verb, o->device);
  verb.footer(
      "hebb eval quickstart/eval.json --checkpoint runs/a --checkpoint runs/b\n"
      "Page: docs/verbs/eval.md");
  verb.runs([o] {
    sort_words(*o);
    return run_eval(*o);
  });
}

}  // namespace hebb
