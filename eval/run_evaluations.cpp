// Runs evaluations, writes their results and keeps what is finished (docs/verbs/eval.md, Interruptions).
#include <fmt/core.h>

#include <chrono>

#include "core/hash.h"
#include "eval/evaluation.h"
#include "train/run_config.h"

namespace hebb {
namespace {

std::string hash_text(uint64_t hash) { return fmt::format("{:016x}", hash); }

/// Calls `use` with every path of a resolved configuration: they are absolute, other texts rarely begin so.
void each_path(const Json& json, const std::function<void(const std::string& path)>& use) {
  if (json.is_string() && json.as_string().starts_with('/')) { use(json.as_string()); }
  if (json.is_array()) {
    for (const Json& item : json.items()) { each_path(item, use); }
  }
  if (json.is_object()) {
    for (const auto& [name, value] : json.members()) { each_path(value, use); }
  }
}

/// Names and sizes, perhaps times, of the input files as one number; those that are not there count, too.
std::string inputs_hash(const Json& resolved, bool with_times) {
  std::string text;
  each_path(resolved, [&](const std::string& path) {
    try {
      for (const fs::path& file : expand_paths(path)) {
        text += file.filename().string() + " " + std::to_string(fs::file_size(file));
        if (with_times) { text += " " + std::to_string(fs::last_write_time(file).time_since_epoch().count()); }
        text += "\n";
      }
    } catch (const std::exception&) {  // not a file: what reads it says so
      text += "none\n";
    }
  });
  return config_hash(Json(text));
}

Json result_json(const Evaluation& e, const EvalResult& r, const EvalSource& source, const Tokenizer* tokenizer,
                 double seconds, const std::string& samples) {
  Json j = Json::object();
  j.set("format", 1);
  j.set("name", e.name);
  j.set("kind", e.kind);
  j.set("status", r.status);
  if (!r.reason.empty()) { j.set(r.status == "failed" ? "error" : "reason", r.reason); }
  j.set("checkpoint", source.checkpoint);
  j.set("step", source.step);
  j.set("tokens", source.tokens);
  j.set("model_hash", source.model_hash);
  j.set("config", e.config);
  j.set("inputs", inputs_hash(e.resolved, false));
  if (tokenizer != nullptr) { j.set("tokenizer", hash_text(tokenizer->hash())); }
  j.set("device", source.device);
  j.set("precision", source.precision);
  j.set("seconds", seconds);
  j.set("version", HEBB_VERSION);
  j.set("metrics", r.metrics);
  if (!r.series.members().empty()) { j.set("series", r.series); }
  if (!r.groups.members().empty()) { j.set("groups", r.groups); }
  if (!r.source.empty()) { j.set("source", r.source); }
  if (!samples.empty()) { j.set("samples", samples); }
  return j;
}

/// Runs one evaluation; what a user lacks or did wrong becomes its result.
EvalResult run_one(Evaluation& e, EvalContext& context) {
  EvalResult result;
  try {
    context.session.set_reading(e.reading);
    apply(e.overrides, context.session.model());
    return e.task->run(context);
  } catch (const MissingFileError& error) {  // not a failure: something that the user does not have
    result.status = "skipped";
    result.reason = error.what();
  } catch (const Error& error) {
    if (error.code() == ExitCode::kStopped) {
      const int64_t items = context.journal->size();
      throw Error(ExitCode::kStopped,
                  e.name + " (" + e.kind + "): stopped by a signal" +
                      (items > 0 ? " behind " + std::to_string(items) + " finished items, which are kept" : ""));
    }
    result.status = "failed";
    result.reason = error.what();
  }
  return result;
}

void count(EvalCounts& counts, const std::string& status) {
  ++(status == "ok" ? counts.ok : status == "skipped" ? counts.skipped : counts.failed);
}

}  // namespace

Json evaluation_key(const Evaluation& evaluation, const EvalSource& source, const Tokenizer* tokenizer,
                    int64_t sequence_length, bool logs_samples) {
  return Json::object({{"format", 1},
                       {"version", HEBB_VERSION},
                       {"weights", source.weights},
                       {"model", source.model_hash},
                       {"tokenizer", tokenizer != nullptr ? tokenizer->hash() : 0},
                       {"sequence_length", sequence_length},
                       {"config", evaluation.config},
                       {"inputs", inputs_hash(evaluation.resolved, true)},
                       {"device", source.device},
                       {"precision", source.precision},
                       {"samples", logs_samples}});
}

std::optional<Json> finished_result(const Evaluation& evaluation, const Json& key, const fs::path& out,
                                    const std::function<void(const std::string& line)>& note) {
  const fs::path file = out / (evaluation.name + ".json");
  if (!fs::exists(file)) { return std::nullopt; }
  Json result;
  try {
    result = parse_json_file(file.string());
  } catch (const ConfigError&) {}
  const auto text = [&](const char* name) {
    const Json* value = result.is_object() ? result.find(name) : nullptr;
    return value != nullptr && value->is_string() ? value->as_string() : "";
  };
  if (text("status").empty()) {
    note(file.string() + " is damaged and not used");
    return std::nullopt;
  }
  if (text("status") != "ok") { return std::nullopt; }
  if (text("fingerprint") != config_hash(key)) {
    note(file.string() + " is of another checkpoint, configuration or input and not used");
    return std::nullopt;
  }
  if (!text("samples").empty() && !fs::exists(out / text("samples"))) { return std::nullopt; }
  return result;
}

EvalCounts run_evaluations(std::vector<Evaluation>& evaluations, EvalContext context, const EvalSource& source,
                           const fs::path& out, const std::function<void(const std::string& line)>& report,
                           bool again) {
  EvalCounts counts;
  fs::create_directories(out);
  const auto weights = context.session.save_fast_weights();
  const auto note = [&](const std::string& text) { context.progress.message(text); };
  for (Evaluation& e : evaluations) {
    const Json key = evaluation_key(e, source, context.tokenizer.get(), context.sequence_length, context.logs_samples);
    if (const auto kept = again ? std::nullopt : finished_result(e, key, out, note)) {
      report(result_text(*kept, true));
      ++counts.ok;
      continue;
    }
    const auto start = std::chrono::steady_clock::now();
    if (again) { fs::remove(out / (e.name + ".partial")); }
    EvalJournal journal(out / (e.name + ".partial"), key, note);
    context.journal = &journal;
    context.seed = e.seed;
    context.samples.clear();
    context.items_before = 0;
    const EvalResult result = run_one(e, context);
    context.session.restore_fast_weights(weights);  // evaluations do not influence each other
    apply({}, context.session.model());
    context.session.set_reading({});
    count(counts, result.status);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const std::string samples = context.samples.empty() ? "" : e.name + ".samples.jsonl";
    if (!samples.empty()) { write_file_atomic(out / samples, context.samples); }
    Json json = result_json(e, result, source, context.tokenizer.get(), seconds, samples);
    json.set("fingerprint", config_hash(key));
    write_file_atomic(out / (e.name + ".json"), json.dump(1) + "\n");
    if (result.status == "ok") { journal.remove(); }
    report(result_text(json));
  }
  return counts;
}

}  // namespace hebb
