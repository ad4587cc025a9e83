#include "train/run_folder.h"

#include <fmt/core.h>

#include <fstream>

#include "core/join.h"
#include "data/tokenizer/tokenizer.h"
#include "train/autotune.h"
#include "train/model_source.h"
#include "train/run_log.h"

namespace hebb {
namespace {

constexpr const char* kLogFile = "train.log";
/// What a start writes.
constexpr const char* kStartFiles[] = {"tokenizer.model", "tokenizer.json", "config.json", kLogFile, kTunedFile};

void create_folder(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) { throw CheckpointError(path.string(), "cannot create the run folder: " + error.message()); }
}

/// The outermost of the folders on the way to `path` that is not there; empty where `path` is.
fs::path outermost_missing(const fs::path& path) {
  fs::path missing;
  for (fs::path folder = path; !folder.empty() && !fs::exists(folder); folder = folder.parent_path()) {
    missing = folder;
  }
  return missing;
}

/// The first entry of a folder beside a lock and what ranks need to meet; empty when there is none.
std::string first_entry(const fs::path& path) {
  if (fs::is_directory(path)) {
    for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
      const std::string name = entry.path().filename().string();
      if (name != "lock" && name != "logs" && !name.starts_with("rendezvous.")) { return name; }
    }
  }
  return "";
}

std::string list(const std::vector<ConfigDifference>& differences) {
  return join(differences, "; ",
              [](const ConfigDifference& d) { return d.path + " was " + d.stored + " and is " + d.current; });
}

}  // namespace

fs::path run_folder_of(const RunConfig& config, const RunOptions& options) {
  return fs::absolute(options.run_folder.empty() ? fs::path("runs") / config.name : options.run_folder)
      .lexically_normal();
}

std::optional<StoredSplit> stored_split(const RunConfig& config, const RunOptions& options) {
  if (options.resume == "never") { return std::nullopt; }
  const fs::path from = options.resume == "auto" ? run_folder_of(config, options) : fs::path(options.resume);
  try {
    const fs::path checkpoint = find_checkpoint(from);
    if (checkpoint.empty()) { return std::nullopt; }
    const Json stored = parse_json_file((checkpoint / "config.json").string());
    StoredSplit split;
    split.lanes = stored.integer_at("train.lanes", split.lanes);
    const Json* rows = stored.find_path("train.micro_batch_size");
    if (rows != nullptr && rows->is_integer()) { split.micro_batch_size = rows->as_int(); }
    return split;
  } catch (const Error&) {
    return std::nullopt;  // RunFolder says what is wrong
  }
}

RunFolder::RunFolder(RunConfig& config, const RunOptions& options, HostExchange& ranks, const Say& say)
    : path_(run_folder_of(config, options)), checkpoints_(path_ / "checkpoints") {
  const bool is_first = ranks.communicator().rank() == 0;
  if (is_first) { open_first(config, options, say); }
  const std::string first = ranks.from_first(is_first ? to_json().dump() : "");
  if (!is_first) { follow(config, parse_json(first, "rank 0")); }
}

/// What the other ranks need to know.
Json RunFolder::to_json() const {
  return Json::object({{"path", Json(path_.string())},
                       {"config", config_},
                       {"checkpoint", checkpoint_ ? Json(checkpoint_->string()) : Json()}});
}

void RunFolder::follow(RunConfig& config, const Json& first) {
  path_ = first.at("path").as_string();
  checkpoints_ = CheckpointFolder(path_ / "checkpoints");
  config_ = first.at("config");
  config.data.tokenizer = config_.at("data").at("tokenizer");
  if (const Json& checkpoint = first.at("checkpoint"); checkpoint.is_string()) {
    checkpoint_ = checkpoint.as_string();
    state_ = read_run_state(*checkpoint_);
  }
}

void RunFolder::open_first(RunConfig& config, const RunOptions& options, const Say& say) {
  const std::string found = first_entry(path_);
  if (options.resume == "never" && !found.empty()) {
    throw CheckpointError(path_.string(), "the run folder is not empty, and --resume is never", found,
                          "a new or empty folder");
  }
  is_new_ = found.empty();
  created_ = options.made_folder ? path_ : outermost_missing(path_);
  create_folder(path_);
  if (is_new_) { remove_at_signals(); }
  try {
    open(config, options, say);
  } catch (const std::exception& error) {
    // The log of a run that went before, unless another process has it.
    if (!discard() && lock_ && fs::exists(path_ / kLogFile)) {
      RunLog log({});
      log.open(path_ / kLogFile, 0);
      log.error(error.what());
    }
    throw;
  }
}

