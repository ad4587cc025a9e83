#include "train/run_folder.h"

#include <fmt/core.h>

#include <fcntl.h>

#include <algorithm>
#include <fstream>

#include "comm/rendezvous.h"
#include "core/append_file.h"
#include "core/join.h"
#include "core/retry.h"
#include "data/shards/dataset.h"
#include "data/tokenizer/tokenizer.h"
#include "train/autotune.h"
#include "train/model_source.h"
#include "train/run_log.h"

namespace hebb {
namespace {

constexpr const char* kLogFile = "train.log";
constexpr const char* kConfigFile = "config.json";
constexpr const char* kMetricsFile = "metrics.jsonl";
/// What a start writes.
constexpr const char* kStartFiles[] = {"tokenizer.model", "tokenizer.json", kConfigFile, kLogFile, kTunedFile};

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

/// The dataset.json of the first source where the run has its tokenizer from there; else an empty path.
fs::path dataset_that_names(const TokenizerConfig& tokenizer, const DataConfig& data) {
  const SourceConfig& first = data.sources.front();
  if (first.type != "shards") { return {}; }
  try {
    const std::optional<fs::path> file = dataset_of_source(first.path);
    if (!file) { return {}; }
    const Json named = read_dataset(*file).tokenizer;
    const bool is_named = named.is_object() && Fields::read<TokenizerConfig>(named, "tokenizer").file == tokenizer.file;
    return is_named ? *file : fs::path();
  } catch (const Error&) {
    return {};  // the data are not there either
  }
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

/// What is here is looked at, and deleted, by the holder of the lock alone.
void RunFolder::open_first(RunConfig& config, const RunOptions& options, const Say& say) {
  lock_.emplace(path_, LockOptions{}, say);
  created_ = options.made_folder ? path_ : lock_->created();
  const std::string found = first_entry(path_);
  if (options.resume == "never" && !found.empty()) {
    throw CheckpointError(path_.string(), "the run folder is not empty, and --resume is never", found,
                          "a new or empty folder");
  }
  is_new_ = found.empty();
  if (is_new_) { remove_at_signals(); }
  try {
    open(config, options);
  } catch (const std::exception& error) {
    // The log of a run that went before, unless another process has it.
    if (!discard() && lock_->is_own() && fs::exists(path_ / kLogFile)) {
      RunLog log({});
      log.open(path_ / kLogFile, 0);
      log.error(error.what());
    }
    throw;
  }
}

void RunFolder::remove_at_signals() {
  std::vector<fs::path> paths;
  for (const char* name : kStartFiles) { paths.push_back(path_ / name); }
  paths.push_back(path_ / "lock");
  if (!created_.empty()) {
    for (fs::path folder = path_; folder != created_; folder = folder.parent_path()) { paths.push_back(folder); }
    paths.push_back(created_);
  }
  until_started_ = lock_->remove_at_signals(paths);
}

bool RunFolder::discard() {
  until_started_.reset();
  if (!is_new_ || !lock_ || !lock_->is_own()) { return false; }
  std::error_code ignored;  // the error that led here is the one to report
  for (const char* name : kStartFiles) { fs::remove(path_ / name, ignored); }
  for (const char* name : {kMetricsFile, "tb"}) { fs::remove_all(path_ / name, ignored); }
  lock_.reset();
  if (created_.empty()) { return true; }
  for (fs::path folder = path_; fs::remove(folder, ignored) && folder != created_;) {  // only while they are empty
    folder = folder.parent_path();
  }
  return true;
}

void RunFolder::keep(CheckpointFolder::Keep checkpoints) {
  until_started_.reset();
  if (is_own_checkpoint() && checkpoints_.steps().back() == state_.step) {
    checkpoints_.remove_old(state_.step, checkpoints);
  }
}

/// Files that a killed process had begun to write.
void RunFolder::remove_leftovers() {
  std::vector<std::string> names(std::begin(kStartFiles), std::end(kStartFiles));
  names.emplace_back(kMetricsFile);
  std::vector<fs::path> left;
  for (const fs::directory_entry& entry : fs::directory_iterator(path_)) {
    const std::string file = entry.path().filename().string();
    const auto is_of = [&](const std::string& name) { return file.starts_with(name + ".tmp-"); };
    if (std::any_of(names.begin(), names.end(), is_of)) { left.push_back(entry.path()); }
  }
  for (const fs::path& path : left) {
    retried_or_throws([&] { return fs::remove(path); });
    notes_.push_back("removed " + path.filename().string() + ", left unfinished");
  }
  remove_left_rendezvous(path_);
  for (const std::string& name : checkpoints_.remove_stale()) {
    notes_.push_back("removed checkpoints/" + name + ", left unfinished");
  }
}

void RunFolder::write_config() {
  const fs::path path = path_ / kConfigFile;
  write_file_atomic(path, files_.at(kConfigFile));
  config_file_ = Descriptor(retried([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC); }));
}

std::vector<std::string> RunFolder::require_own() {
  std::vector<std::string> notes;
  const fs::path config = path_ / kConfigFile;
  const bool is_config_own = is_at(config, config_file_);
  if (lock_->require_own()) {
    if (!is_config_own && fs::exists(config)) {  // every start writes it
      throw CheckpointError(path_.string(),
                            "the lock of this process was removed, and another process has started here since; nothing "
                            "is saved (the same command goes on from the last checkpoint)");
    }
    notes.push_back((path_ / "lock").string() +
                    " was removed while the run goes on; it is taken anew (processes of this folder know each other by "
                    "it: leave it there)");
  }
  if (!is_config_own) {
    notes.push_back(set_aside(config) + "; the file is written again");
    write_config();
  }
  for (const auto& [name, bytes] : files_) {
    if (fs::exists(path_ / name)) { continue; }
    notes.push_back(set_aside(path_ / name) + "; the file is written again");
    write_file_atomic(path_ / name, bytes);
  }
  return notes;
}

bool RunFolder::is_own_checkpoint() const {
  std::error_code none;  // no such folder
  return checkpoint_ && fs::equivalent(checkpoint_->parent_path(), checkpoints_.path_of(0).parent_path(), none);
}

void RunFolder::open(RunConfig& config, const RunOptions& options) {
  if (!lock_->taken_over().empty()) {
    notes_.push_back("took over the lock that " + lock_->taken_over() + " left behind");
  }
  remove_leftovers();
  choose_checkpoint(options);
  if (checkpoint_ && config.train.steps < state_.step) {
    throw config.error("train.steps", std::to_string(config.train.steps),
                       fmt::format("at least {:d}, the steps of {} (--resume goes on from an earlier checkpoint)",
                                   state_.step, checkpoint_->string()));
  }
  keep_tokenizer(config, options);
  config_ = hebb::to_json(config);
  files_[kConfigFile] = config_.dump(1) + "\n";
  const fs::path stored = path_ / kConfigFile;
  if (checkpoint_) {
    compare_with(*checkpoint_ / kConfigFile, options);
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
  write_config();
}

void RunFolder::choose_checkpoint(const RunOptions& options) {
  if (options.resume == "auto") {
    choose_latest(checkpoints_, options.allow_older);
  } else if (options.resume != "never") {
    choose_given(options.resume, options);
  }
  if (checkpoint_ && !options.init_from.empty()) {
    notes_.push_back("--init-from " + options.init_from.string() + " is not read again: the run is resumed");
  }
}

void RunFolder::choose_given(const fs::path& from, const RunOptions& options) {
  if (const CheckpointFolder of_run(from / "checkpoints"); !of_run.steps().empty()) {
    choose_latest(of_run, options.allow_older);
  } else {
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
  }
  if (const std::vector<int64_t> own = checkpoints_.steps(); !is_own_checkpoint() && !own.empty()) {
    throw CheckpointError(path_.string(), "the run folder has checkpoints of its own",
                          CheckpointFolder::name_of(own.back()),
                          "a new folder for a run that goes on from another one");
  }
}

void RunFolder::choose_latest(const CheckpointFolder& folder, bool allow_older) {
  std::vector<int64_t> candidates = folder.steps();
  std::reverse(candidates.begin(), candidates.end());
  const auto refuse = [&](const CheckpointError& error) {
    if (!allow_older) {
      throw CheckpointError(error.what(), candidates.empty() ? "there is no older one"
                                                             : "--allow-older goes on from " +
                                                                   CheckpointFolder::name_of(candidates.front()));
    }
    notes_.push_back(error.what());
  };
  try {
    const auto latest = folder.latest();
    if (!latest) { return; }
    std::erase_if(candidates, [&](int64_t step) { return step >= *latest; });
    if (const fs::path named = folder.path_of(*latest); !fs::exists(named)) {
      throw CheckpointError((named.parent_path() / "latest").string(), "names a checkpoint that is not there",
                            named.filename().string(), "one of the folder");
    }
    candidates.insert(candidates.begin(), *latest);
  } catch (const CheckpointError& error) { refuse(error); }  // then the newest that is intact
  while (!candidates.empty()) {
    const int64_t step = candidates.front();
    candidates.erase(candidates.begin());
    try {
      state_ = verify_checkpoint(folder.path_of(step));
      checkpoint_ = folder.path_of(step);
      return;
    } catch (const CheckpointError& error) { refuse(error); }
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
  log_every_before_ = stored.integer_at("train.log_every", config_.integer_at("train.log_every", 1));
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

void RunFolder::keep_tokenizer(RunConfig& config, const RunOptions& options) {
  Json* file = config.data.tokenizer.is_object() ? config.data.tokenizer.find("file") : nullptr;
  if (file == nullptr || !file->is_string() || file->as_string().empty()) { return; }
  const auto tokenizer = Fields::read<TokenizerConfig>(config.data.tokenizer, "data.tokenizer");
  const std::string name = tokenizer_copy_name(tokenizer);
  const fs::path kept = path_ / name, given = file->as_string();
  if (!fs::exists(given)) {
    if (const fs::path dataset = dataset_that_names(tokenizer, config.data); !dataset.empty()) {
      throw MissingFileError(given.string(), "no such file; " + dataset.string() + " names it");
    }
  }
  std::string& bytes = files_[name] = read_file(given);
  const auto differs = [&](const fs::path& path) { return fs::exists(path) && read_file(path) != bytes; };
  if (!options.allow_config_change && has_begun()) {
    for (const fs::path& path : {kept, checkpoint_.value_or(path_) / name}) {
      if (!differs(path)) { continue; }
      throw config.error("data.tokenizer.file", given.string() + " with other contents than " + path.string(),
                         "the tokenizer of the run (or --allow-config-change)");
    }
  }
  if (!fs::exists(kept) || differs(kept)) { write_file_atomic(kept, bytes); }
  *file = Json(kept.string());
}

bool RunFolder::has_begun() const {
  const fs::path metrics = path_ / kMetricsFile;
  return checkpoint_ || (fs::exists(metrics) && fs::file_size(metrics) > 0);
}

void RunFolder::go_back_to_checkpoint() {
  if (!is_own_checkpoint()) { return; }
  try {
    if (checkpoints_.latest() == state_.step) { return; }
  } catch (const CheckpointError&) {}  // it names none, which --allow-older has passed over
  checkpoints_.point_to(state_.step);
  for (const int64_t step : checkpoints_.steps()) {
    if (step > state_.step) {
      notes_.push_back("checkpoints/" + CheckpointFolder::name_of(step) +
                       " belongs to what the run leaves behind; the next save removes it");
    }
  }
}

}  // namespace hebb
