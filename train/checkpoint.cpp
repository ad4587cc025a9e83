#include "train/checkpoint.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <map>

#include "core/fields.h"
#include "core/folders.h"
#include "core/hash.h"
#include "core/retry.h"
#include "core/safetensors.h"
#include "core/sign_of_life.h"
#include "train/model_source.h"
#include "train/run_config.h"
#include "train/tensor_match.h"

namespace hebb {
namespace {

constexpr int64_t kFormat = 1;
constexpr const char* kModelFile = "model.safetensors";
constexpr const char* kOptimizerFile = "optimizer.safetensors";
constexpr const char* kStateFile = "state.json";
constexpr const char* kConfigFile = "config.json";
constexpr const char* kPrefix = "step_";
constexpr const char* kTemporaryPrefix = ".tmp-";

struct FileRecord {
  int64_t size = 0, crc32 = 0;
};

void fields(Fields& f, FileRecord& r) {
  f.field("size", r.size).required().min(0);
  f.field("crc32", r.crc32).required().min(0).max(4294967295.0);
}

FileRecord record_of(const std::string& bytes) {
  return {static_cast<int64_t>(bytes.size()), static_cast<int64_t>(crc32(bytes.data(), bytes.size()))};
}

/// The text of state.json with its own checksum: that of all before the comma in front of the last member, "crc32".
std::string sealed(const Json& state) {
  std::string text = state.dump(1);
  HEBB_ASSERT(text.ends_with("\n}"));
  text.resize(text.size() - 2);
  return fmt::format("{},\n \"crc32\": {:d}\n}}\n", text, crc32(text.data(), text.size()));
}

/// How such a text differs from its checksum; empty where it does not, or where there is none.
std::string seal_difference(const std::string& text, const Json& state) {
  const Json* stored = state.is_object() ? state.find("crc32") : nullptr;
  if (stored == nullptr) { return ""; }
  const size_t comma = text.rfind(',', text.rfind("\"crc32\""));
  const uint32_t found = crc32(text.data(), comma == std::string::npos ? 0 : comma);
  return *stored == Json(static_cast<int64_t>(found))
             ? ""
             : fmt::format("state.json: found CRC-32 {:d}, expected {}", found, stored->dump());
}

/// state.json.
struct StateFile {
  int64_t format = kFormat;
  RunState run;
  std::map<std::string, FileRecord> files;
};

void fields(Fields& f, StateFile& s) {
  f.field("format", s.format).required().min(kFormat).max(kFormat);
  f.field("step", s.run.step).required().min(0);
  f.field("tokens", s.run.tokens).required().min(0);
  f.field("skipped", s.run.skipped).required().min(0);
  f.field("consecutive_skips", s.run.consecutive_skips).required().min(0);
  f.field("spike_window", s.run.spike_window).required();
  f.field("loader", s.run.loader).required();
  f.field("seed", s.run.seed).required();
  f.field("config_hash", s.run.config_hash).required();
  std::vector<std::string> names;
  for (const auto& [name, record] : s.files) { names.push_back(name); }
  f.map("files", names, [&](const std::string& name, Fields& sub) { fields(sub, s.files[name]); }).required();
}

bool has_moments(const Param& p) { return p.trained() || p.spec.kind == ParamKind::state; }

/// Tensors of a device and of the host that become a file.
class TensorList {
 public:
  explicit TensorList(Stream& stream) : stream_(stream) {}
  /// On the stream's device until write().
  void add(std::string name, const Tensor& tensor) { tensors_.push_back({std::move(name), tensor, true}); }
  /// Of memory that changes before write().
  void add_copy(std::string name, Tensor tensor) {
    std::vector<char>& copy = copies_.emplace_back(static_cast<size_t>(tensor.bytes()));
    copy_to_host(stream_, copy.data(), tensor);
    tensor.data = copy.data();
    add_host(std::move(name), tensor);
  }
  void add_host(std::string name, const Tensor& tensor) { tensors_.push_back({std::move(name), tensor}); }
  FileRecord write(const fs::path& path, DeviceReader& reader) const {
    const uint32_t crc = write_safetensors(path, tensors_, {}, &reader);
    return {static_cast<int64_t>(fs::file_size(path)), static_cast<int64_t>(crc)};
  }

