#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "core/error.h"
#include "core/files.h"
#include "core/json_line.h"
#include "core/utf8.h"

namespace hebb {
namespace {

constexpr size_t kDeepest = 200;

/// Builds a Json from nlohmann's SAX events. That parser reports no positions of values, so the
/// builder walks over the same text: between two events there is only white space, ',' and ':'.
class Builder {
 public:
  Builder(std::string_view text, const std::string& file_name, int line)
      : text_(text), file_(std::make_shared<const std::string>(file_name)), line_(line) {}

  /// nlohmann's lexer takes a NUL byte for the end of the text.
  void check_bytes() {
    if (const size_t nul = text_.find('\0'); nul != std::string_view::npos) {
      throw ConfigError(origin(nul).str(), "a NUL byte", "JSON text in UTF-8");
    }
  }

  bool null() { return scalar(Json(), 4); }
  bool boolean(bool v) { return scalar(Json(v), v ? 4 : 5); }
  bool number_integer(int64_t v) { return number(Json(v)); }
  bool number_unsigned(uint64_t v) { return number(Json(v)); }
  bool number_float(double v, const std::string&) { return number(Json(v)); }
  bool string(std::string& v) { return scalar(Json(std::move(v)), string_length(next_token())); }
  bool binary(std::vector<uint8_t>&) { return false; }  // never in text
  bool start_object(size_t) { return open(Json::object()); }
  bool start_array(size_t) { return open(Json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  bool key(std::string& v) {
    const size_t begin = next_token();
    cursor_ = begin + string_length(begin);
    Frame& frame = stack_.back();
    if (!frame.keys.insert(v).second) {
      throw ConfigError(origin(begin).str(), "found the key " + Json(v).found() + " twice in one object");
    }
    frame.key = std::move(v);
    frame.key_origin = origin(begin);
    return true;
  }

  template <class Exception>
  bool parse_error(size_t position, const std::string& last_token, const Exception& exception) {
    // `position` counts the bytes read, the last one being the offending byte or the end of the token.
    const size_t end = std::min(position, text_.size() + 1);
    if (exception.id == 406) {
      throw ConfigError(origin(next_token()).str(), last_token, "a number that a double can hold");
    }
    const size_t last = end == 0 ? 0 : end - 1;
    for (const char* mark : {"//", "/*", "#"}) {
      if (text_.substr(std::min(last, text_.size())).starts_with(mark)) {
        throw ConfigError(origin(last).str(), "a comment", "JSON, which has none");
      }
    }
    if (last < text_.size() && (text_[last] == '}' || text_[last] == ']')) {
      const size_t before = text_.substr(0, last).find_last_not_of(" \t\r\n");
      if (before != std::string_view::npos && text_[before] == ',') {
        throw ConfigError(origin(before).str(), "a comma after the last element", "none: JSON has no trailing commas");
      }
    }
    const std::string message = exception.what();
    const auto piece = [&](const std::string& head, size_t from) {
      const size_t at = message.find(head, from);
      return at == std::string::npos ? at : at + head.size();
    };
    const size_t detail = piece(" - ", 0);
    const size_t unexpected = piece(" - unexpected ", 0);
    if (unexpected != detail + 11) {
      const std::string what = message.substr(detail, message.find("; last read: ", detail) - detail);
      throw ConfigError(origin(last).str(), what);
    }
    const size_t stop = message.find("; expected ", unexpected);
    const size_t expected = piece("; expected ", unexpected);
    throw ConfigError(origin(token_begin(end, last_token)).str(), message.substr(unexpected, stop - unexpected),
                      expected == std::string::npos ? "a value" : message.substr(expected));
  }

  Json take() { return std::move(root_); }

 private:
  struct Frame {
    Json value;
    std::unordered_set<std::string> keys{};
    std::string key{};  // of the member that is being read; empty in arrays
    Origin key_origin{};
  };

  size_t next_token() {
    while (cursor_ < text_.size() && std::string_view(" \t\r\n,:").find(text_[cursor_]) != std::string_view::npos) {
      ++cursor_;
    }
    return cursor_;
  }

  size_t string_length(size_t begin) const {
    size_t end = begin + 1;
    while (text_[end] != '"') { end += text_[end] == '\\' ? 2 : 1; }
    return end + 1 - begin;
  }

  /// First byte of a token that is well-formed but out of place and ends before `end`.
  size_t token_begin(size_t end, const std::string& last_token) const {
    if (end > text_.size()) { return text_.size(); }
    for (const std::string_view word : {"true", "false", "null"}) {
      if (text_.substr(0, end).ends_with(word)) { return end - word.size(); }
    }
    const bool is_bracket = std::string_view("{}[],:").find(text_[end - 1]) != std::string_view::npos;
    return end - (is_bracket ? 1 : std::min(last_token.size(), end));
  }

  /// Offsets must not decrease from call to call: lines are counted once.
  Origin origin(size_t offset) {
    for (; counted_ < offset; ++counted_) {
      if (text_[counted_] == '\n') {
        ++line_;
        line_begin_ = counted_ + 1;
      }
    }
    return {file_, line_, static_cast<int>(offset - line_begin_ + 1)};
  }

  bool number(Json v) {
    const size_t begin = next_token();
    const size_t end = text_.find_first_not_of("+-.0123456789eE", begin);
    return scalar(std::move(v), (end == std::string_view::npos ? text_.size() : end) - begin);
  }

  bool scalar(Json v, size_t length) {
    const size_t begin = next_token();
    v.set_origin(origin(begin), key_origin());
    cursor_ = begin + length;
    return place(std::move(v));
  }

  bool open(Json v) {
    const size_t begin = next_token();
    cursor_ = begin + 1;
    if (stack_.size() == kDeepest) {
      throw ConfigError(origin(begin).str(), fmt::format("more than {:d} levels of nesting", kDeepest),
                        fmt::format("at most {:d}", kDeepest));
    }
    v.set_origin(origin(begin), key_origin());
    stack_.push_back({std::move(v)});
    return true;
  }

  bool close() {
    cursor_ = next_token() + 1;
    Json v = std::move(stack_.back().value);
    stack_.pop_back();
    return place(std::move(v));
  }

  Origin key_origin() const { return stack_.empty() ? Origin() : stack_.back().key_origin; }

  bool place(Json v) {
    if (stack_.empty()) {
      root_ = std::move(v);
    } else if (stack_.back().value.is_array()) {
      stack_.back().value.items().push_back(std::move(v));
    } else {
      stack_.back().value.members().emplace_back(std::move(stack_.back().key), std::move(v));
    }
    return true;
  }

  std::string_view text_;
  std::shared_ptr<const std::string> file_;
  size_t cursor_ = 0;  // end of the last token
  size_t counted_ = 0, line_begin_ = 0;
  int line_;
  std::vector<Frame> stack_;
  Json root_;
};

}  // namespace

Json parse_json_line(std::string_view text, const std::string& file_name, int line) {
  if (text.starts_with(kByteOrderMark)) { text.remove_prefix(kByteOrderMark.size()); }
  Builder builder(text, file_name, line);
  builder.check_bytes();
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &builder)) {
    throw ConfigError(file_name, "cannot be read as JSON");
  }
  return builder.take();
}

Json parse_json(std::string_view text, const std::string& file_name) { return parse_json_line(text, file_name, 1); }

Json parse_json_file(const std::string& path) { return parse_json(read_file(path, ExitCode::kUsage), path); }

}  // namespace hebb
