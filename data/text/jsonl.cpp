#include "data/text/jsonl.h"

#include "core/utf8.h"

namespace hebb {
namespace {

constexpr int kMaxDepth = 200;

/// One pass over a line without building a tree: corpora carry long metadata beside the text.
class LineParser {
 public:
  LineParser(std::string_view line, std::string_view field, bool replace_invalid, JsonlText& result)
      : line_(line), field_(field), replace_invalid_(replace_invalid), result_(result) {}

  void run() {
    skip_space();
    if (!(peek() == '{' ? object(1, true) : fail("broken JSON", "an object"))) { return; }
    skip_space();
    if (at_ != line_.size()) {
      fail("broken JSON", "the end of the line");
      return;
    }
    choose();
  }

 private:
  struct Member {
    bool is_present = false, is_string = false;
    size_t offset = 0;
    std::string text;
  };

  // Reports the character at the current position, where something else was expected.
  bool fail(std::string problem, const char* expected = "") {
    result_.offset = at_;
    result_.problem = std::move(problem);
    result_.expected = expected;
    if (result_.expected.empty()) { return false; }
    if (at_ >= line_.size()) {
      result_.found = "the end of the line";
    } else {
      const int length = utf8_step(line_.substr(at_)).length;
      result_.found.assign(1, '"').append(line_.substr(at_, static_cast<size_t>(length))) += '"';
    }
    return false;
  }

  char peek() const { return at_ < line_.size() ? line_[at_] : '\0'; }
  void skip_space() {
    while (at_ < line_.size() &&
           (line_[at_] == ' ' || line_[at_] == '\t' || line_[at_] == '\r' || line_[at_] == '\n')) {
      ++at_;
    }
  }

  bool value(int depth) {
    switch (peek()) {
      case '{': return object(depth + 1, false);
      case '[': return array(depth + 1);
      case '"': return string(nullptr);
      case 't': return word("true");
      case 'f': return word("false");
      case 'n': return word("null");
      case 'N': return word("NaN");  // and the next: as Python writes them
      case 'I': return word("Infinity");
      default: return number();
    }
  }

  bool object(int depth, bool is_top) {
    return elements(depth, '}', ", or }", [&] {
      std::string key;
      if (peek() != '"') { return fail("broken JSON", "a member name"); }
      if (!string(is_top ? &key : nullptr)) { return false; }
      skip_space();
      if (peek() != ':') { return fail("broken JSON", ":"); }
      ++at_;
      skip_space();
      return is_top ? member(key) : value(depth);
    });
  }

  bool array(int depth) {
    return elements(depth, ']', ", or ]", [&] { return value(depth); });
  }

  /// What stands between brackets, with commas between; `expected` behind an element.
  template <class Element> bool elements(int depth, char close, const char* expected, const Element& element) {
    if (depth > kMaxDepth) { return fail("JSON is nested too deeply", "at most 200 levels"); }
    ++at_;
    skip_space();
    if (peek() != close) {
      while (true) {
        if (!element()) { return false; }
        skip_space();
        if (peek() == close) { break; }
        if (peek() != ',') { return fail("broken JSON", expected); }
        ++at_;
        skip_space();
      }
    }
    ++at_;
    return true;
  }

  // A member of the outermost object.
  bool member(const std::string& key) {
    Member* wanted = key == (field_.empty() ? "text" : field_) ? &first_
                     : field_.empty() && key == "content"      ? &second_
                                                               : nullptr;
    if (wanted == nullptr) {
      note_name(key);
      return value(1);
    }
    if (wanted->is_present) { return fail("duplicate member \"" + key + "\""); }
    wanted->is_present = true;
    wanted->offset = at_;
    wanted->is_string = peek() == '"';
    return wanted->is_string ? text(wanted->text) : value(1);
  }

  // For the message when the wanted member is missing.
  void note_name(const std::string& key) {
    constexpr size_t kEnough = 80;
    if (names_.size() < kEnough) {
      names_ += (names_.empty() ? "" : ", ") + (names_.size() + key.size() < kEnough ? key : "...");
    }
  }

  bool text(std::string& out) {
    is_text_ = true;
    const bool is_good = string(&out);
    is_text_ = false;
    return is_good;
  }

  /// A string; decoded into `out` unless that is null.
  bool string(std::string* out) {
    ++at_;
    while (true) {
      const size_t begin = at_;
      while (at_ < line_.size() && line_[at_] != '"' && line_[at_] != '\\' &&
             static_cast<unsigned char>(line_[at_]) >= 0x20) {
        ++at_;
      }
      if (out != nullptr) { out->append(line_.substr(begin, at_ - begin)); }
      if (peek() == '"') {
        ++at_;
        return true;
      }
      if (peek() != '\\') { return fail("broken JSON", "a character of a string"); }
      if (!escape(out)) { return false; }
    }
  }

