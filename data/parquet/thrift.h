#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "core/error.h"

namespace hebb {

/// The bytes end inside a Thrift value.
class ThriftCutOff : public DataError {
 public:
  using DataError::DataError;
};

/// Types of Thrift's compact protocol.
enum class ThriftType : uint8_t {
  yes = 1,
  no = 2,
  i8 = 3,
  i16 = 4,
  i32 = 5,
  i64 = 6,
  real = 7,
  binary = 8,
  list = 9,
  set = 10,
  map = 11,
  structure = 12,
  uuid = 13
};

/// Reads structs of Thrift's compact protocol, at most 32 levels deep.
/// Errors: DataError at `where` for damage; ThriftCutOff where the bytes end too early.
/// Source: thrift-compact-protocol.md of Apache Thrift.
class ThriftReader {
 public:
  ThriftReader(std::string_view bytes, std::string where) : bytes_(bytes), where_(std::move(where)) {}

  /// Bytes that were read.
  size_t position() const { return at_; }

  /// Reads a struct: on_field(id, type) reads the value and returns true, or returns false, and it is passed over.
  template <class OnField> void each_field(OnField on_field) {
    enter();
    int64_t id = 0;
    for (uint8_t head = byte(); head != 0; head = byte()) {
      id = head >> 4 == 0 ? zigzag() : id + (head >> 4);
      const auto type = static_cast<ThriftType>(head & 0xF);
      if (!on_field(id, type)) { skip(type); }
    }
    --depth_;
  }
  /// Reads a list: on_element(type) for each of its elements, as on_field.
  template <class OnElement> void each_element(ThriftType type, OnElement on_element) {
    require(type == ThriftType::list || type == ThriftType::set, "a list");
    const uint8_t head = byte();
    const auto element = static_cast<ThriftType>(head & 0xF);
    for (uint64_t left = head >> 4 == 15 ? varint() : head >> 4; left > 0; --left) {
      if (!on_element(element)) { skip_element(element); }
    }
  }
  int64_t integer(ThriftType type);
  bool boolean(ThriftType type);
  std::string_view binary(ThriftType type);

  void require(bool is_right, const char* expected) const;
  const std::string& where() const { return where_; }

 private:
  uint8_t byte();
  uint64_t varint();
  int64_t zigzag();
  void pass(uint64_t size);
  void skip(ThriftType type);
  void skip_element(ThriftType type);
  void enter();

  std::string_view bytes_;
  std::string where_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace hebb
