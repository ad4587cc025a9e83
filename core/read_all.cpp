#include "core/read_all.h"

#include <exception>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/join.h"
#include "core/key_error.h"

namespace hebb {
namespace {

constexpr size_t kMostErrors = 20;

/// Removes the member that `path` ("optimizer.betas.1") names or lies in. Returns its path; "" where there is none.
std::string remove_member(Json& json, const std::string& path) {
  Json *at = &json, *owner = nullptr;
  std::string key, walked, removed;
  for (const std::string& part : split_path(path)) {
    walked += (walked.empty() ? "" : ".") + part;
    if (at->is_object()) {
      owner = at;
      key = part;
      removed = walked;
    }
    at = at->child(part);
    if (at == nullptr) { return ""; }
  }
  return owner != nullptr && owner->erase(key) ? removed : "";
}

/// Sets the member at `path`, in objects that are made where they lack; false where a list is in the way.
bool put_member(Json& json, const std::string& path, Json value) {
  Json* at = &json;
  std::vector<std::string> parts = split_path(path);
  const std::string key = std::move(parts.back());
  parts.pop_back();
  for (const std::string& part : parts) {
    if (at->is_object() && at->find(part) == nullptr) { at->set(part, Json::object()); }
    at = at->child(part);
    if (at == nullptr) { return false; }
  }
  if (!at->is_object()) { return false; }
  at->set(key, std::move(value));
  return true;
}

/// A configuration from which wrong keys are taken, one after the other.
class Mended {
 public:
  explicit Mended(const Json& json) : json_(json) {}
  const Json& json() const { return json_; }
  /// Whether the key was taken before: what is wrong with it now follows from that.
  bool knows(const std::string& path) const { return stand_ins_.count(path) > 0; }
  /// Leaves the key out. Where it is needed another value takes its place. False when there is no way on.
  bool mend(const std::string& path) {
    static const std::vector<Json> kStandIns{Json(1), Json(64), Json("x"), Json::array(), Json::object()};
    last_ = path;
    if (!knows(path)) {
      stand_ins_[path] = 0;
      if (const std::string removed = remove_member(json_, path); !removed.empty()) {
        stand_ins_[removed] = 0;
        last_ = removed;
        return true;
      }
    }
    size_t& next = stand_ins_[path];
    return next < kStandIns.size() && put_member(json_, path, kStandIns[next++]);
  }
  /// The same for the key taken last, with which the others do not fit together.
  bool mend_again() { return mend(last_); }

 private:
  Json json_;
  std::string last_;
  std::map<std::string, size_t> stand_ins_;  // of a path: how many were tried
};

}  // namespace

void read_all(const Json& json, const std::function<void(const Json&)>& read) {
  Mended mended(json);
  std::vector<std::string> lines;
  std::exception_ptr first;
  bool is_whole = true;  // all that was left out has no meaning
  const auto add = [&](const ConfigError& error) {
    lines.push_back(error.what());
    if (!first) { first = std::current_exception(); }
  };
  while (lines.size() < kMostErrors) {
    try {
      read(mended.json());
      break;
    } catch (const KeyError& error) {
      if (!mended.knows(error.path)) {
        add(error);
        is_whole = is_whole && error.rest == KeyError::Rest::all;
      }
      if (error.rest == KeyError::Rest::nothing || !mended.mend(error.path)) { break; }
    } catch (const ConfigError& error) {
      if (is_whole) {
        add(error);
        break;
      }
      if (!mended.mend_again()) { break; }
    }
  }
  if (lines.empty()) { return; }
  if (lines.size() == 1) { std::rethrow_exception(first); }
  throw ConfigErrors(join(lines, "\n"));
}

}  // namespace hebb