void RunFolder::remove_at_signals() {
  std::vector<fs::path> paths{path_ / "lock"};
  for (const char* name : kStartFiles) { paths.push_back(path_ / name); }
  if (!created_.empty()) {
    for (fs::path folder = path_; folder != created_; folder = folder.parent_path()) { paths.push_back(folder); }
    paths.push_back(created_);
  }
  until_started_ = std::make_unique<SignalCleanup>(paths);
}

bool RunFolder::discard() {
  until_started_.reset();
  if (!is_new_) { return false; }
  std::error_code ignored;  // the error that led here is the one to report
  for (const char* name : kStartFiles) { fs::remove(path_ / name, ignored); }
  for (const char* name : {"metrics.jsonl", "tb"}) { fs::remove_all(path_ / name, ignored); }
  lock_.reset();
  if (created_.empty()) { return true; }
  for (fs::path folder = path_; fs::remove(folder, ignored) && folder != created_;) {  // only while they are empty
    folder = folder.parent_path();
  }
  return true;
}

void RunFolder::open(RunConfig& config, const RunOptions& options, const Say& say) {
  lock_.emplace(path_, LockOptions{}, say);
  if (!lock_->taken_over().empty()) {
    notes_.push_back("took over the lock that " + lock_->taken_over() + " left behind");
  }
  for (const std::string& name : checkpoints_.remove_stale()) {
    notes_.push_back("removed checkpoints/" + name + ", left unfinished");
  }
  choose_checkpoint(options);
  if (checkpoint_ && config.train.steps < state_.step) {
    throw config.error("train.steps", std::to_string(config.train.steps),
                       fmt::format("at least {:d}, the steps of {} (--resume goes on from an earlier checkpoint)",
                                   state_.step, checkpoint_->string()));
  }
  keep_tokenizer(config, options);
  config_ = hebb::to_json(config);
  const fs::path stored = path_ / "config.json";
  if (checkpoint_) {
    compare_with(*checkpoint_ / "config.json", options);
    go_back_to_checkpoint();
  } else if (fs::exists(stored) && !fs::exists(path_ / kLogFile)) {
    throw CheckpointError(stored.string(), "the run would replace a file that no run wrote",
                          "config.json without train.log", "a new folder or one that a run made (--run-dir)");
  } else if (has_begun()) {
    if (!fs::exists(stored)) {
      throw CheckpointError(path_.string(), "no run folder", "metrics.jsonl without config.json",
                            "a new folder or one that a run made");
    }
    compare_with(stored, options);
  }
  std::ofstream(path_ / kLogFile, std::ios::app).flush();  // before config.json: where both are, a run was
  write_file_atomic(stored, config_.dump(1) + "\n");
}

void RunFolder::choose_checkpoint(const RunOptions& options) {
  if (options.resume == "auto") {
    choose_latest(checkpoints_, options.allow_older);
  } else if (options.resume != "never") {
    choose_given(options.resume, options);
  }
  if (checkpoint_) {
    notes_.push_back(fmt::format("resuming after step {:d} from {}", state_.step, checkpoint_->string()));
    if (!options.init_from.empty()) {
      notes_.push_back("--init-from " + options.init_from.string() + " is not read again: the run is resumed");
    }
  }
}

void RunFolder::choose_given(const fs::path& from, const RunOptions& options) {
  const fs::path found = find_checkpoint(from);
  if (found.empty()) {
    throw CheckpointError(from.string(), "cannot resume from here",
                          fs::exists(from) ? "no checkpoint in it" : "nothing", "a checkpoint or a run folder");
  }
  if (found == from) {
    state_ = verify_checkpoint(found);
    checkpoint_ = fs::canonical(found);
  } else {
    choose_latest(CheckpointFolder(found.parent_path()), options.allow_older);
  }
  const bool is_own = fs::exists(checkpoints_.path_of(0).parent_path()) &&
                      fs::equivalent(checkpoint_->parent_path(), checkpoints_.path_of(0).parent_path());
  if (!is_own && checkpoints_.latest()) {
    throw CheckpointError(path_.string(), "the run folder has checkpoints of its own",
                          CheckpointFolder::name_of(*checkpoints_.latest()),
                          "a new folder for a run that goes on from another one");
  }
}

