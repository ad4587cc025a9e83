#include "core/json.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <stdexcept>

#include "core/error.h"
#include "core/utf8.h"

namespace hebb {
namespace {

constexpr size_t kLongestFound = 40;  // bytes of a string that messages show

void append_quoted(std::string& out, std::string_view s) {
  out += '"';
  while (!s.empty()) {
    const char c = s[0];
    const Utf8Step step = utf8_step(s);
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      default:
        if (!step.is_valid) {
          out += "\\ufffd";  // bytes that are not UTF-8 have no place in JSON
        } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
          out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        } else {
          out += s.substr(0, static_cast<size_t>(step.length));
        }
    }
    s.remove_prefix(step.is_valid ? static_cast<size_t>(step.length) : 1);
  }
  out += '"';
}

void append_double(std::string& out, double v) {
  if (!std::isfinite(v)) {
    out += std::isnan(v) ? "\"nan\"" : v > 0 ? "\"inf\"" : "\"-inf\"";
    return;
  }
  char text[32];
  const auto [end, status] = std::to_chars(text, text + sizeof text, v);
  HEBB_ASSERT(status == std::errc());
  const std::string_view written(text, static_cast<size_t>(end - text));
  out += written;
  if (written.find_first_of(".e") == std::string_view::npos) {
    out += ".0";  // stays a number that was not written as an integer; keeps the sign of -0.0
  }
}

class Dumper {
 public:
  Dumper(int indent, bool sorted) : indent_(indent), sorted_(sorted) {}

  void value(const Json& v, int depth) {
    switch (v.kind()) {
      case Json::Kind::null: out_ += "null"; break;
      case Json::Kind::boolean: out_ += v.as_bool() ? "true" : "false"; break;
      case Json::Kind::integer: out_ += std::to_string(v.as_int()); break;
      case Json::Kind::unsigned_integer: out_ += std::to_string(v.as_uint()); break;
      case Json::Kind::number: append_double(out_, v.as_double()); break;
      case Json::Kind::string: append_quoted(out_, v.as_string()); break;
      case Json::Kind::array: array(v, depth); break;
      case Json::Kind::object: object(v, depth); break;
    }
  }
  std::string take() { return std::move(out_); }

 private:
  void array(const Json& v, int depth) {
    const auto& items = v.items();
    // Pretty lists of scalars stay on one line: patterns and sizes read better so.
    const bool is_flat =
        std::none_of(items.begin(), items.end(), [](const Json& x) { return x.is_array() || x.is_object(); });
    out_ += '[';
    for (size_t i = 0; i < items.size(); ++i) {
      separate(i, depth + 1, is_flat);
      value(items[i], depth + 1);
    }
    close(']', items.empty() || is_flat, depth);
  }

  void object(const Json& v, int depth) {
    std::vector<const Json::Member*> members;
    for (const Json::Member& member : v.members()) { members.push_back(&member); }
    if (sorted_) {
      std::sort(members.begin(), members.end(), [](const auto* a, const auto* b) { return a->first < b->first; });
    }
    out_ += '{';
    for (size_t i = 0; i < members.size(); ++i) {
      separate(i, depth + 1, false);
      append_quoted(out_, members[i]->first);
      out_ += indent_ < 0 ? ":" : ": ";
      value(members[i]->second, depth + 1);
    }
    close('}', members.empty(), depth);
  }

  void separate(size_t i, int depth, bool is_flat) {
    out_ += i > 0 ? "," : "";
    if (indent_ >= 0) {
      if (is_flat) {
        out_ += i > 0 ? " " : "";
      } else {
        new_line(depth);
      }
    }
  }

  void close(char bracket, bool is_flat, int depth) {
    if (indent_ >= 0 && !is_flat) { new_line(depth); }
    out_ += bracket;
  }

  void new_line(int depth) {
    out_ += '\n';
    out_.append(static_cast<size_t>(indent_) * static_cast<size_t>(depth), ' ');
  }

  int indent_;
  bool sorted_;
  std::string out_;
};

bool equal_numbers(const Json& a, const Json& b) {
  if (a.is_integer() && b.is_integer()) { return a.kind() == b.kind() && a.dump() == b.dump(); }
  if (!a.is_integer() && !b.is_integer()) {
    return a.as_double() == b.as_double() || (std::isnan(a.as_double()) && std::isnan(b.as_double()));
  }
  const Json& integer = a.is_integer() ? a : b;
  const double other = a.is_integer() ? b.as_double() : a.as_double();
  if (other != std::floor(other)) {
    return false;  // NaN too
  }
  // Exact comparison: through double, 2^53 + 1 would equal 2^53.
  if (integer.kind() == Json::Kind::integer) {
    return other >= -0x1p63 && other < 0x1p63 && integer.as_int() == static_cast<int64_t>(other);
  }
  return other >= 0 && other < 0x1p64 && integer.as_uint() == static_cast<uint64_t>(other);
}

/// A value that was read is an error of its text; what the program made is an error of the program.
[[noreturn]] void fail(const Json& value, const std::string& found, const std::string& expected) {
  if (!value.origin().file) {
    throw std::logic_error("a JSON value of the program: found " + found + ", expected " + expected);
  }
  throw ConfigError(value.origin().str(), found, expected);
}

void require(bool is_of_kind, const Json& value, const char* expected) {
  if (!is_of_kind) { fail(value, value.found(), expected); }
}

}  // namespace

std::string Origin::str() const {
  if (!file) { return {}; }
  return line > 0 ? fmt::format("{}:{:d}:{:d}", *file, line, column) : *file;
}

