#pragma once
#include <cmath>
#include <set>
#include <string>

#include "core/error.h"
#include "core/json.h"

namespace hebb {

/// Reads members of a config.json of Hugging Face; every key must be asked for or be known to say nothing about values.
class HfConfig {
 public:
  explicit HfConfig(const Json& json) : json_(json) {}

  const Json* find(const std::string& key) {
    asked_.insert(key);
    const Json* value = json_.find(key);
    return value == nullptr || value->is_null() ? nullptr : value;
  }
  int64_t integer(const std::string& key) {
    const Json* value = find(key);
    if (value == nullptr || !value->is_integer()) { fail(key, value, "an integer"); }
    return value->as_int();
  }
  int64_t integer(const std::string& key, int64_t absent) { return find(key) == nullptr ? absent : integer(key); }
  double number(const std::string& key) {
    const Json* value = find(key);
    if (value == nullptr || !value->is_number()) { fail(key, value, "a number"); }
    return value->as_double();
  }
  double number(const std::string& key, double absent) { return find(key) == nullptr ? absent : number(key); }
  int64_t positive(const std::string& key) {
    const int64_t value = integer(key);
    if (value < 1) { fail(key, json_.find(key), "an integer >= 1"); }
    return value;
  }
  /// A size that is `key` times another one.
  int64_t size(const std::string& key, double value) {
    if (!(std::abs(value) < 0x1p31)) { fail(key, find(key), "a number that makes a size below 2^31"); }
    return static_cast<int64_t>(value);
  }
  bool flag(const std::string& key, bool absent) {
    const Json* value = find(key);
    if (value != nullptr && !value->is_bool()) { fail(key, value, "true or false"); }
    return value == nullptr ? absent : value->as_bool();
  }
  /// Must be `only` where it is there.
  void require(const std::string& key, const Json& only) {
    const Json* value = find(key);
    if (value != nullptr && !(*value == only)) { fail(key, value, only.dump()); }
  }
  /// Error for a key that nothing asked for and that may change the model.
  void finish() const;
  [[noreturn]] void fail(const std::string& key, const Json* value, const std::string& expected) const {
    throw ConfigError(located(value == nullptr ? "" : value->origin().str(), key),
                      value == nullptr ? "nothing" : value->found(), expected);
  }

 private:
  const Json& json_;
  std::set<std::string, std::less<>> asked_;
};

}  // namespace hebb