void RunFolder::choose_latest(const CheckpointFolder& folder, bool allow_older) {
  const auto latest = folder.latest();
  if (!latest) { return; }
  std::vector<int64_t> candidates{*latest};
  const std::vector<int64_t> all = folder.steps();
  for (auto it = all.rbegin(); it != all.rend(); ++it) {
    if (*it < *latest) { candidates.push_back(*it); }
  }
  for (const int64_t step : candidates) {
    try {
      state_ = verify_checkpoint(folder.path_of(step));
      checkpoint_ = folder.path_of(step);
      return;
    } catch (const CheckpointError& error) {
      if (!allow_older) {
        throw CheckpointError(error.what(), candidates.size() > 1 ? "--allow-older goes on from " +
                                                                        CheckpointFolder::name_of(candidates[1])
                                                                  : "there is no older one");
      }
      notes_.push_back(error.what());
    }
  }
  throw CheckpointError(path_.string(), "no checkpoint is intact: " + notes_.back());
}

void RunFolder::compare_with(const fs::path& stored_config, const RunOptions& options) {
  Json stored;
  try {
    stored = parse_json_file(stored_config.string());
    drop_idle_keys(stored);
  } catch (const Error& error) { throw CheckpointError(stored_config.string(), error.what()); }
  const std::vector<ConfigDifference> differences = compare_configs(stored, config_);
  if (!differences.empty() && !options.allow_config_change) {
    throw ConfigError(stored_config.string(),
                      "the configuration is not that of the run: " + list(differences) +
                          " (--allow-config-change goes on with it; --run-dir with another folder starts a new run)");
  }
  if (!differences.empty()) { notes_.push_back("the configuration has changed: " + list(differences)); }
  note_lanes(stored);
  const Json* steps = stored.find_path("train.steps");
  const Json& now = config_.at("train").at("steps");
  if (steps != nullptr && !(*steps == now)) {
    notes_.push_back("train.steps was " + steps->dump() + " and is " + now.dump() +
                     ": the schedule of the learning rate changes from here on");
  }
}

void RunFolder::note_lanes(const Json& stored) {
  const int64_t before = stored.integer_at("train.lanes", 1), now = config_.integer_at("train.lanes", 1);
  if (before != now) {
    notes_.push_back(fmt::format(
        "train.lanes was {:d} and is {:d}: from here on results agree with those of the lanes before up to rounding",
        before, now));
  }
}

void RunFolder::keep_tokenizer(RunConfig& config, const RunOptions& options) const {
  Json* file = config.data.tokenizer.is_object() ? config.data.tokenizer.find("file") : nullptr;
  if (file == nullptr || !file->is_string() || file->as_string().empty()) { return; }
  const auto tokenizer = Fields::read<TokenizerConfig>(config.data.tokenizer, "data.tokenizer");
  const fs::path kept = path_ / tokenizer_copy_name(tokenizer), given = file->as_string();
  if (!fs::exists(kept) || !fs::equivalent(kept, given)) {
    const std::string bytes = read_file(given);
    const bool is_other = fs::exists(kept) && read_file(kept) != bytes;
    if (is_other && !options.allow_config_change && has_begun()) {
      throw config.error("data.tokenizer.file", given.string() + " with other contents than " + kept.string(),
                         "the tokenizer of the run (or --allow-config-change)");
    }
    write_file_atomic(kept, bytes);
  }
  *file = Json(kept.string());
}

bool RunFolder::has_begun() const {
  const fs::path metrics = path_ / "metrics.jsonl";
  return checkpoint_ || (fs::exists(metrics) && fs::file_size(metrics) > 0);
}

void RunFolder::go_back_to_checkpoint() {
  const auto latest = checkpoints_.latest();
  const bool is_own = latest && fs::equivalent(checkpoint_->parent_path(), checkpoints_.path_of(0).parent_path());
  if (!is_own || *latest == state_.step) { return; }
  checkpoints_.point_to(state_.step);
  for (const int64_t step : checkpoints_.steps()) {
    if (step > state_.step) {
      notes_.push_back("checkpoints/" + CheckpointFolder::name_of(step) +
                       " belongs to what the run leaves behind; the next save removes it");
    }
  }
}

}  // namespace hebb
