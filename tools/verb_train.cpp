#include <memory>

#include "core/progress.h"
#include "eval/evaluation.h"
#include "tools/command_line.h"
#include "tools/config_arguments.h"
#include "tools/console.h"
#include "tools/verbs.h"
#include "train/trainer.h"

namespace hebb {
namespace {

struct Arguments {
  RunOptions run;
  ComputeOptions compute;
  bool print_config = false;
};

/// The evaluations of the configuration, on the last checkpoint (docs/verbs/eval.md).
int evaluate(const Json& evaluations, const TrainConfig& settings, const fs::path& run) {
  const EvalRequest request{
      run.string(), {}, "", choose_compute(settings.device, settings.precision.value_or(""), "train"), true};
  const std::unique_ptr<Progress> progress = stderr_progress();
  try {
    const int failed = evaluate_checkpoint(read_evaluations(evaluations, "eval."), request, *progress, print_line);
    return failed > 0 ? static_cast<int>(ExitCode::kOther) : 0;
  } catch (const Error& error) {
    if (error.code() != ExitCode::kStopped) { throw; }
    print_line(std::string(error.what()) + "; the same command goes on from here");
    return static_cast<int>(settings.exit_code_on_stop);
  }
}

int train(const Command& verb, const Arguments& arguments) {
  const ConfigArguments words = read_config_arguments(verb, arguments.compute);
  const World world = read_world();
  RunConfig config = read_run_config(words.config, words.overrides);
  resolve(config, world);
  if (arguments.print_config) {
    print_line(to_json(config).dump(1));
    return 0;
  }
  const std::unique_ptr<Progress> bar = wants_bar() ? stderr_progress() : nullptr;
  const Console console = console_with(bar.get());
  const Json evaluations = config.eval;
  const TrainConfig settings = config.train;
  fs::path run;
  {
    Trainer trainer(std::move(config), arguments.run, world, console, version_text());
    const int code = trainer.run();
    if (code != 0 || !trainer.is_complete() || evaluations.is_null()) { return code; }
    run = trainer.run_folder();
  }
  return evaluate(evaluations, settings, run);
}

}  // namespace

void add_train_verb(Command program) {
  Command verb = program.verb("train", "Trains a model: hebb train CONFIG [key.path=value | --key.path value ...]");
  verb.allow_extras();
  verb.footer(
      "CONFIG is a run configuration; key.path=value and --key.path value change single values of it\n"
      "(train.steps=100, --optimizer.lr 3e-4). A run folder whose configuration agrees is continued.");
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
  verb.flag("--print-config", a->print_config, "Print the resolved configuration and stop");
  add_compute_options(verb, a->compute);
  verb.runs([a, verb] { return train(verb, *a); });
}

}  // namespace hebb
