#include <memory>
#include <optional>

#include "core/progress.h"
#include "eval/evaluation.h"
#include "tools/command_line.h"
#include "tools/config_arguments.h"
#include "tools/console.h"
#include "tools/train_ranks.h"
#include "tools/verbs.h"
#include "train/trainer.h"

namespace hebb {
namespace {

struct Arguments {
  RunOptions run;
  ComputeOptions compute;
  RanksOptions ranks;
  bool print_config = false;
};

/// How a run ended, and where.
struct Ended {
  int code = 0;
  bool is_complete = false;
  fs::path folder;
};

/// A fresh checkout has the configuration of the quickstart, but not its data.
[[noreturn]] void fail_without_data(const MissingFileError& error, const std::string& run) {
  constexpr std::string_view kOther = "hebb data encode makes data sets of text (docs/data.md)";
  constexpr std::string_view kQuickstart = "tools/quickstart.sh makes this data and trains on it";
  throw MissingFileError("",
                         std::string(error.what()) + "; " + std::string(run == "quickstart" ? kQuickstart : kOther));
}

Ended run_trainer(RunConfig config, const RunOptions& options, const Ranks& ranks, const std::string& banner) {
  const std::unique_ptr<Progress> bar = wants_bar() && ranks.is_first() ? stderr_progress() : nullptr;
  const std::string name = config.name;
  std::optional<Trainer> trainer;
  try {
    trainer.emplace(std::move(config), options, ranks, console_with(bar.get()), banner);
  } catch (const MissingFileError& error) { fail_without_data(error, name); }
  const int code = trainer->run();
  return {code, trainer->is_complete(), trainer->run_folder()};
}

/// The evaluations of the configuration, on the last checkpoint (docs/verbs/eval.md).
int evaluate(const Json& evaluations, const TrainConfig& settings, const fs::path& run, const Ranks& ranks) {
  EvalRequest request{run.string(),
                      find_weights(run),
                      {},
                      "",
                      choose_compute(settings.device, settings.precision.value_or(""), "train")};
  request.compute.cuda_graphs = settings.cuda_graphs;
  const std::unique_ptr<Progress> progress = ranks.is_first() ? stderr_progress() : std::make_unique<Progress>();
  try {
    const EvalCounts counts =
        evaluate_checkpoint(read_evaluations(evaluations, "eval."), request, *progress, print_line, ranks);
    if (counts.ok + counts.failed == 0 && counts.skipped > 0) {
      throw DataError("eval", "nothing was evaluated: all evaluations were skipped");
    }
    return counts.failed > 0 ? static_cast<int>(ExitCode::kOther) : 0;
  } catch (const Error& error) {
    if (error.code() != ExitCode::kStopped) { throw; }
    if (ranks.is_first()) { print_line(std::string(error.what()) + "; the same command goes on there"); }
    return static_cast<int>(settings.exit_code_on_stop);
  }
}

int train_and_evaluate(RunConfig config, const RunOptions& options, const Ranks& ranks, const std::string& banner) {
  const Json evaluations = config.eval;
  const TrainConfig settings = config.train;
  const Ended ended = run_trainer(std::move(config), options, ranks, banner);
  if (ended.code != 0 || !ended.is_complete || evaluations.is_null()) { return ended.code; }
  return evaluate(evaluations, settings, ended.folder, ranks);
}

int run_rank(RunConfig config, RunOptions options, const LaunchedRank& launched) {
  follow_launcher();
  RankGroup group(launched, rank_options(config, options));
  std::string banner = version_text();
  for (const std::string& line : group.table()) { banner += "\n" + line; }
  return run_as_rank(group, [&] {
    options.made_folder = group.made_folder();
    const Ranks ranks(group.communicator(), group.log(), threads_of_rank(group), group.names());
    return train_and_evaluate(std::move(config), options, ranks, banner);
  });
}

int train(const Command& verb, const Arguments& arguments) {
  const ConfigArguments words = read_config_arguments(verb, arguments.compute);
  const LaunchedRank launched = launched_rank();
  RunConfig config = read_run_config(words.config, words.overrides, resolve_evaluations);
  const bool is_parent = is_parent_of_ranks(arguments.ranks.ranks, launched);
  if (arguments.ranks.restarts > 0 && !is_parent) { throw ConfigError("--restart", "needs --ranks N"); }
  const int size =
      is_parent ? count_ranks(arguments.ranks.ranks, device_of(config) == DeviceKind::cuda) : launched.size;
  if (size == 1) { set_own_gpu(0); }  // a process that starts no others takes a GPU itself
  resolve(config, size, true, stored_split(config, arguments.run));
  if (arguments.print_config) {
    print_line(to_json(config).dump(1));
    return 0;
  }
  if (is_parent && size > 1) { return start_ranks(config, arguments.run, size, arguments.ranks.restarts); }
  if (size > 1) { return run_rank(std::move(config), arguments.run, launched); }
  return train_and_evaluate(std::move(config), arguments.run, Ranks(), version_text());
}

}  // namespace

void add_train_verb(Command program) {
  Command verb = program.verb("train", "Trains a model; run it again after any interruption");
  verb.allow_extras();
  verb.takes_overrides(run_sections());
  verb.footer(
      "CONFIG is a run configuration; KEY=VALUE and --KEY VALUE change single values of it. A run folder whose\n"
      "configuration agrees is continued.\n\n"
      "hebb train configs/quickstart.json train.steps=100 --optimizer.lr 3e-4\n"
      "Page: docs/verbs/train.md; keys: docs/configuration-reference.md");
  const auto a = std::make_shared<Arguments>();
  verb.option("--run-dir", a->run.run_folder, "Run folder").default_text("runs/NAME").type_name("PATH");
  verb.option("--resume", a->run.resume,
              "auto: continue the run folder; never: it must be new or empty; DIR: from that checkpoint or run folder");
  verb.option("--init-from", a->run.init_from, "Weights for step 0: a safetensors file, a checkpoint or a run folder")
      .default_text("")
      .type_name("PATH");
  verb.flag("--allow-data-change", a->run.allow_data_change, "Continue although the data differs");
  verb.flag("--allow-config-change", a->run.allow_config_change, "Continue although the configuration differs");
  verb.flag("--allow-older", a->run.allow_older, "Continue from an older checkpoint where the latest is damaged");
  verb.option("--ranks", a->ranks.ranks,
              "Train by N ranks on this machine, each on a GPU or a part of the cores (docs/distributed.md); all: one "
              "for each visible GPU")
      .type_name("N|all");
  verb.option(
          "--restart", a->ranks.restarts,
          "With --ranks: start again from the last checkpoint after a fault, at most K times in a row without a new "
          "one")
      .type_name("K");
  verb.flag("--print-config", a->print_config, "Print the resolved configuration and stop");
  add_compute_options(verb, a->compute);
  verb.runs([a, verb] { return train(verb, *a); });
}

}  // namespace hebb
