#pragma once
#include <optional>
#include <string>
#include <vector>

#include "core/files.h"
#include "core/json.h"
#include "core/params.h"
#include "data/tokenizer/tokenizer.h"
#include "layers/model_config.h"

namespace hebb {

/// What a path on the command line names when a verb needs a model.
struct ModelSource {
  ModelConfig model;
  Json config;          // the whole file: a run configuration, the model object alone, or {model, data.tokenizer}
  bool is_run = false;  // `config` is a run configuration: it has the objects `model` and `train`
  fs::path weights;     // model.safetensors of a checkpoint; empty when the path names a configuration
};

/// Reads the model that `path` names: a checkpoint folder, a run folder (its latest checkpoint), a
/// safetensors file with its config.json beside it, or a file with a `model` object or a run
/// configuration, of which only `model` is checked ("extends" is resolved, `overrides` are applied as on the command
/// line). Errors: ConfigError (the configuration), CheckpointError (a folder that holds no checkpoint).
ModelSource read_model_source(const fs::path& path, const std::vector<std::string>& overrides = {});

/// Takes out of the stored configuration of a run what earlier versions wrote there though it said nothing, and what is
/// refused in a configuration since: decay_fraction beside decay_steps, null for layers that `at` leaves as they are,
/// train.deterministic and train.autotune.
void drop_idle_keys(Json& config);

/// The model in a file as ModelSource::config holds it. Errors: ConfigError.
ModelConfig read_model(const Json& config);

/// `max_position_embeddings` beside the model of a converted folder; 0 where there is none. Errors: ConfigError.
int64_t max_positions(const ModelSource& source);

/// The model configuration alone.
inline ModelConfig read_model_config(const fs::path& path) { return read_model_source(path).model; }

/// The checkpoint folder that `path` names: itself, the latest of a run folder, or the one in the file
/// RUN/checkpoints/latest; empty when `path` is none of these.
fs::path find_checkpoint(const fs::path& path);

/// Whether `path` names weights, and no configuration.
bool names_weights(const fs::path& path);

/// The file with weights that `path` names: a safetensors file or index, or that of a folder, a
/// checkpoint or the latest checkpoint of a run folder.
fs::path find_weights(const fs::path& path);

/// Whether the checkpoint of these weights was deleted and `path` names others: a run that goes on keeps few.
bool has_moved_on(const fs::path& path, const fs::path& weights);

/// Calls load() with the model that `path` names. Where its checkpoint is deleted meanwhile, again with the latest.
template <class Load> auto with_latest(const fs::path& path, Load&& load) {
  for (;;) {
    const fs::path weights = names_weights(path) ? find_weights(path) : path;
    try {
      return load(read_model_source(weights));
    } catch (const Error&) {
      if (!has_moved_on(path, weights)) { throw; }
    }
  }
}

/// The file with the tokenizer of the model: beside the weights, as in a checkpoint or a converted folder; else the one
/// that the run of a former checkpoint keeps; else the one that the configuration names. Empty: there is none.
fs::path find_tokenizer_file(const ModelSource& source);

/// The tokenizer of the model, where it has one: what its configuration names, with the file of find_tokenizer_file(),
/// empty where that is not there; else that of a file beside the weights.
std::optional<TokenizerConfig> tokenizer_of(const ModelSource& source);

/// Fills every tensor of `params` (allocated) from a file as found by find_weights(); floating types
/// convert, integer buffers need integers. Names and shapes must match exactly; the CheckpointError
/// lists the first differences. The weights of a checkpoint are compared with its state.json (verify_weights).
void load_weights(const fs::path& path, Stream& stream, ParamStore& params);

/// The same for a file that has been verified.
void read_weights(const fs::path& file, Stream& stream, ParamStore& params);

/// Errors: CheckpointError naming the first tensor that has a NaN or an infinity in a file as found by find_weights().
void require_finite(const fs::path& file, const ParamStore& params);

}  // namespace hebb
