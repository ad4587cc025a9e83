#include <CLI/CLI.hpp>

#include <cstdio>
#include <memory>

#include "core/parallel.h"
#include "tools/options.h"
#include "tools/verbs.h"
#include "train/eval.h"

namespace hebb {
namespace {

struct Options {
  std::string eval, checkpoint, out, tokenizer;
  std::vector<std::string> overrides;
  std::string precision, device = "auto";
  int threads = 0;
  bool log_samples = false;
};

int run_eval(const Options& o) {
  set_threads(o.threads);
  Json config = load_config(o.eval);
  for (const std::string& assignment : o.overrides) {
    apply_override(config, assignment);
  }
  std::vector<Evaluation> evaluations = read_evaluations(config, "");
  if (evaluations.empty()) {
    throw ConfigError(o.eval + ": evaluations", "an empty list", "at least one evaluation");
  }
  EvalRequest request{o.checkpoint, o.out, o.tokenizer, choose_compute(o.device, o.precision, "--")};
  request.logs_samples = o.log_samples;
  const std::unique_ptr<Progress> progress = stderr_progress();
  const int failed = evaluate_checkpoint(std::move(evaluations), request, *progress,
                                         [](const std::string& line) { std::printf("%s\n", line.c_str()); });
  return failed > 0 ? static_cast<int>(ExitCode::kOther) : 0;
}

}  // namespace

void add_eval_verb(CLI::App& app, int& exit_code) {
  CLI::App& verb = *app.add_subcommand("eval", "Runs a list of evaluations on one checkpoint and writes one result file each");
  const auto o = std::make_shared<Options>();
  verb.add_option("EVAL", o->eval, "The list of evaluations (JSON)")->required();
  verb.add_option("KEY=VALUE", o->overrides, "Changes to EVAL, e.g. evaluations.0.max_tokens=100000");
  verb.add_option("--checkpoint", o->checkpoint, "Checkpoint folder, run folder or model.safetensors")->required();
  verb.add_option("--out", o->out, "Folder for the results (default: RUN/evals/STEP)");
  verb.add_option("--tokenizer", o->tokenizer, "SentencePiece .model file or \"bytes\" (default: the run's)");
  verb.add_flag("--log-samples", o->log_samples, "Also a file with one line per example beside each result");
  one_of(verb.add_option("--device", o->device, "Where to compute"), {"auto", "cpu", "cuda"})->capture_default_str();
  one_of(verb.add_option("--precision", o->precision, "Number format (default: fp32 on the CPU, bf16 on a GPU)"), {"fp32", "bf16", "fp64"});
  at_least(verb.add_option("--threads", o->threads, "Threads (0 = all cores that the process may use)"), 0)->capture_default_str();
  verb.callback([o, &exit_code] { exit_code = run_eval(*o); });
}

}  // namespace hebb
