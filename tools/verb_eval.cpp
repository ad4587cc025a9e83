#include <cstdio>
#include <memory>

#include "eval/evaluation.h"
#include "tools/command_line.h"
#include "tools/options.h"
#include "tools/verbs.h"

namespace hebb {
namespace {

struct Options {
  std::string eval, checkpoint, out, tokenizer;
  std::vector<std::string> overrides;
  DeviceOptions device;
  bool log_samples = false;
};

int run_eval(const Options& o) {
  Json config = load_config(o.eval);
  for (const std::string& assignment : o.overrides) { apply_override(config, assignment); }
  std::vector<Evaluation> evaluations = read_evaluations(config, "");
  if (evaluations.empty()) { throw ConfigError(o.eval + ": evaluations", "an empty list", "at least one evaluation"); }
  EvalRequest request{o.checkpoint, o.out, o.tokenizer, set_up_compute(o.device)};
  request.logs_samples = o.log_samples;
  const std::unique_ptr<Progress> progress = stderr_progress();
  const int failed = evaluate_checkpoint(std::move(evaluations), request, *progress,
                                         [](const std::string& line) { std::printf("%s\n", line.c_str()); });
  return failed > 0 ? static_cast<int>(ExitCode::kOther) : 0;
}

}  // namespace

void add_eval_verb(Command program) {
  Command verb = program.verb("eval", "Runs a list of evaluations on one checkpoint and writes one result file each");
  const auto o = std::make_shared<Options>();
  verb.option("EVAL", o->eval, "The list of evaluations (JSON)").required();
  verb.option("OVERRIDES", o->overrides, "Changes to EVAL as KEY=VALUE, e.g. evaluations.0.max_tokens=100000");
  verb.option("--checkpoint", o->checkpoint, "Checkpoint folder, run folder or model.safetensors").required();
  verb.option("--out", o->out, "Folder for the results (default: RUN/evals/STEP)");
  verb.option("--tokenizer", o->tokenizer,
              "SentencePiece .model file, tokenizer.json or \"bytes\" (default: the run's)");
  verb.flag("--log-samples", o->log_samples, "Also a file with one line per example beside each result");
  add_device_options(verb, o->device);
  verb.runs([o] { return run_eval(*o); });
}

}  // namespace hebb
