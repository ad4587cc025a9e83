#include "eval/journal.h"

#include <fmt/core.h>

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <system_error>

#include "core/hash.h"
#include "core/retry.h"

namespace hebb {
namespace {

constexpr size_t kHashDigits = 8;
constexpr const char* kOfRank = ".rank_";

std::string hash_of(std::string_view text) {
  return fmt::format("{:0{}x}", crc32c(text.data(), text.size()), kHashDigits);
}

/// A line: a checksum, a space, JSON.
std::string line_of(const Json& json) {
  const std::string text = json.dump();
  return hash_of(text) + " " + text + "\n";
}

/// The JSON of a line without its newline; nothing for a damaged one.
std::optional<Json> parse_line(std::string_view line, const std::string& file) {
  if (line.size() <= kHashDigits || line[kHashDigits] != ' ') { return std::nullopt; }
  const std::string_view text = line.substr(kHashDigits + 1);
  if (hash_of(text) != line.substr(0, kHashDigits)) { return std::nullopt; }
  return parse_json(text, file);
}

/// Members that differ, by name.
std::string differences(const Json& a, const Json& b) {
  std::string names;
  for (const auto& [name, value] : a.members()) {
    const Json* other = b.child(name);
    if (other == nullptr || *other != value) { names += (names.empty() ? "" : ", ") + name; }
  }
  return names;
}

Json item_json(int64_t index, const EvalJournal::Item& item) {
  Json json = Json::object({{"index", index}, {"value", item.value}});
  if (!item.samples.empty()) { json.set("samples", item.samples); }
  if (item.moves_weights) { json.set("moves_weights", true); }
  return json;
}

EvalJournal::Item item_of(const Json& json) {
  const Json* samples = json.find("samples");
  return {json.at("value"), samples != nullptr ? samples->as_string() : "", json.find("moves_weights") != nullptr};
}

void put(std::string& bytes, uint64_t value) { bytes.append(reinterpret_cast<const char*>(&value), sizeof value); }

bool take(std::string_view& bytes, uint64_t& value) {
  if (bytes.size() < sizeof value) { return false; }
  std::memcpy(&value, bytes.data(), sizeof value);
  bytes.remove_prefix(sizeof value);
  return true;
}

}  // namespace

double kept_number(const Json& value) {
  if (value.is_number()) { return value.as_double(); }
  const std::string& text = value.as_string();
  return text == "inf" ? INFINITY : text == "-inf" ? -INFINITY : NAN;
}

EvalJournal::EvalJournal(fs::path file, Json key, const std::function<void(const std::string& text)>& note)
    : file_(std::move(file)), key_(std::move(key)) {
  read(note);
}

EvalJournal::EvalJournal(const fs::path& file, Json key, int rank, const std::vector<int64_t>& kept)
    : file_(file.string() + fmt::format("{}{:05}", kOfRank, rank)),
      key_(std::move(key)),
      kept_by_first_(kept.begin(), kept.end()) {}

std::vector<fs::path> EvalJournal::files_of_ranks(const fs::path& file) {
  std::vector<fs::path> files;
  std::error_code none;  // no folder yet
  for (const fs::directory_entry& entry : fs::directory_iterator(file.parent_path(), none)) {
    if (entry.path().filename().string().starts_with(file.filename().string() + kOfRank)) {
      files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

void EvalJournal::read(const std::function<void(const std::string& text)>& note) {
  const std::vector<fs::path> others = files_of_ranks(file_);
  const bool is_complete = read_items(file_, note);
  for (const fs::path& other : others) { read_items(other, note); }
  const size_t read = items_.size();
  read_weights();
  is_whole_ = is_complete && others.empty() && read == items_.size();
  if (!others.empty()) {
    write_items();
    is_whole_ = true;
    for (const fs::path& other : others) {
      retried_or_throws([&] { return fs::remove(other); });
    }
  }
  if (!items_.empty()) { note(fmt::format("{}: going on after {:d} finished items", file_.string(), items_.size())); }
}

/// Whether the file is there and holds items of this key and nothing else.
bool EvalJournal::read_items(const fs::path& file, const std::function<void(const std::string& text)>& note) {
  if (!fs::exists(file)) { return false; }
  const std::string text = read_file(file);
  std::map<int64_t, Item> items;
  bool is_first = true;
  size_t begin = 0;
  for (size_t end = 0; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    std::optional<Json> json;
    try {
      json = parse_line(std::string_view(text).substr(begin, end - begin), file.string());
      if (json && !is_first) { items.emplace(json->at("index").as_int(), item_of(*json)); }
    } catch (const ConfigError&) { json.reset(); }  // no item, with the right checksum
    if (!json) {
      note(fmt::format("{} is damaged (byte {:d}) and not used", file.string(), begin));
      return false;
    }
    if (is_first && *json != key_) {
      note(file.string() + " is of another evaluation (" + differences(key_, *json) + ") and not used");
      return false;
    }
    is_first = false;
  }
  items_.merge(items);
  return !is_first && begin == text.size();
}

void EvalJournal::read_weights() {
  const auto moves = [&](int64_t index) { return items_.contains(index) && items_.at(index).moves_weights; };
  const auto stays = [&](int64_t index) { return items_.contains(index) && !items_.at(index).moves_weights; };
  if (std::none_of(items_.begin(), items_.end(), [&](const auto& item) { return moves(item.first); })) { return; }
  int64_t fixed = 0;  // items before the first that moved weights
  while (stays(fixed)) { ++fixed; }
  const auto usable = [&]() -> int64_t {
    if (!fs::exists(weights_file(file_))) { return fixed; }
    const std::string bytes = read_file(weights_file(file_));
    const std::string start = line_of(key_);
    if (bytes.size() < kHashDigits + start.size() || !bytes.starts_with(start)) { return fixed; }
    std::string_view rest = std::string_view(bytes).substr(start.size());
    const std::string_view hash = rest.substr(rest.size() - kHashDigits);
    rest.remove_suffix(kHashDigits);
    if (hash_of(rest) != hash) { return fixed; }
    uint64_t items = 0, tensors = 0, size = 0;
    if (!take(rest, items) || !take(rest, tensors) || items > items_.size()) { return fixed; }
    Weights weights;
    for (uint64_t i = 0; i < tensors; ++i) {
      if (!take(rest, size) || rest.size() < size) { return fixed; }
      weights.emplace_back(rest.begin(), rest.begin() + static_cast<ptrdiff_t>(size));
      rest.remove_prefix(size);
    }
    weights_ = std::move(weights);
    auto count = static_cast<int64_t>(items);
    while (stays(count)) { ++count; }
    return count;
  };
  items_.erase(items_.lower_bound(usable()), items_.end());
}

void EvalJournal::write_items() const {
  std::string text = line_of(key_);
  for (const auto& [index, item] : items_) { text += line_of(item_json(index, item)); }
  write_file_atomic(file_, text);
}

const EvalJournal::Item* EvalJournal::find(int64_t index) const {
  const auto at = items_.find(index);
  return at != items_.end() ? &at->second : nullptr;
}

void EvalJournal::add(int64_t index, const Item& item) {
  if (!open_.is_open()) {
    if (!is_whole_) { write_items(); }
    open_ = Descriptor(retried([&] { return ::open(file_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC); }));
    if (!open_.is_open()) {
      throw CheckpointError(file_.string(), "cannot write: " + std::generic_category().message(errno));
    }
  }
  write_all(open_, file_, line_of(item_json(index, item)));
  ++added_;
}

void EvalJournal::keep_weights(const Weights& weights) {
  std::string body;
  put(body, static_cast<uint64_t>(size()));
  put(body, weights.size());
  for (const std::vector<char>& tensor : weights) {
    put(body, tensor.size());
    body.append(tensor.begin(), tensor.end());
  }
  write_file_atomic(weights_file(file_), line_of(key_) + body + hash_of(body));
}

void EvalJournal::remove() {
  std::error_code none;  // what is not there need not go
  retried(none, [&] { fs::remove(file_, none); });
  retried(none, [&] { fs::remove(weights_file(file_), none); });
}

void EvalJournal::remove_files(const fs::path& file) {
  std::error_code none;
  for (const fs::path& other : files_of_ranks(file)) {
    retried(none, [&] { fs::remove(other, none); });
  }
  retried(none, [&] { fs::remove(file, none); });
  retried(none, [&] { fs::remove(weights_file(file), none); });
}

std::vector<int64_t> EvalJournal::kept() const {
  std::vector<int64_t> indices;
  for (const auto& [index, item] : items_) { indices.push_back(index); }
  return indices;
}

}  // namespace hebb