 private:
  Stream& stream_;
  std::vector<NamedTensor> tensors_;
  std::vector<std::vector<char>> copies_;
};

FileRecord write_model(const fs::path& path, Stream& stream, DeviceReader& reader, const ParamStore& params) {
  TensorList tensors(stream);
  for (const auto& p : params.all()) { tensors.add(p->name(), p->value); }
  return tensors.write(path, reader);
}

constexpr std::pair<Kept, const char*> kMoments[] = {{Kept::first_moment, ".m"}, {Kept::second_moment, ".v"}};

/// What a checkpoint holds of a parameter with moments.
Tensor moment_of(const Param& p, const GradientExchange* exchange, Kept moment) {
  if (exchange != nullptr && p.trained()) { return exchange->whole(p, moment); }
  return moment == Kept::first_moment ? p.m : p.v;
}

FileRecord write_optimizer(const fs::path& path, Stream& stream, DeviceReader& reader, const ParamStore& params,
                           GradientExchange* exchange) {
  TensorList tensors(stream);
  for (const auto& [moment, suffix] : kMoments) {
    if (exchange != nullptr) { exchange->collect(stream, moment); }
    for (const auto& p : params.all()) {
      if (!has_moments(*p)) { continue; }
      const Tensor whole = moment_of(*p, exchange, moment);
      if (moment == Kept::first_moment && whole.data != p->m.data) {
        tensors.add_copy(p->name() + suffix, whole);  // the second moments take its place
      } else {
        tensors.add(p->name() + suffix, whole);
      }
    }
  }
  for (const auto& p : params.all()) {
    if (has_moments(*p)) { tensors.add_host(p->name() + ".t", {&p->updates, DType::i64, {1}}); }
  }
  return tensors.write(path, reader);
}

std::string memory_file(int lane) { return fmt::format("fast.lane{:d}.safetensors", lane); }

FileRecord write_memory(const fs::path& path, Stream& stream, DeviceReader& reader, LaneMemories& memories, int lane) {
  TensorList tensors(stream);
  memories.visit(stream, lane, [&](const Param& p, const Tensor& values) { tensors.add_copy(p.name(), values); });
  return tensors.write(path, reader);
}

/// Memories of lanes in a checkpoint.
int count_memories(const fs::path& checkpoint) {
  int count = 0;
  while (fs::exists(checkpoint / memory_file(count))) { ++count; }
  return count;
}

/// Lane l takes memory l mod count; without any all lanes take that of the store.
void load_memories(const fs::path& checkpoint, int count, Stream& stream, LaneMemories& memories) {
  memories.start(stream);
  for (int lane = 0; count > 0 && lane < memories.own_lanes(); ++lane) {
    const WeightSource file(checkpoint / memory_file((memories.first_lane() + lane) % count));
    std::vector<ExpectedTensor> expected;
    for (const LaneMemories::Memory& m : memories.of(lane)) {
      expected.push_back({m.param->name(), m.param->spec.shape});
    }
    require_tensors(file, expected);
    for (const LaneMemories::Memory& m : memories.of(lane)) { load_tensor(file, m.param->name(), stream, m.values); }
  }
}

/// Reads in pieces: a memory map would count as memory of the process.
uint32_t crc_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<char> piece(size_t{1} << 20);
  uint32_t crc = 0;
  while (file) {
    file.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    crc = crc32(piece.data(), static_cast<size_t>(file.gcount()), crc);
    sign_of_life();
  }
  if (!file.eof()) { throw CheckpointError(path.string(), "cannot read"); }
  return crc;
}

/// How the file differs from its record; empty if it does not.
std::string file_difference(const fs::path& path, const FileRecord& record) {
  if (!fs::exists(path)) { return path.filename().string() + " is missing"; }
  if (!fs::is_regular_file(path)) { return path.filename().string() + " is no file"; }
  const auto size = static_cast<int64_t>(fs::file_size(path));
  if (size != record.size) {
    return fmt::format("{}: found {:d} bytes, expected {:d}", path.filename().string(), size, record.size);
  }
  const int64_t crc = crc_of(path);
  if (crc != record.crc32) {
    return fmt::format("{}: found CRC-32 {:d}, expected {:d}", path.filename().string(), crc, record.crc32);
  }
  return "";
}

void write_text(const fs::path& path, const std::string& text) {
  FileWriter writer(path);
  writer.write(text.data(), text.size());
  writer.close();
}

void remove_folder(const fs::path& path) {
  std::error_code error;
  retried(error, [&] { fs::remove_all(path, error); });
  if (error) { throw CheckpointError(path.string(), "cannot delete: " + error.message()); }
}

void rename_folder(const fs::path& from, const fs::path& to) {
  std::error_code error;
  retried(error, [&] { fs::rename(from, to, error); });
  if (error) {
    throw CheckpointError(to.string(), "cannot rename " + from.filename().string() + " to it: " + error.message());
  }
}

/// Of a name as name_of() gives it: what users put beside, as step_1 or step_00000001.bak, is theirs.
std::optional<int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kPrefix)) { return std::nullopt; }
  int64_t step = 0;
  const char *begin = name.data() + std::string_view(kPrefix).size(), *end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(begin, end, step);
  const bool is_number = error == std::errc() && stop == end && step >= 0;
  return is_number && CheckpointFolder::name_of(step) == name ? std::optional(step) : std::nullopt;
}

}  // namespace

