#include "data/shards/shard_writer.h"

#include <fmt/core.h>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <system_error>

#include "core/hash.h"
#include "core/retry.h"
#include "core/signal_cleanup.h"
#include "data/shards/shard_format.h"

namespace hebb {
namespace {

constexpr const char* kTemporarySuffix = ".tmp";
constexpr const char* kDescription = "dataset.json";
constexpr const char* kModels[] = {"tokenizer.model", "tokenizer.json"};

std::string shard_stem(const std::string& prefix, size_t number) { return fmt::format("{}_{:06}", prefix, number); }

// train_000000.bin, val_000012.idx: the names that this writer owns in its folder.
bool is_shard_name(const std::string& name) {
  for (const char* prefix : {"train_", "val_"}) {
    const size_t digits = std::strlen(prefix);
    if (name.compare(0, digits, prefix) != 0) { continue; }
    const size_t dot = name.find_first_not_of("0123456789", digits);
    if (dot == std::string::npos || dot < digits + 6) { continue; }
    const std::string extension = name.substr(dot);
    return extension == ".bin" || extension == ".idx";
  }
  return false;
}

/// NAME.tmp-PID, and what write_file_atomic() makes of it.
bool is_temporary_name(const std::string& name) {
  const size_t at = name.find(kTemporarySuffix);
  if (at == std::string::npos || name.find_first_not_of(".tmp-0123456789", at) != std::string::npos) { return false; }
  const std::string final_name = name.substr(0, at);
  return is_shard_name(final_name) || final_name == kDescription ||
         std::find(std::begin(kModels), std::end(kModels), final_name) != std::end(kModels);
}

template <class Match> std::vector<fs::path> list_files(const fs::path& directory, Match match) {
  std::vector<fs::path> found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(directory, ignored)) {
    if (match(entry.path().filename().string())) { found.push_back(entry.path()); }
  }
  return found;
}

std::string own_suffix() { return fmt::format("{}-{:d}", kTemporarySuffix, ::getpid()); }

/// Those of names that end so.
void remove_temporaries(const fs::path& directory, const std::string& ending) {
  std::error_code ignored;
  for (const fs::path& path : list_files(directory, is_temporary_name)) {
    if (path.native().ends_with(ending)) { fs::remove(path, ignored); }
  }
}

[[noreturn]] void throw_system(const fs::path& path, const char* what, int error) {
  throw CheckpointError(path.string(), std::string(what) + ": " + std::strerror(error));
}

void rename_file(const fs::path& from, const fs::path& to) {
  if (retried([&] { return ::rename(from.c_str(), to.c_str()); }) != 0) {
    throw_system(to, "cannot rename the finished file to this name", errno);
  }
}

// Token count and CRC are known only when the last document has been written.
void patch_header(const fs::path& path, const std::array<int32_t, kShardHeaderInts>& header) {
  const Descriptor file(retried([&] { return ::open(path.c_str(), O_WRONLY | O_CLOEXEC); }));
  if (!file.is_open()) { throw_system(path, "cannot open for the header", errno); }
  write_all(file, path, {reinterpret_cast<const char*>(header.data()), sizeof header});  // from the first byte on
  if (retried([&] { return ::fsync(file.fd()); }) != 0) { throw_system(path, "cannot write the header", errno); }
}

}  // namespace

/// A shard that is being written: its .bin on disk, its index in memory.
class ShardWriter::OpenShard {
 public:
  /// temporaries: .bin and .idx of this shard, and those of shards that were closed, which a signal removes with them.
  OpenShard(const std::vector<fs::path>& temporaries, const ShardWriterOptions& options)
      : bin_(temporaries[0]), idx_(temporaries[1]), options_(options), cleanup_(temporaries), file_(bin_) {
    const std::array<int32_t, kShardHeaderInts> empty{};
    file_.write(empty.data(), sizeof empty);
  }

  int64_t tokens() const { return starts_.back(); }

  void add(std::span<const int32_t> tokens) {
    if (options_.vocab_size <= kMaxVocab16) {
      append<uint16_t>(tokens);
    } else {
      append<uint32_t>(tokens);
    }
    starts_.push_back(starts_.back() + static_cast<int64_t>(tokens.size()));
  }

  ShardEntry close() {
    file_.close();
    patch_header(bin_, header());
    write_index();
    return {"", tokens(), static_cast<int64_t>(starts_.size()) - 1, crc_};
  }

