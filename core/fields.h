#pragma once
// The configuration schema: one line next to each member gives parsing, range checks, unknown-key
// suggestions, the resolved configuration and the reference page.
//
//   struct Clip { double clip_norm = 1.0; std::string mode = "skip"; };
//   void fields(Fields& f, Clip& c) {
//     f.field("clip_norm", c.clip_norm).min(0).help("Global gradient-norm limit; 0 = off.");
//     f.field("mode", c.mode).one_of({"skip", "stop"}).help("...");
//   }
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "core/scaling.h"

namespace hebb {

class Fields;

/// Constraints of the field just declared; all checks happen as they are chained.
class Field {
 public:
  Field& required();           // error when absent (it must be chained first)
  Field& min(double lowest);   // >= lowest; vectors: every element
  Field& above(double bound);  // > bound
  Field& max(double highest);
  Field& below(double bound);
  Field& one_of(std::vector<std::string> names);  // strings
  Field& size(size_t n);                          // vectors
  Field& not_empty();                             // lists
  /// Where the field has no effect, only its default may be written: what is written is never ignored. `what` says
  /// with what it acts, "mode \"learned\"". Members that decide so are declared before.
  Field& only_with(bool acts, std::string_view what);
  Field& help(std::string_view text);
  Field& unit(std::string_view text);
  Field& scales(const Scaling& scaling);     // in smaller copies of a model; fields without stay
  bool present() const { return present_; }  // written in the configuration (read mode)

 private:
  friend class Fields;
  /// What a key may hold, as the reference and messages say it.
  struct Type {
    const char* name;               // in the reference: "list of integers"
    const char* expected;           // in messages: "a list of integers"
    const char* element = nullptr;  // lists: "an integer"
    bool at_least_0 = false;        // unless a lower bound is declared
  };
  Field& bound(double limit, const char* sign, bool (*holds)(double value, double limit));
  std::string expected() const { return with_bounds(type_.expected); }  // "an integer >= 1 and < 8"
  std::string with_bounds(const char* what) const;
  Field& constrain(const std::string& constraint);  // adds to messages and to the reference
  const Json& element(size_t i) const;              // the JSON value of numbers_[i] or strings_[i]
  std::string element_path(size_t i) const;

  Fields* owner_ = nullptr;
  std::string name_;
  const Json* json_ = nullptr;  // read mode: the value as written
  Json default_;                // read mode: what an absent key means
  Type type_ = {};
  std::vector<std::string> bounds_;  // ">= 1", "< 8"
  bool present_ = false;
  std::vector<double> numbers_;  // values to check
  std::vector<std::string> strings_;
  size_t entry_ = 0;  // describe mode: index of the entry
};

/// Visits the fields of one configuration object in one of three ways:
/// read (fill members from JSON, strictly), write (emit members as JSON), describe (reference page).
class Fields {
 public:
  enum class Mode { read, write, describe };
  struct Description {  // one line of the reference
    std::string path, type, default_value, constraint, unit, help;
    bool required = false;
    Scaling scaling = {};
  };

  /// Fills `value` from `json` (an object); every unknown key, wrong type, missing required key and
  /// broken constraint throws ConfigError("FILE:LINE:COL: PATH", found, expected); unknown keys name
  /// the nearest known key. `path` is the object's own path ("model.layers.gdn").
  template <class T> static void read(const Json& json, const std::string& path, T& value) {
    Fields f(Mode::read, path);
    f.json_ = &json;
    f.begin();
    fields(f, value);
    f.finish();
  }
  /// The same for a new value.
  template <class T> static T read(const Json& json, const std::string& path) {
    T value;
    read(json, path, value);
    return value;
  }
  template <class T> static Json write(const T& value) {
    Fields f(Mode::write, "");
    fields(f, const_cast<T&>(value));
    return std::move(f.out_);
  }
  template <class T> static std::vector<Description> describe(const std::string& path = "") {
    T value{};
    return describe_value(path, value);
  }
  /// The same for a value whose fields depend on what it is.
  template <class T> static std::vector<Description> describe_value(const std::string& path, T& value) {
    Fields f(Mode::describe, path);
    fields(f, value);
    return std::move(f.described_);
  }

  Mode mode() const { return mode_; }
  bool reading() const { return mode_ == Mode::read; }
  const std::string& path() const { return path_; }
  const Json& json() const { return *json_; }  // read mode: the object being read

