// Reading and resolving run configurations.
#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <sstream>

#include "comm/lanes.h"
#include "core/join.h"
#include "core/key_error.h"
#include "core/read_all.h"
#include "data/shards/dataset.h"
#include "data/tokenizer/tokenizer.h"
#include "layers/model.h"
#include "train/choose_device.h"
#include "train/run_config.h"

namespace hebb {
namespace {

/// The tokenizer that the data configuration names, with an absolute path; null when the data has none.
Json resolve_tokenizer(const DataConfig& data) {
  if (!data.tokenizer.is_null()) {
    const auto tokenizer = Fields::read<TokenizerConfig>(data.tokenizer, "data.tokenizer");
    return Fields::write(tokenizer);
  }
  const SourceConfig& first = data.sources.front();
  std::optional<fs::path> file;
  try {
    file = first.type == "shards" ? dataset_of_source(first.path) : std::nullopt;
  } catch (const DataError&) {
    // A configuration can be resolved without its data; opening the data reports what is missing.
  }
  if (!file) { return {}; }
  const Dataset dataset = read_dataset(*file);
  if (dataset.tokenizer.is_null()) { return {}; }
  const auto tokenizer = Fields::read<TokenizerConfig>(dataset.tokenizer, "tokenizer");
  return Fields::write(tokenizer);
}

/// Refuses a tokenizer with which eval and generate could not use the trained model.
void check_tokenizer(const RunConfig& config) {
  const Json& json = config.data.tokenizer;
  TokenizerConfig tokenizer;
  if (json.is_null()) { return; }
  Fields::read(json, "data.tokenizer", tokenizer);
  if (tokenizer.file.empty() || fs::exists(tokenizer.file)) {  // a missing file is reported where it is copied
    require_ids(*Tokenizer::load(tokenizer), config.model.vocab_size, config.place("model.vocab_size"));
  }
}

/// "; elsewhere: optimizer.lr" for the key lr in the wrong section, or nothing.
std::string right_places(const std::string& key) {
  std::string text;
  int places = 0;
  for (const Fields::Description& d : Fields::describe<RunConfig>()) {
    const bool is_place = d.path.ends_with("." + key) && d.path.find("NAME") == std::string::npos;
    text += is_place ? (places++ == 0 ? "" : ", ") + d.path : "";
  }
  return places == 0 ? "" : "; elsewhere: " + text;
}

}  // namespace

bool is_sweep(const Json& source) {
  const auto has = [&](const char* key) { return source.is_object() && source.find(key) != nullptr; };
  return has("runs") || has("axes") || has("grid");
}

void require_no_sweep(const Json& source, const std::string& path) {
  if (is_sweep(source)) {
    throw ConfigError(path, "a sweep (it has \"runs\", \"axes\" or \"grid\")",
                      "the configuration of one run; hebb ladder trains the runs of a sweep, hebb plan plans them");
  }
}

std::string micro_batches_that_divide(int64_t batch_size, int64_t lanes) {
  if (batch_size % lanes != 0) {
    return fmt::format("a batch of {:d} rows can be divided into {:d} lanes",
                       std::max<int64_t>(1, batch_size / lanes) * lanes, lanes);
  }
  constexpr size_t kShown = 8;
  std::vector<std::string> sizes;
  for (int64_t rows = batch_size / lanes; rows >= 1 && sizes.size() < kShown; --rows) {
    if (batch_size / lanes % rows == 0) { sizes.push_back(std::to_string(rows)); }
  }
  return fmt::format("with {:d} {} micro-batches of {} {} do", lanes, lanes == 1 ? "lane" : "lanes", join(sizes, ", "),
                     sizes.size() == 1 && sizes[0] == "1" ? "row" : "rows");
}

RunConfig read_run_config(const std::string& path, const std::vector<std::string>& overrides,
                          EvaluationReader* evaluations) {
  Json source = load_config(path);
  for (const std::string& assignment : overrides) { apply_override(source, assignment); }
  require_no_sweep(source, path);
  return run_config_of(std::move(source), evaluations);
}

namespace {

/// Reads by `read`. A key that belongs elsewhere is told so.
void read_keys(const Json& source, const std::function<void(const Json&)>& read) {
  read_all(source, [&](const Json& json) {
    try {
      read(json);
    } catch (const KeyError& error) {
      if (error.rest != KeyError::Rest::all) { throw; }
      const std::string key = error.path.substr(error.path.rfind('.') + 1);
      throw KeyError(error.where, "an unknown key", error.expected + right_places(key), error.path, error.rest);
    }
  });
}

void add_lines(const ConfigError& error, std::vector<std::string>& lines) {
  std::istringstream text(error.what());
  for (std::string line; std::getline(text, line);) {
    if (std::find(lines.begin(), lines.end(), line) == lines.end()) { lines.push_back(line); }
  }
}

/// Adds what is wrong with one section by itself.
template <class T> void add_errors(const Json& source, const std::string& name, std::vector<std::string>& lines) {
  try {
    read_keys(source, [&](const Json& json) {
      Json absent = Json::object();
      absent.set_origin(json.origin());
      const Json* section = json.find(name);
      const auto value = Fields::read<T>(section != nullptr ? *section : absent, name);
    });
  } catch (const ConfigError& error) { add_lines(error, lines); }
}

/// The sections of a run configuration, whatever stands in them.
struct Sections {};
void fields(Fields& f, Sections&) {
  Json any;
  for (const char* key : {"name", "model", "data", "train", "optimizer", "schedule", "eval"}) { f.field(key, any); }
}

/// Adds the sections that do not exist.
void add_unknown(const Json& source, std::vector<std::string>& lines) {
  try {
    read_keys(source, [](const Json& json) { Fields::read<Sections>(json, ""); });
  } catch (const ConfigError& error) { add_lines(error, lines); }
}

/// Where the value at a dotted path was written; empty when it was not.
std::string origin_of(const Json& source, const std::string& path) {
  const Json* at = source.find_path(path);
  return at != nullptr ? at->origin().str() : "";
}

}  // namespace

RunConfig run_config_of(Json source, EvaluationReader* evaluations) {
  RunConfig config;
  try {
    read_keys(source, [&](const Json& json) {
      config = {};
      Fields::read(json, "", config);
      if (evaluations != nullptr && !config.eval.is_null()) { config.eval = evaluations(config.eval, "eval."); }
    });
  } catch (const ConfigError& error) {
    if (!source.is_object()) { throw; }
    // An error that ends the reading of a section hides those of the sections behind it.
    std::vector<std::string> lines;
    add_lines(error, lines);
    const size_t known = lines.size();
    add_unknown(source, lines);
    add_errors<ModelConfig>(source, "model", lines);
    add_errors<DataConfig>(source, "data", lines);
    add_errors<TrainConfig>(source, "train", lines);
    add_errors<OptimizerConfig>(source, "optimizer", lines);
    add_errors<ScheduleConfig>(source, "schedule", lines);
    if (lines.size() == known) { throw; }
    throw ConfigErrors(join(lines, "\n"));
  }
  config.source = std::move(source);
  config.data.origin_of = [source = std::make_shared<const Json>(config.source)](const std::string& path) {
    return origin_of(*source, path);
  };
  return config;
}

std::string RunConfig::where(const std::string& path) const { return origin_of(source, path); }

std::string RunConfig::place(const std::string& path) const { return located(where(path), path); }

ConfigError RunConfig::error(const std::string& path, std::string_view found, std::string_view expected) const {
  return ConfigError(place(path), found, expected);
}

DeviceKind device_of(const RunConfig& config, bool runs) {
  const std::string origin = config.where(config.train.device == "cuda" ? "train.device" : "train.precision");
  return choose_compute(config.train.device, config.train.precision.value_or(""), located(origin, "train"), runs)
      .device;
}

namespace {

bool allows(int64_t lanes, int ranks) {
  const std::vector<int> sizes = allowed_sizes(static_cast<int>(lanes));
  return std::find(sizes.begin(), sizes.end(), ranks) != sizes.end();
}

/// The lanes, and how many rows each has in a micro-batch (docs/distributed.md, Lanes).
void resolve_split(RunConfig& config, int ranks, std::optional<StoredSplit> stored) {
  TrainConfig& train = config.train;
  const bool reads_all_rows = !Model(config.model).needs_all_rows().empty();
  if (reads_all_rows && stored && stored->lanes != ranks) {
    // One lane a rank. The rows that share an update stay.
    const int64_t rows = stored->lanes * stored->micro_batch_size.value_or(0);
    stored = StoredSplit{ranks, rows % ranks == 0 ? rows / ranks : 0};
  }
  const bool keeps_lanes = stored && allows(stored->lanes, ranks);
  const int64_t lanes = train.lanes.value_or(keeps_lanes ? stored->lanes : ranks);
  check_lanes(static_cast<int>(lanes), ranks, config.place("train.lanes"));
  if (lanes > 1) { train.lanes = lanes; }
  const std::string parts = fmt::format("{:d} {}", lanes, lanes == 1 ? "lane" : "lanes");
  if (!train.micro_batch_size) {
    if (train.batch_size % lanes != 0) {
      throw config.error("train.batch_size", fmt::format("{:d} rows", train.batch_size), "a multiple of the " + parts);
    }
    const int64_t before = stored ? stored->micro_batch_size.value_or(0) : 0;
    const bool fits = before > 0 && train.batch_size % (lanes * before) == 0;
    train.micro_batch_size = fits ? before : train.batch_size / lanes;
  }
  const int64_t group = *train.micro_batch_size * lanes;
  if (train.batch_size % group != 0) {
    throw config.error("train.micro_batch_size", fmt::format("{:d} rows in {}", *train.micro_batch_size, parts),
                       fmt::format("lanes x micro_batch_size to divide train.batch_size = {:d}; {}", train.batch_size,
                                   micro_batches_that_divide(train.batch_size, lanes)));
  }
  const int64_t fast_batch = reads_all_rows ? group : *train.micro_batch_size;
  if (train.fast_batch && *train.fast_batch != fast_batch) {
    const int64_t needed =
        *train.fast_batch % *train.micro_batch_size == 0 ? *train.fast_batch / *train.micro_batch_size : 0;
    throw config.error(
        "train.fast_batch", std::to_string(*train.fast_batch),
        fmt::format(
            "{:d}, the rows of a micro-batch{}{}", fast_batch, reads_all_rows && ranks > 1 ? " of all ranks" : "",
            reads_all_rows && needed > 1 ? fmt::format("; {:d} ranks have {:d}", needed, *train.fast_batch) : ""));
  }
}

}  // namespace

void resolve(RunConfig& config, int ranks, bool runs, const std::optional<StoredSplit>& stored) {
  TrainConfig& train = config.train;
  const DeviceKind device = device_of(config, runs);
  train.precision = train.precision.value_or(device == DeviceKind::cuda ? "bf16" : "fp32");
  HEBB_ASSERT(ranks >= 1);
  resolve_split(config, ranks, stored);
  train.zero = train.zero.value_or(ranks > 1 ? 1 : 0);
  if (train.comm && train.comm->reduce == "bf16" && train.precision == "fp64") {
    throw config.error("train.comm.reduce", "\"bf16\"", "\"fp32\" with train.precision \"fp64\"");
  }
  config.data.tokenizer = resolve_tokenizer(config.data);
  check_tokenizer(config);
}

Json to_json(const RunConfig& config) { return Fields::write(config); }

}  // namespace hebb
