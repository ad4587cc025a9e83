#pragma once
// JSON values that know where they were written. nlohmann/json stays inside json_parse.cpp.
#include <concepts>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hebb {

/// Where a value was written: "FILE:LINE:COLUMN", "command line", or empty.
struct Origin {
  std::shared_ptr<const std::string> file;
  int line = 0, column = 0;
  std::string str() const;
};

/// A JSON value. Objects keep the order of their file. Numbers keep whether they were written as
/// integers (no '.', no exponent) and 64-bit integers stay exact.
class Json {
 public:
  enum class Kind { null, boolean, integer, unsigned_integer, number, string, array, object };
  using Member = std::pair<std::string, Json>;

  Json() = default;                                                              // null
  template <std::same_as<bool> T> Json(T v) : kind_(Kind::boolean), bool_(v) {}  // no pointers
  Json(int v);
  Json(int64_t v);
  Json(uint64_t v);
  Json(double v);  // non-finite values are written as "nan", "inf", "-inf"
  Json(const char* v);
  Json(std::string v);
  static Json array(std::vector<Json> items = {});
  static Json object(std::vector<Member> members = {});

  Kind kind() const { return kind_; }
  bool is_null() const { return kind_ == Kind::null; }
  bool is_bool() const { return kind_ == Kind::boolean; }
  bool is_integer() const { return kind_ == Kind::integer || kind_ == Kind::unsigned_integer; }
  bool is_number() const { return is_integer() || kind_ == Kind::number; }
  bool is_string() const { return kind_ == Kind::string; }
  bool is_array() const { return kind_ == Kind::array; }
  bool is_object() const { return kind_ == Kind::object; }

  // Typed reads. On another kind: ConfigError at the origin; std::logic_error for a value that the program made.
  bool as_bool() const;
  int64_t as_int() const;
  uint64_t as_uint() const;
  double as_double() const;  // integers too
  const std::string& as_string() const;
  std::vector<Json>& items();  // array
  const std::vector<Json>& items() const;
  std::vector<Member>& members();  // object
  const std::vector<Member>& members() const;

  const Json* find(std::string_view key) const;  // object member or null
  Json* find(std::string_view key);
  const Json& at(std::string_view key) const;  // must be there, as typed reads
  /// The member of an object, or the element of an array that `name` numbers ("0"); null where there is none.
  const Json* child(std::string_view name) const;
  Json* child(std::string_view name);
  /// What stands at a dotted path ("a.b.0"); null where it leads nowhere.
  const Json* find_path(std::string_view path) const;
  // A typed read of what stands at a dotted path; the other value where nothing or null stands there.
  std::string text_at(std::string_view path, std::string_view otherwise = "") const;
  int64_t integer_at(std::string_view path, int64_t otherwise) const;
  double number_at(std::string_view path, double otherwise) const;  // integers too
  Json& set(std::string_view key, Json value);                      // insert or replace; returns the member
  bool erase(std::string_view key);
  void push(Json value);  // array

  const Origin& origin() const { return origin_; }          // of the value
  const Origin& key_origin() const { return key_origin_; }  // of the member's key
  void set_origin(Origin value, Origin key = {});

  /// Short text for messages: 0, "abc", true, [1,0.5], an array, an object (long strings are cut).
  std::string found() const;
  /// A string as it is, anything else as dump() writes it.
  std::string text() const;
  /// indent < 0: one line without spaces; otherwise pretty. Doubles are written so that they read
  /// back to the same bits. sorted: object keys in byte order (canonical form, docs/verbs/ladder.md).
  std::string dump(int indent = -1, bool sorted = false) const;
  /// Origins and the order of members do not matter; 1 equals 1.0; NaN equals NaN.
  bool operator==(const Json& other) const;

 private:
  Kind kind_ = Kind::null;
  bool bool_ = false;
  int64_t int_ = 0;  // integer; unsigned_integer holds its bits here
  double double_ = 0;
  std::string string_;
  std::vector<Json> items_;
  std::vector<Member> members_;
  Origin origin_, key_origin_;
};

/// Strict JSON (UTF-8; no comments). Duplicate keys, trailing text and depth > 200 are errors.
/// Throws ConfigError("FILE:LINE:COLUMN", what).
Json parse_json(std::string_view text, const std::string& file_name);
Json parse_json_file(const std::string& path);

/// Deep merge as "extends" does it: objects merge by key, arrays and scalars replace, null deletes. A null
/// for a key that `base` lacks stays: nothing that a configuration writes is ignored.
void merge_json(Json& base, const Json& over);

/// A configuration file with its chain of "extends" resolved (docs/verbs/train.md): paths of the
/// extended file are relative to the extending one; a cycle is an error. Origins name the file
/// that wrote each value, so relative paths resolve against origin().file.
Json load_config(const std::string& path);

/// The parts of a dotted path: "a.b.0" is "a", "b", "0".
std::vector<std::string> split_path(std::string_view path);

/// Sets the value at a dotted path ("a.b.0") or a JSON pointer ("/a/b/0"); null deletes a member that is there. Numbers
/// index existing elements of arrays; missing objects on the way are created, objects and arrays replaced. ConfigError
/// (the value's origin, the part of the path concerned) when the path crosses a scalar or an array has no such element.
void set_path(Json& root, std::string_view path, Json value);

/// Applies "a.b.c=VALUE" (VALUE as JSON, else a string) with origin "command line", as set_path() does. Throws
/// ConfigError also for text without '='.
void apply_override(Json& root, std::string_view assignment);

}  // namespace hebb
