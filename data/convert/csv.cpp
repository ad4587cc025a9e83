#include "data/convert/csv.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/files.h"
#include "core/utf8.h"

namespace hebb {
namespace {

class Reader {
 public:
  Reader(const std::string& path, std::string text) : path_(path), text_(std::move(text)) {
    if (text_.starts_with(kByteOrderMark)) { at_ = 3; }
  }

  bool next(std::vector<std::string>& fields, int64_t& line) {
    while (at_ < text_.size() && (text_[at_] == '\n' || text_[at_] == '\r')) { take(); }
    line = line_;
    fields.clear();
    if (at_ == text_.size()) { return false; }
    do { fields.push_back(text_[at_] == '"' ? quoted() : plain()); } while (skip(','));
    if (at_ < text_.size() && text_[at_] != '\n' && text_[at_] != '\r') {
      fail("text after the closing quote of a field", std::string(1, text_[at_]), "a comma or the end of the line");
    }
    return true;
  }

 private:
  std::string plain() {
    const size_t end = std::min(text_.find_first_of(",\r\n", at_), text_.size());
    std::string field = text_.substr(at_, end - at_);
    if (field.find('"') != std::string::npos) {
      fail("a quote inside a field", field.substr(0, 40), "the whole field in quotes, its own quotes doubled");
    }
    at_ = end;
    return field;
  }

  std::string quoted() {
    const int64_t first = line_;
    std::string field;
    take();
    while (true) {
      if (at_ == text_.size()) {
        line_ = first;
        fail("a field without its closing quote", "the end of the file", "a quote");
      }
      const char c = take();
      if (c == '"' && !skip('"')) { return field; }
      field += c;
    }
  }

  char take() {
    line_ += text_[at_] == '\n' ? 1 : 0;
    return text_[at_++];
  }
  bool skip(char c) {
    const bool is_there = at_ < text_.size() && text_[at_] == c;
    at_ += is_there ? 1 : 0;
    return is_there;
  }
  [[noreturn]] void fail(const char* what, const std::string& found, const char* expected) const {
    throw DataError(fmt::format("{}:{:d}", path_, line_), what, found, expected);
  }

  std::string path_, text_;
  size_t at_ = 0;
  int64_t line_ = 1;
};

}  // namespace

void each_csv_record(const std::string& path,
                     const std::function<void(std::vector<std::string> fields, int64_t line)>& use) {
  std::string text = read_file(path);
  if (const size_t bad = utf8_first_invalid(text); bad != std::string::npos) {
    throw DataError(path, fmt::format("invalid UTF-8 at byte {:d}", bad));
  }
  Reader reader(path, std::move(text));
  std::vector<std::string> fields;
  for (int64_t line = 0; reader.next(fields, line);) { use(std::move(fields), line); }
}

}  // namespace hebb
