#include "study/ladder/expression.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "core/error.h"

namespace hebb {
namespace {

constexpr int kDeepest = 100;

/// Recursive descent: sum = product (+|- product)*, product = factor (*|/|//|% factor)*, factor = - factor | atom.
class Parser {
 public:
  Parser(const std::string& text, const Lookup& lookup, const std::string& where)
      : text_(text), lookup_(lookup), where_(where) {}

  double run() {
    const double value = sum();
    if (skip() < text_.size()) { fail("an operator or the end"); }
    if (!std::isfinite(value)) {
      throw ConfigError(where_, "\"" + text_ + "\", which is not finite", "a finite number");
    }
    return value;
  }

 private:
  size_t skip() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) { ++at_; }
    return at_;
  }
  bool take(const std::string& token) {
    if (text_.compare(skip(), token.size(), token) != 0) { return false; }
    at_ += token.size();
    return true;
  }
  [[noreturn]] void fail(const std::string& expected) const {
    throw ConfigError(
        where_,
        at_ < text_.size() ? "\"" + text_.substr(at_) + "\" in \"" + text_ + "\"" : "the end of \"" + text_ + "\"",
        expected);
  }

  double sum() {
    double value = product();
    for (;;) {
      if (take("+")) {
        value += product();
      } else if (take("-")) {
        value -= product();
      } else {
        return value;
      }
    }
  }

  double product() {
    double value = factor();
    for (;;) {
      if (take("//")) {
        value = std::floor(value / divisor());
      } else if (take("*")) {
        value *= factor();
      } else if (take("/")) {
        value /= divisor();
      } else if (take("%")) {
        const double by = divisor();
        value -= by * std::floor(value / by);
      } else {
        return value;
      }
    }
  }

  double divisor() {
    const double value = factor();
    if (value == 0) { throw ConfigError(where_, "a division by 0 in \"" + text_ + "\"", "a divisor other than 0"); }
    return value;
  }

  /// Signs, parentheses and calls nest.
  double factor() {
    if (depth_ == kDeepest) {
      throw ConfigError(where_, fmt::format("more than {:d} levels of nesting in {}", kDeepest, Json(text_).found()),
                        fmt::format("at most {:d}", kDeepest));
    }
    ++depth_;
    const double value = take("-") ? -factor() : atom();
    --depth_;
    return value;
  }

  double atom() {
    if (take("(")) {
      const double value = sum();
      close();
      return value;
    }
    const char c = skip() < text_.size() ? text_[at_] : '\0';
    if (std::isdigit(static_cast<unsigned char>(c)) != 0 || c == '.') {
      char* end = nullptr;
      const double value = std::strtod(text_.c_str() + at_, &end);
      at_ = static_cast<size_t>(end - text_.c_str());
      return value;
    }
    if (std::isalpha(static_cast<unsigned char>(c)) == 0 && c != '_') { fail("a number, a name or \"(\""); }
    const size_t begin = at_;
    while (at_ < text_.size() &&
           (std::isalnum(static_cast<unsigned char>(text_[at_])) != 0 || text_[at_] == '_' || text_[at_] == '.')) {
      ++at_;
    }
    const std::string name = text_.substr(begin, at_ - begin);
    return take("(") ? call(name) : value_of(name);
  }

  double value_of(const std::string& name) const {
    const std::optional<double> value = lookup_(name);
    if (!value) {
      throw ConfigError(where_, name + " in \"" + text_ + "\"",
                        "a number of the configuration, params.* or flops.forward_per_token");
    }
    return *value;
  }

  void close() {
    if (!take(")")) { fail("\")\""); }
  }

  double call(const std::string& name) {
    std::vector<double> values{sum()};
    while (take(",")) { values.push_back(sum()); }
    close();
    const bool is_pair = name == "min" || name == "max";
    if (is_pair ? values.size() < 2 : values.size() != 1) {
      throw ConfigError(where_, fmt::format("{} of {:d} values in \"{}\"", name, values.size(), text_),
                        is_pair ? "two or more" : "one");
    }
    if (is_pair) {
      double best = values[0];
      for (const double v : values) { best = name == "min" ? std::min(best, v) : std::max(best, v); }
      return best;
    }
    const double v = values[0];
    if ((name == "sqrt" && v < 0) || (name == "log2" && v <= 0)) {  // min and max would drop a NaN
      throw ConfigError(where_, name + " of " + Json(v).dump() + " in \"" + text_ + "\"",
                        name == "sqrt" ? "a number >= 0" : "a number > 0");
    }
    if (name == "ceil") { return std::ceil(v); }
    if (name == "floor") { return std::floor(v); }
    if (name == "round") { return std::floor(v + 0.5); }
    if (name == "sqrt") { return std::sqrt(v); }
    if (name == "log2") { return std::log2(v); }
    throw ConfigError(where_, "the function " + name, "ceil, floor, round, min, max, sqrt or log2");
  }

  const std::string& text_;
  const Lookup& lookup_;
  const std::string& where_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

double evaluate(const std::string& text, const Lookup& lookup, const std::string& where) {
  return Parser(text, lookup, where).run();
}

Json number_json(double value) {
  constexpr double kExact = 9007199254740992.0;  // 2^53: doubles hold every integer below
  return value == std::floor(value) && std::abs(value) <= kExact ? Json(static_cast<int64_t>(value)) : Json(value);
}

}  // namespace hebb
