#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hebb {

/// Numbers of `width` <= 32 bits in runs and bit-packed groups (Parquet's hybrid encoding), one after the other.
/// Errors: DataError at `where` where the bytes end.
class HybridReader {
 public:
  HybridReader() = default;
  HybridReader(std::string_view bytes, int width, const std::string* where)
      : bytes_(bytes), width_(static_cast<uint32_t>(width)), where_(where) {}
  uint32_t next();

 private:
  void start_run();
  std::string_view bytes_;
  uint32_t width_ = 0;
  const std::string* where_ = nullptr;
  uint64_t left_ = 0;  // of the run
  bool is_packed_ = false;
  uint32_t value_ = 0;  // of a run of equal ones
  uint64_t bit_ = 0;    // of packed ones, from the first byte of bytes_
};

/// The byte strings of a page. Strings are views of the page, of the dictionary or, for delta byte arrays, of memory
/// that the next call writes to.
/// Errors: DataError at `where` for damage, for more strings than there are, and for encodings of other types.
/// Source: Encodings.md of Apache Parquet.
class PageStrings {
 public:
  PageStrings() = default;
  /// `count`: the most strings that the page may hold.
  PageStrings(int64_t encoding, std::string_view bytes, uint64_t count, const std::vector<std::string_view>* dictionary,
              const std::string* where);
  std::string_view next();

 private:
  std::string_view plain();
  std::string_view take(uint64_t size);
  std::string_view by_length();
  std::string_view by_prefix();
  std::vector<uint32_t> packed_lengths(uint64_t count);

  int64_t encoding_ = 0;
  std::string_view bytes_;
  const std::vector<std::string_view>* dictionary_ = nullptr;
  const std::string* where_ = nullptr;
  HybridReader indices_;
  std::vector<uint32_t> lengths_, prefixes_;
  size_t at_ = 0;  // of lengths_
  std::string joined_;
};

/// The strings of a dictionary page: `count` of them, plain. Views of `bytes`.
std::vector<std::string_view> dictionary_strings(std::string_view bytes, uint64_t count, const std::string& where);

}  // namespace hebb
