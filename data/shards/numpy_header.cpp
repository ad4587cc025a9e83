#include "data/shards/numpy_header.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

namespace hebb {
namespace {

constexpr std::string_view kNumpyMagic = "\x93NUMPY";

/// The dictionary of the header, as Python writes it.
class HeaderText {
 public:
  HeaderText(std::string_view text, uint64_t offset, const std::string& name)
      : text_(text), offset_(offset), name_(name) {}

  void read() {
    expect('{');
    while (!accept('}')) {
      const std::string key = string();
      expect(':');
      if (key == "descr") {
        descr = string();
      } else if (key == "fortran_order") {
        is_fortran = word() == "True";
      } else if (key == "shape") {
        read_shape();
      } else {
        fail("one of the keys descr, fortran_order, shape");
      }
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    if (at_ != text_.size()) { fail("the end of the header"); }
  }

  std::string descr;
  bool is_fortran = false;
  std::vector<int64_t> shape;

 private:
  [[noreturn]] void fail(const std::string& expected) const {
    const std::string found = at_ < text_.size() ? "\"" + std::string(text_.substr(at_, 20)) + "\"" : "its end";
    fail_at_byte(name_, offset_ + at_, "NumPy header", found, expected);
  }
  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) { ++at_; }
  }
  bool accept(char c) {
    skip_space();
    const bool is_there = at_ < text_.size() && text_[at_] == c;
    at_ += is_there ? 1 : 0;
    return is_there;
  }
  void expect(char c) {
    if (!accept(c)) { fail(std::string("a ") + c); }
  }
  std::string string() {
    skip_space();
    const char quote = at_ < text_.size() ? text_[at_] : '\0';
    if (quote != '\'' && quote != '"') { fail("a string (arrays of structs are not read)"); }
    const size_t end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos) { fail("the end of a string"); }
    std::string value(text_.substr(at_ + 1, end - at_ - 1));
    at_ = end + 1;
    return value;
  }
  std::string_view word() {
    skip_space();
    for (const std::string_view value : {"True", "False"}) {
      if (text_.substr(at_).starts_with(value)) {
        at_ += value.size();
        return value;
      }
    }
    fail("True or False");
  }
  void read_shape() {
    constexpr int64_t kMost = INT64_C(1) << 53;
    for (expect('('); !accept(')');) {
      int64_t size = 0;
      skip_space();
      const size_t begin = at_;
      for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9' && size <= kMost; ++at_) {
        size = size * 10 + (text_[at_] - '0');
      }
      if (at_ == begin || size > kMost) { fail("a size of at most 2^53"); }
      shape.push_back(size);
      if (!accept(',')) {
        expect(')');
        break;
      }
    }
  }

  std::string_view text_;
  uint64_t offset_;
  const std::string& name_;
  size_t at_ = 0;
};

TokenType token_type_of(const std::string& descr, const std::string& name) {
  static constexpr std::array<std::pair<std::string_view, TokenType>, 5> kTypes = {{{"|u1", TokenType::u8},
                                                                                    {"<u2", TokenType::u16},
                                                                                    {"<u4", TokenType::u32},
                                                                                    {"<i4", TokenType::i32},
                                                                                    {"<i8", TokenType::i64}}};
  for (const auto& [text, type] : kTypes) {
    if (descr == text) { return type; }
  }
  fail_at_byte(name, 0, "type of a NumPy file", descr, "|u1, <u2, <u4, <i4 or <i8");
}

}  // namespace

bool is_numpy(std::span<const uint8_t> bytes) {
  return bytes.size() >= kNumpyMagic.size() && std::memcmp(bytes.data(), kNumpyMagic.data(), kNumpyMagic.size()) == 0;
}

NumpyHeader parse_numpy_header(std::span<const uint8_t> bytes, const std::string& name) {
  constexpr uint64_t kVersionAt = 6, kLengthAt = 8;
  const uint8_t version = bytes.size() > kVersionAt ? bytes[kVersionAt] : 0;
  if (bytes.size() > kVersionAt && (version < 1 || version > 3)) {
    fail_at_byte(name, kVersionAt, "version of a NumPy file", std::to_string(version), "1, 2 or 3");
  }
  const uint64_t begin = kLengthAt + (version == 1 ? 2 : 4);
  const uint64_t length = bytes.size() < begin ? 0
                          : version == 1       ? load_le<uint16_t>(bytes.data() + kLengthAt)
                                               : load_le<uint32_t>(bytes.data() + kLengthAt);
  if (bytes.size() < begin || length > bytes.size() - begin) {
    fail_at_byte(name, bytes.size(), "file ends inside the NumPy header", fmt::format("{:d} bytes", bytes.size()),
                 fmt::format("at least {:d}", begin + length));
  }
  HeaderText text({reinterpret_cast<const char*>(bytes.data()) + begin, length}, begin, name);
  text.read();
  if (text.is_fortran) { fail_at_byte(name, begin, "order of a NumPy file", "Fortran order", "C order"); }
  NumpyHeader header{token_type_of(text.descr, name), 1, static_cast<int64_t>(begin + length)};
  const int64_t room = static_cast<int64_t>(bytes.size()) - header.bytes, width = token_width(header.type);
  for (const int64_t size : text.shape) {
    if (__builtin_mul_overflow(header.tokens, size, &header.tokens)) { header.tokens = -1; }
    if (header.tokens < 0) { break; }
  }
  if (header.tokens != room / width || room % width != 0) {
    fail_at_byte(name, begin, fmt::format("number of tokens in a file of {:d} bytes", bytes.size()),
                 header.tokens < 0 ? "more than 2^63" : std::to_string(header.tokens),
                 fmt::format("{:d}{}", room / width, room % width != 0 ? " and a part of a token" : ""));
  }
  return header;
}

}  // namespace hebb