std::string CheckpointFolder::name_of(int64_t step) { return fmt::format("{}{:08d}", kPrefix, step); }

std::vector<int64_t> CheckpointFolder::steps() const {
  std::vector<int64_t> found;
  if (fs::is_directory(folder_)) {
    for (const fs::directory_entry& entry : fs::directory_iterator(folder_)) {
      if (const auto step = step_of(entry.path().filename().string())) { found.push_back(*step); }
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::optional<int64_t> CheckpointFolder::latest() const {
  const fs::path file = folder_ / "latest";
  if (!fs::exists(file)) {
    const std::vector<int64_t> all = steps();
    return all.empty() ? std::nullopt : std::optional(all.back());
  }
  std::string name = read_file(file, ExitCode::kCheckpoint);
  while (!name.empty() && (name.back() == '\n' || name.back() == '\r')) { name.pop_back(); }
  const auto step = step_of(name);
  if (!step) {
    const std::vector<int64_t> all = steps();
    throw CheckpointError(file.string(), "names no checkpoint", "\"" + name + "\"",
                          all.empty() ? "a name like " + name_of(1000)
                                      : "the name of one, of which the newest here is " + name_of(all.back()));
  }
  return step;
}

std::vector<std::string> CheckpointFolder::remove_stale() const {
  std::vector<std::string> removed;
  if (!fs::is_directory(folder_)) { return removed; }
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kTemporaryPrefix) || name.starts_with("latest.tmp-")) { removed.push_back(name); }
  }
  for (const std::string& name : removed) { remove_folder(folder_ / name); }
  return removed;
}