Json::Json(int v) : kind_(Kind::integer), int_(v) {}
Json::Json(int64_t v) : kind_(Kind::integer), int_(v) {}
Json::Json(uint64_t v)
    : kind_(v <= static_cast<uint64_t>(INT64_MAX) ? Kind::integer : Kind::unsigned_integer),
      int_(static_cast<int64_t>(v)) {}
Json::Json(double v) : kind_(Kind::number), double_(v) {}
Json::Json(const char* v) : kind_(Kind::string), string_(v) {}
Json::Json(std::string v) : kind_(Kind::string), string_(std::move(v)) {}

Json Json::array(std::vector<Json> items) {
  Json v;
  v.kind_ = Kind::array;
  v.items_ = std::move(items);
  return v;
}

Json Json::object(std::vector<Member> members) {
  Json v;
  v.kind_ = Kind::object;
  v.members_ = std::move(members);
  return v;
}

bool Json::as_bool() const {
  require(is_bool(), *this, "true or false");
  return bool_;
}

int64_t Json::as_int() const {
  require(kind_ == Kind::integer, *this, is_integer() ? "an integer below 2^63" : "an integer");
  return int_;
}

uint64_t Json::as_uint() const {
  require(kind_ == Kind::unsigned_integer || (kind_ == Kind::integer && int_ >= 0), *this, "an integer >= 0");
  return static_cast<uint64_t>(int_);
}

double Json::as_double() const {
  require(is_number(), *this, "a number");
  return kind_ == Kind::number    ? double_
         : kind_ == Kind::integer ? static_cast<double>(int_)
                                  : static_cast<double>(static_cast<uint64_t>(int_));
}

const std::string& Json::as_string() const {
  require(is_string(), *this, "a string");
  return string_;
}

std::vector<Json>& Json::items() {
  require(is_array(), *this, "a list");
  return items_;
}

const std::vector<Json>& Json::items() const {
  require(is_array(), *this, "a list");
  return items_;
}

std::vector<Json::Member>& Json::members() {
  require(is_object(), *this, "an object");
  return members_;
}

const std::vector<Json::Member>& Json::members() const {
  require(is_object(), *this, "an object");
  return members_;
}

const Json* Json::find(std::string_view key) const {
  for (const Member& member : members()) {
    if (member.first == key) { return &member.second; }
  }
  return nullptr;
}

Json* Json::find(std::string_view key) { return const_cast<Json*>(std::as_const(*this).find(key)); }

const Json& Json::at(std::string_view key) const {
  const Json* member = find(key);
  if (member == nullptr) { fail(*this, "no member " + Json(std::string(key)).found(), "an object that has it"); }
  return *member;
}

const Json* Json::child(std::string_view name) const {
  if (is_object()) { return find(name); }
  size_t index = 0;
  const char* const last = name.data() + name.size();
  const auto [end, status] = std::from_chars(name.data(), last, index);
  return is_array() && status == std::errc() && end == last && index < items_.size() ? &items_[index] : nullptr;
}

Json* Json::child(std::string_view name) { return const_cast<Json*>(std::as_const(*this).child(name)); }

const Json* Json::find_path(std::string_view path) const {
  const Json* at = this;
  for (const std::string& name : split_path(path)) { at = at != nullptr ? at->child(name) : nullptr; }
  return at;
}

std::string Json::text_at(std::string_view path, std::string_view otherwise) const {
  const Json* value = find_path(path);
  return value != nullptr && !value->is_null() ? value->as_string() : std::string(otherwise);
}

int64_t Json::integer_at(std::string_view path, int64_t otherwise) const {
  const Json* value = find_path(path);
  return value != nullptr && !value->is_null() ? value->as_int() : otherwise;
}

double Json::number_at(std::string_view path, double otherwise) const {
  const Json* value = find_path(path);
  return value != nullptr && !value->is_null() ? value->as_double() : otherwise;
}

Json& Json::set(std::string_view key, Json value) {
  if (Json* member = find(key)) { return *member = std::move(value); }
  return members().emplace_back(std::string(key), std::move(value)).second;
}

bool Json::erase(std::string_view key) {
  return std::erase_if(members(), [&](const Member& member) { return member.first == key; }) > 0;
}

void Json::push(Json value) { items().push_back(std::move(value)); }

void Json::set_origin(Origin value, Origin key) {
  origin_ = std::move(value);
  key_origin_ = std::move(key);
}

std::string Json::found() const {
  if (is_array()) {
    const bool numbers = std::all_of(items().begin(), items().end(),
                                     [](const Json& item) { return item.is_number() || item.is_null(); });
    std::string text = numbers && !items().empty() ? dump() : "";
    return text.empty() || text.size() > kLongestFound ? "an array" : text;
  }
  if (is_object()) { return "an object"; }
  if (!is_string() || string_.size() <= kLongestFound) { return dump(); }
  size_t cut = kLongestFound;
  while (cut > 0 && is_utf8_continuation(string_[cut])) { --cut; }
  return Json(string_.substr(0, cut)).dump() + "...";
}

std::string Json::text() const { return is_string() ? string_ : dump(); }

std::string Json::dump(int indent, bool sorted) const {
  Dumper dumper(indent, sorted);
  dumper.value(*this, 0);
  return dumper.take();
}

bool Json::operator==(const Json& other) const {
  if (is_number() && other.is_number()) { return equal_numbers(*this, other); }
  if (kind_ != other.kind_) { return false; }
  if (!is_object()) { return bool_ == other.bool_ && string_ == other.string_ && items_ == other.items_; }
  return members_.size() == other.members_.size() &&
         std::all_of(members_.begin(), members_.end(), [&](const Member& m) {
           const Json* twin = other.find(m.first);
           return twin != nullptr && *twin == m.second;
         });
}

}  // namespace hebb
