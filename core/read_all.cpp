#include "core/read_all.h"

#include <algorithm>
#include <exception>

#include "core/key_error.h"

namespace hebb {
namespace {

constexpr size_t kMostErrors = 20;

/// Removes the member that `path` ("optimizer.betas.1") names or lies in; false where there is none.
bool remove_member(Json& json, const std::string& path) {
  Json *at = &json, *owner = nullptr;
  std::string key;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    const std::string part = path.substr(begin, end - begin);
    Json* next = nullptr;
    if (at->is_object()) {
      next = at->find(part);
      owner = at;
      key = part;
    } else if (at->is_array()) {
      for (size_t i = 0; i < at->items().size() && next == nullptr; ++i) {
        next = std::to_string(i) == part ? &at->items()[i] : nullptr;
      }
    }
    if (next == nullptr) { return false; }
    at = next;
    begin = end + 1;
  }
  return owner != nullptr && owner->erase(key);
}

}  // namespace

void read_all(const Json& json, const std::function<void(const Json&)>& read) {
  Json rest = json;
  std::vector<std::string> paths, lines;
  std::exception_ptr first;
  bool is_whole = true;  // all that was left out has no meaning
  const auto add = [&](const ConfigError& error) {
    lines.push_back(error.what());
    if (!first) { first = std::current_exception(); }
  };
  while (lines.size() < kMostErrors) {
    try {
      read(rest);
      break;
    } catch (const KeyError& error) {
      // A value that was left out may be missed now.
      if (std::find(paths.begin(), paths.end(), error.path) != paths.end()) { break; }
      add(error);
      paths.push_back(error.path);
      is_whole = is_whole && error.rest == KeyError::Rest::all;
      if (error.rest == KeyError::Rest::nothing || !remove_member(rest, error.path)) { break; }
    } catch (const ConfigError& error) {
      if (is_whole) { add(error); }
      break;
    }
  }
  if (lines.empty()) { return; }
  if (lines.size() == 1) { std::rethrow_exception(first); }
  std::string text;
  for (const std::string& line : lines) { text += (text.empty() ? "" : "\n") + line; }
  throw ConfigErrors(text);
}

}  // namespace hebb