void CheckpointFolder::write_files(const fs::path& folder, const RunState& state,
                                   const std::map<std::string, std::string>& files, Stream& stream,
                                   const ParamStore& params, const SharedState& shared) const {
  StateFile file;
  file.run = state;
  DeviceReader reader(stream);
  const auto write_values = [&] { file.files[kModelFile] = write_model(folder / kModelFile, stream, reader, params); };
  shared.exchange != nullptr ? shared.exchange->read_values(stream, write_values) : write_values();
  file.files[kOptimizerFile] = write_optimizer(folder / kOptimizerFile, stream, reader, params, shared.exchange);
  for (int lane = 0; shared.memories != nullptr && lane < shared.memories->lanes(); ++lane) {
    file.files[memory_file(lane)] = write_memory(folder / memory_file(lane), stream, reader, *shared.memories, lane);
  }
  for (const auto& [name, bytes] : files) {
    write_text(folder / name, bytes);
    file.files[name] = record_of(bytes);
  }
  write_text(folder / kStateFile, sealed(Fields::write(file)));
  fsync_directory(folder);
}

fs::path CheckpointFolder::save(const RunState& state, const std::map<std::string, std::string>& files, Stream& stream,
                                const ParamStore& params, Keep keep, const SharedState& shared,
                                const std::function<void()>& before_rename) const {
  const std::string name = name_of(state.step);
  const fs::path temporary = folder_ / (kTemporaryPrefix + name), path = folder_ / name;
  create_folders(temporary);
  try {
    write_files(temporary, state, files, stream, params, shared);
    if (before_rename) { before_rename(); }
    if (fs::exists(path)) {  // of a run that went back: `latest` does not name it
      rename_folder(path, folder_ / (kTemporaryPrefix + std::string("old-") + name));
    }
    rename_folder(temporary, path);
    fsync_directory(folder_);
    point_to(state.step);
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(temporary, ignored);
    throw;
  }
  remove_old(state.step, keep);
  return path;
}

void CheckpointFolder::point_to(int64_t step) const { write_file_atomic(folder_ / "latest", name_of(step) + "\n"); }

void CheckpointFolder::remove_old(int64_t newest_step, Keep keep) const {
  remove_stale();
  std::vector<int64_t> all = steps();
  std::reverse(all.begin(), all.end());
  int64_t kept = 0;
  for (const int64_t step : all) {
    const bool is_ahead = step > newest_step;
    kept += is_ahead ? 0 : 1;
    const bool is_kept = !is_ahead && (kept <= keep.newest || (keep.every > 0 && step % keep.every == 0));
    if (!is_kept) {
      // Renamed first: a crash must not leave half a checkpoint under its name.
      const fs::path doomed = folder_ / (kTemporaryPrefix + std::string("old-") + name_of(step));
      rename_folder(path_of(step), doomed);
      remove_folder(doomed);
    }
  }
}

namespace {

bool is_tensor_file(const std::string& name) { return name.ends_with(".safetensors"); }

/// Reads state.json. Errors: CheckpointError.
StateFile read_state(const fs::path& checkpoint) {
  if (!fs::is_directory(checkpoint)) { throw CheckpointError(checkpoint.string(), "no such checkpoint"); }
  const std::string path = (checkpoint / kStateFile).string();
  if (fs::exists(path) && !fs::is_regular_file(path)) {
    throw CheckpointError(checkpoint.string(), "the checkpoint is damaged: state.json is no file");
  }
  const std::string text = read_file(path, ExitCode::kCheckpoint);
  StateFile state;
  std::string damage;
  try {
    Json json = parse_json(text, path);
    damage = seal_difference(text, json);
    if (json.is_object()) { json.erase("crc32"); }
    if (damage.empty()) { Fields::read(json, "", state); }
  } catch (const ConfigError& e) { damage = e.what(); }
  const auto step = step_of(fs::absolute(checkpoint).lexically_normal().filename().string());
  if (damage.empty() && step && *step != state.run.step) {
    damage = fmt::format("state.json: found step {:d}, expected {:d}, as the folder says", state.run.step, *step);
  }
  if (!damage.empty()) { throw CheckpointError(checkpoint.string(), "the checkpoint is damaged: " + damage); }
  return state;
}

/// How config.json differs from what state.json says of it.
std::string config_difference(const fs::path& checkpoint, const StateFile& state) {
  const fs::path path = checkpoint / kConfigFile;
  if (!fs::exists(path)) { return ""; }
  try {
    const std::string hash = config_hash(parse_json_file(path.string()));
    if (hash != state.run.config_hash) {
      return fmt::format("config.json: found hash {}, expected {}", hash, state.run.config_hash);
    }
  } catch (const Error& e) { return e.what(); }
  return "";
}

/// Reads state.json and compares with it the configuration, the tokenizer and these files, or also all others that it
/// names.
RunState verify_files(const fs::path& checkpoint, std::vector<std::string> names, bool and_others = false) {
  const StateFile state = read_state(checkpoint);
  for (const auto& [name, record] : state.files) {
    const bool is_asked = std::find(names.begin(), names.end(), name) != names.end();
    if (!is_asked && (and_others || !is_tensor_file(name))) { names.push_back(name); }
  }
  std::string text;
  const auto add = [&](const std::string& d) { text += (text.empty() || d.empty() ? "" : "; ") + d; };
  for (const std::string& name : names) {
    const auto it = state.files.find(name);
    add(it == state.files.end() ? "state.json has no record of " + name
                                : file_difference(checkpoint / name, it->second));
  }
  if (!state.files.contains(kConfigFile)) { add(config_difference(checkpoint, state)); }  // a former checkpoint
  if (!text.empty()) { throw CheckpointError(checkpoint.string(), "the checkpoint is damaged: " + text); }
  return state.run;
}

}  // namespace

