#pragma once
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/files.h"
#include "core/json.h"
#include "core/params.h"
#include "train/gradient_exchange.h"
#include "train/lane_memories.h"

namespace hebb {

/// What a run must know to go on, beside its tensors: state.json of a checkpoint (docs/formats/checkpoint.md).
struct RunState {
  int64_t step = 0;  // completed steps
  int64_t tokens = 0;
  int64_t skipped = 0, consecutive_skips = 0;
  std::vector<double> spike_window;
  Json loader;
  uint64_t seed = 0;
  std::string config_hash;
};

/// What a run with lanes has beside the store; null where it has not.
struct SharedState {
  GradientExchange* exchange = nullptr;
  LaneMemories* memories = nullptr;
};

/// The folder RUN/checkpoints: checkpoints step_00001000/, the file `latest`, and what a crash left.
class CheckpointFolder {
 public:
  explicit CheckpointFolder(fs::path folder) : folder_(std::move(folder)) {}

  static std::string name_of(int64_t step);  // "step_00001000"
  /// Checkpoints by step, ascending.
  std::vector<int64_t> steps() const;
  fs::path path_of(int64_t step) const { return folder_ / name_of(step); }
  /// The step that `latest` names; without that file the newest one; nothing without checkpoints.
  /// Errors: CheckpointError for a `latest` that names no checkpoint name.
  std::optional<int64_t> latest() const;

  /// Removes unfinished checkpoints of killed processes and returns their names.
  std::vector<std::string> remove_stale() const;

  struct Keep {
    int64_t newest = 2, every = 0;
  };
  /// Writes a checkpoint (all or nothing), points `latest` to it, then deletes those that `keep` does
  /// not cover and those of later steps, which a run that went back has left behind. Returns its path.
  /// Errors: CheckpointError (disk full, read-only folder); the checkpoints before stay as they were.
  /// Of several ranks the first saves, and the others call send_shared() meanwhile.
  /// before_rename: called when all is written; an error of it ends the save.
  /// files: what the checkpoint holds beside tensors and state, by name.
  fs::path save(const RunState& state, const std::map<std::string, std::string>& files, Stream& stream,
                const ParamStore& params, Keep keep, const SharedState& shared = {},
                const std::function<void()>& before_rename = {}) const;
  /// Deletes the checkpoints before `newest_step` that `keep` does not cover, and those after it.
  void remove_old(int64_t newest_step, Keep keep) const;
  /// Makes `latest` name this checkpoint.
  void point_to(int64_t step) const;

 private:
  void write_files(const fs::path& folder, const RunState& state, const std::map<std::string, std::string>& files,
                   Stream& stream, const ParamStore& params, const SharedState& shared) const;

  fs::path folder_;
};

/// What ranks do that do not save, while rank 0 does.
void send_shared(Stream& stream, const SharedState& shared);

/// Reads state.json, whose own CRC-32 must be right and whose step must be that of the folder's name, and compares
/// configuration and tokenizer with it. Of a former checkpoint, which names neither, the hash of the configuration.
/// Errors: CheckpointError naming every file that differs, with what was found and expected.
RunState read_run_state(const fs::path& checkpoint);

/// The same, and sizes and CRC-32 of all other files that state.json names.
RunState verify_checkpoint(const fs::path& checkpoint);

/// What read_run_state() compares, where a state.json lies beside this file with weights; without one there is nothing
/// to compare.
void verify_beside(const fs::path& weights);

/// The same, and size and CRC-32 of the file itself.
void verify_weights(const fs::path& weights);

/// Loads model and optimizer tensors of a checkpoint that verify_checkpoint() has read into `params` (allocated for
/// training). Returns the number of memories of lanes that it has. Errors: CheckpointError listing differences in
/// names and shapes.
int load_checkpoint(const fs::path& checkpoint, Stream& stream, ParamStore& params, const SharedState& shared = {});

}  // namespace hebb