 private:
  template <class Token> void append(std::span<const int32_t> tokens) {
    std::array<Token, 4096> narrow;
    for (size_t begin = 0; begin < tokens.size(); begin += narrow.size()) {
      const size_t count = std::min(narrow.size(), tokens.size() - begin);
      std::transform(tokens.begin() + begin, tokens.begin() + begin + count, narrow.begin(),
                     [](int32_t token) { return static_cast<Token>(token); });
      crc_ = crc32(narrow.data(), count * sizeof(Token), crc_);
      file_.write(narrow.data(), count * sizeof(Token));
    }
  }

  std::array<int32_t, kShardHeaderInts> header() const {
    const bool narrow = options_.vocab_size <= kMaxVocab16;
    std::array<int32_t, kShardHeaderInts> fields{};
    fields[kFieldMagic] = narrow ? kShardMagic16 : kShardMagic32;
    fields[kFieldVersion] = narrow ? kShardVersion16 : kShardVersion32;
    fields[kFieldTokens] = static_cast<int32_t>(tokens());
    fields[kFieldExtended] = 1;
    fields[kFieldVocab] = static_cast<int32_t>(options_.vocab_size);
    fields[kFieldBos] = options_.bos;
    fields[kFieldEos] = options_.eos;
    fields[kFieldCrc] = static_cast<int32_t>(crc_);
    fields[kFieldHashLow] = static_cast<int32_t>(options_.tokenizer_hash & 0xFFFFFFFFU);
    fields[kFieldHashHigh] = static_cast<int32_t>(options_.tokenizer_hash >> 32);
    return fields;
  }

  void write_index() const {
    FileWriter out(idx_);
    uint32_t crc = 0;
    const auto put = [&](const void* bytes, size_t size) {
      crc = crc32(bytes, size, crc);
      out.write(bytes, size);
    };
    const uint64_t counts[2] = {starts_.size() - 1, static_cast<uint64_t>(tokens())};
    put(kIndexMagic.data(), kIndexMagic.size());
    put(counts, sizeof counts);
    put(starts_.data(), starts_.size() * sizeof(int64_t));
    out.write(&crc, sizeof crc);
    out.close();
  }

  fs::path bin_, idx_;
  const ShardWriterOptions& options_;
  SignalCleanup cleanup_;
  FileWriter file_;
  std::vector<int64_t> starts_{0};
  uint32_t crc_ = 0;
};

ShardWriter::ShardWriter(ShardWriterOptions options) : options_(std::move(options)) {
  HEBB_ASSERT(options_.vocab_size >= 1 && options_.vocab_size <= kMaxShardTokens);
  HEBB_ASSERT(options_.shard_tokens >= 1);
  train_.prefix = "train";
  validation_.prefix = "val";
  options_.shard_tokens = std::min(options_.shard_tokens, kMaxShardTokens);
  std::error_code error;
  retried(error, [&] { fs::create_directories(options_.directory, error); });
  if (error) { throw CheckpointError(options_.directory.string(), "cannot create the folder: " + error.message()); }
  if (!options_.overwrite) {
    const auto present = list_files(
        options_.directory, [](const std::string& name) { return name == "dataset.json" || is_shard_name(name); });
    if (!present.empty()) {
      const fs::path first = *std::min_element(present.begin(), present.end());
      throw ConfigError(options_.directory.string(), "a folder that holds " + first.filename().string(),
                        "a folder without a data set, or --overwrite");
    }
  }
  remove_temporaries(options_.directory, "");  // of a process that was killed
}

ShardWriter::~ShardWriter() {
  if (finished_) { return; }
  train_.open.reset();
  validation_.open.reset();
  remove_temporaries(options_.directory, own_suffix());
}

fs::path ShardWriter::temporary(const std::string& name) const { return options_.directory / (name + own_suffix()); }

