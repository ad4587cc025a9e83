#include <CLI/CLI.hpp>

#include <csignal>
#include <cstdio>
#include <memory>

#include "core/parallel.h"
#include "tools/verbs.h"
#include "train/eval.h"
#include "train/generate.h"

namespace hebb {
namespace {

struct Options {
  std::string eval, checkpoint, out, tokenizer;
  std::vector<std::string> overrides;
  std::string precision, device = "auto";
  int threads = 0;
};

volatile std::sig_atomic_t stop = 0;

/// Step and tokens of the checkpoint beside the weights; zeros where there is no state.json.
void read_progress(const fs::path& folder, EvalSource& source) {
  if (!fs::exists(folder / "state.json")) {
    return;
  }
  const Json state = parse_json_file((folder / "state.json").string());
  for (const auto& [key, to] : {std::pair{"step", &source.step}, std::pair{"tokens", &source.tokens}}) {
    if (const Json* v = state.find(key); v != nullptr && v->is_integer()) {
      *to = v->as_int();
    }
  }
}

int64_t training_length(const Json& config) {
  const Json* train = config.find("train");
  const Json* length = train != nullptr && train->is_object() ? train->find("sequence_length") : nullptr;
  return length != nullptr && length->is_integer() ? length->as_int() : 0;
}

/// A bare model.safetensors needs its config.json beside it (spec 81).
fs::path model_path(const std::string& checkpoint) {
  const fs::path path(checkpoint);
  return path.extension() == ".safetensors" ? path.parent_path() / "config.json" : path;
}

int run_eval(const Options& o) {
  set_threads(o.threads);
  Json config = load_config(o.eval);
  for (const std::string& assignment : o.overrides) {
    apply_override(config, assignment);
  }
  std::vector<Evaluation> evaluations = read_evaluations(config, "");
  ModelSource source = read_model_source(model_path(o.checkpoint));
  const fs::path weights = find_weights(o.checkpoint);
  const Compute compute = choose_compute(o.device, o.precision, "--");
  EvalSource from{o.checkpoint, device_name(compute.device), dtype_name(compute.dtype)};
  read_progress(weights.parent_path(), from);
  std::shared_ptr<const Tokenizer> tokenizer;
  const Json* data = source.config.find("data");
  if (!o.tokenizer.empty() || (data != nullptr && data->is_object() && data->find("tokenizer") != nullptr &&
                               data->find("tokenizer")->is_object())) {
    tokenizer = find_tokenizer(source, o.tokenizer);
  }
  // RUN/checkpoints/step_N -> RUN/evals/step_N
  fs::path out = o.out;
  if (out.empty()) {
    const fs::path folder = fs::absolute(weights).parent_path();
    out = folder.parent_path().filename() == "checkpoints" ? folder.parent_path().parent_path() / "evals" / folder.filename()
                                                           : fs::path("evals");
  }
  const int64_t length = training_length(source.config);
  Session session(std::move(source), weights, compute);
  std::signal(SIGINT, [](int) { stop = 1; });
  std::signal(SIGTERM, [](int) { stop = 1; });
  const std::unique_ptr<Progress> progress = stderr_progress();
  const EvalContext context{session, tokenizer, length, 42, *progress, [] { return stop != 0; }};
  const int failed = run_evaluations(evaluations, context, from, out, [](const std::string& line) { std::printf("%s\n", line.c_str()); });
  std::printf("results in %s\n", out.string().c_str());
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
  verb.add_option("--device", o->device, "Where to compute")->check(CLI::IsMember({"auto", "cpu", "cuda"}))->capture_default_str();
  verb.add_option("--precision", o->precision, "Number format (default: fp32 on the CPU, bf16 on a GPU)")->check(CLI::IsMember({"fp32", "bf16", "fp64"}));
  verb.add_option("--threads", o->threads, "Threads (0 = all cores that the process may use)")->check(CLI::NonNegativeNumber)->capture_default_str();
  verb.callback([o, &exit_code] { exit_code = run_eval(*o); });
}

}  // namespace hebb
