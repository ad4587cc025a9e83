#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/host_exchange.h"
#include "core/folder_lock.h"
#include "core/signal_cleanup.h"
#include "train/checkpoint.h"
#include "train/run_config.h"

namespace hebb {

/// How a run starts (docs/verbs/train.md).
struct RunOptions {
  fs::path run_folder{};        // empty: runs/NAME in the current folder
  std::string resume = "auto";  // "auto", "never" or a checkpoint or run folder
  fs::path init_from{};         // weights for step 0; empty: initial values
  bool made_folder = false;     // the folder was not there before this start: ranks have met in it
  bool allow_data_change = false, allow_config_change = false, allow_older = false;
};

/// The folder of a run, absolute.
fs::path run_folder_of(const RunConfig& config, const RunOptions& options);

/// How the run that these options go on with cut its batches; nothing where there is none, or none that can be read.
std::optional<StoredSplit> stored_split(const RunConfig& config, const RunOptions& options);

/// An opened, locked run folder (docs/formats/checkpoint.md) and where the run in it goes on. The constructor
/// finds and verifies the checkpoint, compares configurations, and keeps the tokenizer and the
/// resolved configuration in the folder. Of several ranks the first does so, and the others hear of it.
/// Errors: CheckpointError (folder, lock, damaged checkpoint), ConfigError (configurations differ).
class RunFolder {
 public:
  using Say = std::function<void(const std::string&)>;

  /// `config` must be resolved; its tokenizer will name the copy in the folder. say: told what takes long.
  RunFolder(RunConfig& config, const RunOptions& options, HostExchange& ranks, const Say& say);

  const fs::path& path() const { return path_; }
  const CheckpointFolder& checkpoints() const { return checkpoints_; }
  const Json& config() const { return config_; }                             // resolved, as stored
  const std::optional<fs::path>& checkpoint() const { return checkpoint_; }  // to resume from
  bool is_own_checkpoint() const;                                            // it lies in this folder
  const RunState& state() const { return state_; }                           // of that checkpoint
  const std::vector<std::string>& notes() const { return notes_; }           // for the user

  /// What a checkpoint holds beside tensors and state, by name: the configuration, and the tokenizer where the run has
  /// a file with one.
  const std::map<std::string, std::string>& files() const { return files_; }
  /// train.log_every of the run that goes on here; 0: none does.
  int64_t log_every_before() const { return log_every_before_; }

  /// Of the first rank, before it saves: the folder is still that of this run. Writes again what somebody has removed
  /// or replaced, and says so for the user. Errors: FolderLock::require_own(), and where another process has trained
  /// here.
  std::vector<std::string> require_own();
  /// For a start that failed: removes what this object wrote where the folder was new or empty. Returns whether it was.
  bool discard();
  /// The run has started: until now a signal that ends the process removes what discard() would. Checkpoints that a
  /// kill has left are deleted.
  void keep(CheckpointFolder::Keep checkpoints);

 private:
  void open_first(RunConfig& config, const RunOptions& options, const Say& say);
  void open(RunConfig& config, const RunOptions& options);
  void remove_at_signals();
  void remove_leftovers();
  void write_config();
  Json to_json() const;
  void follow(RunConfig& config, const Json& first);
  void choose_checkpoint(const RunOptions& options);
  void choose_given(const fs::path& from, const RunOptions& options);
  void choose_latest(const CheckpointFolder& folder, bool allow_older);
  void compare_with(const fs::path& stored_config, const RunOptions& options);
  void note_lanes(const Json& stored);
  void keep_tokenizer(RunConfig& config, const RunOptions& options);
  void go_back_to_checkpoint();
  /// Whether a run has done a step here: what failed before may be started again with another configuration.
  bool has_begun() const;

  fs::path path_;
  CheckpointFolder checkpoints_;
  bool is_new_ = false;  // nothing was in the folder
  fs::path created_;     // the outermost folder that was not there; empty: all were
  std::optional<FolderLock> lock_;
  std::unique_ptr<SignalCleanup> until_started_;
  Json config_;
  std::map<std::string, std::string> files_;
  Descriptor config_file_;  // as this start has written it
  int64_t log_every_before_ = 0;
  std::optional<fs::path> checkpoint_;
  RunState state_;
  std::vector<std::string> notes_;
};

}  // namespace hebb