void ShardWriter::add_document(std::span<const int32_t> tokens, DatasetSplit split) {
  HEBB_ASSERT(!finished_ && !tokens.empty());
  const std::string where = options_.directory.string();
  if (static_cast<uint64_t>(tokens.size()) > static_cast<uint64_t>(kMaxShardTokens)) {
    throw DataError(where, "document is too long for a shard", fmt::format("{:d} tokens", tokens.size()),
                    fmt::format("at most {:d}", kMaxShardTokens));
  }
  for (const int32_t token : tokens) {
    if (token < 0 || token >= options_.vocab_size) {
      throw DataError(where, "token id outside the vocabulary", std::to_string(token),
                      fmt::format("0 <= id < {:d}", options_.vocab_size));
    }
  }
  Stream& stream = split == DatasetSplit::train ? train_ : validation_;
  const auto count = static_cast<int64_t>(tokens.size());
  if (stream.open && stream.open->tokens() + count > options_.shard_tokens) { close_shard(stream); }
  if (!stream.open) {
    const std::string stem = shard_stem(stream.prefix, stream.closed.size());
    std::vector<fs::path> temporaries{temporary(stem + ".bin"), temporary(stem + ".idx")};
    for (const Stream* either : {&train_, &validation_}) {
      for (const ShardEntry& entry : either->closed) {
        temporaries.push_back(temporary(entry.file));
        temporaries.push_back(temporary(fs::path(entry.file).replace_extension(".idx").string()));
      }
    }
    stream.open = std::make_unique<OpenShard>(temporaries, options_);
  }
  stream.open->add(tokens);
}

void ShardWriter::close_shard(Stream& stream) {
  ShardEntry entry = stream.open->close();
  entry.file = shard_stem(stream.prefix, stream.closed.size()) + ".bin";
  stream.open.reset();
  stream.closed.push_back(std::move(entry));
}

Json ShardWriter::description(const Summary& summary) const {
  Json shards = Json::array();
  for (const ShardEntry& entry : train_.closed) {
    shards.push(Json::object({{"file", Json(entry.file)},
                              {"tokens", Json(entry.tokens)},
                              {"documents", Json(entry.documents)},
                              {"crc32", Json(static_cast<int64_t>(entry.crc32))}}));
  }
  return Json::object({{"format", Json(1)},
                       {"dtype", Json(options_.vocab_size <= kMaxVocab16 ? "u16" : "u32")},
                       {"vocab_size", Json(options_.vocab_size)},
                       {"tokenizer", options_.tokenizer},
                       {"tokenizer_hash", Json(fmt::format("{:016x}", options_.tokenizer_hash))},
                       {"shards", std::move(shards)},
                       {"total_tokens", Json(summary.train_tokens)},
                       {"total_documents", Json(summary.train_documents)}});
}

// Removals and renames alone, which need no space. dataset.json goes first and comes last: the folder is no data set in
// between.
void ShardWriter::publish() {
  const fs::path description = options_.directory / kDescription;
  std::error_code error;
  retried(error, [&] { fs::remove(description, error); });
  if (error) { throw CheckpointError(description.string(), "cannot replace: " + error.message()); }
  for (const fs::path& old : list_files(options_.directory, is_shard_name)) {
    retried(error, [&] { fs::remove(old, error); });
  }
  const auto rename_temporary = [&](const std::string& name) {
    rename_file(temporary(name), options_.directory / name);
  };
  for (const Stream* stream : {&train_, &validation_}) {
    for (const ShardEntry& entry : stream->closed) {
      rename_temporary(fs::path(entry.file).replace_extension(".idx").string());
      rename_temporary(entry.file);
    }
  }
  if (!options_.model_bytes.empty()) { rename_temporary(options_.model_file); }
  fsync_directory(options_.directory);
  rename_temporary(kDescription);
  fsync_directory(options_.directory);
}

ShardWriter::Summary ShardWriter::finish() {
  HEBB_ASSERT(!finished_);
  for (Stream* stream : {&train_, &validation_}) {
    if (stream->open) { close_shard(*stream); }
  }
  Summary summary;
  for (const ShardEntry& entry : train_.closed) {
    summary.train_tokens += entry.tokens;
    summary.train_documents += entry.documents;
  }
  for (const ShardEntry& entry : validation_.closed) {
    summary.validation_tokens += entry.tokens;
    summary.validation_documents += entry.documents;
  }
  write_file_atomic(temporary(kDescription), description(summary).dump(2) + "\n");
  if (!options_.model_bytes.empty()) { write_file_atomic(temporary(options_.model_file), options_.model_bytes); }
  publish();
  summary.train = std::move(train_.closed);
  summary.validation = std::move(validation_.closed);
  finished_ = true;
  return summary;
}

}  // namespace hebb
