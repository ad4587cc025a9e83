// Runs evaluations, writes their results and keeps what is finished (docs/verbs/eval.md, Interruptions).
#include <fmt/core.h>

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <system_error>

#include "comm/rendezvous.h"
#include "core/elapsed.h"
#include "core/folder_lock.h"
#include "core/folders.h"
#include "core/hash.h"
#include "eval/evaluation.h"
#include "eval/result_files.h"
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
        text += fmt::format("{} {:d}", file.filename().string(), fs::file_size(file));
        if (with_times) { text += fmt::format(" {:d}", fs::last_write_time(file).time_since_epoch().count()); }
        text += "\n";
      }
    } catch (const std::exception&) {  // not a file: what reads it says so
      text += "none\n";
    }
  });
  return config_hash(Json(text));
}

Json result_json(const Evaluation& e, const EvalResult& r, const EvalSource& source, const Tokenizer* tokenizer,
                 double seconds) {
  Json j = Json::object({{"format", 1}, {"name", e.name}, {"kind", e.kind}, {"status", r.status}});
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
  return j;
}

/// An error of an evaluation as all ranks know it.
RankFailure agreed_failure(const Error& error, const EvalContext& context) {
  if (const auto* agreed = dynamic_cast<const AgreedError*>(&error)) { return agreed->failure(); }
  const RankFailure own = failure_of(error);
  return context.exchange != nullptr ? *hold_round(*context.exchange, "an error", Json(), own).failure : own;
}

/// The evaluation has come to its end on all ranks, or fails.
void agree_on_end(const EvalContext& context) {
  if (context.exchange == nullptr) { return; }
  const RankRound round = hold_round(*context.exchange, "the end of an evaluation", Json(), std::nullopt);
  if (round.failure) { throw AgreedError(*round.failure); }
}

/// Items that all ranks have kept.
int64_t kept_items(const EvalContext& context) {
  const int64_t own = context.journal->size();
  if (context.exchange == nullptr) { return own; }
  uint64_t all = 0;
  const auto sent = static_cast<uint64_t>(own);
  for (const uint64_t items : context.exchange->gather({&sent, 1})) { all += items; }
  return static_cast<int64_t>(all);
}

/// Runs one evaluation; what a user lacks or did wrong becomes its result, the same on all ranks.
EvalResult run_one(Evaluation& e, EvalContext& context) {
  EvalResult result;
  try {
    context.model.set_reading(e.reading);
    apply(e.thresholds, context.model.model());
    if (context.is_first() || e.task->has_items()) { result = e.task->run(context); }
    agree_on_end(context);
    return result;
  } catch (const Error& error) {
    const RankFailure failure = agreed_failure(error, context);
    if (failure.code == ExitCode::kStopped) {
      const int64_t items = kept_items(context);
      throw Error(ExitCode::kStopped,
                  e.name + " (" + e.kind + "): stopped by a signal" +
                      (items > 0 ? fmt::format(" after {:d} finished items, which are kept", items) : ""));
    }
    result = EvalResult::failed(failure.text);
    if (failure.is_missing) { result.status = "skipped"; }  // a missing file: something that the user does not have
    return result;
  }
}

std::string from_first(const EvalContext& context, const std::string& own) {
  return context.exchange != nullptr ? context.exchange->from_first(own) : own;
}

/// The journal of this rank. Rank 0 takes up what earlier runs have kept and tells the others.
std::unique_ptr<EvalJournal> open_journal(const EvalContext& context, const fs::path& file, const Json& key) {
  std::unique_ptr<EvalJournal> journal;
  Json kept = Json::array();
  if (context.is_first()) {
    journal =
        std::make_unique<EvalJournal>(file, key, [&](const std::string& text) { context.progress.message(text); });
    for (const int64_t index : journal->kept()) { kept.push(index); }
  }
  const Json told = parse_json(from_first(context, Json::object({{"key", key}, {"kept", kept}}).dump()), "rank 0");
  if (journal == nullptr) {
    std::vector<int64_t> indices;
    for (const Json& index : told.at("kept").items()) { indices.push_back(index.as_int()); }
    journal = std::make_unique<EvalJournal>(file, told.at("key"), context.exchange->communicator().rank(), indices);
  }
  return journal;
}

Json write_result(const Evaluation& e, const EvalResult& result, const EvalContext& context, const EvalSource& source,
                  const std::string& fingerprint, double seconds, const ResultFiles& files) {
  Json json = result_json(e, result, source, context.tokenizer.get(), seconds);
  json.set("fingerprint", fingerprint);
  return files.write(json, context.samples, item_lines(result.items),
                     [&](const std::string& text) { context.progress.message(text); });
}