  // Scalars and lists. A member keeps its value when the key is absent. JSON null is accepted only
  // for std::optional (and means "not set"). Integers must be written as integers (1.0 and 1e3 are
  // accepted when integral); numbers accept integers.
  Field& field(std::string_view name, bool& v);
  Field& field(std::string_view name, int64_t& v);
  Field& field(std::string_view name, uint64_t& v);
  Field& field(std::string_view name, double& v);
  Field& field(std::string_view name, std::string& v);
  Field& field(std::string_view name, std::optional<int64_t>& v);
  Field& field(std::string_view name, std::optional<uint64_t>& v);
  Field& field(std::string_view name, std::optional<double>& v);
  Field& field(std::string_view name, std::optional<bool>& v);
  Field& field(std::string_view name, std::optional<std::string>& v);
  Field& field(std::string_view name, std::vector<int64_t>& v);
  Field& field(std::string_view name, std::vector<double>& v);
  Field& field(std::string_view name, std::vector<std::string>& v);
  /// Any JSON value, kept as it is (for parts that another module reads).
  Field& field(std::string_view name, Json& v);
  /// File paths: read mode makes them absolute against the folder of the file that wrote them (values
  /// from the command line: against the current folder). "" stays "".
  Field& file(std::string_view name, std::string& v);
  Field& file(std::string_view name, std::optional<std::string>& v);
  Field& file(std::string_view name, std::vector<std::string>& v);

  /// Nested objects; T needs fields(Fields&, T&) in its namespace. An absent object is read as {}, so
  /// that its required keys are missed; an absent optional one keeps its value, and null clears it.
  template <class T> Field& object(std::string_view name, T& v) {
    return nested(
        name, false, true, [&v](Fields& f) { fields(f, v); }, [] {});
  }
  template <class T> Field& object(std::string_view name, std::optional<T>& v) {
    return nested(
        name, true, v.has_value(), [&v](Fields& f) { fields(f, v ? *v : v.emplace()); }, [&v] { v.reset(); });
  }
  /// A list of objects; when present it replaces the elements that v had.
  template <class T> Field& list(std::string_view name, std::vector<T>& v) {
    return elements(
        name, v.size(), [&v](size_t count) { v = std::vector<T>(count); },
        [&v](size_t i, Fields& f) { fields(f, v[i]); });
  }
  /// An object with free keys: `each(key, sub-fields)` is called per member in file order (read),
  /// per name of `keys` (write), once with "NAME" (describe).
  Field& map(std::string_view name, const std::vector<std::string>& keys,
             const std::function<void(const std::string& key, Fields& f)>& each);
  /// Read mode: calls each(key, sub-fields) again per member of the object `name`, for checks that
  /// need the whole configuration (require, fail, written); nothing happens when it is absent.
  void visit_members(std::string_view name, const std::function<void(const std::string& key, Fields& f)>& each);

  /// Cross-field checks, after the fields concerned; read mode only. Reports the value of `name` as
  /// written (or its default) and what was expected.
  void require(bool ok, std::string_view name, std::string_view expected);
  /// Throws the ConfigError for `name` in this object with an explicit text of what was found. `name`
  /// may be a dotted path; the position is that of its longest prefix that the configuration wrote.
  [[noreturn]] void fail(std::string_view name, std::string_view found, std::string_view expected) const;
  /// The same for errors that no single value makes: `problem` is what follows the position and the path.
  [[noreturn]] void fail(std::string_view name, std::string_view problem) const;
  /// Whether the configuration wrote this key (read mode).
  bool written(std::string_view name) const;

  /// For polymorphic objects: reads the string member "type" first (read: from JSON; write: emits
  /// `current`; describe: as given), checks it against `known` and returns it. It is required.
  std::string type_tag(std::string_view current, const std::vector<std::string>& known);

 private:
  friend class Field;
  Fields(Mode mode, std::string path) : mode_(mode), path_(std::move(path)) {}
  using Type = Field::Type;
  struct Known {
    std::string name, default_text;
  };
  using Visit = std::function<void(Fields&)>;

  void begin();   // read mode: json_ must be an object
  void finish();  // read mode: unknown keys
  Field& start(std::string_view name, const Type& type);
  template <class T> Field& value(std::string_view name, T& v, const Type& type);
  Field& nested(std::string_view name, bool is_optional, bool has, const Visit& visit,
                const std::function<void()>& clear);
  Field& elements(std::string_view name, size_t count, const std::function<void(size_t)>& resize,
                  const std::function<void(size_t, Fields&)>& visit);
  void read_into(const Json& json, const std::string& name, const Visit& visit) const;
  Json written_by(const Visit& visit) const;
  void describe_into(const std::string& name, const Visit& visit);
  std::string child_path(std::string_view name) const;
  std::string where(std::string_view name) const;  // position and path, for messages
  const Known* known(std::string_view name) const;
  [[noreturn]] void fail_unknown(const Json::Member& member) const;

  Mode mode_;
  std::string path_;
  const Json* json_ = nullptr;
  Json out_ = Json::object();
  std::vector<Known> known_;
  std::vector<Description> described_;
  Field current_;
};

/// The reference table in Markdown: key, type, default, constraint, unit, help.
std::string reference_markdown(const std::vector<Fields::Description>& descriptions);

}  // namespace hebb
