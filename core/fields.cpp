#include "core/fields.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "core/error.h"
#include "core/files.h"
#include "core/join.h"
#include "core/key_error.h"
#include "core/plural.h"
#include "core/suggest.h"

namespace hebb {
namespace {

std::string quoted(const std::string& s) { return "\"" + s + "\""; }

std::string did_you_mean(const std::string& name, const std::vector<std::string>& candidates) {
  const std::string nearest = nearest_name(name, candidates);
  return nearest.empty() ? "" : " (did you mean " + quoted(nearest) + "?)";
}

std::string list_names(const std::vector<std::string>& names) { return join(names, ", ", quoted); }

/// 1 instead of 1.0: bounds read better so in messages and tables.
std::string bound_text(double v) {
  std::string text = Json(v).dump();
  return text.ends_with(".0") ? text.substr(0, text.size() - 2) : text;
}

std::string place_of(const Json& json, const std::string& path) { return located(json.origin().str(), path); }

[[noreturn]] void fail_at(const Json& json, const std::string& path, const std::string& expected,
                          KeyError::Rest rest = KeyError::Rest::values) {
  throw KeyError(place_of(json, path), json.found(), expected, path, rest);
}

// Conversions from JSON. `expected` is what the message of a wrong type says.
void convert(const Json& json, const std::string& path, const std::string& expected, bool& v) {
  if (!json.is_bool()) { fail_at(json, path, expected); }
  v = json.as_bool();
}

template <class T>
requires std::is_same_v<T, int64_t> || std::is_same_v<T, uint64_t>
void convert(const Json& json, const std::string& path, const std::string& expected, T& v) {
  constexpr bool is_signed = std::is_signed_v<T>;
  if (json.kind() == Json::Kind::integer && (is_signed || json.as_int() >= 0)) {
    v = static_cast<T>(json.as_int());
    return;
  }
  if (json.kind() == Json::Kind::unsigned_integer && !is_signed) {
    v = static_cast<T>(json.as_uint());
    return;
  }
  if (json.is_number()) {
    const double number = json.as_double();
    if (number == std::floor(number) && (number > 0 || is_signed)) {
      const double end = is_signed ? 0x1p63 : 0x1p64;
      if (json.is_integer() || number >= end || number < -end) {
        fail_at(json, path, expected + (is_signed ? " of 64 bits with sign" : " of 64 bits"));
      }
    } else if (number != 0) {
      fail_at(json, path, expected);
    }
    v = static_cast<T>(number);
    return;
  }
  fail_at(json, path, expected);
}

void convert(const Json& json, const std::string& path, const std::string& expected, double& v) {
  if (!json.is_number()) { fail_at(json, path, expected); }
  v = json.as_double();
}

void convert(const Json& json, const std::string& path, const std::string& expected, std::string& v) {
  if (!json.is_string()) { fail_at(json, path, expected); }
  v = json.as_string();
}

void convert(const Json& json, const std::string&, const std::string&, Json& v) { v = json; }

const char* element_expected(const std::vector<int64_t>&) { return "an integer"; }
const char* element_expected(const std::vector<double>&) { return "a number"; }
const char* element_expected(const std::vector<std::string>&) { return "a string"; }

template <class T>
void convert(const Json& json, const std::string& path, const std::string& expected, std::vector<T>& v) {
  if (!json.is_array()) { fail_at(json, path, expected); }
  std::vector<T> read(json.items().size());
  for (size_t i = 0; i < read.size(); ++i) {
    convert(json.items()[i], fmt::format("{}.{:d}", path, i), element_expected(v), read[i]);
  }
  v = std::move(read);
}

template <class T>
void convert(const Json& json, const std::string& path, const std::string& expected, std::optional<T>& v) {
  if (json.is_null()) { return v.reset(); }
  T read{};
  convert(json, path, expected + " or null", read);
  v = std::move(read);
}

template <class T> Json to_json(const T& v) {
  if constexpr (std::is_same_v<T, double>) {
    HEBB_ASSERT(std::isfinite(v));  // could not be read back: optional fields stand for "none"
  }
  return Json(v);
}

template <class T> Json to_json(const std::vector<T>& v) {
  Json list = Json::array();
  for (const T& x : v) { list.push(to_json(x)); }
  return list;
}

template <class T> Json to_json(const std::optional<T>& v) { return v ? to_json(*v) : Json(); }

// What constraints look at: numbers and strings.
template <class T> void collect(const T& v, std::vector<double>& numbers, std::vector<std::string>& strings) {
  if constexpr (std::is_same_v<T, std::string>) {
    strings.push_back(v);
  } else if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) {
    numbers.push_back(static_cast<double>(v));
  }
}
template <class T>
void collect(const std::vector<T>& v, std::vector<double>& numbers, std::vector<std::string>& strings) {
  for (const T& x : v) { collect(x, numbers, strings); }
}
template <class T>
void collect(const std::optional<T>& v, std::vector<double>& numbers, std::vector<std::string>& strings) {
  if (v) { collect(*v, numbers, strings); }
}

/// The path that `text`, written at `origin`, means.
std::string resolve_path(const Origin& origin, const std::string& text) {
  if (text.empty()) { return text; }
  const bool has_file = origin.file && origin.line > 0;  // "command line" has no line
  const fs::path folder = has_file ? fs::absolute(*origin.file).parent_path() : fs::current_path();
  return (folder / text).lexically_normal().string();
}

}  // namespace

