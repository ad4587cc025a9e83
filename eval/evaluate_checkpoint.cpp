// `hebb eval`, and the evaluations of a run configuration after its last step (docs/verbs/eval.md).
#include <fmt/core.h>

#include <utility>

#include "core/hash.h"
#include "core/join.h"
#include "core/path_list.h"
#include "core/stop_signals.h"
#include "eval/evaluation.h"
#include "eval/generate.h"
#include "eval/result_files.h"
#include "train/run_config.h"

namespace hebb {
namespace {

/// Step and tokens of the checkpoint beside the weights; zeros where there is no state.json.
void read_progress(const fs::path& folder, EvalSource& source) {
  if (!fs::exists(folder / "state.json")) { return; }
  const Json state = parse_json_file((folder / "state.json").string());
  source.step = state.integer_at("step", source.step);
  source.tokens = state.integer_at("tokens", source.tokens);
}

bool is_of_run(const fs::path& checkpoint) { return checkpoint.parent_path().filename() == "checkpoints"; }

/// RUN/evals for a checkpoint of a run; else evals/ beside the weights.
fs::path evaluations_folder(const fs::path& checkpoint) {
  return (is_of_run(checkpoint) ? checkpoint.parent_path().parent_path() : checkpoint) / "evals";
}

/// Size and checksum of the weights, from the checkpoint's state.json where there is one.
Json identity_of(const fs::path& weights) {
  const fs::path state = weights.parent_path() / "state.json";
  if (fs::exists(state)) {
    const Json json = parse_json_file(state.string());
    const Json* files = json.is_object() ? json.find("files") : nullptr;
    const Json* own = files != nullptr && files->is_object() ? files->find(weights.filename().string()) : nullptr;
    if (own != nullptr) { return *own; }
  }
  Json files = Json::array();  // an index names further files beside it
  const bool is_one = weights.extension() == ".safetensors";
  for (const fs::path& path : is_one ? std::vector{weights} : files_matching(weights.parent_path(), "*.safetensors")) {
    const MappedFile file(path);
    files.push(Json::object({{"size", file.size()}, {"crc32", static_cast<int64_t>(crc32(file.data(), file.size()))}}));
  }
  return files;
}

/// Says at once what has no input and what cannot be evaluated.
void warn_of_impossible(const Evaluation& e, const EvalPremises& premises, Progress& progress) {
  const std::string name = e.name + " (" + e.kind + ")";
  const Json* data = e.resolved.find("data");
  for (const Json* path : {e.resolved.find("file"), data != nullptr ? data->find("path") : nullptr}) {
    if (path == nullptr || !path->is_string()) { continue; }
    try {
      expand_paths(path->as_string());
    } catch (const DataError& error) { return progress.message(name + " will be skipped: " + error.what()); }
  }
  try {
    for (const std::string& reason : e.task->left_out(premises)) { progress.message(name + " leaves out: " + reason); }
  } catch (const Error& error) {
    const bool is_missing = dynamic_cast<const MissingFileError*>(&error) != nullptr;
    progress.message(name + (is_missing ? " will be skipped: " : " will fail: ") + error.what());
  }
}

/// Says where max_length comes from in a folder without a run.
void tell_max_length(const std::vector<const Evaluation*>& evaluations, int64_t positions, Progress& progress) {
  std::vector<std::string> names;
  for (const Evaluation* e : evaluations) {
    const Json* length = e->resolved.find("max_length");
    if (length != nullptr && length->is_null()) { names.push_back(e->name); }
  }
  if (names.empty()) { return; }
  progress.message(fmt::format("{}: max_length is {:d} tokens, max_position_embeddings of config.json",
                               join(names, ", "), positions));
}

/// `is_loaded`: whether the checkpoint is needed no more.
EvalCounts evaluate(std::vector<Evaluation>& evaluations, EvalRequest& request, Progress& progress,
                    const std::function<void(const std::string& line)>& report, const Ranks& ranks, bool& is_loaded) {
  const StopSignals signals;
  HostExchange exchange(ranks.communicator(), request.compute.device);
  // Rank 0 chooses: where the run goes on, other ranks may have found another latest checkpoint.
  const auto from_first = [&](const std::string& own) { return exchange.from_first(ranks.is_first() ? own : ""); };
  request.weights = from_first(request.weights.string());
  const fs::path weights = request.weights, out = from_first(results_folder(request).string());
  ModelSource source = read_model_source(weights);
  const int64_t length = source.config.integer_at("train.sequence_length", 0);
  EvalSource from{request.checkpoint,
                  config_hash(source.config.child("model") != nullptr ? source.config.at("model") : source.config),
                  device_name(request.compute.device), precision_name(request.compute.dtype)};
  from.max_positions = length > 0 ? 0 : max_positions(source);
  read_progress(weights.parent_path(), from);
  from.weights = identity_of(weights);
  std::shared_ptr<const Tokenizer> tokenizer;
  if (!request.tokenizer.empty() || has_tokenizer(source)) { tokenizer = find_tokenizer(source, request.tokenizer); }
  EvalCounts counts;
  std::vector<Json> finished;  // and in their places
  std::vector<const Evaluation*> to_do;
  for (const Evaluation& e : evaluations) {
    const std::string key = config_hash(evaluation_key(e, from, tokenizer.get(), length, request.logs_samples));
    const ResultFiles files(out, e.name);
    const auto kept = request.again ? std::nullopt : files.finished(key, [](const std::string&) {});
    if (!kept) { to_do.push_back(&e); }
    if (kept && files.is_current(key)) { finished.push_back(*kept); }
  }
  const bool is_finished = finished.size() == evaluations.size();  // then the model need not be loaded
  if (from_first(is_finished ? "finished" : "") == "finished") {
    if (ranks.is_first()) {
      for (const Evaluation& e : evaluations) { remove_leftovers(e, out, progress); }
      for (const Json& result : finished) { report(result_text(result, true)); }
    }
    counts.ok = static_cast<int64_t>(evaluations.size());
    counts.results = finished;
  } else {
    for (const Evaluation* e : to_do) {
      if (ranks.is_first()) { warn_of_impossible(*e, {source, tokenizer, e->seed}, progress); }
    }
    if (from.max_positions > 0 && ranks.is_first()) { tell_max_length(to_do, from.max_positions, progress); }
    ScoringModel model(std::move(source), weights, request.compute);
    is_loaded = true;
    model.after_segments([&ranks] { ranks.flight().tick(); });
    EvalContext context{model, tokenizer, length, 42, progress, [&signals] { return !signals.received().empty(); }};
    context.logs_samples = request.logs_samples;
    context.exchange = ranks.size() > 1 ? &exchange : nullptr;
    context.flight = &ranks.flight();
    counts = run_evaluations(evaluations, context, from, out, report, request.again);
  }
  if (ranks.is_first()) { report("results in " + out.string()); }
  return counts;
}

}  // namespace

fs::path results_folder(const EvalRequest& request) {
  if (!request.out.empty()) { return request.out; }
  const fs::path checkpoint = fs::absolute(request.weights).parent_path();
  return is_of_run(checkpoint) ? evaluations_folder(checkpoint) / checkpoint.filename()
                               : evaluations_folder(checkpoint);
}

fs::path meeting_folder(const fs::path& out, const fs::path& weights) {
  return out.empty() ? evaluations_folder(fs::absolute(weights).parent_path()) : out;
}

EvalCounts evaluate_checkpoint(std::vector<Evaluation> evaluations, EvalRequest request, Progress& progress,
                               const std::function<void(const std::string& line)>& report, const Ranks& ranks) {
  for (;;) {
    bool is_loaded = false;
    try {
      return evaluate(evaluations, request, progress, report, ranks, is_loaded);
    } catch (const Error&) {
      if (is_loaded || !has_moved_on(request.checkpoint, request.weights)) { throw; }
      if (ranks.size() > 1) {  // others may have read it
        throw CheckpointError(request.weights.string(),
                              "was deleted before all ranks had read it; the same command takes the latest checkpoint");
      }
    }
    const fs::path deleted = std::exchange(request.weights, find_weights(request.checkpoint));
    progress.message(
        fmt::format("{} was deleted before it was read: evaluating {}", deleted.string(), request.weights.string()));
  }
}

}  // namespace hebb
