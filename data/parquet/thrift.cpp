#include "data/parquet/thrift.h"

#include <fmt/core.h>

namespace hebb {

void ThriftReader::require(bool is_right, const char* expected) const {
  if (!is_right) {
    throw DataError(where_, fmt::format("damaged at byte {:d} of the metadata: expected {}", at_, expected));
  }
}

uint8_t ThriftReader::byte() {
  if (at_ == bytes_.size()) { throw ThriftCutOff(where_, "the metadata is cut off"); }
  return static_cast<uint8_t>(bytes_[at_++]);
}

uint64_t ThriftReader::varint() {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    const uint8_t next = byte();
    value |= static_cast<uint64_t>(next & 0x7F) << shift;
    if (next < 0x80) { return value; }
  }
  require(false, "a number of at most 64 bits");
  return 0;
}

int64_t ThriftReader::zigzag() {
  const uint64_t value = varint();
  return static_cast<int64_t>(value >> 1 ^ (~(value & 1) + 1));
}

int64_t ThriftReader::integer(ThriftType type) {
  if (type == ThriftType::i8) { return static_cast<int8_t>(byte()); }
  require(type == ThriftType::i16 || type == ThriftType::i32 || type == ThriftType::i64, "an integer");
  return zigzag();
}

bool ThriftReader::boolean(ThriftType type) {
  require(type == ThriftType::yes || type == ThriftType::no, "a boolean");
  return type == ThriftType::yes;
}

std::string_view ThriftReader::binary(ThriftType type) {
  require(type == ThriftType::binary, "a string");
  const uint64_t size = varint();
  const size_t begin = at_;
  pass(size);
  return bytes_.substr(begin, size);
}

void ThriftReader::pass(uint64_t size) {
  if (size > bytes_.size() - at_) { throw ThriftCutOff(where_, "the metadata is cut off"); }
  at_ += size;
}

void ThriftReader::enter() {
  constexpr int kMaxDepth = 32;
  require(++depth_ <= kMaxDepth, "at most 32 levels");
}

void ThriftReader::skip(ThriftType type) {
  constexpr uint64_t kRealBytes = 8, kUuidBytes = 16;
  switch (type) {
    case ThriftType::yes:
    case ThriftType::no: return;
    case ThriftType::i8: return pass(1);
    case ThriftType::i16:
    case ThriftType::i32:
    case ThriftType::i64: static_cast<void>(varint()); return;
    case ThriftType::real: return pass(kRealBytes);
    case ThriftType::binary: static_cast<void>(binary(type)); return;
    case ThriftType::uuid: return pass(kUuidBytes);
    case ThriftType::structure: return each_field([](int64_t, ThriftType) { return false; });
    case ThriftType::list:
    case ThriftType::set:
      enter();
      each_element(type, [](ThriftType) { return false; });
      --depth_;
      return;
    case ThriftType::map: {
      enter();
      const uint64_t size = varint();
      const uint8_t types = size > 0 ? byte() : 0;
      for (uint64_t i = 0; i < size; ++i) {
        skip_element(static_cast<ThriftType>(types >> 4));
        skip_element(static_cast<ThriftType>(types & 0xF));
      }
      --depth_;
      return;
    }
  }
  require(false, "a type of the compact protocol");
}

// Booleans of a list take a byte; those of a struct stand in the type.
void ThriftReader::skip_element(ThriftType type) {
  type == ThriftType::yes || type == ThriftType::no ? pass(1) : skip(type);
}

}  // namespace hebb