Field& Field::required() {
  if (owner_->mode_ == Fields::Mode::describe) { owner_->described_[entry_].required = true; }
  if (owner_->mode_ != Fields::Mode::read || present_) { return *this; }
  std::vector<std::string> others;  // keys that no field has asked for so far
  for (const Json::Member& member : owner_->json_->members()) {
    if (owner_->known(member.first) == nullptr) { others.push_back(member.first); }
  }
  const std::string similar = nearest_name(name_, others);
  throw KeyError(owner_->where(name_), "nothing",
                 expected() + " (required" + (similar.empty() ? "" : "; " + quoted(similar) + " looks similar") + ")",
                 owner_->child_path(name_), KeyError::Rest::values);
}

Field& Field::constrain(const std::string& constraint) {
  if (owner_->mode_ == Fields::Mode::describe) {
    std::string& text = owner_->described_[entry_].constraint;
    text += (text.empty() ? "" : ", ") + constraint;
  }
  return *this;
}

const Json& Field::element(size_t i) const { return json_->is_array() ? json_->items()[i] : *json_; }

std::string Field::element_path(size_t i) const {
  return owner_->child_path(name_) + (json_->is_array() ? fmt::format(".{:d}", i) : "");
}

std::string Field::with_bounds(const char* what) const {
  std::vector<std::string> bounds = bounds_;
  if (type_.at_least_0) { bounds.insert(bounds.begin(), ">= 0"); }
  return what + std::string(bounds.empty() ? "" : " ") + join(bounds, " and ");
}

Field& Field::bound(double limit, const char* sign, bool (*holds)(double, double)) {
  const std::string text = std::string(sign) + " " + bound_text(limit);
  if (sign[0] == '>') { type_.at_least_0 = false; }
  bounds_.push_back(text);
  for (size_t i = 0; i < numbers_.size(); ++i) {
    if (!holds(numbers_[i], limit)) {
      fail_at(element(i), element_path(i), with_bounds(type_.element != nullptr ? type_.element : type_.expected));
    }
  }
  return constrain(text);
}

Field& Field::min(double lowest) {
  return bound(lowest, ">=", [](double v, double limit) { return v >= limit; });
}
Field& Field::above(double limit) {
  return bound(limit, ">", [](double v, double b) { return v > b; });
}
Field& Field::max(double highest) {
  return bound(highest, "<=", [](double v, double limit) { return v <= limit; });
}
Field& Field::below(double limit) {
  return bound(limit, "<", [](double v, double b) { return v < b; });
}

Field& Field::one_of(std::vector<std::string> names) {
  const std::string text = "one of " + list_names(names);
  for (size_t i = 0; i < strings_.size(); ++i) {
    if (std::find(names.begin(), names.end(), strings_[i]) == names.end()) {
      fail_at(element(i), element_path(i), text + did_you_mean(strings_[i], names), KeyError::Rest::nothing);
    }
  }
  return constrain(text);
}

Field& Field::size(size_t n) {
  const std::string count = plural(n, "element");
  if (json_ != nullptr && json_->is_array() && json_->items().size() != n) {
    owner_->fail(name_, plural(json_->items().size(), "element"), expected() + " of " + count);
  }
  return constrain(count);
}

Field& Field::not_empty() {
  if (json_ != nullptr && json_->is_array() && json_->items().empty()) {
    owner_->fail(name_, "an empty list", expected() + " with at least one element");
  }
  return constrain("not empty");
}

Field& Field::only_with(bool acts, std::string_view what) {
  const std::string reason = "only with " + std::string(what);
  if (json_ != nullptr && !acts && !(*json_ == default_)) {
    owner_->fail(name_, json_->found(),
                 (default_.is_null() ? "no value" : default_.found() + " (default)") + ": it acts " + reason);
  }
  return constrain(reason);
}

Field& Field::help(std::string_view text) {
  if (owner_->mode_ == Fields::Mode::describe) { owner_->described_[entry_].help = text; }
  return *this;
}

Field& Field::unit(std::string_view text) {
  if (owner_->mode_ == Fields::Mode::describe) { owner_->described_[entry_].unit = text; }
  return *this;
}

Field& Field::scales(const Scaling& scaling) {
  if (owner_->mode_ == Fields::Mode::describe) { owner_->described_[entry_].scaling = scaling; }
  return *this;
}

void Fields::begin() {
  if (!json_->is_object()) { fail_at(*json_, path_, "an object", KeyError::Rest::nothing); }
}

void Fields::finish() {
  begin();
  for (const Json::Member& member : json_->members()) {
    if (known(member.first) == nullptr) { fail_unknown(member); }
  }
}