  bool escape(std::string* out) {
    static constexpr std::string_view kNames = "\"\\/bfnrt";
    static constexpr std::string_view kValues = "\"\\/\b\f\n\r\t";
    ++at_;
    if (peek() == 'u') { return unicode_escape(out); }
    const size_t which = at_ < line_.size() ? kNames.find(line_[at_]) : std::string_view::npos;
    if (which == std::string_view::npos) { return fail("broken JSON", "one of \" \\ / b f n r t u after a backslash"); }
    ++at_;
    if (out != nullptr) { *out += kValues[which]; }
    return true;
  }

  // at_ is on the 'u'.
  bool unicode_escape(std::string* out) {
    const size_t start = at_ - 1;
    uint32_t unit = 0;
    if (!four_digits(unit)) { return false; }
    char32_t c = unit;
    if (unit >= 0xD800 && unit < 0xE000) {
      uint32_t low = 0;
      const size_t behind = at_;
      if (unit < 0xDC00 && line_.substr(at_, 2) == "\\u") {
        ++at_;
        if (!four_digits(low)) { return false; }
      }
      if (low >= 0xDC00 && low < 0xE000) {
        c = 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00);
      } else if (is_text_ && !replace_invalid_) {
        at_ = start;
        return fail("unpaired surrogate in the text", "a pair of surrogate escapes");
      } else {
        c = 0xFFFD;
        at_ = behind;  // the second escape stands for itself
        result_.replaced += is_text_ ? 1 : 0;
      }
    }
    if (out != nullptr) { utf8_append(*out, c); }
    return true;
  }

  // at_ is on the 'u'; leaves it behind the digits.
  bool four_digits(uint32_t& value) {
    value = 0;
    for (int i = 0; i < 4; ++i) {
      ++at_;
      const char c = peek();
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) { return fail("broken JSON", "four hexadecimal digits"); }
      value = value * 16 + static_cast<uint32_t>(digit);
    }
    ++at_;
    return true;
  }

  bool word(std::string_view name) {
    if (line_.substr(at_, name.size()) != name) { return fail("broken JSON", "a value"); }
    at_ += name.size();
    return true;
  }

  bool digits() {
    const size_t begin = at_;
    while (peek() >= '0' && peek() <= '9') { ++at_; }
    return at_ > begin || fail("broken JSON", "a digit");
  }
  bool number() {
    const size_t begin = at_;
    at_ += peek() == '-' ? 1 : 0;
    if (at_ > begin && peek() == 'I') { return word("Infinity"); }
    if (peek() == '0') {
      ++at_;
    } else if (peek() < '0' || peek() > '9') {
      return fail("broken JSON", at_ > begin ? "a digit" : "a value");
    } else {
      digits();
    }
    if (peek() == '.') {
      ++at_;
      if (!digits()) { return false; }
    }
    if (peek() == 'e' || peek() == 'E') {
      ++at_;
      at_ += peek() == '+' || peek() == '-' ? 1 : 0;
      return digits();
    }
    return true;
  }

  static const char* kind_of(char first) {
    switch (first) {
      case '{': return "an object";
      case '[': return "an array";
      case 'n': return "null";
      case 't':
      case 'f': return "a boolean";
      default: return "a number";
    }
  }

  void choose() {
    Member& member = first_.is_present ? first_ : second_;
    const std::string wanted =
        field_.empty() ? "a string member \"text\" or \"content\"" : "a string member \"" + std::string(field_) + "\"";
    result_.expected = wanted;
    if (!member.is_present) {
      result_.problem = "no text";
      result_.found = names_.empty() ? "an empty object" : "members " + names_;
    } else if (!member.is_string) {
      result_.problem = "no text";
      result_.offset = member.offset;
      result_.found = kind_of(line_[member.offset]);
    } else {
      result_ = {true, std::move(member.text), result_.replaced, 0, "", "", ""};
    }
  }

  std::string_view line_, field_;
  bool replace_invalid_;
  JsonlText& result_;
  size_t at_ = 0;
  bool is_text_ = false;
  Member first_, second_;
  std::string names_;
};

}  // namespace

JsonlText jsonl_text(std::string_view line, std::string_view field, bool replace_invalid) {
  JsonlText result;
  LineParser(line, field, replace_invalid, result).run();
  return result;
}

}  // namespace hebb
