#include "eval/result_files.h"

#include <algorithm>
#include <vector>

#include "core/retry.h"
#include "train/run_config.h"

namespace hebb {
namespace {

constexpr size_t kFingerprintDigits = 16;

bool is_fingerprint(std::string_view text) {
  return text.size() == kFingerprintDigits && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

/// Members of a result that name files beside it, and how these end.
struct Companion {
  const char *member, *end;
};
constexpr Companion kCompanions[] = {{"samples", ".samples.jsonl"}, {"items", ".items.jsonl"}};

std::string fingerprint_of(const Json& result) {
  const std::string own = result.text_at("fingerprint");
  return is_fingerprint(own) ? own : config_hash(result);
}

/// "" for a damaged one.
std::string status_of(const fs::path& file) {
  try {
    const Json result = parse_json_file(file.string());
    for (const Companion& companion : kCompanions) { result.text_at(companion.member); }
    result.text_at("fingerprint");
    return result.text_at("status");
  } catch (const ConfigError&) { return ""; }
}

}  // namespace

bool has_fingerprint(const std::string& stem) {
  const size_t dot = stem.rfind('.');
  return dot != std::string::npos && dot > 0 && is_fingerprint(std::string_view(stem).substr(dot + 1));
}

/// A result with the status "ok" and the files that it names.
std::optional<Json> ResultFiles::good(const fs::path& file) const {
  if (!fs::exists(file) || status_of(file) != "ok") { return std::nullopt; }
  Json result = parse_json_file(file.string());
  for (const Companion& companion : kCompanions) {
    const std::string other = result.text_at(companion.member);
    if (!other.empty() && !fs::exists(folder_ / other)) { return std::nullopt; }
  }
  return result;
}

std::optional<Json> ResultFiles::finished(const std::string& fingerprint,
                                          const std::function<void(const std::string&)>& note) const {
  for (const fs::path& file : {current(), aside(fingerprint)}) {
    std::optional<Json> result = good(file);
    if (result && result->text_at("fingerprint") == fingerprint) { return result; }
  }
  if (!fs::exists(current())) { return std::nullopt; }
  const std::string status = status_of(current());
  if (status.empty()) {
    note(current().string() + " is damaged and not used");
  } else if (status == "ok") {
    note(current().string() + " is of another checkpoint, configuration or input and not used");
  }
  return std::nullopt;
}

bool ResultFiles::is_current(const std::string& fingerprint) const {
  const std::optional<Json> result = good(current());
  return result && result->text_at("fingerprint") == fingerprint;
}

/// Gives a result and the files that it names other names; the old result file stays. Returns its new name.
std::string ResultFiles::move(const Json& result, const std::string& to) const {
  Json moved = result;
  std::vector<std::pair<fs::path, fs::path>> others;
  for (const Companion& companion : kCompanions) {
    const std::string other = result.text_at(companion.member);
    if (other.empty()) { continue; }
    others.emplace_back(folder_ / other, folder_ / (to + companion.end));
    moved.set(companion.member, to + companion.end);
  }
  write_file_atomic(folder_ / (to + ".json"), moved.dump(1) + "\n");
  for (const auto& [old_name, new_name] : others) {
    retried_or_throws([&a = old_name, &b = new_name] { fs::rename(a, b); });
  }
  return to + ".json";
}

void ResultFiles::restore(const std::string& fingerprint) const {
  const std::optional<Json> old = good(current()), own = good(aside(fingerprint));
  if (old) { move(*old, stem(fingerprint_of(*old))); }
  if (own) {
    move(*own, name_);
    retried_or_throws([&] { return fs::remove(aside(fingerprint)); });
  }
}

Json ResultFiles::write(Json result, const std::string& samples, const std::string& items,
                        const std::function<void(const std::string&)>& note) const {
  const std::string fingerprint = result.text_at("fingerprint");
  const std::optional<Json> old = good(current());
  std::string place = name_;
  if (old && result.text_at("status") != "ok") {
    place = stem(fingerprint);
    note(current().string() + " is good and stays; this one is in " + place + ".json");
  } else if (old && fingerprint_of(*old) != fingerprint) {
    note("the older " + current().string() + " is kept as " + move(*old, stem(fingerprint_of(*old))));
  }
  for (const auto& [companion, text] : {std::pair{kCompanions[0], samples}, std::pair{kCompanions[1], items}}) {
    if (text.empty()) { continue; }
    result.set(companion.member, place + companion.end);
    write_file_atomic(folder_ / (place + companion.end), text);
  }
  write_file_atomic(folder_ / (place + ".json"), result.dump(1) + "\n");
  if (place != name_) { return result; }
  retried_or_throws([&] { return fs::remove(aside(fingerprint)); });  // a failure that has been mended
  for (const Companion& companion : kCompanions) {
    retried_or_throws([&] { return fs::remove(folder_ / (stem(fingerprint) + companion.end)); });
  }
  return result;
}

void ResultFiles::remove_unfinished() const {
  std::vector<fs::path> left;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_)) {
    std::string file = entry.path().filename().string();
    if (!file.starts_with(name_ + ".")) { continue; }
    file.erase(0, name_.size());
    if (is_fingerprint(file.substr(1, kFingerprintDigits))) { file.erase(0, 1 + kFingerprintDigits); }
    for (const char* kind : {".json", ".samples.jsonl", ".items.jsonl", ".partial", ".partial-weights"}) {
      if (file.starts_with(std::string(kind) + ".tmp-")) { left.push_back(entry.path()); }
    }
  }
  for (const fs::path& path : left) {
    retried_or_throws([&] { return fs::remove(path); });
  }
}

}  // namespace hebb
