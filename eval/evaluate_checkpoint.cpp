// `hebb eval`, and the evaluations of a run configuration after its last step (docs/verbs/eval.md).
#include "eval/evaluation.h"
#include "eval/generate.h"
#include "train/run_config.h"
#include "train/signals.h"

namespace hebb {
namespace {

/// Step and tokens of the checkpoint beside the weights; zeros where there is no state.json.
void read_progress(const fs::path& folder, EvalSource& source) {
  if (!fs::exists(folder / "state.json")) { return; }
  const Json state = parse_json_file((folder / "state.json").string());
  for (const auto& [key, to] : {std::pair{"step", &source.step}, std::pair{"tokens", &source.tokens}}) {
    if (const Json* v = state.find(key); v != nullptr && v->is_integer()) { *to = v->as_int(); }
  }
}

int64_t training_length(const Json& config) {
  const Json* train = config.find("train");
  const Json* length = train != nullptr && train->is_object() ? train->find("sequence_length") : nullptr;
  return length != nullptr && length->is_integer() ? length->as_int() : 0;
}

/// RUN/checkpoints/step_N -> RUN/evals/step_N
fs::path default_folder(const fs::path& weights) {
  const fs::path folder = fs::absolute(weights).parent_path();
  return folder.parent_path().filename() == "checkpoints"
             ? folder.parent_path().parent_path() / "evals" / folder.filename()
             : fs::path("evals");
}

bool is_done(const Evaluation& evaluation, const fs::path& out) {
  const fs::path file = out / (evaluation.name + ".json");
  if (!fs::exists(file)) { return false; }
  const Json result = parse_json_file(file.string());
  const Json* status = result.is_object() ? result.find("status") : nullptr;
  const Json* config = result.is_object() ? result.find("config") : nullptr;
  return status != nullptr && *status == Json("ok") && config != nullptr && *config == evaluation.config;
}

}  // namespace

int evaluate_checkpoint(std::vector<Evaluation> evaluations, const EvalRequest& request, Progress& progress,
                        const std::function<void(const std::string& line)>& report) {
  const StopSignals signals;
  ModelSource source = read_model_source(request.checkpoint);
  const fs::path weights = find_weights(request.checkpoint);
  const fs::path out = request.out.empty() ? default_folder(weights) : request.out;
  if (request.skip_done) {
    std::erase_if(evaluations, [&](const Evaluation& e) { return is_done(e, out); });
  }
  if (evaluations.empty()) { return 0; }
  EvalSource from{request.checkpoint, config_hash(source.is_run ? source.config.at("model") : source.config),
                  device_name(request.compute.device), precision_name(request.compute.dtype)};
  read_progress(weights.parent_path(), from);
  std::shared_ptr<const Tokenizer> tokenizer;
  const Json* data = source.config.find("data");
  const Json* named = data != nullptr && data->is_object() ? data->find("tokenizer") : nullptr;
  if (!request.tokenizer.empty() || (named != nullptr && named->is_object())) {
    tokenizer = find_tokenizer(source, request.tokenizer);
  }
  const int64_t length = training_length(source.config);
  ScoringModel session(std::move(source), weights, request.compute);
  EvalContext context{session, tokenizer, length, 42, progress, [&signals] { return !signals.received().empty(); }};
  context.logs_samples = request.logs_samples;
  const int failed = run_evaluations(evaluations, context, from, out, report);
  report("results in " + out.string());
  return failed;
}

}  // namespace hebb