/// Makes the folder, and says what else to do where nothing can be written.
void require_writable(const fs::path& out) {
  std::string cause;
  try {
    create_folders(fs::absolute(out));
    if (::access(out.c_str(), W_OK | X_OK) == 0) { return; }
    cause = std::generic_category().message(errno);
  } catch (const CheckpointError& error) { cause = error.what(); }
  throw CheckpointError(out.string(), "results cannot be written here (" + cause + "); --out names another folder");
}

/// The lock of one evaluation in a folder: other processes may run others there. What a killed process had begun to
/// write is removed.
std::unique_ptr<FolderLock> lock_of(const Evaluation& e, const fs::path& out, Progress& progress) {
  auto lock = std::make_unique<FolderLock>(out, LockOptions{.name = "evaluation " + e.name, .file = e.name + ".lock"},
                                           [&](const std::string& text) { progress.message(text); });
  ResultFiles(out, e.name).remove_unfinished();
  remove_left_rendezvous(out);
  return lock;
}

}  // namespace

void EvalCounts::add(const std::string& status) { ++(status == "ok" ? ok : status == "skipped" ? skipped : failed); }

Json evaluation_key(const Evaluation& evaluation, const EvalSource& source, const Tokenizer* tokenizer,
                    int64_t sequence_length, bool logs_samples) {
  Json key = Json::object({{"format", 2},  // of items, and of what they hold
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
  if (source.max_positions > 0) { key.set("max_positions", source.max_positions); }
  return key;
}

void remove_leftovers(const Evaluation& evaluation, const fs::path& out, Progress& progress) {
  const fs::path partial = out / (evaluation.name + ".partial"), lock = out / (evaluation.name + ".lock");
  if (!fs::exists(partial) && !fs::exists(lock)) { return; }
  try {
    const std::unique_ptr<FolderLock> own = lock_of(evaluation, out, progress);
    EvalJournal::remove_files(partial);
  } catch (const CheckpointError&) {}  // in use, or a folder that cannot be written: the result is there
}

EvalCounts run_evaluations(std::vector<Evaluation>& evaluations, EvalContext context, const EvalSource& source,
                           const fs::path& out, const std::function<void(const std::string& line)>& report,
                           bool again) {
  EvalCounts counts;
  if (context.is_first()) { require_writable(out); }
  const auto weights = context.model.save_fast_weights();
  const auto note = [&](const std::string& text) { context.progress.message(text); };
  for (Evaluation& e : evaluations) {
    if (context.flight != nullptr) { context.flight->at(source.step, "evaluation " + e.name); }
    const Json key = evaluation_key(e, source, context.tokenizer.get(), context.sequence_length, context.logs_samples);
    const std::string fingerprint = config_hash(key);
    const std::unique_ptr<FolderLock> lock = context.is_first() ? lock_of(e, out, context.progress) : nullptr;
    const ResultFiles files(out, e.name);
    const auto kept = again || !context.is_first() ? std::nullopt : files.finished(fingerprint, note);
    const fs::path partial = out / (e.name + ".partial");
    if (kept || (again && context.is_first())) { EvalJournal::remove_files(partial); }
    if (kept) {
      if (!files.is_current(fingerprint)) { files.restore(fingerprint); }
      counts.results.push_back(*kept);
      report(result_text(*kept, true));
    }
    if (from_first(context, kept ? "kept" : "") == "kept") {
      counts.add("ok");
      continue;
    }
    const auto start = std::chrono::steady_clock::now();
    const std::unique_ptr<EvalJournal> journal = open_journal(context, partial, key);
    context.journal = journal.get();
    context.seed = e.seed;
    context.samples.clear();
    context.items_before = 0;
    const EvalResult result = run_one(e, context);
    context.model.restore_fast_weights(weights);  // evaluations do not influence each other
    apply({}, context.model.model());
    context.model.set_reading({});
    const std::string status = from_first(context, result.status);
    counts.add(status);
    if (lock) { lock->require_own(); }
    if (context.is_first()) {
      counts.results.push_back(write_result(e, result, context, source, fingerprint, seconds_since(start), files));
      report(result_text(counts.results.back()));
    }
    if (status == "ok") { journal->remove(); }
  }
  return counts;
}

}  // namespace hebb
