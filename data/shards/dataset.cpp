#include "data/shards/dataset.h"

#include <fmt/core.h>

#include <charconv>
#include <system_error>

#include "core/fields.h"
#include "core/machine_limits.h"
#include "core/path_list.h"
#include "data/shards/shard_format.h"

namespace hebb {
// Found by their argument types, so they cannot live in the unnamed namespace.
struct DatasetJson {
  int64_t format = 1;
  std::string tokenizer_hash;
  Dataset dataset;
};

static void fields(Fields& f, ShardEntry& entry) {
  int64_t crc = entry.crc32;
  f.field("file", entry.file).required().help("Shard, relative to the folder of dataset.json.");
  f.field("tokens", entry.tokens).required().min(0).max(static_cast<double>(kMaxShardTokens));
  f.field("documents", entry.documents).required().min(0).max(static_cast<double>(kMaxShardTokens));
  f.field("crc32", crc).required().min(0).max(4294967295.0).help("CRC-32 of the token bytes.");
  entry.crc32 = static_cast<uint32_t>(crc);
}

static void fields(Fields& f, DatasetJson& json) {
  f.field("format", json.format).required().min(1).max(1);
  f.field("dtype", json.dataset.dtype).required().one_of({"u16", "u32"});
  f.field("vocab_size", json.dataset.vocab_size).required().min(1);
  f.field("tokenizer", json.dataset.tokenizer);
  f.field("tokenizer_hash", json.tokenizer_hash).help("FNV-1a 64 of the model file, hexadecimal.");
  f.list("shards", json.dataset.shards).required();
  f.field("total_tokens", json.dataset.total_tokens).required().min(0);
  f.field("total_documents", json.dataset.total_documents).required().min(0);
}

namespace {

uint64_t parse_hash(const fs::path& file, const std::string& text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (!text.empty() && (error != std::errc() || end != text.data() + text.size())) {
    throw DataError(file.string() + ": tokenizer_hash", "hash of the tokenizer", text, "up to 16 hexadecimal digits");
  }
  return value;
}

void require_equal(const std::string& where, const char* what, const std::string& found, const std::string& expected) {
  if (found != expected) {
    throw DataError(where, std::string(what) + " of the shard differs from dataset.json", found, expected);
  }
}

/// Each file stays mapped, a shard and its index.
void require_maps(const std::string& path, size_t shards) {
  if (const std::string problem = maps_problem(2 * static_cast<int64_t>(shards)); !problem.empty()) {
    throw DataError(path, problem);
  }
}

}  // namespace

std::optional<fs::path> find_dataset(const fs::path& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) { return path / "dataset.json"; }
  if (path.filename() == "dataset.json") { return path; }
  return std::nullopt;
}

Dataset read_dataset(const fs::path& dataset_json) {
  std::error_code error;
  if (!fs::exists(dataset_json, error)) {
    throw DataError(dataset_json.parent_path().string(), "no data set in this folder", "no dataset.json",
                    "dataset.json, as hebb data encode writes it");
  }
  DatasetJson json;
  try {
    Fields::read(parse_json_file(dataset_json.string()), "", json);
  } catch (const ConfigError& config_error) {
    throw DataError("", config_error.what());  // the message names file, line and column already
  }
  Dataset& dataset = json.dataset;
  dataset.file = dataset_json;
  dataset.tokenizer_hash = parse_hash(dataset_json, json.tokenizer_hash);
  int64_t tokens = 0, documents = 0;
  for (const ShardEntry& entry : dataset.shards) {
    tokens += entry.tokens;
    documents += entry.documents;
  }
  if (tokens != dataset.total_tokens || documents != dataset.total_documents) {
    throw DataError(dataset_json.string(), "totals are not the sums over the shards",
                    fmt::format("{:d} tokens, {:d} documents", dataset.total_tokens, dataset.total_documents),
                    fmt::format("{:d} tokens, {:d} documents", tokens, documents));
  }
  return dataset;
}

std::optional<fs::path> dataset_of_source(const std::string& path) {
  const auto named = find_dataset(path);
  const fs::path description = named ? *named : expand_paths(path).front().parent_path() / "dataset.json";
  std::error_code error;
  return fs::exists(description, error) ? std::optional(description) : std::nullopt;
}

std::string held_out_path(const std::string& path, const std::string& where) {
  const auto dataset = find_dataset(path);
  if (!dataset) { return path; }
  const std::string names = "val_*.bin", pattern = (dataset->parent_path() / names).string();
  try {
    files_matching(dataset->parent_path(), names);
  } catch (const MissingFileError&) {
    throw DataError(where, "no validation shards in this data set: no file matches " + pattern +
                               "; write them with hebb data encode --val-tokens 0.05, or give a pattern of other "
                               "files");
  }
  return pattern;
}

namespace {

/// A file that is missing, and who names it.
template <class Open> auto named_by(const fs::path& file, Open&& open) {
  try {
    return open();
  } catch (const MissingFileError& error) {
    throw MissingFileError("", std::string(error.what()) + "; " + file.string() + " names it");
  }
}

}  // namespace

Shard open_dataset_shard(const Dataset& dataset, size_t i) {
  const ShardEntry& entry = dataset.shards[i];
  Shard shard = named_by(dataset.file, [&] { return Shard::open(dataset.shard_path(i), {}); });
  const std::string where = shard.name();
  require_equal(where, "format", shard.format() == Shard::Format::hebb ? "hebb" : "another", "hebb");
  require_equal(where, "dtype", token_type_name(shard.token_type()), dataset.dtype);
  require_equal(where, "number of tokens", std::to_string(shard.tokens()), std::to_string(entry.tokens));
  require_equal(where, "number of documents", std::to_string(shard.documents()), std::to_string(entry.documents));
  require_equal(where, "vocabulary size (byte 16)", std::to_string(*shard.vocab_size()),
                std::to_string(dataset.vocab_size));
  require_equal(where, "CRC-32 (byte 28)", fmt::format("{:08x}", *shard.stored_crc()),
                fmt::format("{:08x}", entry.crc32));
  require_equal(where, "tokenizer hash (byte 32)", fmt::format("{:016x}", shard.tokenizer_hash()),
                fmt::format("{:016x}", dataset.tokenizer_hash));
  return shard;
}

std::vector<Shard> open_shards(const std::string& path, const ShardOptions& options) {
  std::vector<Shard> shards;
  if (const auto dataset_json = find_dataset(path)) {
    if (options.format != "auto") {
      throw DataError(path, "a folder is read through its dataset.json", "format \"" + options.format + "\"",
                      "no format, or a file or pattern as path");
    }
    const Dataset dataset = read_dataset(*dataset_json);
    if (dataset.shards.empty()) {
      throw DataError(dataset_json->string(), "the data set is empty", "no shards", "at least one");
    }
    require_maps(dataset_json->string(), dataset.shards.size());
    for (size_t i = 0; i < dataset.shards.size(); ++i) { shards.push_back(open_dataset_shard(dataset, i)); }
    return shards;
  }
  const std::vector<fs::path> files = expand_paths(path);
  require_maps(path, files.size());
  for (const fs::path& file : files) { shards.push_back(Shard::open(file, options)); }
  return shards;
}

}  // namespace hebb
