#pragma once
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/json.h"

namespace hebb {

/// Reads members of a config.json of Hugging Face, or of an object in it; every key must be asked for or be known to
/// say nothing about values. A null is an absent key, except for has(). Errors: ConfigError with place and key.
class HfConfig {
 public:
  /// place: of the object in the file ("rope_scaling"); "" for the whole.
  explicit HfConfig(const Json& json, std::string place = "");

  /// Whether the key is written, even as null.
  bool has(std::string_view key);
  const Json* find(std::string_view key);
  const Json* object(std::string_view key);
  const Json* array(std::string_view key);
  std::string text(std::string_view key, const std::string& absent);
  int64_t integer(std::string_view key);
  int64_t integer(std::string_view key, int64_t absent) { return find(key) == nullptr ? absent : integer(key); }
  int64_t positive(std::string_view key);
  int64_t positive(std::string_view key, int64_t absent) { return find(key) == nullptr ? absent : positive(key); }
  double number(std::string_view key);
  double number(std::string_view key, double absent) { return find(key) == nullptr ? absent : number(key); }
  bool flag(std::string_view key, bool absent);
  /// `value` as a size that the number at `key` makes.
  int64_t size(std::string_view key, double value);
  /// Must be `only` where it is there.
  void require(std::string_view key, const Json& only);
  /// Must be one of these where it is there; the first is what hebb writes.
  void require_one(std::string_view key, const std::vector<std::string>& values);

  const Json& json() const { return json_; }
  /// Error for a key that nothing asked for, that is not null and that may change the model. `harmless` are known not
  /// to.
  void finish(const std::set<std::string_view>& harmless) const;
  [[noreturn]] void fail(std::string_view key, const Json* value, const std::string& expected) const;

 private:
  const Json& json_;
  std::string place_;
  std::set<std::string, std::less<>> asked_;
};

/// Keys of a whole config.json that change no value that the model computes.
bool is_harmless(std::string_view key);

}  // namespace hebb