void Fields::fail_unknown(const Json::Member& member) const {
  std::vector<std::string> names;
  for (const Known& k : known_) { names.push_back(k.name); }
  const std::string origin = member.second.key_origin().str();
  const std::string hint = did_you_mean(member.first, names);
  const std::string path = child_path(member.first);
  throw KeyError(located(origin, path), "an unknown key",
                 names.empty()  ? "an empty object"
                 : hint.empty() ? "one of the known keys (" + list_names(names) + ")"
                                : "one of the known keys" + hint,
                 path, KeyError::Rest::all);
}

const Fields::Known* Fields::known(std::string_view name) const {
  const auto it = std::find_if(known_.begin(), known_.end(), [&](const Known& k) { return k.name == name; });
  return it == known_.end() ? nullptr : &*it;
}

std::string Fields::child_path(std::string_view name) const {
  return path_.empty() ? std::string(name) : path_ + "." + std::string(name);
}

std::string Fields::where(std::string_view name) const {
  if (json_ == nullptr) { return child_path(name); }
  const Json* at = json_;
  for (const std::string& part : split_path(name)) {
    const Json* next = at->child(part);
    if (next == nullptr) { break; }
    at = next;
  }
  return place_of(*at, child_path(name));
}

/// Declares a field: the common part of all kinds.
Field& Fields::start(std::string_view name, const Type& type) {
  HEBB_ASSERT(known(name) == nullptr);  // a key is declared once
  known_.push_back({std::string(name), ""});
  current_ = Field();
  current_.owner_ = this;
  current_.name_ = name;
  current_.type_ = type;
  if (mode_ == Mode::read) {
    begin();
    current_.json_ = json_->find(name);
    current_.present_ = current_.json_ != nullptr;
  } else if (mode_ == Mode::describe) {
    current_.entry_ = described_.size();
    described_.push_back({child_path(name), type.name, "", "", "", "", false, {}});
  }
  return current_;
}

template <class T> Field& Fields::value(std::string_view name, T& v, const Type& type) {
  Field& field = start(name, type);
  switch (mode_) {
    case Mode::read:
      if (field.present_) {
        field.default_ = to_json(v);
        convert(*field.json_, child_path(name), field.expected(), v);
        collect(v, field.numbers_, field.strings_);
      } else {
        known_.back().default_text = to_json(v).found() + " (default)";
      }
      break;
    case Mode::write: out_.set(name, to_json(v)); break;
    case Mode::describe: described_.back().default_value = to_json(v).dump(); break;
  }
  return field;
}

Field& Fields::field(std::string_view name, bool& v) { return value(name, v, {"true or false", "true or false"}); }
Field& Fields::field(std::string_view name, int64_t& v) { return value(name, v, {"integer", "an integer"}); }
Field& Fields::field(std::string_view name, uint64_t& v) {
  return value(name, v, {.name = "integer >= 0", .expected = "an integer", .at_least_0 = true});
}
Field& Fields::field(std::string_view name, double& v) { return value(name, v, {"number", "a number"}); }
Field& Fields::field(std::string_view name, std::string& v) { return value(name, v, {"string", "a string"}); }
Field& Fields::field(std::string_view name, Json& v) { return value(name, v, {"any JSON", "any JSON value"}); }
Field& Fields::field(std::string_view name, std::optional<int64_t>& v) {
  return value(name, v, {"integer or null", "an integer"});
}
Field& Fields::field(std::string_view name, std::optional<uint64_t>& v) {
  return value(name, v, {.name = "integer >= 0 or null", .expected = "an integer", .at_least_0 = true});
}
Field& Fields::field(std::string_view name, std::optional<double>& v) {
  return value(name, v, {"number or null", "a number"});
}
Field& Fields::field(std::string_view name, std::optional<bool>& v) {
  return value(name, v, {"true, false or null", "true, false"});
}
Field& Fields::field(std::string_view name, std::optional<std::string>& v) {
  return value(name, v, {"string or null", "a string"});
}
Field& Fields::field(std::string_view name, std::vector<int64_t>& v) {
  return value(name, v, {"list of integers", "a list of integers", "an integer"});
}
Field& Fields::field(std::string_view name, std::vector<double>& v) {
  return value(name, v, {"list of numbers", "a list of numbers", "a number"});
}
Field& Fields::field(std::string_view name, std::vector<std::string>& v) {
  return value(name, v, {"list of strings", "a list of strings"});
}

Field& Fields::file(std::string_view name, std::string& v) {
  Field& field = value(name, v, {"path", "a path (a string)"});
  if (field.json_ != nullptr) { v = resolve_path(field.json_->origin(), v); }
  return field;
}

Field& Fields::file(std::string_view name, std::optional<std::string>& v) {
  Field& field = value(name, v, {"path or null", "a path (a string)"});
  if (field.json_ != nullptr && v) { v = resolve_path(field.json_->origin(), *v); }
  return field;
}

Field& Fields::file(std::string_view name, std::vector<std::string>& v) {
  Field& field = value(name, v, {"list of paths", "a list of paths (strings)"});
  for (size_t i = 0; field.json_ != nullptr && i < v.size(); ++i) {
    v[i] = resolve_path(field.element(i).origin(), v[i]);
  }
  return field;
}

}  // namespace hebb
