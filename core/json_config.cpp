// Operations on whole configurations: inheritance and overrides.
#include <fmt/core.h>

#include <algorithm>

#include "core/error.h"
#include "core/files.h"
#include "core/json.h"
#include "core/plural.h"

namespace hebb {
namespace {

constexpr size_t kLongestChain = 100;  // files that extend each other
constexpr size_t kMostParts = 200;     // of a path: as deep as a text of JSON may be

/// Reads `path` and, first, the files that it extends. `chain` holds the files being read.
Json load_chain(const fs::path& path, std::vector<fs::path>& chain) {
  Json config = parse_json_file(path.string());
  if (!config.is_object()) { throw ConfigError(config.origin().str(), config.found(), "an object"); }
  const Json* found = config.find("extends");
  if (found == nullptr) { return config; }
  const Json extends = *found;
  const std::string where = extends.origin().str() + ": extends";
  if (!extends.is_string()) { throw ConfigError(where, extends.found(), "the path of a configuration file"); }
  const fs::path base_path = (path.parent_path() / extends.as_string()).lexically_normal();
  std::error_code error;
  const fs::path identity = fs::canonical(base_path, error);
  if (error || !fs::is_regular_file(identity)) {
    throw ConfigError(where, extends.found(),
                      "the path of a configuration file (cannot read " + base_path.string() + ")");
  }
  if (std::find(chain.begin(), chain.end(), identity) != chain.end()) {
    throw ConfigError(where, extends.found(), "a file that does not extend this one (the chain is a cycle)");
  }
  if (chain.size() == kLongestChain) {
    throw ConfigError(where, fmt::format("a chain of more than {:d} files", kLongestChain),
                      fmt::format("at most {:d} that extend each other", kLongestChain));
  }
  chain.push_back(identity);
  Json base = load_chain(base_path, chain);
  config.erase("extends");
  merge_json(base, config);
  base.set_origin(config.origin());
  return base;
}

/// RFC 6901: parts between '/', with ~1 for '/' and ~0 for '~'.
std::vector<std::string> split_pointer(std::string_view path) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < path.size(); ++i) {
    if (path[i] == '/') {
      parts.emplace_back();
    } else if (path[i] == '~' && i + 1 < path.size() && (path[i + 1] == '0' || path[i + 1] == '1')) {
      parts.back() += path[++i] == '0' ? '~' : '/';
    } else {
      parts.back() += path[i];
    }
  }
  return parts;
}

Json& array_element(Json& array, const std::string& part, const std::string& where) {
  if (Json* element = array.child(part)) { return *element; }
  const size_t count = array.items().size();
  throw ConfigError(where, Json(part).found(),
                    count == 0 ? "no index (the array is empty)" : fmt::format("an index from 0 to {:d}", count - 1));
}

void set_origins(Json& value, const Origin& origin) {
  value.set_origin(origin, origin);
  if (value.is_array()) {
    for (Json& item : value.items()) { set_origins(item, origin); }
  } else if (value.is_object()) {
    for (Json::Member& member : value.members()) { set_origins(member.second, origin); }
  }
}

/// A value that a path leads to: a member of `object` called `key`, or an element.
struct Place {
  Json* value = nullptr;
  Json* object = nullptr;
  std::string key = {};
  bool is_new = false;
};

/// Creates what is missing on the way; `origin` is for messages.
Place reach(Json& root, std::string_view path, const Origin& origin) {
  const std::vector<std::string> parts = path.starts_with('/') ? split_pointer(path) : split_path(path);
  if (parts.size() > kMostParts) {
    throw ConfigError(located(origin.str(), Json(std::string(path)).found()), plural(parts.size(), "part"),
                      fmt::format("a path of at most {:d}", kMostParts));
  }
  Place place{.value = &root};
  std::string walked;
  for (const std::string& part : parts) {
    const std::string parent = walked.empty() ? "the root" : walked;
    walked += (walked.empty() ? "" : ".") + part;
    if (part.empty()) {
      throw ConfigError(located(origin.str(), path), "an empty name in the path", "names separated by '.'");
    }
    Json* at = place.value;
    if (at->is_null()) {
      *at = Json::object();
      at->set_origin(origin, origin);
    }
    if (at->is_array()) {
      place = Place{.value = &array_element(*at, part, located(origin.str(), walked))};
    } else if (at->is_object()) {
      Json* member = at->find(part);
      place = {.value = member != nullptr ? member : &at->set(part, Json()),
               .object = at,
               .key = part,
               .is_new = member == nullptr};
    } else {
      throw ConfigError(located(origin.str(), walked), at->found() + " at " + parent, "an object or an array");
    }
  }
  return place;
}

}  // namespace

std::vector<std::string> split_path(std::string_view path) {
  std::vector<std::string> parts(1);
  for (const char c : path) {
    if (c == '.') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

void merge_json(Json& base, const Json& over) {
  if (!over.is_object()) {
    base = over;
    return;
  }
  if (!base.is_object()) {
    base = Json::object();
    base.set_origin(over.origin(), over.key_origin());
  }
  for (const auto& [key, value] : over.members()) {
    Json* member = base.find(key);
    if (member == nullptr) {
      base.set(key, value);  // a null that deletes nothing stays, so that whoever reads it can refuse it
    } else if (value.is_null()) {
      base.erase(key);
    } else {
      merge_json(*member, value);
    }
  }
}

Json load_config(const std::string& path) {
  std::error_code error;
  std::vector<fs::path> chain{fs::weakly_canonical(path, error)};
  return load_chain(path, chain);
}

void set_path(Json& root, std::string_view path, Json value) {
  const Place place = reach(root, path, value.origin());
  if (value.is_null() && place.object != nullptr && !place.is_new) {
    place.object->erase(place.key);
  } else {
    *place.value = std::move(value);  // a null that deletes nothing stays, as in merge_json()
  }
}

void apply_override(Json& root, std::string_view assignment) {
  const size_t equals = assignment.find('=');
  const Origin origin{std::make_shared<const std::string>("command line"), 0, 0};
  if (equals == std::string_view::npos || equals == 0) {
    throw ConfigError(origin.str(), Json(std::string(assignment)).found(), "an override of the form key.path=VALUE");
  }
  const std::string text(assignment.substr(equals + 1));
  Json value;
  try {
    value = parse_json(text, *origin.file);
  } catch (const ConfigError&) {
    value = Json(text);  // not JSON: a string without quotes
  }
  set_origins(value, origin);
  set_path(root, assignment.substr(0, equals), std::move(value));
}

}  // namespace hebb