RunState verify_checkpoint(const fs::path& checkpoint) {
  return verify_files(checkpoint, {kModelFile, kOptimizerFile}, true);
}

RunState read_run_state(const fs::path& checkpoint) { return verify_files(checkpoint, {}); }

void verify_beside(const fs::path& weights) {
  const fs::path folder = fs::absolute(weights).parent_path();
  if (weights.filename() == kModelFile && fs::exists(folder / kStateFile)) { verify_files(folder, {}); }
}

void send_shared(Stream& stream, const SharedState& shared) {
  shared.exchange->read_values(stream, [] {});
  for (const auto& [moment, suffix] : kMoments) { shared.exchange->collect(stream, moment); }
  for (int lane = 0; shared.memories != nullptr && lane < shared.memories->lanes(); ++lane) {
    shared.memories->visit(stream, lane, [](const Param&, const Tensor&) {});
  }
}

void verify_weights(const fs::path& weights) {
  const fs::path folder = fs::absolute(weights).parent_path();
  if (weights.filename() == kModelFile && fs::exists(folder / kStateFile)) { verify_files(folder, {kModelFile}); }
}

int load_checkpoint(const fs::path& checkpoint, Stream& stream, ParamStore& params, const SharedState& shared) {
  GradientExchange* const exchange = shared.exchange;
  const auto read_values = [&] { read_weights(checkpoint / kModelFile, stream, params); };
  exchange != nullptr ? exchange->make_values(stream, read_values) : read_values();
  const WeightSource file(checkpoint / kOptimizerFile);
  std::vector<ExpectedTensor> expected;
  for (const auto& p : params.all()) {
    if (has_moments(*p)) {
      expected.push_back({p->name() + ".m", p->spec.shape});
      expected.push_back({p->name() + ".v", p->spec.shape});
      expected.push_back({p->name() + ".t", {1}, true});
    }
  }
  require_tensors(file, expected);
  for (const auto& [moment, suffix] : kMoments) {
    for (const auto& p : params.all()) {
      if (has_moments(*p)) { load_tensor(file, p->name() + suffix, stream, moment_of(*p, exchange, moment)); }
    }
    if (exchange != nullptr) { exchange->keep(stream, moment); }
  }
  for (const auto& p : params.all()) {
    if (has_moments(*p)) { p->updates = file.integers(p->name() + ".t")[0]; }
  }
  const int memories = count_memories(checkpoint);
  if (shared.memories != nullptr) { load_memories(checkpoint, memories, stream, *shared.memories); }
  return memories;
}

}  // namespace hebb
